#include "parallel/step/exact.h"
#include "parallel/comm/coll_call.h"

#include <math.h>
#include <string.h>

#include "parallel/step/block.h"
#include "parallel/step/summa.h"

/* ---- where sums are cut ---- */

/* Panels of a sum: `size` terms each, counted from the start of every `unit` (0: one unit). */
typedef struct Panels {
    int64_t size, unit;
} Panels;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static Panels of_heads(const Model *m) {
    return (Panels){smaller(m->w.D, 64), m->w.D};
}

static Panels of_features(int64_t n) {
    return (Panels){exact_panel(n), 0};
}

static Panels of_tokens(int64_t S) {
    return (Panels){smaller(S, 64), S};
}

static Panels panels_of(const Model *m, LinearKind kind, What what) {
    const Config *c = &m->shape.config;
    bool heads = what == WHAT_Y ? kind == LINEAR_ATTN_OUT : kind == LINEAR_QKV;
    bool hidden = what == WHAT_Y ? kind == LINEAR_DOWN : kind == LINEAR_UP;
    if (what == WHAT_DW) return of_tokens(m->tk.S);
    if (heads) return of_heads(m);
    if (kind == LINEAR_HEAD) return of_features(c->vocab); // dx: logits are no such sum
    return of_features(hidden ? c->ffn : c->channels);
}

int exact_exponent(const Model *m, What what) {
    return what == WHAT_Y    ? EXACT_ACTIVATIONS
           : what == WHAT_DX ? exact_gradients((double)m->scale)
                             : EXACT_WEIGHTS;
}

void exact_product(Model *m, LinearKind kind, What what, Product p, int64_t *y, bool fresh) {
    Panels k = panels_of(m, kind, what);
    p.workspace = m->product_work;
    m->k->product_exact(m->team, &p,
                        &(ProductExact){.y_64 = y,
                                        .k_panel = k.size,
                                        .k_unit = k.unit,
                                        .exponent = exact_exponent(m, what),
                                        .fresh = fresh});
}

/* ---- room ---- */

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t *integers(Arena *a, int64_t n) {
    return n ? arena_take(a, (size_t)n * sizeof(int64_t)) : NULL;
}

int64_t exact_head_rows(int64_t rows, int64_t S, int64_t T) {
    return smaller((rows + S - 1) / S * S, T);
}

void exact_workspace(Model *m, Arena *a) {
    int64_t sum = m->tk.T * m->w.C_all, dw = 0, part = 0, panel = 0, rows = m->tk.rows;
    for (int kind = 0; kind < LINEAR_HEAD; kind++) {
        const Linear *l = &m->linear[kind];
        sum = larger(sum, rows * larger(l->N, l->K));
        panel = larger(panel, m->w.rows_C * l->N);
        panel = larger(panel, l->K_stored * l->N);
    }
    for (int i = 0; i < m->tensors.n; i++)
        if (stored_over(m, i, STORE_GRAD)) {
            dw = larger(dw, shard_block(&m->tensors, i, m->grid));
            part = larger(part, tensor_part(&m->tensors.t[i], PART_GRAD));
        }
    m->ex.sum = integers(a, sum), m->ex.part = integers(a, sum), m->ex.tmp = integers(a, sum);
    m->ex.stats = integers(a, 2 * WIDE * larger(m->tk.T_x, m->head_rows));
    m->ex.max = arena_take(a, (size_t)m->head_rows * sizeof(float));
    m->ex.target = arena_take(a, (size_t)m->head_rows * sizeof(float));
    m->ex.log_sum = arena_take(a, (size_t)m->head_rows * sizeof(float));
    m->ex.sums = arena_take(a, (size_t)(2 * m->tk.T_x) * sizeof(float));
    if (!m->shape.training) return;
    if (m->grid->layout.stay)
        m->ex.panel[0] = integers(a, panel), m->ex.panel[1] = integers(a, panel);
    m->ex.dw = integers(a, dw), m->ex.dw_part = integers(a, part);
}

/* ---- gradients as integers ---- */

static int64_t *grad_open_64(Model *m, int i, bool *fresh) {
    if (!stored_over(m, i, STORE_GRAD)) {
        *fresh = m->grads_fresh;
        return m->grad_64[i];
    }
    memset(m->ex.dw, 0, (size_t)shard_block(&m->tensors, i, m->grid) * sizeof(int64_t));
    *fresh = true;
    return m->ex.dw;
}

