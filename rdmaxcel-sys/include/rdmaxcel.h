/*
 * WQEs, doorbells and CQEs of an mlx5 queue pair, for host and device code. Needs nothing of rdma-core.
 *
 * The rings are described by `struct rdmaxcel_qp`, which whoever created the queue pair fills in. One side posts
 * to a queue pair and one side polls a completion queue at a time: either this header or the Rust code, never both.
 *
 * With RDMAXCEL_CUDA defined and a CUDA compiler, every function is for both sides.
 *
 * Layouts: Adapters PRM, "Send WQE format" and "Completion queue entry format". Order towards the device: rdma-core,
 * util/udma_barrier.h and providers/mlx5/qp.c.
 */
#ifndef RDMAXCEL_H
#define RDMAXCEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef RDMAXCEL_CUDA
#define RDMAXCEL_FN static __host__ __device__ __forceinline__
#else
#define RDMAXCEL_FN static inline
#endif

#ifdef __cplusplus
#define RDMAXCEL_STATIC_ASSERT(what) static_assert(what, #what)
#else
#define RDMAXCEL_STATIC_ASSERT(what) _Static_assert(what, #what)
#endif

/* Results below zero are errors. */
enum {
    RDMAXCEL_SUCCESS = 0,
    /* An argument contradicts the queue or the PRM: nothing was written. */
    RDMAXCEL_INVALID = -1,
    /* No room for it: nothing was written. */
    RDMAXCEL_QUEUE_FULL = -14,
    /* The completion queue holds what was never asked for; it and its queue pairs are dead. */
    RDMAXCEL_CQ_POLL_FAILED = -16,
    /* A completion with an error: its details are in the result, and it was taken. */
    RDMAXCEL_COMPLETION_FAILED = -17,
    /* The operation is none that this header builds. */
    RDMAXCEL_UNSUPPORTED_OP = -20
};

enum {
    RDMAXCEL_OP_WRITE = 0x08,
    RDMAXCEL_OP_WRITE_IMM = 0x09,
    RDMAXCEL_OP_SEND = 0x0a,
    RDMAXCEL_OP_SEND_IMM = 0x0b,
    RDMAXCEL_OP_READ = 0x10,
    RDMAXCEL_OP_COMPARE_SWAP = 0x11,
    RDMAXCEL_OP_FETCH_ADD = 0x12
};

/* Bits of `struct rdmaxcel_wr::flags`. */
enum { RDMAXCEL_SOLICITED = 0x02, RDMAXCEL_SIGNALED = 0x08, RDMAXCEL_FENCE = 0x80 };

/* The send ring of a queue pair, its doorbell record and its doorbell register. */
struct rdmaxcel_send_ring {
    uint64_t *buf;      /* wqe_cnt basic blocks of 64 bytes */
    uint32_t *dbrec;    /* word 0 counts receives, word 1 send blocks */
    uint8_t *bf_reg;    /* two halves of bf_size bytes, or one place where that is 0 */
    uint32_t wqe_cnt;   /* a power of two */
    uint32_t bf_size;
    uint32_t bf_offset; /* the half to write next */
    uint32_t qp_num;
};

/* The receive ring. */
struct rdmaxcel_recv_ring {
    uint64_t *buf;    /* wqe_cnt receives of `stride` bytes */
    uint32_t wqe_cnt; /* a power of two, or 0 */
    uint32_t stride;  /* bytes */
};

/* A completion queue's ring. */
struct rdmaxcel_cq_ring {
    uint64_t *buf;
    uint32_t *dbrec;   /* word 0 is the consumer index */
    uint32_t cqe_cnt;  /* a power of two */
    uint32_t cqe_size; /* bytes: 64, or 128 with the entry in the second half */
};

struct rdmaxcel_completion_cache;

