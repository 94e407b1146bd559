#include "parallel/step/watch.h"

#include "base/clock.h"
#include "parallel/step/run.h"

/* Of this rank; ranks may be threads. */
static _Thread_local struct {
    StepHook hook;
    const DeviceClock *clock; // NULL: of the host
    Watch f;
    void *ctx;
    Moment begin; // of the kernel that runs
} watch;

static Moment now(void) {
    return watch.clock ? watch.clock->mark() : now_s();
}

static void begin(void *ctx) {
    (void)ctx;
    watch.begin = now();
}

static void end(void *ctx, const Program *p, const Op *op, int n) {
    WatchSpan s = {.p = p, .op = op, .begin = watch.begin, .end = now()};
    (void)ctx;
    for (int i = 0; i < n; i++) s.flops += op_flops(p, &op[i]);
    if (s.begin != 0) watch.f(watch.ctx, &s);
}

void watch_begin(Model *m, Watch f, void *ctx) {
    watch.hook = (StepHook){.begin = begin, .end = end};
    watch.clock = m->k->clock, watch.f = f, watch.ctx = ctx;
    m->hook = &watch.hook;
}

void watch_end(Model *m) {
    m->hook = NULL;
}
