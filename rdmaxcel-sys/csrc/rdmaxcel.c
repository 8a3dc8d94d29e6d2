/* The host's part of the shim: state blocks, counters, caches. What touches rings is in the header. */
#define _POSIX_C_SOURCE 200809L
#include "rdmaxcel.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CACHE_ENTRIES = 128 };

struct entry {
    uint64_t wr_id;
    struct rdmaxcel_wc wc;
};

/* Oldest first. */
struct rdmaxcel_completion_cache {
    pthread_mutex_t lock;
    uint32_t used;
    struct entry entries[CACHE_ENTRIES];
};

static struct rdmaxcel_completion_cache *cache_create(void) {
    struct rdmaxcel_completion_cache *cache = calloc(1, sizeof *cache);
    if (cache) pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

static uint32_t cache_destroy(struct rdmaxcel_completion_cache *cache) {
    if (!cache) return 0;
    uint32_t left = cache->used;
    pthread_mutex_destroy(&cache->lock);
    free(cache);
    return left;
}

int rdmaxcel_cache_put(struct rdmaxcel_completion_cache *cache, uint64_t wr_id, const struct rdmaxcel_wc *wc) {
    if (!cache || !wc) return RDMAXCEL_INVALID;
    int done = RDMAXCEL_QUEUE_FULL;
    pthread_mutex_lock(&cache->lock);
    if (cache->used < CACHE_ENTRIES) {
        cache->entries[cache->used++] = (struct entry){wr_id, *wc};
        done = RDMAXCEL_SUCCESS;
    }
    pthread_mutex_unlock(&cache->lock);
    return done;
}

int rdmaxcel_cache_take(struct rdmaxcel_completion_cache *cache, uint64_t wr_id, uint32_t qp_num,
                        struct rdmaxcel_wc *out) {
    if (!cache || !out) return 0;
    int found = 0;
    pthread_mutex_lock(&cache->lock);
    for (uint32_t i = 0; i < cache->used && !found; i++) {
        struct entry *entry = &cache->entries[i];
        if (entry->wr_id != wr_id || entry->wc.qp_num != qp_num) continue;
        *out = entry->wc;
        cache->used--;
        memmove(entry, entry + 1, (cache->used - i) * sizeof *entry);
        found = 1;
    }
    pthread_mutex_unlock(&cache->lock);
    return found;
}

static int power_of_two(uint32_t n) { return n != 0 && (n & (n - 1)) == 0; }

static int cq_is_sound(const struct rdmaxcel_cq_ring *cq) {
    return cq->buf && cq->dbrec && power_of_two(cq->cqe_cnt) && (cq->cqe_size == 64 || cq->cqe_size == 128);
}

static int is_sound(const struct rdmaxcel_qp *qp) {
    const struct rdmaxcel_send_ring *sq = &qp->sq;
    const struct rdmaxcel_recv_ring *rq = &qp->rq;
    int send = sq->buf && sq->dbrec && sq->bf_reg && power_of_two(sq->wqe_cnt) && sq->wqe_cnt <= 65536 &&
               sq->bf_size % 8 == 0;
    int recv = rq->wqe_cnt == 0 || (rq->buf && power_of_two(rq->wqe_cnt) && rq->stride % 16 == 0 && rq->stride > 0);
    return send && recv && cq_is_sound(&qp->send_ring) && cq_is_sound(&qp->recv_ring);
}

struct rdmaxcel_qp *rdmaxcel_qp_create(const struct rdmaxcel_qp *from) {
    if (!from || !is_sound(from)) {
        errno = EINVAL;
        return NULL;
    }
    struct rdmaxcel_qp *qp = calloc(1, sizeof *qp);
    if (!qp) return NULL;
    qp->ibv_qp = from->ibv_qp;
    qp->send_cq = from->send_cq;
    qp->recv_cq = from->recv_cq;
    qp->sq = from->sq;
    qp->rq = from->rq;
    qp->send_ring = from->send_ring;
    qp->recv_ring = from->recv_ring;
    qp->rts_timestamp = UINT64_MAX;
    qp->send_cache = cache_create();
    qp->recv_cache = cache_create();
    if (!qp->send_cache || !qp->recv_cache) {
        rdmaxcel_qp_destroy(qp);
        errno = ENOMEM;
        return NULL;
    }
    return qp;
}

uint32_t rdmaxcel_qp_destroy(struct rdmaxcel_qp *qp) {
    if (!qp) return 0;
    uint32_t left = cache_destroy(qp->send_cache) + cache_destroy(qp->recv_cache);
    free(qp);
    return left;
}

void *rdmaxcel_qp_get_ibv_qp(const struct rdmaxcel_qp *qp) { return qp ? qp->ibv_qp : NULL; }

#define FETCH_ADD(name)                                                                                              \
    uint64_t rdmaxcel_qp_fetch_add_##name(struct rdmaxcel_qp *qp) {                                                  \
        return qp ? __atomic_fetch_add(&qp->name, 1, __ATOMIC_SEQ_CST) : 0;                                          \
    }