/* A queue pair's state, shared by Rust, C and device code. The counters are atomic: use the functions below. */
struct rdmaxcel_qp {
    void *ibv_qp;
    void *send_cq;
    void *recv_cq;
    struct rdmaxcel_send_ring sq;
    struct rdmaxcel_recv_ring rq;
    struct rdmaxcel_cq_ring send_ring;
    struct rdmaxcel_cq_ring recv_ring;
    uint64_t send_wqe_idx;  /* basic blocks built */
    uint64_t send_db_idx;   /* of those, rung */
    uint64_t send_cq_idx;   /* completions taken off send_ring */
    uint64_t recv_wqe_idx;  /* receives built */
    uint64_t recv_db_idx;   /* of those, published */
    uint64_t recv_cq_idx;   /* completions taken off recv_ring */
    uint64_t send_last_idx; /* first block of the last WQE built */
    uint64_t send_done_idx; /* basic blocks whose requests are known to be finished */
    uint64_t rts_timestamp; /* CLOCK_MONOTONIC at RTS, nanoseconds; UINT64_MAX before */
    struct rdmaxcel_completion_cache *send_cache;
    struct rdmaxcel_completion_cache *recv_cache;
};

/* A registered local range. */
struct rdmaxcel_sge {
    uint64_t addr;
    uint32_t length; /* bytes, 1 to 2^31 - 1 */
    uint32_t lkey;
};

/* A send-queue request: ranges, or inline bytes, or neither. */
struct rdmaxcel_wr {
    uint64_t raddr;
    uint64_t operand; /* fetch-add: what is added; compare-swap: the new value */
    uint64_t compare; /* compare-swap only */
    const struct rdmaxcel_sge *sges;
    const uint8_t *inline_data;
    uint32_t rkey;
    uint32_t imm; /* host order */
    uint32_t num_sge;
    uint32_t inline_len; /* bytes */
    uint8_t opcode;
    uint8_t flags;
    uint8_t reserved[6];
};

/* A completion. */
struct rdmaxcel_wc {
    uint32_t qp_num;
    uint32_t byte_len; /* of reads, atomics and receives */
    uint32_t imm;      /* host order */
    uint16_t wqe_counter;
    uint8_t cqe_opcode;  /* MLX5_CQE_* */
    uint8_t send_opcode; /* of a requester's completion: RDMAXCEL_OP_* */
    uint8_t syndrome;    /* of a failed one */
    uint8_t vendor_err;
    uint8_t reserved[2];
};

RDMAXCEL_STATIC_ASSERT(sizeof(struct rdmaxcel_send_ring) == 40);
RDMAXCEL_STATIC_ASSERT(sizeof(struct rdmaxcel_recv_ring) == 16);
RDMAXCEL_STATIC_ASSERT(sizeof(struct rdmaxcel_cq_ring) == 24);
RDMAXCEL_STATIC_ASSERT(sizeof(struct rdmaxcel_sge) == 16);
RDMAXCEL_STATIC_ASSERT(sizeof(struct rdmaxcel_wr) == 64);
RDMAXCEL_STATIC_ASSERT(offsetof(struct rdmaxcel_wr, opcode) == 56);
RDMAXCEL_STATIC_ASSERT(sizeof(struct rdmaxcel_wc) == 20);
RDMAXCEL_STATIC_ASSERT(offsetof(struct rdmaxcel_wc, syndrome) == 16);
RDMAXCEL_STATIC_ASSERT(offsetof(struct rdmaxcel_qp, sq) == 24);
RDMAXCEL_STATIC_ASSERT(offsetof(struct rdmaxcel_qp, send_wqe_idx) == 128);
RDMAXCEL_STATIC_ASSERT(offsetof(struct rdmaxcel_qp, rts_timestamp) == 192);
RDMAXCEL_STATIC_ASSERT(sizeof(struct rdmaxcel_qp) == 216);

/* ---- order towards and from the device ---- */

