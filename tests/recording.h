/* recording -- a table of kernels that compute nothing and report each call as a Work. Tests
 * compare the kernels that training calls with the planner's list. */
#ifndef TESTS_RECORDING_H
#define TESTS_RECORDING_H

#include "parallel/plan/work.h"

typedef struct Recording {
    void (*f)(void *ctx, const Work *w); // called for each kernel
    void *ctx;
    int threads; // threads for which workspaces are sized
} Recording;

/* Local. The table, for one recording at a time in each thread; valid until the thread's next call.
 * Element sizes and workspaces are those of `like`; NULL: those of the portable set. */
const Kernels *recording_kernels(Recording *r, const Kernels *like);

#endif