#define LOAD(name, none)                                                                                             \
    uint64_t rdmaxcel_qp_load_##name(const struct rdmaxcel_qp *qp) { return qp ? rdmaxcel_get(&qp->name) : none; }
#define STORE(name)                                                                                                  \
    void rdmaxcel_qp_store_##name(struct rdmaxcel_qp *qp, uint64_t value) {                                          \
        if (qp) rdmaxcel_set(&qp->name, value);                                                                      \
    }

FETCH_ADD(send_wqe_idx)
FETCH_ADD(send_db_idx)
FETCH_ADD(send_cq_idx)
FETCH_ADD(recv_wqe_idx)
FETCH_ADD(recv_db_idx)
FETCH_ADD(recv_cq_idx)
LOAD(send_wqe_idx, 0)
LOAD(send_db_idx, 0)
LOAD(send_cq_idx, 0)
LOAD(recv_wqe_idx, 0)
LOAD(recv_cq_idx, 0)
LOAD(rts_timestamp, UINT64_MAX)
STORE(send_db_idx)
STORE(rts_timestamp)

void rdmaxcel_qp_reached_rts(struct rdmaxcel_qp *qp) {
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    rdmaxcel_qp_store_rts_timestamp(qp, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

struct rdmaxcel_completion_cache *rdmaxcel_qp_get_send_cache(const struct rdmaxcel_qp *qp) {
    return qp ? qp->send_cache : NULL;
}
struct rdmaxcel_completion_cache *rdmaxcel_qp_get_recv_cache(const struct rdmaxcel_qp *qp) {
    return qp ? qp->recv_cache : NULL;
}

int rdmaxcel_host_wqe_build(const struct rdmaxcel_send_ring *sq, uint64_t index, const struct rdmaxcel_wr *wr) {
    return rdmaxcel_wqe_build(sq, index, wr);
}
void rdmaxcel_host_ring(struct rdmaxcel_send_ring *sq, uint64_t next, uint64_t last) { rdmaxcel_ring(sq, next, last); }
int rdmaxcel_host_recv_build(const struct rdmaxcel_recv_ring *rq, uint64_t index, const struct rdmaxcel_sge *sges,
                             uint32_t num_sge) {
    return rdmaxcel_recv_build(rq, index, sges, num_sge);
}
int rdmaxcel_host_cqe_poll(const struct rdmaxcel_cq_ring *cq, uint64_t index, struct rdmaxcel_wc *out) {
    return rdmaxcel_cqe_poll(cq, index, out);
}
int rdmaxcel_host_enqueue(struct rdmaxcel_qp *qp, const struct rdmaxcel_wr *wr) { return rdmaxcel_enqueue(qp, wr); }
void rdmaxcel_host_ring_all(struct rdmaxcel_qp *qp) { rdmaxcel_ring_all(qp); }
int rdmaxcel_host_poll_send(struct rdmaxcel_qp *qp, struct rdmaxcel_wc *out) { return rdmaxcel_poll_send(qp, out); }

const char *rdmaxcel_error_string(int error) {
    switch (error) {
    case RDMAXCEL_SUCCESS:
        return "[RdmaXcel] success";
    case RDMAXCEL_INVALID:
        return "[RdmaXcel] an argument contradicts the queue or the PRM";
    case RDMAXCEL_QUEUE_FULL:
        return "[RdmaXcel] the queue is full";
    case RDMAXCEL_CQ_POLL_FAILED:
        return "[RdmaXcel] the completion queue holds what was never asked for";
    case RDMAXCEL_COMPLETION_FAILED:
        return "[RdmaXcel] a request completed with an error";
    case RDMAXCEL_UNSUPPORTED_OP:
        return "[RdmaXcel] unsupported operation";
    default:
        return "[RdmaXcel] unknown error";
    }
}
