/*
 * What the program needs besides the header: a device, queue pairs in RTS and the state blocks over their rings, by
 * libibverbs and libmlx5; and how a difference ends it. Nothing here posts or polls.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include "rdmaxcel.h"

#include <infiniband/verbs.h>

enum { REGION = 16384 /* bytes */, INLINE = 64 /* bytes */, REQUESTS = 16, RECEIVES = 16, COMPLETIONS = 31 };

/* What is being done, for whoever reads that it failed. */
extern const char *step;

/* Each says what differs and ends the program with 1. */
_Noreturn void fail(const char *format, ...);
void must(int good, const char *call);
void same(const char *what, long long got, long long want);
void same_bytes(const char *what, const uint8_t *got, const uint8_t *want, size_t len);

/* An open mlx5 device with a region that the peer may read, write and change atomically. */
struct device {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    uint8_t *memory; /* REGION bytes */
    struct ibv_port_attr port;
    union ibv_gid gid;
};

/* The device of that name, or the first for NULL. */
void open_device(struct device *d, const char *name);
void close_device(struct device *d);

/* A queue pair in RESET, with two completion queues of its own, and the state block over its rings. */
struct rdmaxcel_qp *create(struct device *d);
/* From RESET to RTS, with a queue pair of this device as its peer, be it itself. */
void connect_to(struct device *d, struct rdmaxcel_qp *qp, uint32_t peer);
/* All of it. */
void destroy(struct rdmaxcel_qp *qp);

#endif
