/* A C program of the header's: posts and polls through a state block that Rust made. */
#include "rdmaxcel.h"

int post(struct rdmaxcel_qp *qp, const struct rdmaxcel_wr *wrs, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        int blocks = rdmaxcel_enqueue(qp, &wrs[i]);
        if (blocks < 0) return blocks;
    }
    rdmaxcel_ring_all(qp);
    return (int)count;
}

int poll(struct rdmaxcel_qp *qp, struct rdmaxcel_wc *out) { return rdmaxcel_poll_send(qp, out); }

/* For a look at its instructions. */
void ring(struct rdmaxcel_send_ring *sq, uint64_t next, uint64_t last) { rdmaxcel_ring(sq, next, last); }
