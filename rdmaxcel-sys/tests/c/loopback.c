/*
 * A program on rdmaxcel.h: connects a queue pair to itself, and posts and polls through the header alone. Where the
 * queue pairs come from is in device.c.
 *
 *     cc -std=c11 -I include tests/c/loopback.c tests/c/device.c csrc/rdmaxcel.c -pthread -lmlx5 -libverbs -o loopback
 *     ./loopback [DEVICE]
 *
 * Prints a line for each thing that it did and checked. Where something differs it says what, and ends with 1.
 */
#define _POSIX_C_SOURCE 200809L
#include "device.h"

#include <infiniband/mlx5dv.h>

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Parts of the region, bytes from its start. */
enum { FROM = 0, TO = 4096, INBOX = 8192, WORD = 12288, RESULT = 12352 };
enum { LENGTH = 256 /* bytes */, PATIENCE = 30 /* seconds */ };

/* Of failed completions (Adapters PRM, "Error syndromes in CQE"). */
enum { SYNDROME_FLUSHED = 0x05, SYNDROME_REMOTE_ACCESS = 0x13 };

static struct rdmaxcel_sge range(const struct device *d, size_t at, uint32_t len) {
    return (struct rdmaxcel_sge){(uintptr_t)d->memory + at, len, d->mr->lkey};
}

static struct rdmaxcel_wr request(const struct device *d, uint8_t opcode, const struct rdmaxcel_sge *local,
                                  size_t remote) {
    return (struct rdmaxcel_wr){.raddr = (uintptr_t)d->memory + remote,
                                .rkey = d->mr->rkey,
                                .sges = local,
                                .num_sge = local ? 1 : 0,
                                .opcode = opcode,
                                .flags = RDMAXCEL_SIGNALED};
}

static void enqueue(struct rdmaxcel_qp *qp, const struct rdmaxcel_wr *wr, int blocks) {
    int got = rdmaxcel_enqueue(qp, wr);
    if (got < 0) fail("rdmaxcel_enqueue: %s", rdmaxcel_error_string(got));
    same("basic blocks of the request", got, blocks);
}

static void receive(struct rdmaxcel_qp *qp, struct rdmaxcel_sge into) {
    uint64_t index = rdmaxcel_get(&qp->recv_wqe_idx);
    same("rdmaxcel_recv_build", rdmaxcel_recv_build(&qp->rq, index, &into, 1), 1);
    rdmaxcel_set(&qp->recv_wqe_idx, index + 1);
    rdmaxcel_recv_publish(&qp->sq, index + 1);
    rdmaxcel_set(&qp->recv_db_idx, index + 1);
}

/* What rdmaxcel_poll_send is to the send queue. */
static int poll_recv(struct rdmaxcel_qp *qp, struct rdmaxcel_wc *out) {
    uint64_t index = rdmaxcel_get(&qp->recv_cq_idx);
    int got = rdmaxcel_cqe_poll(&qp->recv_ring, index, out);
    if (got == 0 || got == RDMAXCEL_CQ_POLL_FAILED) return got;
    rdmaxcel_cq_release(&qp->recv_ring, index + 1);
    rdmaxcel_set(&qp->recv_cq_idx, index + 1);
    return got;
}

typedef int poll_function(struct rdmaxcel_qp *, struct rdmaxcel_wc *);

