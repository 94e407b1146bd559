/* coll_call -- the sum of a flat tensor over a group in one line, waited for at once. Contracts:
 * coll.h.
 */
#ifndef PARALLEL_COMM_COLL_CALL_H
#define PARALLEL_COMM_COLL_CALL_H

#include "parallel/comm/coll.h"

/* Collective over c. x[n] = sum of x over the group, on all its ranks. A group of NULL has one
 * rank: nothing is done. Messages name the caller as call site. */
#define coll_sum(c, type, x, n, what) coll_sum_at(c, type, x, n, what, __FILE__, __LINE__)

static inline void coll_sum_at(Comm *c, CollType type, void *x, int64_t n, const char *what,
                               const char *file, int line) {
    if (!c) return;
    coll_wait(coll_start(c, &(CollCall){.op = COLL_ALL_REDUCE,
                                        .type = type,
                                        .reduction = COLL_SUM,
                                        .rows = 1,
                                        .cols = n,
                                        .src = x,
                                        .dst = x,
                                        .what = what,
                                        .file = file,
                                        .line = line}));
}

#endif