#if defined(__CUDA_ARCH__)
#define RDMAXCEL_TO_DEVICE() __threadfence_system()
#define RDMAXCEL_FROM_DEVICE() __threadfence_system()
#define RDMAXCEL_WC_START() __threadfence_system()
#define RDMAXCEL_FLUSH() __threadfence_system()
#elif defined(__x86_64__)
#define RDMAXCEL_TO_DEVICE() __asm__ volatile("" ::: "memory")
#define RDMAXCEL_FROM_DEVICE() __asm__ volatile("lfence" ::: "memory")
#define RDMAXCEL_WC_START() __asm__ volatile("sfence" ::: "memory")
#define RDMAXCEL_FLUSH() __asm__ volatile("sfence" ::: "memory")
#elif defined(__aarch64__)
#define RDMAXCEL_TO_DEVICE() __asm__ volatile("dmb oshst" ::: "memory")
#define RDMAXCEL_FROM_DEVICE() __asm__ volatile("dmb oshld" ::: "memory")
#define RDMAXCEL_WC_START() __asm__ volatile("dsb st" ::: "memory")
#define RDMAXCEL_FLUSH() __asm__ volatile("dsb st" ::: "memory")
#else
#error "rdmaxcel.h needs 8-byte stores and device barriers it knows: x86-64, aarch64 or CUDA"
#endif

/* One 8-byte store or load, whatever the compiler would prefer. */
RDMAXCEL_FN void rdmaxcel_store64(uint64_t *at, uint64_t value) { *(volatile uint64_t *)at = value; }
RDMAXCEL_FN uint64_t rdmaxcel_load64(const uint64_t *at) { return *(const volatile uint64_t *)at; }
RDMAXCEL_FN void rdmaxcel_store32(uint32_t *at, uint32_t value) { *(volatile uint32_t *)at = value; }

/* Every supported host and every GPU is little endian. */
RDMAXCEL_FN uint32_t rdmaxcel_be32(uint32_t v) {
    return v >> 24 | (v >> 8 & 0xff00u) | (v << 8 & 0xff0000u) | v << 24;
}
RDMAXCEL_FN uint64_t rdmaxcel_be64(uint64_t v) {
    return (uint64_t)rdmaxcel_be32((uint32_t)v) << 32 | rdmaxcel_be32((uint32_t)(v >> 32));
}

/* ---- counters ---- */

