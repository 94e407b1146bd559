/* coll_reduce -- reductions and copies, shared by all backends.
 *
 * A sum over ranks is a tree: neighbours in pairs, then pairs of pairs; a term without a partner
 * goes to the next round. Below the tree of five terms, and how a stack evaluates it: each term is
 * pushed, then the two topmost are added so many times.
 *
 *     ((b0 + b1) + (b2 + b3)) + b4            term  b0  b1  b2  b3  b4
 *                                             adds   0   1   0   2   1
 *
 * The depth of the tree bounds the rounding, and a rank holds a few partial sums at a time.
 */
#ifndef PARALLEL_COMM_COLL_REDUCE_H
#define PARALLEL_COMM_COLL_REDUCE_H

#include "parallel/comm/coll.h"

static inline int64_t coll_type_bytes(CollType t) {
    return (const int64_t[]){4, 8, 8, 4, 1, 2}[t];
}
/* The sum of a matrix over all ranks of a group: one term of each, in their order. */
typedef struct CollSum {
    CollType type;
    int n_src, n_dst;
    const char *const *src; // [n_src] terms, two at least
    const int64_t *stride;  // [n_src] bytes from row to row of a term
    char *const *dst;       // [n_dst] where the sum goes, rows contiguous; may be any term
    int64_t rows, row_bytes;
} CollSum;
/* Local. Sums on the team, or without one. */
void coll_sum_terms(Team *team, const CollSum *s);

/* Local. Copies rows of row_bytes bytes between matrices with strides in bytes, on the team. */
void coll_copy(Team *team, void *dst, int64_t dst_stride, const void *src, int64_t src_stride,
               int64_t rows, int64_t row_bytes);

#endif
