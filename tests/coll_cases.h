/* coll_cases -- a collective with its data and its right answer, computed from the definition: for
 * the tests of every backend. Values are small integers, so sums are exact and compared bit for
 * bit. */
#ifndef TESTS_COLL_CASES_H
#define TESTS_COLL_CASES_H

#include "parallel/comm/coll_backend.h"

typedef struct Case {
    CollCall call;
    bool in_place;
    int salt; // another one, other data
    int rank, size;
    unsigned char *src, *dst;    // with a margin that must stay as it was
    int64_t n_src, n_dst;        // elements; of dst with what is between blocks
    size_t src_bytes, dst_bytes; // of the buffers, margin included
} Case;

/* Local. The case of this number for a group: ops, types, dims, shapes, roots, in-place
 * or not, and strides of blocks in turn. Numbers 0 .. COLL_CASES - 1 meet every combination of op,
 * type, dim and shape. */
enum { COLL_CASES = N_COLL_OPS * 5 * 2 * 7 * 2 * 2 };
Case case_make(int number, const Comm *c);
/* Local. Is dst what it must be, and nothing else touched? Frees the buffers. */
bool case_check(Case *x);
/* Collective. Every step-th case, one after the other, from one on that depends on the group's
 * size; the number of the first wrong one + 1, or 0. Sanitizers are slow: a step that is prime to
 * COLL_CASES meets every value of every property. */
int case_run_all(Comm *c, int step);
/* Collective. `calls` random cases on two groups with up to COLL_IN_FLIGHT open on each, waited for
 * in a random order, with random delays of random ranks; 0 when all are right. */
int case_run_in_flight(World *w, Comm *a, Comm *b, int calls, unsigned seed);

#endif
