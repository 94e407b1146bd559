/* The end of a step: gradients become whole, their norm, AdamW on every parameter. model.h has the
 * contracts.
 *
 *   kv        gradients of key and value heads that neighbours hold in copies are added
 *   d         matrices: all_reduce, or with zero1 a reduce_scatter of the flat parts (zero2 and zero3 did it
 *             after every product)
 *   d.z(.x)   vectors: all_reduce
 *   norm      of what this rank is the first to hold, so that every parameter counts once
 *   AdamW     on the part whose moments are here; the new weights are gathered where it is smaller than
 *             what is stored of them
 */
#include <math.h>

#include "parallel/coll_call.h"
#include "parallel/exact.h"
#include "parallel/model.h"

/* Copies the gradients of key and value heads into (pack) or out of a buffer; their number. The ranks that
 * hold copies hold the same runs in the same order. */
static int64_t pack_kv(Model *m, int i, float *buffer, bool pack) {
    Tensor *t = &m->tensors.t[i];
    int64_t n = 0, queries = m->shape.config.heads * m->w.D;
    TensorRun r;
    for (TensorRuns it = tensor_runs(t, PART_GRAD, false); tensor_next(&it, &r);) {
        if (r.col < queries) continue;
        float *grad = t->grad + r.at, *kept = buffer + n;
        m->k->copy(m->team, pack ? kept : grad, r.n, pack ? grad : kept, r.n, 1, r.n);
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

/* zero1: this rank keeps the sum of its part only. */
static void scatter_over_d(Model *m) {
    Comm *d = grid_comm(m->grid, axes_of("d"));
    for (int i = 0; d && m->grid->layout.zero == 1 && i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        if (!shard_stored(&m->tensors, i)) continue;
        int64_t own = t->begin[PART_MOMENTS] - t->begin[PART_GRAD];
        void *dst = m->exact ? (void *)(m->grad_64[i] + own) : t->grad + own;
        coll_scatter(d, m->exact ? COLL_I64 : COLL_F32, m->exact ? (void *)m->grad_64[i] : t->grad,
                     tensor_part(t, PART_MOMENTS), dst, "gradients of matrices");
    }
}

void model_reduce_grads(Model *m) {
    reduce_kv(m);
    scatter_over_d(m);
    for (int i = 0; i < m->n_regions; i++)
        coll_sum(m->regions[i].comm, m->exact ? COLL_I64 : COLL_F32, m->regions[i].p,
                 m->regions[i].n, m->regions[i].what);
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

/* Of what this rank is the first to hold of a tensor's gradient: with zero1 only the part of its moments is
 * whole; replicas that are apart have gradients of their own. */
static double squares(Model *m, const Tensor *t) {
    TensorPart part = m->grid->apart ? PART_GRAD : PART_MOMENTS;
    double sum = 0;
    TensorRun r;
    const float *g = t->grad + (t->begin[part] - t->begin[PART_GRAD]);
    bool all_first = t->first[part];
    for (int i = 0; i < t->n_rects; i++) all_first &= t->rects[i].first;
    if (all_first) return m->k->sum_of_squares(m->team, g, tensor_part(t, part)); // padding is zero
    for (TensorRuns it = tensor_runs(t, part, true); tensor_next(&it, &r);)
        sum += m->k->sum_of_squares(m->team, g + r.at, r.n);
    return sum;
}

double model_grad_norm(Model *m) {
    double sum = 0;
    if (m->exact) return exact_grad_norm(m);
    for (int i = 0; i < m->tensors.n; i++) sum += squares(m, &m->tensors.t[i]);
    return sqrt(all_sum(grid_model(m->grid), sum, "gradient norm"));
}

void model_update(Model *m, const AdamW *o) {
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        int64_t n = tensor_part(t, PART_MOMENTS), begin = t->begin[PART_MOMENTS];
        float *param = t->param + (begin - t->begin[PART_PARAM]);
        m->k->adamw(m->team, o, param, t->m, t->v, t->grad + (begin - t->begin[PART_GRAD]), n,
                    t->decay);
        if (n == tensor_part(t, PART_PARAM)) continue;
        coll_gather(grid_comm(m->grid, axes_of("d")), COLL_F32, param, n, t->param, "new weights");
    }
}
