/* recording -- a table of kernels that compute nothing and call a function with what they were
 * asked to do, as a Work: the kernels that training calls, to hold the planner's description of
 * them against.
 */
#ifndef TESTS_RECORDING_H
#define TESTS_RECORDING_H

#include "parallel/plan/work.h"

typedef struct Recording {
    void (*f)(void *ctx, const Work *w); // called for each
    void *ctx;
    int threads; // that workspaces are for
} Recording;

/* Local. The table, for one recording at a time in each thread; valid until the thread's next call.
 * Element sizes and workspaces are those of `like`; NULL: of the portable set. */
const Kernels *recording_kernels(Recording *r, const Kernels *like);

#endif