static time_t seconds(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Polls until there is something, good or bad. */
static int next(poll_function *poll, struct rdmaxcel_qp *qp, struct rdmaxcel_wc *out) {
    time_t start = seconds();
    for (;;) {
        int got = poll(qp, out);
        if (got != 0) return got;
        if (seconds() - start > PATIENCE)
            fail("no completion of a %s after %d s", poll == poll_recv ? "receive" : "request", PATIENCE);
        sched_yield();
    }
}

/* The next completion, which must be a success of this queue pair and of the `number`th block or receive. */
static struct rdmaxcel_wc success(poll_function *poll, struct rdmaxcel_qp *qp, uint64_t number) {
    struct rdmaxcel_wc wc = {0};
    int got = next(poll, qp, &wc);
    if (got < 0)
        fail("the poll says %d: %s: request %u, syndrome %#x", got, rdmaxcel_error_string(got), wc.wqe_counter,
             wc.syndrome);
    same("poll of a success", got, 1);
    same("queue pair", wc.qp_num, qp->sq.qp_num);
    same(poll == poll_recv ? "number of the receive" : "number of the request", wc.wqe_counter, number & 0xffff);
    return wc;
}

static void all_retired(const struct rdmaxcel_qp *qp) {
    same("blocks in use", (long long)(rdmaxcel_get(&qp->send_wqe_idx) - rdmaxcel_get(&qp->send_done_idx)), 0);
}

static void nothing_more(struct rdmaxcel_qp *qp) {
    struct rdmaxcel_wc wc;
    same("poll of an empty send queue", rdmaxcel_poll_send(qp, &wc), 0);
    same("poll of an empty receive queue", poll_recv(qp, &wc), 0);
    all_retired(qp);
}

/* One request with a doorbell of its own, to its completion. */
static struct rdmaxcel_wc done(struct rdmaxcel_qp *qp, const struct rdmaxcel_wr *wr, int blocks) {
    uint64_t number = rdmaxcel_qp_load_send_wqe_idx(qp);
    enqueue(qp, wr, blocks);
    rdmaxcel_ring_all(qp);
    struct rdmaxcel_wc wc = success(rdmaxcel_poll_send, qp, number);
    same("operation completed", wc.send_opcode, wr->opcode);
    all_retired(qp);
    return wc;
}

/* New bytes to send, others everywhere that bytes arrive. */
static void fill(struct device *d, unsigned seed) {
    for (unsigned i = 0; i < TO; i++) d->memory[FROM + i] = (uint8_t)(seed * 131 + i * 7 + (i >> 8));
    memset(d->memory + TO, 0xee, WORD - TO);
}

/* ---- what is shown ---- */

static void write_and_read(struct device *d, struct rdmaxcel_qp *qp) {
    step = "write";
    fill(d, 1);
    struct rdmaxcel_sge halves[2] = {range(d, FROM, LENGTH / 2), range(d, FROM + LENGTH / 2, LENGTH / 2)};
    struct rdmaxcel_wr wr = request(d, RDMAXCEL_OP_WRITE, halves, TO);
    wr.num_sge = 2;
    done(qp, &wr, 1);
    same_bytes("what was written", d->memory + TO, d->memory + FROM, LENGTH);
    same("byte behind it", d->memory[TO + LENGTH], 0xee);
    printf("write: %d bytes of 2 ranges\n", LENGTH);

    step = "read";
    struct rdmaxcel_sge into = range(d, INBOX, LENGTH);
    wr = request(d, RDMAXCEL_OP_READ, &into, TO);
    same("bytes", done(qp, &wr, 1).byte_len, LENGTH);
    same_bytes("what was read", d->memory + INBOX, d->memory + FROM, LENGTH);
    printf("read: %d bytes\n", LENGTH);

    step = "inline";
    fill(d, 2);
    wr = request(d, RDMAXCEL_OP_WRITE, NULL, TO);
    wr.inline_data = d->memory + FROM;
    wr.inline_len = INLINE;
    done(qp, &wr, 2);
    same_bytes("what was written", d->memory + TO, d->memory + FROM, INLINE);
    same("byte behind it", d->memory[TO + INLINE], 0xee);
    printf("inline: %d bytes\n", INLINE);
}

static void receives(struct device *d, struct rdmaxcel_qp *qp) {
    static const struct {
        const char *name;
        uint8_t opcode, completion;
        uint32_t imm;
    } all[] = {{"write with immediate", RDMAXCEL_OP_WRITE_IMM, MLX5_CQE_RESP_WR_IMM, 0x01020304},
               {"send", RDMAXCEL_OP_SEND, MLX5_CQE_RESP_SEND, 0},
               {"send with immediate", RDMAXCEL_OP_SEND_IMM, MLX5_CQE_RESP_SEND_IMM, 0xfffefdfc}};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        step = all[i].name;
        fill(d, 3 + i);
        uint64_t number = rdmaxcel_qp_load_recv_wqe_idx(qp);
        receive(qp, range(d, INBOX, LENGTH + 16));
        struct rdmaxcel_sge from = range(d, FROM, LENGTH);
        struct rdmaxcel_wr wr = request(d, all[i].opcode, &from, TO);
        wr.imm = all[i].imm;
        done(qp, &wr, 1);
        struct rdmaxcel_wc wc = success(poll_recv, qp, number);
        same("kind of the receive's completion", wc.cqe_opcode, all[i].completion);
        same("bytes received", wc.byte_len, LENGTH);
        if (all[i].imm) same("immediate", wc.imm, all[i].imm);
        int written = all[i].opcode == RDMAXCEL_OP_WRITE_IMM;
        same_bytes("what arrived", d->memory + (written ? TO : INBOX), d->memory + FROM, LENGTH);
        same("byte elsewhere", d->memory[written ? INBOX : TO], 0xee);
        printf("%s: %d bytes, immediate %#x\n", step, LENGTH, all[i].imm);
    }
}

