#include "parallel/step/profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "parallel/step/program.h"
#include "parallel/step/run.h"

typedef struct Row {
    char name[64];
    int64_t calls;
    double s, flops;
} Row;

static Row *rows;
static int n_rows, max_rows;
static int64_t n_steps;       // the first one included
static double begun, steps_s; // start time of this step; seconds of all steps but the first

/* A kernel of the current step. On a device its time is known only when the step has ended. */
typedef struct Call {
    int row;
    Moment begin, end;
    double flops;
} Call;

static const DeviceClock *device; // NULL: kernels run on the host, while they are called
static Call *calls;
static int64_t n_calls, max_calls;

/* The name of a row: the kind of operation and the type of its result, "matmul up[T, N/x]". */
static void name_row(char name[64], const StepSpan *s) {
    char type[DIST_TEXT];
    Dist made = s->p->tensor[s->op->out].dist;
    made.partial = axes_none();
    snprintf(name, 64, "%s %.40s", op_info(s->op->kind)->name, dist_print(&made, type));
}

static void add(void *ctx, const StepSpan *s) {
    char name[64];
    int i = 0;
    (void)ctx;
    name_row(name, s);
    while (i < n_rows && strcmp(rows[i].name, name) != 0) i++;
    if (i == n_rows) {
        mem_grow(rows, n_rows, max_rows);
        rows[n_rows++] = (Row){0};
        memcpy(rows[i].name, name, sizeof name);
    }
    mem_grow(calls, n_calls, max_calls);
    calls[n_calls++] = (Call){i, s->begin, s->end, s->flops};
}

static double seconds(Moment m) {
    return device ? device->seconds(m) : m;
}

void profile_begin(Model *m) {
    static const StepHook hook = {.kernel = add};
    device = m->k->clock;
    m->hook = &hook;
    if (device) device->begin(2 * max_calls);
    begun = now_s();
}

void profile_end(Model *m, bool whole) {
    m->hook = NULL;
    if (device) device->end();
    for (const Call *c = calls; whole && c < calls + n_calls; c++) {
        Row *r = &rows[c->row];
        r->calls++, r->flops += c->flops, r->s += seconds(c->end) - seconds(c->begin);
    }
    n_calls = 0;
    if (!whole) return;
    if (n_steps++ == 0)
        n_rows = 0;
    else
        steps_s += now_s() - begun;
}

static int slower_first(const void *a, const void *b) {
    const Row *x = a, *y = b;
    return x->s > y->s ? -1 : x->s < y->s;
}

void profile_print(FILE *f, double peak_flops) {
    int64_t steps = n_steps - 1;
    if (steps <= 0) return;
    double sum_ms = 0, step_ms = 1e3 * steps_s / (double)steps, peak = peak_flops;
    qsort(rows, (size_t)n_rows, sizeof rows[0], slower_first);
    for (int i = 0; i < n_rows; i++)
        if (rows[i].flops > peak * rows[i].s) peak = rows[i].flops / rows[i].s;
    fprintf(f, "per step, mean of %" PRId64 "%*scalls       ms  share  GFLOP/s  of peak\n", steps,
            23, "");
    for (int i = 0; i < n_rows; i++) {
        const Row *r = &rows[i];
        double ms = 1e3 * r->s / (double)steps;
        sum_ms += ms;
        fprintf(f, "  %-42s %6.1f %8.2f %5.1f%%", r->name, (double)r->calls / (double)steps, ms,
                100 * ms / step_ms);
        if (r->flops > 0 && r->s > 0)
            fprintf(f, " %8.1f %7.1f%%", r->flops / r->s / 1e9, 100 * r->flops / r->s / peak);
        fprintf(f, "\n");
    }
    fprintf(f, "  %-42s %6s %8.2f %5.1f%%\n", "everything else", "", step_ms - sum_ms,
            100 * (1 - sum_ms / step_ms));
    if (peak > peak_flops)
        fprintf(f,
                "  shares of peak are of the fastest row, %.0f GFLOP/s: the cores were slower when "
                "the peak was measured (%.0f)\n",
                peak / 1e9, peak_flops / 1e9);
}