#if defined(__CUDA_ARCH__)
RDMAXCEL_FN uint64_t rdmaxcel_get(const uint64_t *at) { return *(const volatile uint64_t *)at; }
RDMAXCEL_FN void rdmaxcel_set(uint64_t *at, uint64_t v) {
    __threadfence_system();
    *(volatile uint64_t *)at = v;
}
#else
RDMAXCEL_FN uint64_t rdmaxcel_get(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
RDMAXCEL_FN void rdmaxcel_set(uint64_t *at, uint64_t v) { __atomic_store_n(at, v, __ATOMIC_SEQ_CST); }
#endif

/* ---- work queue entries ---- */

enum { RDMAXCEL_MAX_SEGMENTS = 63, RDMAXCEL_SEGMENTS_PER_BLOCK = 4 };

RDMAXCEL_FN int rdmaxcel_is_atomic(uint8_t opcode) {
    return opcode == RDMAXCEL_OP_COMPARE_SWAP || opcode == RDMAXCEL_OP_FETCH_ADD;
}

/* 16-byte segments between control and data, or an error. */
RDMAXCEL_FN int rdmaxcel_fixed_segments(uint8_t opcode) {
    switch (opcode) {
    case RDMAXCEL_OP_WRITE:
    case RDMAXCEL_OP_WRITE_IMM:
    case RDMAXCEL_OP_READ:
        return 1;
    case RDMAXCEL_OP_COMPARE_SWAP:
    case RDMAXCEL_OP_FETCH_ADD:
        return 2;
    case RDMAXCEL_OP_SEND:
    case RDMAXCEL_OP_SEND_IMM:
        return 0;
    default:
        return RDMAXCEL_UNSUPPORTED_OP;
    }
}

/* Length of the request's WQE in segments, or an error. Everything about lengths is checked here. */
RDMAXCEL_FN int rdmaxcel_wqe_segments(const struct rdmaxcel_wr *wr) {
    int fixed = rdmaxcel_fixed_segments(wr->opcode);
    if (fixed < 0) return fixed;
    if (wr->inline_len > 0) {
        if (wr->num_sge > 0 || wr->inline_data == NULL || wr->opcode == RDMAXCEL_OP_READ ||
            rdmaxcel_is_atomic(wr->opcode) || wr->inline_len > RDMAXCEL_MAX_SEGMENTS * 16u)
            return RDMAXCEL_INVALID;
        fixed += (int)((4 + wr->inline_len + 15) / 16);
    } else {
        if (wr->num_sge > RDMAXCEL_MAX_SEGMENTS || (wr->num_sge > 0 && wr->sges == NULL)) return RDMAXCEL_INVALID;
        for (uint32_t i = 0; i < wr->num_sge; i++)
            /* A count of 0 can mean 2^31. */
            if (wr->sges[i].length == 0 || wr->sges[i].length >> 31) return RDMAXCEL_INVALID;
        if (rdmaxcel_is_atomic(wr->opcode) &&
            (wr->num_sge != 1 || wr->sges[0].length != 8 || (wr->raddr & 7) != 0))
            return RDMAXCEL_INVALID;
        fixed += (int)wr->num_sge;
    }
    return 1 + fixed > RDMAXCEL_MAX_SEGMENTS ? RDMAXCEL_INVALID : 1 + fixed;
}

/* Writes one segment; positions count on past the ring's end and wrap here. */
RDMAXCEL_FN void rdmaxcel_segment(const struct rdmaxcel_send_ring *sq, uint64_t at, uint64_t a, uint64_t b) {
    uint64_t *to = sq->buf + (at & ((uint64_t)sq->wqe_cnt * 4 - 1)) * 2;
    rdmaxcel_store64(to, a);
    rdmaxcel_store64(to + 1, b);
}

/* Byte `i` of the inline part: header, data, padding. */
RDMAXCEL_FN uint64_t rdmaxcel_inline_byte(const struct rdmaxcel_wr *wr, uint32_t i) {
    if (i < 4) return (wr->inline_len | 0x80000000u) >> (24 - 8 * i) & 0xff;
    return i - 4 < wr->inline_len ? wr->inline_data[i - 4] : 0;
}

RDMAXCEL_FN uint64_t rdmaxcel_inline_word(const struct rdmaxcel_wr *wr, uint32_t from) {
    uint64_t word = 0;
    for (uint32_t i = 0; i < 8; i++) word |= rdmaxcel_inline_byte(wr, from + i) << (8 * i);
    return word;
}

/*
 * Writes the request's WQE at basic block `index` and answers how many blocks it takes, or an error, after which
 * nothing was written. Whether the blocks are free is the caller's to know. The device sees nothing of it before
 * rdmaxcel_ring.
 */
RDMAXCEL_FN int rdmaxcel_wqe_build(const struct rdmaxcel_send_ring *sq, uint64_t index, const struct rdmaxcel_wr *wr) {
    int segments = rdmaxcel_wqe_segments(wr);
    if (segments < 0) return segments;
    int blocks = (segments + RDMAXCEL_SEGMENTS_PER_BLOCK - 1) / RDMAXCEL_SEGMENTS_PER_BLOCK;
    if ((uint32_t)blocks > sq->wqe_cnt) return RDMAXCEL_INVALID;
    uint64_t at = index * RDMAXCEL_SEGMENTS_PER_BLOCK;
    int imm = wr->opcode == RDMAXCEL_OP_WRITE_IMM || wr->opcode == RDMAXCEL_OP_SEND_IMM;
    /* The index has 16 bits here: more would reach the opcode modifier. */
    uint64_t control = (uint64_t)(index & 0xffff) << 40 | (uint64_t)wr->opcode << 32 |
                       (uint64_t)(sq->qp_num & 0xffffff) << 8 | (uint64_t)segments;
    uint64_t flags = wr->flags & (RDMAXCEL_SOLICITED | RDMAXCEL_SIGNALED | RDMAXCEL_FENCE);
    rdmaxcel_segment(sq, at++, rdmaxcel_be64(control), rdmaxcel_be64(flags << 32 | (imm ? wr->imm : 0)));
    if (rdmaxcel_fixed_segments(wr->opcode) > 0)
        rdmaxcel_segment(sq, at++, rdmaxcel_be64(wr->raddr), rdmaxcel_be64((uint64_t)wr->rkey << 32));
    if (rdmaxcel_is_atomic(wr->opcode)) {
        uint64_t compare = wr->opcode == RDMAXCEL_OP_COMPARE_SWAP ? wr->compare : 0;
        rdmaxcel_segment(sq, at++, rdmaxcel_be64(wr->operand), rdmaxcel_be64(compare));
    }
    for (uint32_t i = 0; i < 4 + wr->inline_len && wr->inline_len > 0; i += 16)
        rdmaxcel_segment(sq, at++, rdmaxcel_inline_word(wr, i), rdmaxcel_inline_word(wr, i + 8));
    for (uint32_t i = 0; i < wr->num_sge; i++) {
        const struct rdmaxcel_sge *sge = &wr->sges[i];
        rdmaxcel_segment(sq, at++, rdmaxcel_be64((uint64_t)sge->length << 32 | sge->lkey), rdmaxcel_be64(sge->addr));
    }
    return blocks;
}

/*
 * Makes all WQEs before block `next` visible, with one record and one register write. `last` is the first block of
 * the last WQE, whose control segment is what the register gets.
 */
RDMAXCEL_FN void rdmaxcel_ring(struct rdmaxcel_send_ring *sq, uint64_t next, uint64_t last) {
    uint64_t control = rdmaxcel_load64(sq->buf + (last & (sq->wqe_cnt - 1)) * 8);
    RDMAXCEL_TO_DEVICE();
    rdmaxcel_store32(sq->dbrec + 1, rdmaxcel_be32((uint32_t)(next & 0xffff)));
    RDMAXCEL_WC_START();
    rdmaxcel_store64((uint64_t *)(sq->bf_reg + sq->bf_offset), control);
    RDMAXCEL_FLUSH();
    sq->bf_offset ^= sq->bf_size;
}

/* Writes receive number `index`, of `num_sge` ranges; ended by the key that ends a list where it is short. */
RDMAXCEL_FN int rdmaxcel_recv_build(const struct rdmaxcel_recv_ring *rq, uint64_t index,
                                    const struct rdmaxcel_sge *sges, uint32_t num_sge) {
    uint32_t most = rq->stride / 16;
    if (rq->wqe_cnt == 0 || num_sge > most || (num_sge > 0 && sges == NULL)) return RDMAXCEL_INVALID;
    for (uint32_t i = 0; i < num_sge; i++)
        if (sges[i].length == 0 || sges[i].length >> 31) return RDMAXCEL_INVALID;
    uint64_t *at = rq->buf + (index & (rq->wqe_cnt - 1)) * most * 2;
    for (uint32_t i = 0; i < num_sge; i++) {
        rdmaxcel_store64(at++, rdmaxcel_be64((uint64_t)sges[i].length << 32 | sges[i].lkey));
        rdmaxcel_store64(at++, rdmaxcel_be64(sges[i].addr));
    }
    if (num_sge < most) {
        rdmaxcel_store64(at++, rdmaxcel_be64(0x100));
        rdmaxcel_store64(at, 0);
    }
    return 1;
}

/* Makes all receives before number `next` visible. Not in RESET. */
RDMAXCEL_FN void rdmaxcel_recv_publish(const struct rdmaxcel_send_ring *sq, uint64_t next) {
    RDMAXCEL_TO_DEVICE();
    rdmaxcel_store32(sq->dbrec, rdmaxcel_be32((uint32_t)(next & 0xffff)));
}

/* ---- completion queue entries ---- */

/*
 * Looks at entry number `index`: 0 where the device has not written it, 1 for a success, or
 * RDMAXCEL_COMPLETION_FAILED, in both of which `out` says all of it and the entry is to be released; or
 * RDMAXCEL_CQ_POLL_FAILED for an entry that was never asked for.
 */
RDMAXCEL_FN int rdmaxcel_cqe_poll(const struct rdmaxcel_cq_ring *cq, uint64_t index, struct rdmaxcel_wc *out) {
    uint32_t words = cq->cqe_size / 8;
    const uint64_t *cqe = cq->buf + (index & (cq->cqe_cnt - 1)) * words + words - 8;
    uint32_t op_own = (uint32_t)(rdmaxcel_load64(cqe + 7) >> 56);
    if (op_own >> 4 == 0xf || (op_own & 1) != ((index & cq->cqe_cnt) != 0)) return 0;
    RDMAXCEL_FROM_DEVICE();
    uint64_t tail = rdmaxcel_be64(rdmaxcel_load64(cqe + 7));
    uint64_t detail = rdmaxcel_be64(rdmaxcel_load64(cqe + 6));
    out->qp_num = (uint32_t)(tail >> 32) & 0xffffff;
    out->byte_len = (uint32_t)rdmaxcel_be64(rdmaxcel_load64(cqe + 5));
    out->imm = (uint32_t)rdmaxcel_be64(rdmaxcel_load64(cqe + 4));
    out->wqe_counter = (uint16_t)(tail >> 16);
    out->cqe_opcode = (uint8_t)(op_own >> 4);
    out->send_opcode = (uint8_t)(tail >> 56);
    out->syndrome = out->vendor_err = 0;
    if ((op_own & 0xc) != 0) return RDMAXCEL_CQ_POLL_FAILED;
    switch (op_own >> 4) {
    case 0: /* of a request */
    case 1: /* of a receive: write with immediate, send, send with immediate */
    case 2:
    case 3:
        return 1;
    case 13: /* of a failed request */
    case 14: /* of a failed receive */
        out->syndrome = (uint8_t)detail;
        out->vendor_err = (uint8_t)(detail >> 8);
        return RDMAXCEL_COMPLETION_FAILED;
    default:
        return RDMAXCEL_CQ_POLL_FAILED;
    }
}

/* Hands all entries before number `next` back to the device; their bodies have been read. */
RDMAXCEL_FN void rdmaxcel_cq_release(const struct rdmaxcel_cq_ring *cq, uint64_t next) {
#if defined(__CUDA_ARCH__)
    __threadfence_system();
#else
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
    rdmaxcel_store32(cq->dbrec, rdmaxcel_be32((uint32_t)(next & 0xffffff)));
}

/* ---- a queue pair's own counters around these ---- */

/* Builds a request behind the last; blocks taken, or an error. */
RDMAXCEL_FN int rdmaxcel_enqueue(struct rdmaxcel_qp *qp, const struct rdmaxcel_wr *wr) {
    int segments = rdmaxcel_wqe_segments(wr);
    if (segments < 0) return segments;
    uint64_t next = rdmaxcel_get(&qp->send_wqe_idx);
    uint64_t need = ((uint64_t)segments + 3) / 4, used = next - rdmaxcel_get(&qp->send_done_idx);
    if (used + need > qp->sq.wqe_cnt) return RDMAXCEL_QUEUE_FULL;
    int blocks = rdmaxcel_wqe_build(&qp->sq, next, wr);
    if (blocks < 0) return blocks;
    rdmaxcel_set(&qp->send_last_idx, next);
    rdmaxcel_set(&qp->send_wqe_idx, next + (uint64_t)blocks);
    return blocks;
}

/* Rings all that is built; nothing to do is fine. */
RDMAXCEL_FN void rdmaxcel_ring_all(struct rdmaxcel_qp *qp) {
    uint64_t next = rdmaxcel_get(&qp->send_wqe_idx);
    if (next == rdmaxcel_get(&qp->send_db_idx)) return;
    rdmaxcel_ring(&qp->sq, next, rdmaxcel_get(&qp->send_last_idx));
    rdmaxcel_set(&qp->send_db_idx, next);
}

/* Takes one completion of the send queue, as rdmaxcel_cqe_poll, and frees what it retires. */
RDMAXCEL_FN int rdmaxcel_poll_send(struct rdmaxcel_qp *qp, struct rdmaxcel_wc *out) {
    uint64_t index = rdmaxcel_get(&qp->send_cq_idx);
    int got = rdmaxcel_cqe_poll(&qp->send_ring, index, out);
    if (got == 0 || got == RDMAXCEL_CQ_POLL_FAILED) return got;
    uint64_t done = rdmaxcel_get(&qp->send_done_idx);
    uint64_t first = done + (uint16_t)(out->wqe_counter - (uint16_t)done);
    uint64_t control = rdmaxcel_be64(rdmaxcel_load64(qp->sq.buf + (first & (qp->sq.wqe_cnt - 1)) * 8));
    rdmaxcel_set(&qp->send_done_idx, first + ((control & 0x3f) + 3) / 4);
    rdmaxcel_cq_release(&qp->send_ring, index + 1);
    rdmaxcel_set(&qp->send_cq_idx, index + 1);
    return got;
}

/* ---- the shim: csrc/rdmaxcel.c, host only ---- */

#ifdef __cplusplus
extern "C" {
#endif

/* A new state block over the rings of `from`, with counters at 0 and empty caches; NULL and errno where a ring
 * can not be one (EINVAL) or memory is short. The verbs objects stay their owner's. */
struct rdmaxcel_qp *rdmaxcel_qp_create(const struct rdmaxcel_qp *from);
/* Frees the block; the completions that were left in its caches. NULL is fine. */
uint32_t rdmaxcel_qp_destroy(struct rdmaxcel_qp *qp);
void *rdmaxcel_qp_get_ibv_qp(const struct rdmaxcel_qp *qp);

/* Each answers the old value; NULL counts nothing. */
uint64_t rdmaxcel_qp_fetch_add_send_wqe_idx(struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_fetch_add_send_db_idx(struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_fetch_add_send_cq_idx(struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_fetch_add_recv_wqe_idx(struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_fetch_add_recv_db_idx(struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_fetch_add_recv_cq_idx(struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_load_send_wqe_idx(const struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_load_send_db_idx(const struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_load_send_cq_idx(const struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_load_recv_wqe_idx(const struct rdmaxcel_qp *qp);
uint64_t rdmaxcel_qp_load_recv_cq_idx(const struct rdmaxcel_qp *qp);
/* UINT64_MAX for NULL and before RTS. */
uint64_t rdmaxcel_qp_load_rts_timestamp(const struct rdmaxcel_qp *qp);
void rdmaxcel_qp_store_send_db_idx(struct rdmaxcel_qp *qp, uint64_t value);
void rdmaxcel_qp_store_rts_timestamp(struct rdmaxcel_qp *qp, uint64_t value);
/* Stores the time of the monotonic clock as the moment of RTS. */
void rdmaxcel_qp_reached_rts(struct rdmaxcel_qp *qp);

/* A cache of completions that a poller took for somebody else: 128, matched by request and queue pair. */
struct rdmaxcel_completion_cache *rdmaxcel_qp_get_send_cache(const struct rdmaxcel_qp *qp);
struct rdmaxcel_completion_cache *rdmaxcel_qp_get_recv_cache(const struct rdmaxcel_qp *qp);
/* RDMAXCEL_QUEUE_FULL where 128 wait already: nothing is ever dropped. */
int rdmaxcel_cache_put(struct rdmaxcel_completion_cache *cache, uint64_t wr_id, const struct rdmaxcel_wc *wc);
/* 1 and the oldest one of that request and queue pair, or 0. */
int rdmaxcel_cache_take(struct rdmaxcel_completion_cache *cache, uint64_t wr_id, uint32_t qp_num,
                        struct rdmaxcel_wc *out);

/* The inline functions above for callers that can not include them. */
int rdmaxcel_host_wqe_build(const struct rdmaxcel_send_ring *sq, uint64_t index, const struct rdmaxcel_wr *wr);
void rdmaxcel_host_ring(struct rdmaxcel_send_ring *sq, uint64_t next, uint64_t last);
int rdmaxcel_host_recv_build(const struct rdmaxcel_recv_ring *rq, uint64_t index, const struct rdmaxcel_sge *sges,
                             uint32_t num_sge);
int rdmaxcel_host_cqe_poll(const struct rdmaxcel_cq_ring *cq, uint64_t index, struct rdmaxcel_wc *out);
int rdmaxcel_host_enqueue(struct rdmaxcel_qp *qp, const struct rdmaxcel_wr *wr);
void rdmaxcel_host_ring_all(struct rdmaxcel_qp *qp);
int rdmaxcel_host_poll_send(struct rdmaxcel_qp *qp, struct rdmaxcel_wc *out);

/* What an error means, in words. */
const char *rdmaxcel_error_string(int error);

#ifdef __cplusplus
}
#endif

#endif