static void atomics(struct device *d, struct rdmaxcel_qp *qp) {
    uint64_t *word = (uint64_t *)(d->memory + WORD), *result = (uint64_t *)(d->memory + RESULT);
    struct rdmaxcel_sge into = range(d, RESULT, 8);
    step = "fetch-add";
    *word = 0x1122334455667788;
    struct rdmaxcel_wr wr = request(d, RDMAXCEL_OP_FETCH_ADD, &into, WORD);
    wr.operand = 0x0101010101010101;
    same("bytes", done(qp, &wr, 1).byte_len, 8);
    same("old value", (long long)*result, 0x1122334455667788);
    same("new value", (long long)*word, 0x1223344556677889);
    printf("fetch-add: %#llx\n", (unsigned long long)*word);

    step = "compare-swap";
    wr = request(d, RDMAXCEL_OP_COMPARE_SWAP, &into, WORD);
    wr.operand = 42;
    for (int equal = 0; equal < 2; equal++) {
        wr.compare = 0x1223344556677888 + (uint64_t)equal;
        same("bytes", done(qp, &wr, 1).byte_len, 8);
        same("old value", (long long)*result, 0x1223344556677889);
        same("new value", (long long)*word, equal ? 42 : 0x1223344556677889);
    }
    printf("compare-swap: %llu\n", (unsigned long long)*word);
}

/* As many requests as the ring takes, one doorbell, as many completions in their order. */
static void batch(struct device *d, struct rdmaxcel_qp *qp) {
    step = "batch";
    fill(d, 7);
    uint64_t first = rdmaxcel_qp_load_send_wqe_idx(qp), count = 0;
    uint32_t record = qp->sq.dbrec[1], half = qp->sq.bf_offset;
    for (;; count++) {
        struct rdmaxcel_sge from = range(d, FROM + count * 8, 8);
        struct rdmaxcel_wr wr = request(d, RDMAXCEL_OP_WRITE, &from, TO + count * 8);
        int got = rdmaxcel_enqueue(qp, &wr);
        if (got == RDMAXCEL_QUEUE_FULL) break;
        same("rdmaxcel_enqueue", got, 1);
    }
    same("requests that fit", (long long)count, qp->sq.wqe_cnt);
    same("doorbell record before the doorbell", qp->sq.dbrec[1], record);
    rdmaxcel_ring_all(qp);
    same("doorbell record", rdmaxcel_be32(qp->sq.dbrec[1]), (first + count) & 0xffff);
    same("half of the register, written once", qp->sq.bf_offset, half ^ qp->sq.bf_size);
    for (uint64_t i = 0; i < count; i++) success(rdmaxcel_poll_send, qp, first + i);
    same_bytes("what was written", d->memory + TO, d->memory + FROM, count * 8);
    same("byte behind it", d->memory[TO + count * 8], 0xee);
    nothing_more(qp);
    printf("batch: a ring of %u requests, 1 doorbell\n", qp->sq.wqe_cnt);
}

/* Inline write of two blocks, write, read of what that wrote, send: five blocks, one doorbell, one completion. */
static void round_of(struct device *d, struct rdmaxcel_qp *qp, unsigned number) {
    uint64_t first = rdmaxcel_qp_load_send_wqe_idx(qp), received = rdmaxcel_qp_load_recv_wqe_idx(qp);
    fill(d, number);
    receive(qp, range(d, INBOX, 32));
    struct rdmaxcel_sge ranges[3] = {range(d, FROM + 64, 64), range(d, INBOX + 64, 64), range(d, FROM + 128, 32)};
    struct rdmaxcel_wr put = request(d, RDMAXCEL_OP_WRITE, NULL, TO);
    put.inline_data = d->memory + FROM;
    put.inline_len = 50;
    struct rdmaxcel_wr others[3] = {request(d, RDMAXCEL_OP_WRITE, &ranges[0], TO + 64),
                                    request(d, RDMAXCEL_OP_READ, &ranges[1], TO + 64),
                                    request(d, RDMAXCEL_OP_SEND, &ranges[2], 0)};
    put.flags = others[0].flags = others[1].flags = 0;
    enqueue(qp, &put, 2);
    for (int i = 0; i < 3; i++) enqueue(qp, &others[i], 1);
    rdmaxcel_ring_all(qp);
    success(rdmaxcel_poll_send, qp, first + 4);
    same("bytes received", success(poll_recv, qp, received).byte_len, 32);
    same_bytes("written inline", d->memory + TO, d->memory + FROM, 50);
    same_bytes("written", d->memory + TO + 64, d->memory + FROM + 64, 64);
    same_bytes("read", d->memory + INBOX + 64, d->memory + FROM + 64, 64);
    same_bytes("received", d->memory + INBOX, d->memory + FROM + 128, 32);
    nothing_more(qp);
}

