/* What the machine at hand costs, measured before the first step: what a person sees of it, and when it is done again. */
#include "train_gpt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/ledger.h"

enum { LINES = 64 };                // of the ledger
static const double doubtful = 0.4; // half of the predictions err by more

int last_lines(LedgerLine lines[], int max) {
    Err e;
    LedgerDamage damage;
    char *path = *o.ledger ? mem_strdup(o.ledger) : ledger_path();
    int n = path ? ledger_read(path, lines, max, &damage, &e) : 0;
    mem_free(path);
    return n > 0 ? n : 0;
}

/* Have the last runs shown that the machine was disturbed when it was measured? */
static double doubt(const Run *r, CalibrateTalk *talk) {
    LedgerLine *lines = mem_calloc(LINES, sizeof *lines), like = {.ranks = r->group.size};
    double error;
    machine_words(r, like.machine, sizeof like.machine);
    snprintf(like.backend, sizeof like.backend, "%s", world_backend(r->world));
    int n = ledger_foretold(lines, last_lines(lines, LINES), &like, talk->doubtful, &error);
    if (n > 0 && error > doubtful) talk->doubtful_times = n;
    mem_free(lines);
    return error;
}

typedef struct Measuring {
    Progress *progress; // NULL: nothing was told
    double error;       // of the runs before, where they are the reason
    double run;         // seconds that training may take
    double now, before; // seconds of this list of works, and of those before it
} Measuring;

static void begin(Measuring *m, const CalibrateNews *news) {
    m->progress = progress_open(stdout, 0);
    if (news->doubted)
        printf("the last runs were foretold badly (half of them err by more than %.0f %%): the "
               "table of costs is measured again\n",
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
    if (news->seconds < m->now) m->before += m->now; // another number of threads
    m->now = news->seconds;
    progress_wait(m->progress, "measuring", m->before + m->now, PLAN_MEASURE_S);
}

void measure_machine(Run *r, Plan *p, const Detected *d) {
    double flops = d->flops * r->group.size, tokens = (double)p->space.shape.batch;
    double a_step = tokens * config_flops_per_token(&r->config, r->seq) / flops;
    Measuring m = {.run = o.plan || !(flops > 0) ? INFINITY : (double)o.steps * a_step};
    PlanWhere where = {
        .world = r->world, .kernels = r->kernels, .team = &r->team, .measure = o.calibrate != 2};
    where.talk = (CalibrateTalk){.again = o.calibrate == 1, .tell = tell, .ctx = &m};
    if (r->lead) m.error = doubt(r, &where.talk);
    r->calibration = plan_measure(p, &where, d);
    progress_close(m.progress);
    double took = r->calibration ? calibration_seconds(r->calibration) : 0;
    if (r->lead && took > 0.05) printf("measured them in %.1f s\n", m.before + m.now);
}
