/* coll_cases -- test cases for every backend: a collective, its data and its result, computed from
 * the definition. Values are small integers, so sums are exact and are compared bit for bit. */
#ifndef TESTS_COLL_CASES_H
#define TESTS_COLL_CASES_H

#include "parallel/comm/coll_backend.h"

typedef struct Case {
    CollCall call;
    bool in_place;
    int salt; // seed of the data
    int rank, size;
    unsigned char *src, *dst;    // buffers with a margin, which the collective must not change
    int64_t n_src, n_dst;        // elements; n_dst includes the gaps between blocks
    size_t src_bytes, dst_bytes; // bytes of the buffers, margin included
} Case;

/* Local. Makes case `number` for a group. Consecutive numbers go through ops, types, dims, shapes,
 * roots, in place or not, and strides of blocks. Numbers 0 .. COLL_CASES - 1 contain every
 * combination of op, type, dim and shape. */
enum { CASE_TYPES = COLL_BF16 + 1, COLL_CASES = N_COLL_OPS * CASE_TYPES * 2 * 7 * 2 * 2 };
Case case_make(int number, const Comm *c);
/* Local. Is the result right, and no other byte changed? Frees the buffers. */
bool case_check(Case *x);
/* Collective. Runs every step-th case; the first one depends on the group's size. Returns the
 * number of the first wrong case + 1, or 0. Sanitizers are slow; a step that is coprime to
 * COLL_CASES still meets every value of every property. */
int case_run_all(Comm *c, int step);
/* Collective. Runs `calls` random cases on two groups, with up to COLL_IN_FLIGHT in flight on each,
 * waited for in a random order, with random delays of random ranks. Returns 0 if all are right. */
int case_run_in_flight(World *w, Comm *a, Comm *b, int calls, unsigned seed);

#endif
