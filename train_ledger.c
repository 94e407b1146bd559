/* What a run tells the next ones: predicted and measured, a line of parallel/ledger.h. */
#include "train_gpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "data/machine.h"
#include "parallel/count.h"
#include "parallel/ledger.h"

enum {
    FIRST = 2,
    LAST = sizeof((Measured *)0)->ms / sizeof(double)
}; // the first steps pay for page faults and cold caches

void measure_step(Run *r, const StepRecord *s) {
    Measured *m = &r->measured;
    m->last_ms = s->ms;
    if (m->n++ < FIRST) return;
    int64_t at = (m->n - 1 - FIRST) % LAST;
    m->ms[at] = s->ms;
    m->received[at] = s->received;
}

static int64_t measured_steps(const Measured *m) {
    int64_t n = m->n - FIRST;
    return n < 0 ? 0 : n < LAST ? n : LAST;
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(const double *x, int64_t n) {
    double sorted[LAST];
    memcpy(sorted, x, (size_t)n * sizeof *x);
    qsort(sorted, (size_t)n, sizeof *sorted, by_size);
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

void machine_words(const Run *r, char *buf, size_t n) {
    char cpu[256], nodes[24] = "";
    if (r->device.used) {
        snprintf(buf, n, "%d x %.40s", r->device.all, r->device.facts.name);
        return;
    }
    machine_cpu(cpu, sizeof cpu);
    if (r->nodes > 1) snprintf(nodes, sizeof nodes, "%d x ", r->nodes);
    snprintf(buf, n, "%s%.40s, %d cores", nodes, cpu, r->cores);
    utf8_mend(buf); // a letter that was cut
}

/* What a step receives, as it is recorded. */
static int64_t foretold_bytes(const Run *r) {
    Tape t = {0};
    CollCount rows[COUNT_ROWS];
    int64_t bytes = 0;
    record_step(r, &t);
    int n = price_counts(&t, rows, COUNT_ROWS);
    for (int i = 0; i < n; i++) bytes += rows[i].bytes;
    tape_free(&t);
    return bytes;
}

/* The measured steps; apart: without those in which replicas meet, which receive more. */
static int64_t take_steps(const Measured *m, int64_t steps, bool apart, double *ms,
                          double *received) {
    int64_t n = 0, least = m->received[0];
    for (int64_t i = 1; i < steps; i++)
        if (m->received[i] < least) least = m->received[i];
    for (int64_t i = 0; i < steps; i++) {
        if (apart && m->received[i] > least) continue;
        ms[n] = m->ms[i], received[n++] = (double)m->received[i];
    }
    return n;
}

static void fill(const Run *r, int64_t steps, LedgerLine *l) {
    double ms[LAST], received[LAST];
    const Outer *outer =
        &r->outer; // where some fragment meets in every step no step is as foretold
    bool foretold = !o.exact && (outer->every == 1 || outer->fragments < outer->every);
    int64_t n = take_steps(&r->measured, steps, outer->every > 1, ms, received);
    *l = (LedgerLine){.ranks = r->group.size,
                      .threads = team_size(r->team),
                      .micro = r->micro,
                      .batch = r->batch,
                      .steps = n,
                      .predicted_ms = foretold ? r->predicted_ms : 0,
                      .measured_ms = median(ms, n),
                      .predicted_bytes = foretold ? foretold_bytes(r) : 0, // --exact: integers
                      .measured_bytes = (int64_t)median(received, n)};
    for (int i = 0; i < N_ARENAS; i++) {
        l->predicted_memory += (int64_t)r->m.arena[i].used;
        l->measured_memory += (int64_t)arena_resident(&r->m.arena[i]);
    }
    machine_time(l->time, sizeof l->time);
    machine_words(r, l->machine, sizeof l->machine);
    config_print(&r->config, l->model, sizeof l->model);
    layout_print(&r->grid.layout, l->layout);
    if (r->calibration)
        snprintf(l->calibration, sizeof l->calibration, "%s", calibration_measured(r->calibration));
    snprintf(l->backend, sizeof l->backend, "%s", world_backend(r->world));
    opt_text(opt_find(options, "dtype"), l->dtype, sizeof l->dtype);
    snprintf(l->recompute, sizeof l->recompute, "%s", recompute_word(r->m.shape.recompute));
}

void write_ledger(const Run *r) {
    Err e;
    LedgerLine l;
    int64_t steps = measured_steps(&r->measured);
    if (!steps || o.profile || strcmp(o.ledger, "none") == 0) return; // --profile takes time itself
    char *path = *o.ledger ? mem_strdup(o.ledger) : ledger_path();
    fill(r, steps, &l);
    if (path && !ledger_append(path, &l, &e)) warn("no line in the ledger: %s", e.text);
    mem_free(path);
}
