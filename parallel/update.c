/* The end of a step: gradients become whole, their norm, AdamW on every parameter. model.h has the
 * contracts.
 *
 *   kv        gradients of key and value heads that neighbours hold in copies are added
 *   d         matrices: all_reduce, or with zero1 a reduce_scatter of the flat parts (zero2 and zero3 did it
 *             after every product)
 *   d.z(.x)   vectors: all_reduce
 *   norm      of what this rank is the first to hold, so that every parameter counts once
 *   AdamW     on the part whose moments are here; the new weights are gathered where it is smaller than
 *             what is stored of them; products get their copy, where they have one
 */
#include <math.h>

#include "parallel/coll_call.h"
#include "parallel/exact.h"
#include "parallel/mirror.h"

/* Copies the gradients of key and value heads into (pack) or out of a buffer; their number. The ranks that
 * hold copies hold the same runs in the same order. */
static int64_t pack_kv(Model *m, int i, float *buffer, bool pack) {
    Tensor *t = &m->tensors.t[i];
    int64_t n = 0, queries = m->shape.config.heads * m->w.D;
    TensorRun r;
    for (TensorRuns it = tensor_runs(t, PART_GRAD, false); tensor_next(&it, &r);) {
        if (r.col < queries) continue;
        float *grad = t->grad + r.at, *kept = buffer + n;
        m->k->copy(m->team, pack ? kept : grad, r.n, pack ? grad : kept, r.n, 1, r.n,
                   sizeof(float));
        n += r.n;
    }
    return n;
}

static void reduce_kv(Model *m) {
    for (int l = 0; m->grid->kv && l < m->shape.config.layers; l++) {
        const int list[] = {m->blocks[l].qkv_w, m->blocks[l].qkv_b};
        for (int k = 0; k < 2; k++) {
            if (list[k] < 0) continue;
            int64_t n = pack_kv(m, list[k], m->work.kv, true);
            coll_sum(m->grid->kv, COLL_F32, m->work.kv, n, "gradients of copied heads");
            pack_kv(m, list[k], m->work.kv, false);
        }
    }
}

void model_reduce_grads(Model *m) {
    reduce_kv(m);
    grad_sums_end(m);
    if (m->exact) exact_reduce_grads(m);
}

static double all_sum(Comm *c, double x, const char *what) {
    coll_sum(c, COLL_F64, &x, 1, what);
    return x;
}

double model_sum(Model *m, double x) {
    return all_sum(grid_comm(m->grid, axes_of("d.z")), x, "sum of losses");
}

void model_sum_floats(Model *m, float *x, int64_t n) {
    Comm *c = grid_comm(m->grid, axes_of("d.z"));
    coll_sum(c, COLL_F32, x, n, "losses of tokens");
}

/* A sum of squares in the making: here, or where the kernels' memory is, for the host would wait for each. */
typedef struct Squares {
    Model *m;
    double sum;
    bool begun;
} Squares;

static void add_squares(Squares *s, const float *x, int64_t n) {
    Model *m = s->m;
    if (m->squares)
        m->k->squares_to(m->squares, x, n, s->begun);
    else
        s->sum += m->k->sum_of_squares(m->team, x, n);
    s->begun = true;
}

/* Of what this rank is the first to hold of a tensor's gradient: with zero1 only the part of its moments is
 * whole; replicas that are apart have gradients of their own. */
static void add_gradient(Squares *s, const Tensor *t) {
    TensorPart part = s->m->grid->apart ? PART_GRAD : PART_MOMENTS;
    TensorRun r;
    const float *g = t->grad + (t->begin[part] - t->begin[PART_GRAD]);
    bool all_first = t->first[part];
    for (int i = 0; i < t->n_rects; i++) all_first &= t->rects[i].first;
    if (all_first) {
        add_squares(s, g, tensor_part(t, part)); // padding is zero
        return;
    }
    for (TensorRuns it = tensor_runs(t, part, true); tensor_next(&it, &r);)
        add_squares(s, g + r.at, r.n);
}

double model_grad_norm(Model *m) {
    Squares s = {.m = m};
    if (m->exact) return exact_grad_norm(m);
    for (int i = 0; i < m->tensors.n; i++) add_gradient(&s, &m->tensors.t[i]);
    if (m->squares && s.begun) model_get(m, &s.sum, m->squares, sizeof s.sum);
    return sqrt(all_sum(grid_model(m->grid), s.sum, "gradient norm"));
}

static bool has_words(const Tensor *t) {
    return t->words != t->param;
}

/* With bulk the new weights of a tensor are on their way while the next ones are made. */
void model_update(Model *m, const AdamW *o) {
    enum { MOST_OPEN = 8 };
    Ticket open[MOST_OPEN] = {{0}};
    int n_open = 0;
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        int64_t n = tensor_part(t, PART_MOMENTS), begin = t->begin[PART_MOMENTS];
        float *param = t->param + (begin - t->begin[PART_PARAM]);
        bool whole = n == tensor_part(t, PART_PARAM);
        AdamW own = *o;
        own.words = whole && has_words(t) ? t->words : NULL;
        m->k->adamw(m->team, &own, param, t->m, t->v, t->grad + (begin - t->begin[PART_GRAD]), n,
                    t->decay);
        if (whole) continue;
        Ticket *next = &open[n_open++ % MOST_OPEN];
        coll_wait(*next);
        *next = coll_gather_start(grid_comm(m->grid, axes_of("d")), COLL_F32, param, n, t->param,
                                  "new weights");
        if (!m->shape.overlap.bulk) coll_wait(*next), *next = (Ticket){0};
    }
    for (int i = 0; i < MOST_OPEN; i++) coll_wait(open[(n_open + i) % MOST_OPEN]);
    for (int i = 0; n_open && i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        int64_t n = tensor_part(t, PART_PARAM);
        if (has_words(t) && n != tensor_part(t, PART_MOMENTS))
            m->k->to_words(t->words, t->param, n);
    }
}
