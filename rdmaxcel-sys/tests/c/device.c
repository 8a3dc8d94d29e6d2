#define _POSIX_C_SOURCE 200809L
#include "device.h"

#include <infiniband/mlx5dv.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *step = "start";

_Noreturn void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", step);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void must(int good, const char *call) {
    if (!good) fail("%s: %s", call, strerror(errno));
}

void same(const char *what, long long got, long long want) {
    if (got != want) fail("%s: %lld (%#llx), not %lld (%#llx)", what, got, got, want, want);
}

void same_bytes(const char *what, const uint8_t *got, const uint8_t *want, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (got[i] != want[i]) fail("%s: byte %zu of %zu: %#x, not %#x", what, i, len, got[i], want[i]);
}

static struct ibv_context *opened(const char *name) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;
    for (int i = 0; list && i < count && !context; i++)
        if (mlx5dv_is_supported(list[i]) && (!name || strcmp(name, ibv_get_device_name(list[i])) == 0))
            context = ibv_open_device(list[i]);
    if (list) ibv_free_device_list(list);
    if (!context) fail("no mlx5 device %s among %d", name ? name : "of any name", count);
    return context;
}

void open_device(struct device *d, const char *name) {
    d->context = opened(name);
    d->pd = ibv_alloc_pd(d->context);
    must(d->pd != NULL, "ibv_alloc_pd");
    d->memory = aligned_alloc(4096, REGION);
    must(d->memory != NULL, "aligned_alloc");
    memset(d->memory, 0, REGION);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    d->mr = ibv_reg_mr(d->pd, d->memory, REGION, access);
    must(d->mr != NULL, "ibv_reg_mr");
    must(ibv_query_port(d->context, 1, &d->port) == 0, "ibv_query_port");
    must(ibv_query_gid(d->context, 1, 0, &d->gid) == 0, "ibv_query_gid");
}

void close_device(struct device *d) {
    same("ibv_dereg_mr", ibv_dereg_mr(d->mr), 0);
    same("ibv_dealloc_pd", ibv_dealloc_pd(d->pd), 0);
    same("ibv_close_device", ibv_close_device(d->context), 0);
    free(d->memory);
}

/* Unless told what is posted, libmlx5 makes every request's place wide enough for all that there is. */
enum {
    OPERATIONS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
};

/* Never with messages in completion entries, which the header does not read. */
static struct ibv_qp *create_qp(struct device *d, struct ibv_cq *send_cq, struct ibv_cq *recv_cq) {
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = send_cq,
        .recv_cq = recv_cq,
        .cap = {.max_send_wr = REQUESTS,
                .max_recv_wr = RECEIVES,
                .max_send_sge = 2,
                .max_recv_sge = 1,
                .max_inline_data = INLINE},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = OPERATIONS,
        .pd = d->pd,
    };
    struct mlx5dv_qp_init_attr mlx5 = {
        .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        .create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
    };
    return mlx5dv_create_qp(d->context, &attr, &mlx5);
}

static struct rdmaxcel_cq_ring ring_of(const struct mlx5dv_cq *cq) {
    return (struct rdmaxcel_cq_ring){cq->buf, (uint32_t *)cq->dbrec, cq->cqe_cnt, cq->cqe_size};
}

/* Asks libmlx5 where the rings are, and makes the state block over them. */
static struct rdmaxcel_qp *block_of(struct ibv_qp *qp) {
    struct mlx5dv_qp found = {0};
    struct mlx5dv_cq send = {0}, recv = {0};
    struct mlx5dv_obj of_send = {.qp = {qp, &found}, .cq = {qp->send_cq, &send}};
    struct mlx5dv_obj of_recv = {.cq = {qp->recv_cq, &recv}};
    same("mlx5dv_init_obj", mlx5dv_init_obj(&of_send, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ), 0);
    same("mlx5dv_init_obj", mlx5dv_init_obj(&of_recv, MLX5DV_OBJ_CQ), 0);
    same("bytes of a basic block", found.sq.stride, 64);
    /* A completion queue that is too short dies, and its queue pairs with it. */
    if (found.sq.wqe_cnt > send.cqe_cnt || found.rq.wqe_cnt > recv.cqe_cnt)
        fail("%u requests, %u receives: more than %u, %u completions", found.sq.wqe_cnt, found.rq.wqe_cnt, send.cqe_cnt,
             recv.cqe_cnt);
    struct rdmaxcel_qp from = {
        .ibv_qp = qp,
        .send_cq = qp->send_cq,
        .recv_cq = qp->recv_cq,
        .sq = {.buf = found.sq.buf,
               .dbrec = (uint32_t *)found.dbrec,
               .bf_reg = found.bf.reg,
               .wqe_cnt = found.sq.wqe_cnt,
               .bf_size = found.bf.size,
               .qp_num = qp->qp_num},
        .rq = {.buf = found.rq.buf, .wqe_cnt = found.rq.wqe_cnt, .stride = found.rq.stride},
        .send_ring = ring_of(&send),
        .recv_ring = ring_of(&recv),
    };
    struct rdmaxcel_qp *block = rdmaxcel_qp_create(&from);
    must(block != NULL, "rdmaxcel_qp_create");
    return block;
}

struct rdmaxcel_qp *create(struct device *d) {
    struct ibv_cq *send_cq = ibv_create_cq(d->context, COMPLETIONS, NULL, NULL, 0);
    struct ibv_cq *recv_cq = ibv_create_cq(d->context, COMPLETIONS, NULL, NULL, 0);
    must(send_cq && recv_cq, "ibv_create_cq");
    struct ibv_qp *qp = create_qp(d, send_cq, recv_cq);
    must(qp != NULL, "mlx5dv_create_qp");
    return block_of(qp);
}

void destroy(struct rdmaxcel_qp *qp) {
    struct ibv_cq *send_cq = qp->send_cq, *recv_cq = qp->recv_cq;
    same("ibv_destroy_qp", ibv_destroy_qp(rdmaxcel_qp_get_ibv_qp(qp)), 0);
    same("ibv_destroy_cq", ibv_destroy_cq(send_cq) | ibv_destroy_cq(recv_cq), 0);
    same("completions left in caches", rdmaxcel_qp_destroy(qp), 0);
}

static void modify(struct rdmaxcel_qp *qp, const char *to, struct ibv_qp_attr *attr, int mask) {
    int code = ibv_modify_qp(rdmaxcel_qp_get_ibv_qp(qp), attr, IBV_QP_STATE | mask);
    if (code != 0) fail("ibv_modify_qp to %s: %s", to, strerror(code));
}

void connect_to(struct device *d, struct rdmaxcel_qp *qp, uint32_t peer) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    modify(qp, "INIT", &init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = d->port.active_mtu, .dest_qp_num = peer};
    rtr.max_dest_rd_atomic = 1;
    rtr.min_rnr_timer = 12;
    rtr.ah_attr.dlid = d->port.lid;
    rtr.ah_attr.port_num = 1;
    if (d->port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        rtr.ah_attr.is_global = 1;
        rtr.ah_attr.grh.dgid = d->gid;
        rtr.ah_attr.grh.hop_limit = 64;
    }
    modify(qp, "RTR", &rtr,
           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
               IBV_QP_MIN_RNR_TIMER);
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    rts.max_rd_atomic = 1;
    modify(qp, "RTS", &rts,
           IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    rdmaxcel_qp_reached_rts(qp);
}
