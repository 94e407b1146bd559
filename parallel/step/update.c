/* The end of a step: update.h has the contracts, end.c the list. */
#include <math.h>
#include <string.h>

#include "parallel/comm/coll.h"
#include "parallel/step/mirror.h"
#include "parallel/step/run_call.h"

static Comm *over_losses(const Model *m) {
    return grid_comm(m->grid, axes_of("d.z"));
}

double model_sum(Model *m, double x) {
    coll_sum(over_losses(m), COLL_F64, &x, 1, "sum of losses");
    return x;
}

/* ---- what a step is judged by */

enum { MINE, WHOLE }; // of the totals on a device

void model_zero_losses(Model *m) {
    m->end.loss = 0;
    memset(m->loss_64, 0, sizeof m->loss_64);
    if (m->end.totals) m->k->zero(m->team, &m->end.totals[MINE], sizeof *m->end.totals);
}

void model_add_losses(Model *m, const float *losses, int64_t n) {
    if (m->end.totals)
        m->k->sum_to(&m->end.totals[MINE].losses, losses, n, true);
    else if (m->exact)
        m->k->exact_sum(m->team, m->loss_64, losses, n, false);
    else
        m->end.loss += m->k->sum_of(losses, n);
}

double model_losses(Model *m) {
    double sum, *whole = m->end.totals ? &m->end.totals[WHOLE].losses : NULL;
    if (m->exact) {
        coll_sum(over_losses(m), COLL_I64, m->loss_64, WIDE, "sum of losses");
        return m->k->exact_wide_to_double(m->loss_64);
    }
    if (!whole) return model_sum(m, m->end.loss);
    m->k->copy(m->team, whole, 1, &m->end.totals[MINE].losses, 1, 1, 1, sizeof *whole);
    coll_sum(over_losses(m), COLL_F64, whole, 1, "sum of losses");
    model_get(m, &sum, whole, sizeof sum);
    return sum;
}

void model_sums_begin(Model *m) {
    const Bound *end = &m->program->list[END];
    run_operations(end, m, 0, m->program->clip);
    const Totals *totals = (void *)end->at_first[end->p.result];
    if (m->end.totals)
        m->k->copy_out(m->end.copy, totals, sizeof *totals);
    else
        m->end.sums = (StepSums){totals->losses, sqrt(totals->squares)};
}

StepSums model_sums_end(Model *m) {
    if (!m->end.totals) return m->end.sums;
    m->k->wait_out();
    return (StepSums){m->end.copy->losses, sqrt(m->end.copy->squares)};
}

StepSums model_sums(Model *m) {
    model_sums_begin(m);
    return model_sums_end(m);
}

/* ---- the update */

void model_cast(Model *m) {
    const Bound *b = &m->program->list[CASTS]; // which may have none
    run_operations(b, m, 0, b->p.n_ops);
}

void model_update_clipped(Model *m, const AdamW *o, double clip) {
    const Bound *end = &m->program->list[END];
    m->end.rule = o, m->end.clip = clip;
    run_operations(end, m, m->program->clip, end->p.n_ops);
}
