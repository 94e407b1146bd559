/* The end of a step: update.h has the contracts, end.c the list. */
#include <math.h>

#include "parallel/comm/coll.h"
#include "parallel/step/mirror.h"
#include "parallel/step/run_call.h"

/* ---- loss and gradient norm */

LossSum *model_loss_sum(Model *m) {
    return m->end.device_losses ? m->end.device_losses : &m->end.losses;
}

void model_zero_losses(Model *m) {
    m->k->zero(m->team, model_loss_sum(m), sizeof(LossSum));
}

void model_add_losses(Model *m, const float *losses, int64_t n) {
    LossSum *own = model_loss_sum(m);
    if (m->end.device_losses)
        m->k->sum_to(&own->sum, losses, n, true);
    else if (m->exact)
        m->k->exact_sum(m->team, own->wide, losses, n, false);
    else
        own->sum += m->k->sum_of(losses, n);
}

double model_losses(Model *m) {
    LossSum here, *whole = m->end.device_losses ? &m->end.device_losses[1] : &here;
    m->k->copy(m->team, whole, 1, model_loss_sum(m), 1, 1, 1, sizeof here);
    coll_sum(grid_comm(m->grid, axes_of("d.z")), m->exact ? COLL_I64 : COLL_F64, whole,
             m->exact ? WIDE : 1, "sum of losses");
    if (whole != &here) model_get(m, &here, whole, sizeof here);
    return m->exact ? m->k->exact_wide_to_double(here.wide) : here.sum;
}

void model_sums_begin(Model *m) {
    const Bound *end = &m->program->list[END];
    run_operations(end, m, 0, m->program->clip);
    const Totals *totals = (void *)end->at_first[end->p.result];
    if (m->end.copy)
        m->k->copy_out(m->end.copy, totals, sizeof *totals);
    else
        m->end.sums = *totals;
}

StepSums model_sums_end(Model *m) {
    const Totals *sums = m->end.copy ? m->end.copy : &m->end.sums;
    if (m->end.copy) m->k->wait_out();
    return (StepSums){sums->losses, sqrt(sums->squares)};
}

StepSums model_sums(Model *m) {
    model_sums_begin(m);
    return model_sums_end(m);
}

/* ---- the update */

void model_cast(Model *m) {
    const Bound *b = &m->program->list[CASTS]; // empty if the model has no bf16 copies
    run_operations(b, m, 0, b->p.n_ops);
}

void model_update_clipped(Model *m, const AdamW *o, double clip) {
    const Bound *end = &m->program->list[END];
    m->end.rule = o, m->end.clip = clip;
    run_operations(end, m, m->program->clip, end->p.n_ops);
}
