#include "parallel/plan/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/step/program.h"

void trace_create(Trace *t, int64_t max, int64_t marks) {
    *t = (Trace){.max = max, .marks = marks};
    t->span = mem_calloc((size_t)max, sizeof *t->span);
}

void trace_free(Trace *t) {
    mem_free(t->span);
    *t = (Trace){0};
}

static void add(Trace *t, const TraceSpan *s) {
    if (t->n == t->max) {
        t->lost++;
        return;
    }
    t->span[t->n] = *s;
    t->span[t->n++].step = t->now;
}

static void add_kernel(void *ctx, const StepSpan *k) {
    TraceSpan s = {.name = op_info(k->op->kind)->name, .begin = k->begin, .end = k->end};
    memcpy(s.result, k->p->tensor[k->op->out].dist.name, sizeof s.result);
    s.layer = k->op->layer, s.phase = k->op->phase, s.flops = k->flops;
    add(ctx, &s);
}

static void add_collective(void *ctx, const CollSpan *c) {
    add(ctx, &(TraceSpan){.name = c->call->what,
                          .label = comm_label(c->comm),
                          .begin = c->begin,
                          .end = c->complete,
                          .op = c->call->op,
                          .size = comm_size(c->comm),
                          .bytes = c->bytes,
                          .started = c->started,
                          .wait = c->wait,
                          .waited = c->end});
}

/* ---- one clock */

double trace_offset(double (*mine)[2], double (*other)[2], int n, double *error) {
    double low = -INFINITY, high = INFINITY;
    for (int i = 0; i < n; i++) {
        low = fmax(low, mine[i][0] - other[i][1]);   // I entered before the other left
        high = fmin(high, mine[i][1] - other[i][0]); // and left after it had entered
    }
    *error = (high - low) / 2;
    // clocks of two hosts differ by far more than the bounds' distance
    return low <= 0 && high >= 0 ? 0 : (low + high) / 2;
}

/* Sets t->offset. Many barriers, as one in which no rank slept gives the narrowest bounds. */
static void compare_clocks(Trace *t, World *w) {
    enum { BARRIERS = 48 };
    double mine[BARRIERS][2], (*all)[BARRIERS][2];
    Group g = comm_group(world_comm(w));
    for (int i = 0; i < BARRIERS; i++) {
        mine[i][0] = now_s();
        coll_barrier(world_comm(w));
        mine[i][1] = now_s();
    }
    all = mem_calloc((size_t)g.size, sizeof *all);
    group_all_gather(&g, mine, sizeof mine, all);
    t->offset = trace_offset(mine, all[0], BARRIERS, &t->error);
    if (g.rank == 0) t->error = 0;
    mem_free(all);
}

/* ---- a step */

/* Converts the marks of this step to seconds: the next step discards them. Spans of the step before
 * are converted already, and stay as they are. */
static void read_marks(Trace *t, const DeviceClock *clock) {
    for (TraceSpan *s = t->span; s < t->span + t->n; s++) {
        s->begin = clock->seconds(s->begin), s->end = clock->seconds(s->end);
        if (!s->label) continue;
        s->started = clock->seconds(s->started);
        s->wait = clock->seconds(s->wait), s->waited = clock->seconds(s->waited);
    }
}

void trace_begin(Trace *t, int which, int64_t number, Model *m, World *w) {
    const DeviceClock *clock = m->k->clock;
    if (which == TRACE_SERIAL) compare_clocks(t, w);
    t->now = which, t->open = true;
    t->hook = (StepHook){.kernel = add_kernel, .ctx = t};
    m->hook = &t->hook;
    if (clock) {
        clock->begin(t->marks);
        t->device_error = fmax(t->device_error, clock->set());
    }
    world_set_watch(w, add_collective, t, clock);
    world_set_wait_at_start(w, which == TRACE_SERIAL);
    coll_barrier(world_comm(w));
    t->step[which].number = number;
    t->step[which].begin = now_s();
}

static int by_begin(const void *a, const void *b) {
    const TraceSpan *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

void trace_end(Trace *t, Model *m, World *w) {
    const DeviceClock *clock = m->k->clock;
    if (clock) t->marks = clock->end();
    t->step[t->now].end = now_s();
    if (clock) read_marks(t, clock);
    m->hook = NULL;
    t->open = false;
    world_set_watch(w, NULL, NULL, NULL);
    world_set_wait_at_start(w, false);
    qsort(t->span, (size_t)t->n, sizeof *t->span, by_begin);
}
