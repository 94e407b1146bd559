/* Calibration before the first step: its progress lines, and when it is repeated. */
#include "parallel/train/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/ledger.h"

enum { LINES = 64 }; // of the ledger
// median error of predictions above which the machine is measured again
static const double doubtful = 0.4;

int run_last_lines(const Run *r, LedgerLine lines[], int max) {
    Err e;
    LedgerDamage damage;
    char *path = *r->o->ledger ? mem_strdup(r->o->ledger) : ledger_path();
    int n = path ? ledger_read(path, lines, max, &damage, &e) : 0;
    mem_free(path);
    return n > 0 ? n : 0;
}

/* Do recent runs show that the cost table is wrong, for example measured on a busy machine? */
static double doubt(const Run *r, CalibrateTalk *talk) {
    LedgerLine *lines = mem_calloc(LINES, sizeof *lines), like = {.ranks = r->group.size};
    double error;
    run_machine_name(r, like.machine, sizeof like.machine);
    snprintf(like.backend, sizeof like.backend, "%s", world_backend(r->world));
    int n = ledger_prediction_error(lines, run_last_lines(r, lines, LINES), &like, talk->doubtful,
                                    &error);
    if (n > 0 && error > doubtful) talk->doubtful_times = n;
    mem_free(lines);
    return error;
}

typedef struct Measuring {
    Progress *progress; // NULL: nothing was printed
    double error;       // of recent predictions, if that is the reason
    double run;         // seconds that training may take
    double now, before; // seconds of the current list of operations, and of those before it
} Measuring;

static void begin(Measuring *m, const CalibrateNews *news) {
    m->progress = progress_open(stdout, 0);
    if (news->doubted)
        printf("recent predictions were off by more than %.0f %% (median): the table of costs is "
               "measured again\n",
               100 * m->error);
    printf("measuring kernels and collectives of this machine: %d s at most, once%s%s\n",
           PLAN_MEASURE_S, news->path ? "; kept in " : "", news->path ? news->path : "");
    if (m->run < PLAN_MEASURE_S)
        printf("(the whole run may take less: --calibrate none does not measure, --layout SPEC "
               "does not plan)\n");
    fflush(stdout);
}

static void tell(void *ctx, const CalibrateNews *news) {
    Measuring *m = ctx;
    if (!m->progress) begin(m, news);
    if (news->seconds < m->now) m->before += m->now; // the next list: another number of threads
    m->now = news->seconds;
    char what[128];
    snprintf(what, sizeof what, "measuring %s", news->what);
    progress_wait(m->progress, what, m->before + m->now, PLAN_MEASURE_S);
}

void run_calibrate(Run *r, Plan *p, Detected *d) {
    double flops = d->flops[r->o->dtype == 1] * r->group.size,
           tokens = (double)p->space.shape.batch;
    double a_step = tokens * config_flops_per_token(&r->config, r->seq) / flops;
    Measuring m = {.run = r->o->plan || !(flops > 0) ? INFINITY : (double)r->o->steps * a_step};
    PlanWhere where = {.world = r->world,
                       .kernels = r->kernels,
                       .team = &r->team,
                       .measure = r->o->calibrate != 2};
    where.talk = (CalibrateTalk){.again = r->o->calibrate == 1, .tell = tell, .ctx = &m};
    if (r->lead) m.error = doubt(r, &where.talk);
    r->calibration = plan_measure(p, &where, d);
    progress_close(m.progress);
    double took = r->calibration ? calibration_seconds(r->calibration) : 0;
    if (r->lead && took > 0.05) printf("measured them in %.1f s\n", m.before + m.now);
}
