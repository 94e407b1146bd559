/* coll_reduce -- reductions and copies, shared by all backends.
 *
 * A sum over ranks is a tree: neighbours in pairs, then pairs of pairs; a term without a partner
 * goes to the next round. A stack evaluates the tree: each term is pushed, then the two topmost
 * entries are replaced by their sum `adds` times. The tree of five terms:
 *
 *     ((b0 + b1) + (b2 + b3)) + b4            term  b0  b1  b2  b3  b4
 *                                             adds   0   1   0   2   1
 *
 * The depth of the tree bounds the rounding, and a rank holds a few partial sums at a time.
 */
#ifndef PARALLEL_COMM_COLL_REDUCE_H
#define PARALLEL_COMM_COLL_REDUCE_H

#include "parallel/comm/coll.h"

/* The sum of a matrix [rows, row_bytes] over all ranks of a group: one term of each rank, in the
 * order of ranks. */
typedef struct CollSum {
    CollType type;
    int n_src, n_dst;
    const char *const *src; // [n_src] terms; n_src >= 2
    const int64_t *stride;  // [n_src] bytes from one row of a term to the next
    char *const *dst; // [n_dst] buffers that get the sum, rows contiguous; each may equal a term
    int64_t rows, row_bytes;
} CollSum;
/* Local. Sums on the team; NULL: on the calling thread. */
void coll_sum_terms(Team *team, const CollSum *s);

/* Local. Copies rows of row_bytes bytes between matrices with strides in bytes, on the team. */
void coll_copy(Team *team, void *dst, int64_t dst_stride, const void *src, int64_t src_stride,
               int64_t rows, int64_t row_bytes);

#endif
