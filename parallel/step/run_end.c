/* run_end -- kernels of the end of a step (end.c). On a device the sums, the factor for clipping
 * and the check for finite sums stay in device memory, so that the host does not wait. */
#include <math.h>

#include "layers/exact.h"
#include "parallel/step/run_call.h"

void run_loss_total(const Call *c) {
    int64_t n = rows(c, c->op->out); // 1, or with --exact the words of a wide sum
    c->k->copy(c->team, result(c), n, model_loss_sum(c->m), n, 1, n, sizeof(double));
}

/* Copies the key and value heads of a gradient into a buffer (pack) or back. All ranks that hold
 * copies of these heads hold the same rectangles in the same order. */
void run_move_copies(const Call *c) {
    const Model *m = c->m;
    bool pack = c->op->kind == OP_PACK_COPIES;
    float *buffer = at(c, pack ? c->op->out : c->op->in[1]);
    const Tensor *t = step_run_row(m, tensor(c, c->op->in[0]));
    int64_t n = 0, queries = m->shape.config.heads * m->w.D, ld = t->local_cols;
    TensorRect r;
    for (TensorRuns it = tensor_runs(t, PART_GRAD, false); tensor_next_rect(&it, &r);) {
        if (r.col < queries) continue;
        float *grad = t->grad + r.offset, *packed = buffer + n;
        c->k->copy(c->team, pack ? packed : grad, pack ? r.cols : ld, pack ? grad : packed,
                   pack ? ld : r.cols, r.rows, r.cols, sizeof(float));
        n += r.rows * r.cols;
    }
}

/* ---- squares of gradients: each element counts on the first rank that holds it ---- */

/* Running sum of the squares of gradients. On the host each gradient is added by a call of its own,
 * in the order of the table. On a device one kernel adds all gradients that are adjacent in memory:
 * fewer launches. */
typedef struct Squares {
    Model *m;
    double on_host, *on_device; // on_device: the sum in device memory; NULL: the sum is on_host
    bool begun;                 // *on_device has been written: further kernels add to it
    const float *begin, *end;   // adjacent gradients that are not added yet
} Squares;

static void add_squares(Squares *s, const float *x, int64_t ld, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows && !s->on_device; i++)
        s->on_host += s->m->k->sum_of_squares(s->m->team, x + i * ld, n);
    if (s->on_device) s->m->k->squares_to(s->on_device, x, ld, rows, n, s->begun), s->begun = true;
}

static void add_adjacent(Squares *s) {
    int64_t n = s->end - s->begin;
    if (n > 0) add_squares(s, s->begin, n, 1, n);
    s->begin = s->end = NULL;
}

/* Adds the squares of the gradient of tensor i. With zero1 the gradient is complete only in the
 * range of this rank's moments. With local steps each replica has its own gradients, complete in
 * the whole range. */
static void squares_add(Squares *s, int i) {
    const int64_t unit = ARENA_ALIGN / sizeof(float);
    const Tensor *t = &s->m->tensors.t[i];
    TensorPart part = s->m->grid->local_steps ? PART_GRAD : PART_MOMENTS;
    const float *g = t->grad + (t->begin[part] - t->begin[PART_GRAD]);
    int64_t n = tensor_part(t, part), gap = (unit - n % unit) % unit;
    bool all_first = t->first[part], whole = n == tensor_part(t, PART_GRAD);
    for (int k = 0; k < t->n_rects; k++) all_first &= t->rects[k].first;
    if (all_first) {
        if (s->end != g) add_adjacent(s), s->begin = g;
        // The alignment gap before the next tensor is never written: it contains zeros, as padding
        // does.
        s->end = g + n + (whole && s->on_device ? gap : 0);
        return;
    }
    TensorRect r;
    for (TensorRuns it = tensor_runs(t, part, true); tensor_next_rect(&it, &r);)
        add_squares(s, g + r.offset, t->local_cols, r.rows, r.cols);
}

static void exact_squares(const Call *c) {
    int dw = c->op->in[0];
    int64_t *sum = result(c);
    const Tensor *t = step_run_row(c->m, tensor(c, dw));
    TensorRun r;
    if (c->op->n_in > 1)
        in_place(c, c->op->out, c->op->in[1]);
    else
        memset(sum, 0, WIDE * sizeof *sum);
    for (TensorRuns it = tensor_runs(t, PART_MOMENTS, true); tensor_next(&it, &r);)
        c->k->exact_sum(c->team, sum, (float *)at(c, dw) + r.offset, r.n, true);
}

/* Adds the squares of one gradient to the sum of the gradients before it (operand 1). On a device
 * all operations of this kind are fused, and this function handles all gradients. */
void run_squares(const Call *c) {
    if (is_integers(c, c->op->out)) {
        exact_squares(c);
        return;
    }
    int out = c->op[c->n - 1].out;
    const double *before = c->op->n_in > 1 ? operand(c, 1) : NULL;
    Squares s = {.m = c->m, .on_host = before ? *before : 0};
    if (c->k->squares_to) s.on_device = at(c, out), s.on_host = 0;
    assert(!s.on_device || c->n == c->m->tensors.n);
    for (int i = 0; i < c->n; i++)
        squares_add(&s, s.on_device ? c->m->grad_order[i] : tensor(c, c->op[i].in[0])->parameter);
    add_adjacent(&s);
    if (s.on_device && !s.begun) c->k->zero(c->team, s.on_device, sizeof *s.on_device);
    if (!s.on_device) *(double *)at(c, out) = s.on_host;
}

/* ---- the update ---- */

void run_clip(const Call *c) {
    const Totals *totals = operand(c, 0);
    AdamWNow *now = result(c);
    double clip = c->m->end.clip;
    if (c->k->adamw_begin) {
        c->k->adamw_begin(now, totals, clip);
        return;
    }
    double norm = sqrt(totals->squares);
    now->finite = isfinite(totals->losses) && isfinite(norm);
    now->grad_scale = clip > 0 && norm > clip ? (float)(clip / (norm + 1e-6)) : 1;
}

/* On a device consecutive updates are collected, until the last one or a full list, and run as one
 * kernel: most tensors are vectors, whose kernel takes less time than a launch. A trace shows the
 * time of all at the last one. */
static bool is_deferred(const Call *c) {
    const Op *next = c->op + c->n, *end = c->p->op + c->p->n_ops;
    return c->m->end.n_batch < ADAMW_TENSORS && next < end && next->kind == OP_ADAMW;
}

void run_adamw(const Call *c) {
    const Op *op = c->op, *cast = with(c, OP_CAST);
    StepEnd *e = &c->m->end;
    const AdamWNow *now = operand(c, 1);
    AdamW own = *e->rule;
    AdamWTensor t = {result(c),
                     operand(c, 3),
                     operand(c, 4),
                     operand(c, 0),
                     cast ? at(c, cast->out) : NULL,
                     step_tensor_elements(c->p, tensor(c, op->out)),
                     step_run_row(c->m, tensor(c, op->out))->decay};
    if (c->k->adamw_list) {
        e->batch[e->n_batch++] = t;
        if (is_deferred(c)) return;
        own.now = now;
        c->k->adamw_list(&own, e->batch, e->n_batch);
        e->n_batch = 0;
        return;
    }
    if (!now->finite) return;
    own.cast = t.cast, own.grad_scale = (double)now->grad_scale;
    c->k->adamw(c->team, &own, t.param, t.m, t.v, t.grad, t.n, t.decay);
}

void run_cast(const Call *c) {
    c->k->to_bf16(result(c), operand(c, 0), step_tensor_elements(c->p, tensor(c, c->op->out)));
}
