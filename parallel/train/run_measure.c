/* Calibration before the first step, with its progress lines. */
#include "parallel/train/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/ledger.h"

int run_last_lines(const Run *r, LedgerLine lines[], int max) {
    Err e;
    LedgerDamage damage;
    char *path = *r->o->ledger ? mem_strdup(r->o->ledger) : ledger_path();
    int n = path ? ledger_read(path, lines, max, &damage, &e) : 0;
    mem_free(path);
    return n > 0 ? n : 0;
}

typedef struct Measuring {
    Progress *progress; // NULL: nothing was printed
    double run;         // seconds that training may take
    double now;         // seconds of measuring
} Measuring;

static void begin(Measuring *m, const CalibrateProgress *progress) {
    m->progress = progress_open(stdout, 0);
    printf("measuring kernels and collectives of this machine: %d s at most, once%s%s\n",
           PLAN_MEASURE_S, progress->path ? "; kept in " : "",
           progress->path ? progress->path : "");
    if (m->run < PLAN_MEASURE_S)
        printf("(the whole run may take less: --calibrate none does not measure, --layout SPEC "
               "does not plan)\n");
    fflush(stdout);
}

static void show(void *ctx, const CalibrateProgress *progress) {
    Measuring *m = ctx;
    if (!m->progress) begin(m, progress);
    m->now = progress->seconds;
    char what[128];
    snprintf(what, sizeof what, "measuring %s", progress->what);
    progress_wait(m->progress, what, m->now, PLAN_MEASURE_S);
}

void run_calibrate(Run *r, Plan *p, Detected *d) {
    double flops = d->flops[r->o->dtype == 1] * r->group.size,
           tokens = (double)p->space.shape.batch;
    double a_step = tokens * config_flops_per_token(&r->config, r->seq) / flops;
    Measuring m = {.run = r->o->plan || !(flops > 0) ? INFINITY : (double)r->o->steps * a_step};
    PlanWhere where = {
        .world = r->world, .kernels = r->kernels, .team = r->team, .measure = r->o->calibrate != 2};
    where.notify = (CalibrateNotify){.again = r->o->calibrate == 1, .progress = show, .ctx = &m};
    r->calibration = plan_measure(p, &where, d);
    progress_close(m.progress);
    double took = r->calibration ? calibration_seconds(r->calibration) : 0;
    if (r->lead && took > 0.05) printf("measured them in %.1f s\n", m.now);
}
