#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/median.h"
#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/calibrate_parts.h"

enum { MOST_REPEATS = 20 };
static const double always_enough = 15e-3; // seconds of all repeats together

/* Seconds from a barrier until n calls are done; together: on all ranks, if ranks share cores. */
static double timed(const Meter *m, MeterCall *call, void *ctx, int64_t n, bool together) {
    Comm *all = world_comm(m->where->world);
    bool wait = together && m->oversubscribed;
    coll_barrier(all);
    double begin = now_s();
    for (int64_t i = 0; i < n; i++) call(ctx);
    if (wait) coll_barrier(all);
    double seconds = now_s() - begin - (wait ? m->barrier : 0);
    if (m->tidy) m->tidy(ctx);
    return seconds > 0 ? seconds : 0;
}

CallTime meter_agree(Meter *m, double seconds) {
    double mine[2] = {seconds, now_s() - m->begin};
    CallTime t = {0};
    group_all_gather(&m->all, mine, sizeof mine, m->rank);
    m->elapsed = m->rank[1];
    for (int r = 0; r < m->all.size; r++) {
        double s = m->rank[2 * r];
        t.mean += s / m->all.size;
        if (s > t.slowest) t.slowest = s;
    }
    // On shared cores any rank may be served first: only the time of the last one has the work of
    // all.
    if (m->oversubscribed) t.mean = t.slowest;
    return t;
}

CallTime meter_once(Meter *m, MeterCall *call, void *ctx, bool together) {
    CallTime t = {0};
    // a call that is shorter than the subtracted barrier shows no time: it is repeated
    for (int64_t n = 1; t.mean == 0 && n <= 1000; n *= 10) {
        t = meter_agree(m, timed(m, call, ctx, n, together));
        t.mean /= (double)n, t.slowest /= (double)n;
    }
    return t;
}

CallTime meter_run(Meter *m, MeterCall *call, void *ctx, double about, int repeats, bool together) {
    // seconds of a batch of calls, so that barriers and the ranks' turns on a core are short beside
    double least = m->oversubscribed ? 1e-3 : 0.5e-3;
    int64_t batch = about >= least / 10 ? 1 : about > 0 ? (int64_t)(least / about) + 1 : 1000;
    // ranks leave a barrier at different times, on far links a millisecond apart
    if (about > 0 && about * (double)batch < 2 * m->barrier)
        batch = (int64_t)(2 * m->barrier / about) + 1;
    if (batch > 1000) batch = 1000;
    double round = about * (double)batch, s[MOST_REPEATS];
    int n = repeats < MOST_REPEATS ? repeats : MOST_REPEATS;
    while (n > 1 && round * n > always_enough) n--;
    for (int i = 0; i < n; i++) s[i] = timed(m, call, ctx, batch, together) / (double)batch;
    return meter_agree(m, quartile_of(s, n));
}

void meter_progress(Meter *m, const char *format, ...) {
    char what[96];
    va_list args;
    if (!m->where->progress || m->all.rank > 0) return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    m->where->progress(m->where->ctx, m->path, what, now_s() - m->begin);
}

static void nothing(void *ctx) {
    (void)ctx;
}

void meter_start(Meter *m, const CalibrateWhere *w, bool oversubscribed) {
    double s[MOST_REPEATS];
    *m = (Meter){.where = w,
                 .path = calibration_path(w->key),
                 .all = comm_group(world_comm(w->world)),
                 .oversubscribed = oversubscribed,
                 .begin = now_s(),
                 .rank = mem_calloc((size_t)world_size(w->world), 2 * sizeof(double))};
    if (!oversubscribed) return;
    for (int i = 0; i < MOST_REPEATS; i++) s[i] = timed(m, nothing, NULL, 1, true);
    m->barrier = meter_agree(m, quartile_of(s, MOST_REPEATS)).mean;
}

void meter_end(Meter *m) {
    mem_free(m->rank), mem_free(m->path);
}
