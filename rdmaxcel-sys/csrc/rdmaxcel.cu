/* The header's functions as kernels of one thread, for callers that launch them by name. */
#include "rdmaxcel.h"

extern "C" __global__ void rdmaxcel_cu_enqueue(rdmaxcel_qp *qp, const rdmaxcel_wr *wr, int *result) {
    *result = rdmaxcel_enqueue(qp, wr);
}

extern "C" __global__ void rdmaxcel_cu_ring(rdmaxcel_qp *qp) { rdmaxcel_ring_all(qp); }

extern "C" __global__ void rdmaxcel_cu_poll_send(rdmaxcel_qp *qp, rdmaxcel_wc *out, int *result) {
    *result = rdmaxcel_poll_send(qp, out);
}