/* fresh: nothing of this step is there yet. */
static void grad_done_64(Model *m, int i, bool fresh, const char *what) {
    Comm *over = stored_over(m, i, STORE_GRAD);
    int64_t n = tensor_part(&m->tensors.t[i], PART_GRAD);
    if (!over) return;
    int64_t *part = fresh ? m->grad_64[i] : m->ex.dw_part;
    coll_scatter(over, COLL_I64, m->ex.dw, n, part, what);
    if (!fresh) m->k->exact_add(m->team, m->grad_64[i], part, n);
}

/* ---- linear layers ---- */

typedef struct Forward {
    Model *m;
    LinearKind kind;
} Forward;

static void forward_panel(void *ctx, Product part, int64_t begin) {
    const Forward *f = ctx;
    exact_product(f->m, f->kind, WHAT_Y, part, f->m->ex.sum, begin == 0);
}

/* With stay=y: the sum over all panels of K that pass by, as in summa_forward. */
static const int64_t *stay_forward(Model *m, const Linear *l, const Tokens *tk, const float *x,
                                   int w) {
    summa_pass(m, l, tk, x, w, forward_panel, &(Forward){m, l->kind});
    return m->ex.sum;
}

static const int64_t *forward_sum(Model *m, const Linear *l, const Tokens *tk, const float *x,
                                  int w) {
    const float *in =
        path_run(&l->x, COLL_F32, x, rows_in(l->kind, tk), l->K_stored, m->work.x, NULL);
    Product p = product_xw(tk->rows, l->K, l->N, in, l->K, weight_whole(m, w, l->what_w));
    exact_product(m, l->kind, WHAT_Y, p, m->ex.sum, true);
    return path_run(&l->y, COLL_I64, m->ex.sum, tk->rows, l->N, m->ex.part, m->ex.tmp);
}

void exact_linear_forward(Model *m, const Tokens *tk, const LinearFront *f) {
    const Linear *l = &m->linear[f->kind];
    int64_t rows = rows_out(f->kind, tk), N = l->N_stored;
    const float *bias = f->b < 0 ? NULL : m->tensors.t[f->b].param;
    float *sum = f->epilogue == EPI_ACT ? f->aux : f->y;
    const int64_t *whole = m->grid->layout.stay ? stay_forward(m, l, tk, f->x, f->w)
                                                : forward_sum(m, l, tk, f->x, f->w);
    m->k->exact_to_float(m->team, sum, whole, rows * N, EXACT_ACTIVATIONS);
    if (f->addend || bias) m->k->bias_residual(m->team, sum, f->addend, bias, rows, N);
    if (f->epilogue == EPI_ACT)
        m->k->act_forward(m->team, m->shape.config.act, f->y, sum, rows * N);
}

/* Sums a panel over a group at its owner, who gets it in `to`; NULL elsewhere. */
static const int64_t *reduce_panel(Model *m, Comm *c, const Slice *p, const int64_t *panel,
                                   int64_t *to, const char *what) {
    if (!c) return panel;
    coll_wait(summa_reduce(m, c, COLL_I64, panel, to, p, what));
    return comm_rank(c) == p->owner ? to : NULL;
}

static void stay_dx(Model *m, const Linear *l, const Slice *p, float *dx, const float *dy,
                    const float *w) {
    int exponent = exact_exponent(m, WHAT_DX);
    exact_product(m, l->kind, WHAT_DX, product_dx(p->rows, p->cols, l->N, dy, l->N, w), m->ex.sum,
                  true);
    const int64_t *sum =
        reduce_panel(m, grid_comm(m->grid, axes_of("y")), p, m->ex.sum, m->ex.part, l->dx.what);
    for (int64_t t = 0; sum && t < p->rows; t++)
        m->k->exact_to_float(m->team, dx + t * p->ld + p->at, sum + t * p->cols, p->cols, exponent);
}

static void stay_dw(Model *m, const Linear *l, const Tokens *tk, const Slice *p, int64_t *dw,
                    bool fresh, const float *dy, const float *x, int64_t ld) {
    exact_product(m, l->kind, WHAT_DW, product_dw(tk->rows, p->rows, l->N, x, ld, dy),
                  m->ex.panel[0], true);
    const int64_t *sum = reduce_panel(m, grid_comm(m->grid, axes_of("x")), p, m->ex.panel[0],
                                      m->ex.panel[1], l->what_dw);
    int64_t n = p->rows * p->cols, *own = dw + p->at;
    if (sum && fresh) memcpy(own, sum, (size_t)n * sizeof *own);
    if (sum && !fresh) m->k->exact_add(m->team, own, sum, n);
}

