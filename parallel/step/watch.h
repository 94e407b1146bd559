/* watch -- when the kernels of a model's lists begin and end: what --profile adds up and --trace
 * writes down, between StepHook.begin and end (run.h). Where the host does not wait for its kernels
 * (layers/device_clock.h) it does not wait for them here.
 */
#ifndef PARALLEL_STEP_WATCH_H
#define PARALLEL_STEP_WATCH_H

#include "parallel/step/program.h"

/* A kernel, of op[0] and the operations fused into it. With a clock (Kernels.clock) begin and end
 * are marks, and kernels are watched between its begin and end alone. */
typedef struct WatchSpan {
    const Program *p;
    const Op *op;
    double flops; // 0: not counted in FLOPs
    Moment begin, end;
} WatchSpan;

typedef void (*Watch)(void *ctx, const WatchSpan *s);

/* Local. From now on f is called after each kernel of m, of which nothing is replayed; one model at
 * a time in a thread. */
void watch_begin(Model *m, Watch f, void *ctx);
void watch_end(Model *m);

#endif
