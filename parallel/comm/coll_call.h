/* coll_call -- one-line collectives on flat tensors of n elements, waited for at once. A group of
 * NULL has one rank: nothing is done, and src is dst. Messages name the caller as call site.
 * Contracts: coll.h.
 */
#ifndef PARALLEL_COMM_COLL_CALL_H
#define PARALLEL_COMM_COLL_CALL_H

#include "parallel/comm/coll.h"

/* x[n] = sum (maximum) of x over the group, on all its ranks. */
#define coll_sum(c, type, x, n, what)                                                              \
    coll_flat(c, COLL_ALL_REDUCE, type, COLL_SUM, x, n, x, what, __FILE__, __LINE__)
#define coll_max(c, type, x, n, what)                                                              \
    coll_flat(c, COLL_ALL_REDUCE, type, COLL_MAX, x, n, x, what, __FILE__, __LINE__)
/* dst[size * n] = src[n] of all ranks, concatenated. */
#define coll_gather(c, type, src, n, dst, what)                                                    \
    coll_flat(c, COLL_ALL_GATHER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)
/* dst[n] = this rank's part of the sum of src[size * n]. */
#define coll_scatter(c, type, src, n, dst, what)                                                   \
    coll_flat(c, COLL_REDUCE_SCATTER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)

/* Asynchronous forms of the last two. */
#define coll_gather_start(c, type, src, n, dst, what)                                              \
    coll_flat_start(c, COLL_ALL_GATHER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)
#define coll_scatter_start(c, type, src, n, dst, what)                                             \
    coll_flat_start(c, COLL_REDUCE_SCATTER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)

static inline Ticket coll_flat_start(Comm *c, CollOp op, CollType type, CollReduction reduction,
                                     const void *src, int64_t n, void *dst, const char *what,
                                     const char *file, int line) {
    if (!c) return (Ticket){0};
    return coll_start(c, &(CollCall){.op = op,
                                     .type = type,
                                     .reduction = reduction,
                                     .rows = 1,
                                     .cols = n,
                                     .src = src,
                                     .dst = dst,
                                     .what = what,
                                     .file = file,
                                     .line = line});
}

static inline void coll_flat(Comm *c, CollOp op, CollType type, CollReduction reduction,
                             const void *src, int64_t n, void *dst, const char *what,
                             const char *file, int line) {
    coll_wait(coll_flat_start(c, op, type, reduction, src, n, dst, what, file, line));
}

#endif