/* Results have rooms of their own here, so panels of x and w come one ahead as in forward. */
static void stay_backward(Model *m, const Linear *l, const Tokens *tk, float *dx, const float *dy,
                          const float *x, int w) {
    Inflow x_in = summa_x(m, l, x), w_in = summa_w(m, l, weight_whole(m, w, l->what_w));
    bool fresh;
    int64_t *dw = grad_open_64(m, w, &fresh);
    Panel p = summa_panel(m, l, tk, w, 0);
    inflow_ahead(&w_in, &p.w), inflow_ahead(&x_in, &p.x);
    for (Panel next; p.n; p = next) {
        next = summa_panel(m, l, tk, w, p.begin + p.n);
        const float *wp = inflow_take(&w_in, &p.w);
        inflow_ahead(&w_in, &next.w);
        stay_dx(m, l, &p.x, dx, dy, wp);
        const float *xp = inflow_take(&x_in, &p.x);
        inflow_ahead(&x_in, &next.x);
        stay_dw(m, l, tk, &p.w, dw, fresh, dy, xp, inflow_ld(&x_in, &p.x));
    }
    grad_done_64(m, w, m->grads_fresh, l->what_dw);
}

static void backward(Model *m, const Linear *l, const Tokens *tk, float *dx, const float *dy,
                     const float *x, int w) {
    const float *whole =
        path_run(&l->dy, COLL_F32, dy, rows_out(l->kind, tk), l->N_stored, m->work.y, NULL);
    exact_product(m, l->kind, WHAT_DX,
                  product_dx(tk->rows, l->K, l->N, whole, l->N, weight_whole(m, w, l->what_w)),
                  m->ex.sum, true);
    const int64_t *sum =
        path_run(&l->dx, COLL_I64, m->ex.sum, tk->rows, l->K, m->ex.part, m->ex.tmp);
    m->k->exact_to_float(m->team, dx, sum, rows_in(l->kind, tk) * l->K_stored,
                         exact_exponent(m, WHAT_DX));
    bool fresh;
    int64_t *dw = grad_open_64(m, w, &fresh);
    const float *in =
        path_run(&l->x, COLL_F32, x, rows_in(l->kind, tk), l->K_stored, m->work.x, NULL);
    exact_product(m, l->kind, WHAT_DW, product_dw(tk->rows, l->K, l->N, in, l->K, whole), dw,
                  fresh);
    grad_done_64(m, w, m->grads_fresh, l->what_dw);
}

void exact_linear_backward(Model *m, LinearKind kind, const Tokens *tk, float *dx, const float *dy,
                           const float *x, int w, int b, Epilogue epilogue, float *aux) {
    const Linear *l = &m->linear[kind];
    if (m->grid->layout.stay)
        stay_backward(m, l, tk, dx, dy, x, w);
    else
        backward(m, l, tk, dx, dy, x, w);
    if (epilogue == EPI_DACT)
        m->k->act_backward(m->team, m->shape.config.act, dx, dx, aux,
                           rows_in(kind, tk) * l->K_stored);
    if (b >= 0)
        m->k->exact_bias_backward(m->team, m->grad_64[b], dy, rows_out(kind, tk), l->N_stored,
                                  EXACT_WEIGHTS);
}

/* ---- norms ---- */

void exact_norm(Model *m, const Norm *n, float *y, float *mean, float *rstd, const float *x) {
    Comm *over = grid_comm(m->grid, axes_of("y"));
    int64_t *sums = m->ex.stats;
    bool layer = n->kind == NORM_LAYER;
    if (layer) {
        m->k->exact_norm_sum(m->team, n, sums, x);
        coll_sum(over, COLL_I64, sums, WIDE * n->T, "statistics of norm");
        m->k->exact_wide_to_float(mean, sums, n->T, 1.0 / (double)n->C_all);
    }
    m->k->exact_norm_squares(m->team, n, sums, x, layer ? mean : NULL);
    coll_sum(over, COLL_I64, sums, WIDE * n->T, "statistics of norm");
    m->k->exact_norm_rstd(n, rstd, sums);
    m->k->norm_apply(m->team, n, y, x, mean, rstd);
}

