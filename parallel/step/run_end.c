/* Kernels of the end of a step (end.c). Where kernels compute on a device, sums, the factor of
 * gradients and whether a sum is finite stay there: the host waits for nothing. */
#include <math.h>

#include "layers/exact.h"
#include "parallel/step/run_call.h"

void run_loss_total(const Call *c) {
    int out = c->op->out;
    int64_t n = rows(c, out); // of a wide sum
    c->m->k->copy(c->m->team, at(c, out), n, model_loss_sum(c->m), n, 1, n, sizeof(double));
}

/* Copies the key and value heads of a gradient into (pack) or out of a buffer. The ranks that hold
 * copies hold the same rectangles in the same order. */
void run_move_copies(const Call *c) {
    const Model *m = c->m;
    bool pack = c->op->kind == OP_PACK_COPIES;
    float *buffer = at(c, pack ? c->op->out : c->op->in[1]);
    const Tensor *t = step_run_row(m, tensor(c, c->op->in[0]));
    int64_t n = 0, queries = m->shape.config.heads * m->w.D, ld = t->local_cols;
    TensorRect r;
    for (TensorRuns it = tensor_runs(t, PART_GRAD, false); tensor_next_rect(&it, &r);) {
        if (r.col < queries) continue;
        float *grad = t->grad + r.at, *kept = buffer + n;
        m->k->copy(m->team, pack ? kept : grad, pack ? r.cols : ld, pack ? grad : kept,
                   pack ? ld : r.cols, r.rows, r.cols, sizeof(float));
        n += r.rows * r.cols;
    }
}

/* ---- squares of gradients: each element counts on the first rank that holds it ---- */

/* On the host each gradient is added by itself, in the order of the table. On a device gradients
 * that lie side by side are one kernel, which takes less time than a launch for each. */
typedef struct Squares {
    Model *m;
    double here, *there; // there: on the device; NULL: here
    bool begun;
    const float *begin, *end; // side by side, still to be added
} Squares;

static void add_squares(Squares *s, const float *x, int64_t ld, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows && !s->there; i++)
        s->here += s->m->k->sum_of_squares(s->m->team, x + i * ld, n);
    if (s->there) s->m->k->squares_to(s->there, x, ld, rows, n, s->begun), s->begun = true;
}

static void add_side_by_side(Squares *s) {
    int64_t n = s->end - s->begin;
    if (n > 0) add_squares(s, s->begin, n, 1, n);
    s->begin = s->end = NULL;
}

/* With zero1 only the shard of the moments is complete; replicas that take local steps have
 * gradients of their own. */
static void squares_add(Squares *s, int i) {
    const int64_t unit = ARENA_ALIGN / sizeof(float);
    const Tensor *t = &s->m->tensors.t[i];
    TensorPart part = s->m->grid->local_steps ? PART_GRAD : PART_MOMENTS;
    const float *g = t->grad + (t->begin[part] - t->begin[PART_GRAD]);
    int64_t n = tensor_part(t, part), gap = (unit - n % unit) % unit;
    bool all_first = t->first[part], whole = n == tensor_part(t, PART_GRAD);
    for (int k = 0; k < t->n_rects; k++) all_first &= t->rects[k].first;
    if (all_first) {
        if (s->end != g || !s->there) add_side_by_side(s), s->begin = g;
        // padding is zero, and so is what nobody writes, from the last element to where the next
        // tensor begins
        s->end = g + n + (whole && s->there ? gap : 0);
        return;
    }
    if (!s->there) add_side_by_side(s);
    TensorRect r;
    for (TensorRuns it = tensor_runs(t, part, true); tensor_next_rect(&it, &r);)
        add_squares(s, g + r.at, t->local_cols, r.rows, r.cols);
}

static void exact_squares(const Call *c) {
    int dw = c->op->in[0];
    int64_t *sum = at(c, c->op->out);
    const Tensor *t = step_run_row(c->m, tensor(c, dw));
    TensorRun r;
    if (c->op->n_in > 1)
        in_place(c, c->op->out, c->op->in[1]);
    else
        memset(sum, 0, WIDE * sizeof *sum);
    for (TensorRuns it = tensor_runs(t, PART_MOMENTS, true); tensor_next(&it, &r);)
        c->m->k->exact_sum(c->m->team, sum, (float *)at(c, dw) + r.at, r.n, true);
}

/* Behind the sum of the gradients before; on a device all of them are one kernel. */
void run_squares(const Call *c) {
    if (is_integers(c, c->op->out)) {
        exact_squares(c);
        return;
    }
    int out = c->op[c->n - 1].out;
    const double *before = c->op->n_in > 1 ? at(c, c->op->in[1]) : NULL;
    Squares s = {.m = c->m, .here = before ? *before : 0};
    if (c->m->k->squares_to) s.there = at(c, out), s.here = 0;
    assert(!s.there || c->n == c->m->tensors.n);
    for (int i = 0; i < c->n; i++)
        squares_add(&s, s.there ? c->m->grad_order[i] : tensor(c, c->op[i].in[0])->parameter);
    add_side_by_side(&s);
    if (s.there && !s.begun) c->m->k->zero(c->m->team, s.there, sizeof *s.there);
    if (!s.there) *(double *)at(c, out) = s.here;
}

/* ---- the update ---- */

void run_clip(const Call *c) {
    const Totals *totals = at(c, c->op->in[0]);
    AdamWNow *now = at(c, c->op->out);
    double clip = c->m->end.clip;
    if (c->m->k->adamw_begin) {
        c->m->k->adamw_begin(now, totals, clip);
        return;
    }
    double norm = sqrt(totals->squares);
    now->finite = isfinite(totals->losses) && isfinite(norm);
    now->grad_scale = clip > 0 && norm > clip ? (float)(clip / (norm + 1e-6)) : 1;
}

/* On a device those that follow each other wait for the last, or for a full list: most are vectors,
 * whose kernel ends before another can be launched. In a trace the last one has the time of all. */
static bool waits_for_more(const Call *c) {
    const Op *next = c->op + c->n, *end = c->p->op + c->p->n_ops;
    return c->m->end.n_waiting < ADAMW_TENSORS && next < end && next->kind == OP_ADAMW;
}

void run_adamw(const Call *c) {
    const Op *op = c->op, *cast = with(c, OP_CAST);
    StepEnd *e = &c->m->end;
    const AdamWNow *now = at(c, op->in[1]);
    AdamW own = *e->rule;
    AdamWTensor t = {at(c, op->out),
                     at(c, op->in[3]),
                     at(c, op->in[4]),
                     at(c, op->in[0]),
                     cast ? at(c, cast->out) : NULL,
                     step_tensor_elements(c->p, tensor(c, op->out)),
                     step_run_row(c->m, tensor(c, op->out))->decay};
    if (c->m->k->adamw_list) {
        e->waiting[e->n_waiting++] = t;
        if (waits_for_more(c)) return;
        own.now = now;
        c->m->k->adamw_list(&own, e->waiting, e->n_waiting);
        e->n_waiting = 0;
        return;
    }
    if (!now->finite) return;
    own.cast = t.cast, own.grad_scale = (double)now->grad_scale;
    c->m->k->adamw(c->m->team, &own, t.param, t.m, t.v, t.grad, t.n, t.decay);
}

void run_cast(const Call *c) {
    int w = c->op->in[0];
    c->m->k->to_bf16(at(c, c->op->out), at(c, w), step_tensor_elements(c->p, tensor(c, w)));
}
