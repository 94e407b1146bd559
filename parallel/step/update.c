/* The end of a step: gradients become whole, their norm, AdamW on every parameter. update.h has the
 * contracts.
 *
 *   kv        gradients of key and value heads that neighbours hold in copies are added
 *   d         matrices: all_reduce, or with zero1 a reduce_scatter of the flat parts (zero2 and
 *             zero3 did it after every product)
 *   d.z(.x)   vectors: all_reduce
 *   norm      of what this rank is the first to hold, so that every parameter counts once
 *   AdamW     on the part whose moments are here; what products read of it is gathered where it is
 *             smaller than what is stored for them: the weights themselves, or the words that AdamW
 *             made of them, half the bytes
 */
#include <math.h>
#include <string.h>

#include "parallel/comm/coll_call.h"
#include "parallel/step/exact.h"
#include "parallel/step/mirror.h"
#include "parallel/step/run.h"
#include "parallel/step/squares.h"

/* Copies the gradients of key and value heads into (pack) or out of a buffer; their number. The
 * ranks that hold copies hold the same rectangles in the same order. */
static int64_t pack_kv(Model *m, int i, float *buffer, bool pack) {
    Tensor *t = &m->tensors.t[i];
    int64_t n = 0, queries = m->shape.config.heads * m->w.D, ld = t->local_cols;
    TensorRect r;
    for (TensorRuns it = tensor_runs(t, PART_GRAD, false); tensor_next_rect(&it, &r);) {
        if (r.col < queries) continue;
        float *grad = t->grad + r.at, *kept = buffer + n;
        m->k->copy(m->team, pack ? kept : grad, pack ? r.cols : ld, pack ? grad : kept,
                   pack ? ld : r.cols, r.rows, r.cols, sizeof(float));
        n += r.rows * r.cols;
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

static Comm *over_losses(const Model *m) {
    return grid_comm(m->grid, axes_of("d.z"));
}

double model_sum(Model *m, double x) {
    return all_sum(over_losses(m), x, "sum of losses");
}

void model_sum_floats(Model *m, float *x, int64_t n) {
    coll_sum(over_losses(m), COLL_F32, x, n, "losses of tokens");
}

/* ---- what a step is judged by */

enum { MINE, WHOLE }; // of the totals on a device

void step_end_room(Model *m, Arena *a) {
    if (!m->k->sum_to) return;
    m->end.totals = arena_take(a, (WHOLE + 1) * sizeof *m->end.totals);
    m->end.now = arena_take(a, sizeof *m->end.now);
}

void step_end_make(Model *m) {
    Arena *a = &m->end.memory;
    if (!m->end.totals) return;
    *a = arena_measure("totals on the host");
    a->memory = m->k->pinned;
    arena_take(a, sizeof *m->end.told);
    arena_commit(a);
    m->end.told = arena_take(a, sizeof *m->end.told);
}

void step_end_free(Model *m) {
    arena_free(&m->end.memory);
}

void model_zero_losses(Model *m) {
    m->end.loss = 0;
    memset(m->loss_64, 0, sizeof m->loss_64);
    if (m->end.totals) m->k->zero(m->team, &m->end.totals[MINE], sizeof *m->end.totals);
}

void model_add_losses(Model *m, const float *losses, int64_t n) {
    if (m->end.totals)
        m->k->sum_to(&m->end.totals[MINE].losses, losses, n, true);
    else if (m->exact)
        exact_add_losses(m, losses, n);
    else
        m->end.loss += m->k->sum_of(losses, n);
}

/* On the device. */
static Totals *whole_losses(Model *m) {
    Totals *whole = &m->end.totals[WHOLE];
    m->k->copy(m->team, whole, 1, &m->end.totals[MINE], 1, 1, 1, sizeof *whole);
    coll_sum(over_losses(m), COLL_F64, &whole->losses, 1, "sum of losses");
    return whole;
}

double model_losses(Model *m) {
    double sum;
    if (m->exact) return exact_loss_total(m);
    if (!m->end.totals) return model_sum(m, m->end.loss);
    model_get(m, &sum, &whole_losses(m)->losses, sizeof sum);
    return sum;
}

static double add_gradients(Model *m, double *there) {
    Squares s = {.m = m, .there = there};
    for (int i = 0; i < m->tensors.n; i++) squares_add(&s, i);
    squares_end(&s);
    return s.here;
}

void model_sums_begin(Model *m) {
    static const char what[] = "gradient norm";
    StepSums *sums = &m->end.sums;
    if (m->program) {
        const Totals *totals = step_run_sums(m->program, m);
        if (m->end.totals)
            m->k->tell(m->end.told, totals, sizeof *totals);
        else
            *sums = (StepSums){totals->losses, sqrt(totals->squares)};
        return;
    }
    if (!m->end.totals) {
        sums->loss = model_losses(m);
        sums->norm = m->exact ? exact_grad_norm(m)
                              : sqrt(all_sum(grid_model(m->grid), add_gradients(m, NULL), what));
        return;
    }
    Totals *whole = whole_losses(m);
    add_gradients(m, &whole->squares);
    coll_sum(grid_model(m->grid), COLL_F64, &whole->squares, 1, what);
    m->k->tell(m->end.told, whole, sizeof *whole);
}

StepSums model_sums_end(Model *m) {
    if (!m->end.totals) return m->end.sums;
    m->k->told();
    return (StepSums){m->end.told->losses, sqrt(m->end.told->squares)};
}

StepSums model_sums(Model *m) {
    model_sums_begin(m);
    return model_sums_end(m);
}

/* ---- the update */

/* Of what products read, the part whose weights AdamW changes here. */
static Act *own_words(const Model *m, const Tensor *t) {
    return acts_at(m, t->words, t->begin[PART_MOMENTS] - t->begin[PART_WORDS]);
}

static bool all_own(const Tensor *t) {
    return tensor_part(t, PART_MOMENTS) == tensor_part(t, PART_WORDS);
}

static Ticket gather_words(Model *m, const Tensor *t) {
    return coll_gather_start(grid_comm(m->grid, axes_of("d")), acts_type(m), own_words(m, t),
                             tensor_part(t, PART_MOMENTS), t->words, "new weights");
}

void model_words(Model *m) {
    if (m->program) {
        step_run_casts(m->program, m);
        return;
    }
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        if (t->words == t->param) continue;
        Rounding r;
        m->k->to_words(own_words(m, t), t->param, tensor_part(t, PART_PARAM),
                       rounding_of(m, i, &r));
        if (!all_own(t)) coll_wait(gather_words(m, t));
    }
}

/* clip: NULL where the rule has the factor of gradients. */
static void update_by_list(Model *m, const AdamW *o, const double *clip) {
    m->rounding.step = o->step;
    m->end.rule = o, m->end.clipped = clip != NULL, m->end.clip = clip ? *clip : 0;
    step_run_update(m->program, m);
}

/* With bulk the new weights of a tensor are on their way while the next ones are made. */
void model_update(Model *m, const AdamW *o) {
    enum { MOST_OPEN = 8 };
    Ticket open[MOST_OPEN] = {{0}};
    int n_open = 0;
    if (m->program) {
        update_by_list(m, o, NULL);
        return;
    }
    m->rounding.step = o->step;
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        int64_t begin = t->begin[PART_MOMENTS];
        Rounding r;
        AdamW own = *o;
        own.rounding = rounding_of(m, i, &r);
        own.words = t->words == t->param ? NULL : own_words(m, t);
        m->k->adamw(m->team, &own, t->param + (begin - t->begin[PART_PARAM]), t->m, t->v,
                    t->grad + (begin - t->begin[PART_GRAD]), tensor_part(t, PART_MOMENTS),
                    t->decay);
        if (all_own(t)) continue;
        Ticket *next = &open[n_open++ % MOST_OPEN];
        coll_wait(*next);
        *next = gather_words(m, t);
        if (!m->shape.overlap.bulk) coll_wait(*next), *next = (Ticket){0};
    }
    for (int i = 0; i < MOST_OPEN; i++) coll_wait(open[(n_open + i) % MOST_OPEN]);
}

void model_skip(Model *m, int64_t step) {
    m->rounding.step = step;
    if (m->shape.stochastic && has_words(m)) model_words(m);
}

void model_update_clipped(Model *m, const AdamW *o, double clip) {
    AdamW own = *o;
    StepSums s = m->end.sums;
    if (m->program) {
        update_by_list(m, o, &clip);
        return;
    }
    if (m->end.totals) {
        m->k->adamw_begin(m->end.now, &m->end.totals[WHOLE], clip);
        own.now = m->end.now;
    } else {
        if (!isfinite(s.loss) || !isfinite(s.norm)) return;
        own.grad_scale = clip > 0 && s.norm > clip ? (float)(clip / (s.norm + 1e-6)) : 1;
    }
    model_update(m, &own);
}