void exact_norm_backward(Model *m, const Norm *n, int w, int b, float *dx, const float *dy,
                         const float *x, const float *mean, const float *rstd) {
    int64_t *sums = m->ex.stats;
    m->k->exact_norm_backward_sums(m->team, n, sums, m->grad_64[w], b < 0 ? NULL : m->grad_64[b],
                                   dy, x, mean, rstd);
    coll_sum(grid_comm(m->grid, axes_of("y")), COLL_I64, sums, 2 * WIDE * n->T, "sums of dnorm");
    m->k->exact_wide_to_float(m->ex.sums, sums, 2 * n->T, 1);
    m->k->norm_backward_apply(m->team, n, dx, dy, x, mean, rstd, m->ex.sums);
}

/* ---- embedding and head ---- */

void exact_embed_backward(Model *m, const Tokens *tk, const Embedding *tokens,
                          const Embedding *positions, const float *dx, const float *dx_whole) {
    bool fresh, tied = m->head == m->wte, first = m->grads_fresh && !tied;
    int64_t *dwte = grad_open_64(m, m->wte, &fresh);
    m->k->exact_embedding_backward(m->team, tokens, dwte, NULL, dx_whole, EXACT_WEIGHTS);
    grad_done_64(m, m->wte, first, "dw of embedding");
    if (m->wpe >= 0)
        m->k->exact_position_backward(m->team, positions, m->grad_64[m->wpe], tk->T_x, tk->t0, dx,
                                      EXACT_WEIGHTS);
}

void exact_classify(Model *m, const Classifier *c, float *loss) {
    Comm *over = grid_comm(m->grid, axes_of("x.y"));
    m->k->exact_classifier_max(m->team, c, m->ex.max, m->logits);
    coll_max(over, COLL_F32, m->ex.max, c->T, "statistics of loss");
    m->k->exact_classifier_sums(m->team, c, m->ex.stats, m->ex.target, m->logits, m->ex.max);
    coll_sum(over, COLL_I64, m->ex.stats, WIDE * c->T, "statistics of loss");
    coll_sum(over, COLL_F32, m->ex.target, c->T, "statistics of loss");
    m->k->exact_classifier_loss(c, loss, m->ex.log_sum, m->ex.stats, m->ex.target, m->ex.max);
    if (c->backward)
        m->k->exact_classifier_gradient(m->team, c, m->logits, m->ex.max, m->ex.log_sum);
}

void exact_head_backward(Model *m, int64_t t, int64_t rows, const float *h, const float *w) {
    int64_t C = m->w.C_all, V = m->w.V_n, ld = m->ld_logits;
    exact_product(m, LINEAR_HEAD, WHAT_DX, product_xw(rows, V, C, m->logits, ld, w),
                  m->ex.sum + t * C, true);
    if (t == 0) m->ex.head_dw = grad_open_64(m, m->head, &m->ex.head_fresh);
    exact_product(m, LINEAR_HEAD, WHAT_DW, product_dw(rows, V, C, m->logits, ld, h), m->ex.head_dw,
                  m->ex.head_fresh && t == 0);
}

void exact_head_done(Model *m, const Tokens *tk, float *dh) {
    const Linear *l = &m->linear[LINEAR_HEAD];
    grad_done_64(m, m->head, m->grads_fresh, l->what_dw);
    const int64_t *sum =
        path_run(&l->dx, COLL_I64, m->ex.sum, tk->T, m->w.C_all, m->ex.part, m->ex.tmp);
    m->k->exact_to_float(m->team, dh, sum, tk->T_x * m->w.C, exact_exponent(m, WHAT_DX));
}

/* ---- the end of a step ---- */

void exact_reduce_grads(Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        Tensor *t = &m->tensors.t[i];
        m->k->exact_to_float(m->team, t->grad, m->grad_64[i], tensor_part(t, PART_GRAD),
                             EXACT_WEIGHTS);
    }
}

void exact_add_losses(Model *m, const float *losses, int64_t n) {
    m->k->exact_sum(m->team, m->loss_64, losses, n);
}

double exact_loss_total(Model *m) {
    coll_sum(grid_comm(m->grid, axes_of("d.z")), COLL_I64, m->loss_64, WIDE, "sum of losses");
    return m->k->exact_wide_to_double(m->loss_64);
}

double exact_grad_norm(Model *m) {
    int64_t sum[WIDE] = {0};
    TensorRun r;
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        const float *g = t->grad + (t->begin[PART_MOMENTS] - t->begin[PART_GRAD]);
        for (TensorRuns it = tensor_runs(t, PART_MOMENTS, true); tensor_next(&it, &r);)
            m->k->exact_sum_of_squares(m->team, sum, g + r.at, r.n);
    }
    coll_sum(grid_model(m->grid), COLL_I64, sum, WIDE, "gradient norm");
    return sqrt(m->k->exact_wide_to_double(sum));
}
