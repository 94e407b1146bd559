/* coll_call -- the collectives of the model in one line each: flat tensors of n elements, waited for at
 * once. A group that is NULL has one rank: there is nothing to do, and src is dst. The caller is the
 * call site that messages name. Contracts in coll.h.
 */
#ifndef PARALLEL_COLL_CALL_H
#define PARALLEL_COLL_CALL_H

#include "parallel/coll.h"

/* x[n] = the sum, or the largest, over the group, on all its ranks. */
#define coll_sum(c, type, x, n, what)                                                              \
    coll_flat(c, COLL_ALL_REDUCE, type, COLL_SUM, x, n, x, what, __FILE__, __LINE__)
#define coll_max(c, type, x, n, what)                                                              \
    coll_flat(c, COLL_ALL_REDUCE, type, COLL_MAX, x, n, x, what, __FILE__, __LINE__)
/* dst[size * n] = src[n] of all ranks, one after the other. */
#define coll_gather(c, type, src, n, dst, what)                                                    \
    coll_flat(c, COLL_ALL_GATHER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)
/* dst[n] = this rank's part of the sum of src[size * n]. */
#define coll_scatter(c, type, src, n, dst, what)                                                   \
    coll_flat(c, COLL_REDUCE_SCATTER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)

/* The last two, started only. */
#define coll_gather_start(c, type, src, n, dst, what)                                              \
    coll_flat_start(c, COLL_ALL_GATHER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)
#define coll_scatter_start(c, type, src, n, dst, what)                                             \
    coll_flat_start(c, COLL_REDUCE_SCATTER, type, COLL_SUM, src, n, dst, what, __FILE__, __LINE__)

static inline Ticket coll_flat_start(Comm *c, CollOp op, CollType type, CollFold fold,
                                     const void *src, int64_t n, void *dst, const char *what,
                                     const char *file, int line) {
    if (!c) return (Ticket){0};
    return coll_start(c, &(CollCall){.op = op,
                                     .type = type,
                                     .fold = fold,
                                     .rows = 1,
                                     .cols = n,
                                     .src = src,
                                     .dst = dst,
                                     .what = what,
                                     .file = file,
                                     .line = line});
}

static inline void coll_flat(Comm *c, CollOp op, CollType type, CollFold fold, const void *src,
                             int64_t n, void *dst, const char *what, const char *file, int line) {
    coll_wait(coll_flat_start(c, op, type, fold, src, n, dst, what, file, line));
}

#endif
