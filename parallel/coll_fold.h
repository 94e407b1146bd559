/* coll_fold -- the arithmetic and the copies of collectives, alike in every backend.
 *
 * A sum over ranks is a tree: neighbours in pairs, then pairs of pairs; who has no partner waits for the next round. Here of
 * five, and how a stack makes it, as coll_adds says: a term is put onto it, then the two on top are added so many times.
 *
 *     ((b0 + b1) + (b2 + b3)) + b4            term  b0  b1  b2  b3  b4
 *                                             adds   0   1   0   2   1
 *
 * So ranks that exchange sums in pairs (coll_parts.h) add the same as one that has all terms.
 */
#ifndef PARALLEL_COLL_FOLD_H
#define PARALLEL_COLL_FOLD_H

#include "parallel/coll.h"

static inline int64_t coll_type_bytes(CollType t) {
    return (const int64_t[]){4, 8, 8, 4, 1, 2}[t];
}
/* Local. dst[i] = a[i] + b[i] (or the greater one) for n elements; dst may be a or b. Integers wrap
 * around. A NaN in a stays, one in b is no maximum. */
void coll_fold_to(CollType type, CollFold fold, void *dst, const void *a, const void *b, int64_t n);
static inline void coll_fold(CollType type, CollFold fold, void *dst, const void *src, int64_t n) {
    coll_fold_to(type, fold, dst, dst, src, n);
}

/* Local, pure. How many times, after term i of `size`. */
static inline int coll_adds(int i, int size) {
    return i + 1 < size ? __builtin_ctz((unsigned)i + 1) : __builtin_popcount((unsigned)i);
}
/* Arrays of n elements, of COLL_CHUNK bytes at most. */
enum { COLL_CHUNK = 4096, COLL_DEEPEST = 24 }; // two more than log2 of the ranks
typedef struct CollStack {
    CollType type;
    CollFold fold;
    int64_t n;
    int top; // 0 before the first term
    const void *on[COLL_DEEPEST];
    _Alignas(64) char sum[COLL_DEEPEST][COLL_CHUNK];
} CollStack;
/* Local. With the last term comes dst, where the sum is left, and which may be any of them; before, it is NULL. */
void coll_stack_add(CollStack *s, const void *term, int adds, void *dst);

/* Local. Rows of row_bytes bytes from one matrix to another; strides in bytes. The team helps. */
void coll_copy(Team *team, void *dst, int64_t dst_stride, const void *src, int64_t src_stride,
               int64_t rows, int64_t row_bytes);

#endif
