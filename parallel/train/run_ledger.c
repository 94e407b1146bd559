/* The line of the ledger (parallel/plan/ledger_file.h) of a run: predicted and measured time of a
 * step. */
#include "base/median.h"
#include "parallel/train/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "data/stamp.h"
#include "parallel/plan/count.h"
#include "parallel/plan/ledger_file.h"
#include "parallel/plan/refine.h"

static const double doubtful = 0.4; // relative error above which a prediction is reported as wrong
enum {
    FIRST = 2,    // steps that are not measured: page faults, cold caches
    COMPARED = 3, // steps after them that are compared with the prediction
    KEPT = sizeof((Measured *)0)->ms / sizeof(double)
};

/* Number of steps in the ring buffers. */
static int64_t measured_steps(const Measured *m) {
    int64_t n = m->n - FIRST;
    return n < 0 ? 0 : n < KEPT ? n : KEPT;
}

/* What to do if a prediction is far off. GPUs are not calibrated; --refine needs --layout auto. */
static const char *advice(const Run *r) {
    bool cpu = !r->device.used;
    if (r->plan && r->o->refine < REFINE_MAX)
        return cpu ? "--calibrate again repeats the measurements, --refine 8 tries more layouts"
                   : "--refine 8 tries more layouts";
    if (!cpu) return "--plan prints what they are predicted to take";
    return r->plan ? "--calibrate again repeats the measurements"
                   : "--plan --calibrate again repeats the measurements";
}

/* Warns once if the first measured steps are far from the prediction: other layouts may be faster
 * than the chosen one. Those on trial are printed with their predictions anyway. */
static void compare_first_steps(Run *r) {
    Measured *m = &r->measured;
    double first[KEPT];
    if (m->n < FIRST + COMPARED || m->on_trial || m->compared || r->group.size == 1) return;
    m->compared = true;
    memcpy(first, m->ms, sizeof first);
    double ms = median_of(first, (int)measured_steps(m));
    double error = ledger_error(r->predicted_ms, ms);
    if (!(fabs(error) > doubtful)) return;
    run_note(r,
             "plan     steps take %.2f ms, %.2f were predicted (%+.0f %%): other layouts may be "
             "faster; %s",
             ms, r->predicted_ms, 100 * error, advice(r));
}

void run_note_step(Run *r, const StepRecord *s) {
    Measured *m = &r->measured;
    m->last_ms = s->ms;
    if (m->n++ < FIRST) return;
    int64_t at = (m->n - 1 - FIRST) % KEPT;
    m->ms[at] = s->ms;
    m->received[at] = s->received;
    if (r->outer.every == 1 && !r->o->exact) compare_first_steps(r);
}

/* "2 x NVIDIA H200"; "4 x AMD EPYC, 64 cores": four nodes of 64 cores. */
static void machine_name(const Run *r, char *buf, size_t n) {
    char cpu[256], nodes[24] = "";
    if (r->device.used) {
        snprintf(buf, n, "%d x %.40s", r->device.all, r->device.facts.name);
        return;
    }
    stamp_cpu(cpu, sizeof cpu);
    if (r->nodes > 1) snprintf(nodes, sizeof nodes, "%d x ", r->nodes);
    snprintf(buf, n, "%s%.48s, %d cores", nodes, cpu, r->node.cores);
    utf8_repair(buf); // a truncated UTF-8 sequence
}

/* Reads the newest lines of the ledger, oldest first; returns their number. */
static int last_lines(const Run *r, LedgerLine lines[], int max) {
    Err e;
    LedgerDamage damage;
    char *path = *r->o->ledger ? mem_strdup(r->o->ledger) : ledger_path();
    int n = path ? ledger_read(path, lines, max, &damage, &e) : 0;
    mem_free(path);
    return n > 0 ? n : 0;
}

/* The median is limited to 1 to 50 %. */
double run_known_error(const Run *r) {
    enum { LINES = 64 };
    char machine[64];
    LedgerLine *lines = mem_calloc(LINES, sizeof *lines);
    machine_name(r, machine, sizeof machine);
    bool measured = !r->device.used && r->o->calibrate != 2;
    double error = ledger_median_error(lines, last_lines(r, lines, LINES), machine, measured);
    mem_free(lines);
    return isfinite(error) ? fmin(fmax(error, 0.01), 0.5) : NAN;
}

/* Predicted bytes that this rank receives in a step. */
static int64_t predicted_bytes(const Run *r) {
    CollCount rows[COUNT_ROWS];
    int64_t bytes = 0;
    StepLists s;
    run_step_lists(r, &s);
    int n = price_counts(&s, rows, COUNT_ROWS);
    for (int i = 0; i < n; i++) bytes += rows[i].bytes;
    price_free(&s);
    return bytes;
}

/* Copies the times and bytes of the measured steps; returns their number. local: replicas take
 * local steps. Steps with an outer step, which receive more bytes, are then left out. */
static int64_t take_steps(const Measured *m, int64_t steps, bool local, double *ms,
                          double *received) {
    int64_t n = 0, least = m->received[0];
    for (int64_t i = 1; i < steps; i++)
        if (m->received[i] < least) least = m->received[i];
    for (int64_t i = 0; i < steps; i++) {
        if (local && m->received[i] > least) continue;
        ms[n] = m->ms[i], received[n++] = (double)m->received[i];
    }
    return n;
}

static void fill_line(const Run *r, int64_t steps, LedgerLine *l) {
    double ms[KEPT], received[KEPT];
    // predictions are without outer steps; with `every` fragments each step has an outer step
    const Outer *outer = &r->outer;
    bool comparable = outer->every == 1 || outer->fragments < outer->every;
    int64_t n = take_steps(&r->measured, steps, outer->every > 1, ms, received);
    *l = (LedgerLine){.ranks = r->group.size,
                      .threads = team_size(r->team),
                      .micro = r->micro,
                      .batch = r->batch,
                      .steps = n,
                      .predicted_ms = comparable && !r->o->exact ? r->predicted_ms : 0,
                      .measured_ms = median_of(ms, (int)n),
                      .predicted_bytes = comparable ? predicted_bytes(r) : 0,
                      .measured_bytes = (int64_t)median_of(received, (int)n)};
    for (int i = 0; i < N_ARENAS; i++) {
        l->predicted_memory += (int64_t)r->m.arena[i].used;
        l->measured_memory += (int64_t)arena_resident(&r->m.arena[i]);
    }
    stamp_time(l->time, sizeof l->time);
    machine_name(r, l->machine, sizeof l->machine);
    config_print(&r->config, l->model, sizeof l->model);
    layout_print(&r->grid.layout, l->layout);
    if (r->calibration)
        snprintf(l->calibration, sizeof l->calibration, "%s", r->calibration->measured);
    snprintf(l->backend, sizeof l->backend, "%s", world_backend(r->world));
    opt_text(opt_find(r->options, "dtype"), l->dtype, sizeof l->dtype);
    snprintf(l->recompute, sizeof l->recompute, "%s", recompute_name(r->m.shape.recompute));
}

void run_write_ledger(const Run *r) {
    Err e;
    LedgerLine l;
    int64_t steps = measured_steps(&r->measured);
    if (!steps || r->o->profile || strcmp(r->o->ledger, "none") == 0)
        return; // --profile itself takes time
    char *path = *r->o->ledger ? mem_strdup(r->o->ledger) : ledger_path();
    fill_line(r, steps, &l);
    if (path && !ledger_append(path, &l, &e)) warn("no line in the ledger: %s", e.text);
    mem_free(path);
}