static void wraps(struct device *d, struct rdmaxcel_qp *qp) {
    step = "wraps";
    const unsigned times = 4;
    uint64_t sent = rdmaxcel_qp_load_send_wqe_idx(qp), received = rdmaxcel_qp_load_recv_wqe_idx(qp);
    unsigned number = 0;
    for (;; number++) {
        uint64_t completed = number, blocks = rdmaxcel_qp_load_send_wqe_idx(qp) - sent;
        uint64_t taken = rdmaxcel_qp_load_recv_cq_idx(qp) - received;
        if (blocks >= times * qp->sq.wqe_cnt && taken >= times * qp->rq.wqe_cnt &&
            completed >= times * qp->send_ring.cqe_cnt && completed >= times * qp->recv_ring.cqe_cnt)
            break;
        round_of(d, qp, number);
    }
    same("blocks posted", (long long)(rdmaxcel_qp_load_send_wqe_idx(qp) - sent), number * 5);
    same("receives taken", (long long)(rdmaxcel_qp_load_recv_cq_idx(qp) - received), number);
    printf("wraps: every ring %u times\n", times);
}

/* A failed completion says which request and why, is taken once, and what was posted behind it is flushed. */
static void error(struct device *d) {
    step = "error";
    fill(d, 9);
    struct rdmaxcel_qp *ends[2] = {create(d), create(d)}, *qp = ends[0];
    for (int i = 0; i < 2; i++) connect_to(d, ends[i], ends[1 - i]->sq.qp_num);
    struct rdmaxcel_sge from = range(d, FROM, LENGTH);
    struct rdmaxcel_wr right = request(d, RDMAXCEL_OP_WRITE, &from, TO), wrong = right;
    wrong.rkey = ~wrong.rkey;
    wrong.raddr += 1024;
    const struct rdmaxcel_wr *all[3] = {&right, &wrong, &right};
    for (int i = 0; i < 3; i++) enqueue(qp, all[i], 1);
    rdmaxcel_ring_all(qp);
    success(rdmaxcel_poll_send, qp, 0);
    const uint8_t syndromes[2] = {SYNDROME_REMOTE_ACCESS, SYNDROME_FLUSHED};
    for (int i = 0; i < 2; i++) {
        struct rdmaxcel_wc wc = {0}, kept = {0};
        same("poll of a failure", next(rdmaxcel_poll_send, qp, &wc), RDMAXCEL_COMPLETION_FAILED);
        same("kind of completion", wc.cqe_opcode, MLX5_CQE_REQ_ERR);
        same("number of the request", wc.wqe_counter, 1 + i);
        same("syndrome", wc.syndrome, syndromes[i]);
        /* A poller that took it for somebody else passes it on whole. */
        same("rdmaxcel_cache_put", rdmaxcel_cache_put(qp->send_cache, 70, &wc), 0);
        same("rdmaxcel_cache_take", rdmaxcel_cache_take(qp->send_cache, 70, qp->sq.qp_num, &kept), 1);
        same("what was kept", memcmp(&wc, &kept, sizeof wc), 0);
    }
    nothing_more(qp);
    same_bytes("what was written", d->memory + TO, d->memory + FROM, LENGTH);
    same("byte that was protected", d->memory[TO + 1024], 0xee);
    for (int i = 0; i < 2; i++) destroy(ends[i]);
    printf("error: syndrome %#x, then %#x\n", syndromes[0], syndromes[1]);
}

int main(int argc, char **argv) {
    struct device device;
    open_device(&device, argc > 1 ? argv[1] : NULL);
    struct rdmaxcel_qp *qp = create(&device);
    same("RTS before it", rdmaxcel_qp_load_rts_timestamp(qp) == UINT64_MAX, 1);
    connect_to(&device, qp, qp->sq.qp_num);
    same("RTS behind it", rdmaxcel_qp_load_rts_timestamp(qp) != UINT64_MAX, 1);
    nothing_more(qp);
    write_and_read(&device, qp);
    receives(&device, qp);
    atomics(&device, qp);
    batch(&device, qp);
    wraps(&device, qp);
    step = "end";
    destroy(qp);
    error(&device);
    step = "end";
    close_device(&device);
    return 0;
}
