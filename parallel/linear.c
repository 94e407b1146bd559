#include "parallel/linear.h"
#include "parallel/coll_call.h"

#include <assert.h>

#include "base/die.h"
#include "parallel/exact.h"
#include "parallel/model.h"
#include "parallel/probe.h"

/* ---- paths ---- */

Path path_make(const Grid *g, const Dist *from, const Dist *to, const char *what) {
    Path p = {.what = what};
    Err e;
    p.n = dist_path(from, to, p.change, &e);
    if (p.n < 0) die("%s: %s", what, e.text);
    for (int i = 0; i < p.n; i++) {
        p.comm[i] = grid_comm(g, (Axes){.n = 1, .axis = {(uint8_t)p.change[i].axis}});
        assert(p.comm[i] && p.change[i].kind != CHANGE_SLICE);
    }
    return p;
}

const float *path_run(const Path *p, const float *src, int64_t rows, int64_t cols, float *dst,
                      float *tmp) {
    return path_run_of(p, COLL_F32, src, rows, cols, dst, tmp);
}

const void *path_run_of(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                        void *dst, void *tmp) {
    int moves = 0; // changes that need another place
    for (int i = 0; i < p->n; i++) moves += p->change[i].kind != CHANGE_REDUCE;
    const void *at = src;
    for (int i = 0; i < p->n; i++) {
        const Change *c = &p->change[i];
        bool moving = c->kind != CHANGE_REDUCE, here = !moving && at != src;
        moves -= moving;
        void *to = moves > 0 ? tmp : dst;
        int64_t n = comm_size(p->comm[i]), *cut = c->dim == 0 ? &rows : &cols;
        if (c->kind == CHANGE_SCATTER) *cut /= n;
        CollCall call = {.op = c->kind == CHANGE_GATHER    ? COLL_ALL_GATHER
                               : c->kind == CHANGE_SCATTER ? COLL_REDUCE_SCATTER
                                                           : COLL_ALL_REDUCE,
                         .type = type,
                         .dim = moving ? c->dim : 0,
                         .rows = rows,
                         .cols = cols,
                         .src = at,
                         .dst = here ? (void *)(uintptr_t)at : to,
                         .what = p->what,
                         .file = __FILE__,
                         .line = __LINE__};
        coll_run(p->comm[i], &call);
        if (c->kind == CHANGE_GATHER) *cut *= n;
        at = call.dst;
    }
    return at;
}

static bool scatters(const Path *p) {
    return p->n > 0 && p->change[0].kind == CHANGE_SCATTER;
}

void linear_plan(Linear *l, LinearKind kind, const Grid *g, const Widths *w) {
    static const char *const what[N_LINEARS][6] = {
        {"x of qkv", "y of qkv", "dy of qkv", "dx of qkv", "w of qkv", "dw of qkv"},
        {"x of attn_out", "y of attn_out", "dy of attn_out", "dx of attn_out", "w of attn_out",
         "dw of attn_out"},
        {"x of up", "y of up", "dy of up", "dx of up", "w of up", "dw of up"},
        {"x of down", "y of down", "dy of down", "dx of down", "w of down", "dw of down"},
        {"x of head", "y of head", "dy of head", "dx of head", "w of head", "dw of head"}};
    const int64_t widths[N_LINEARS][4] = {{w->K_C, w->blocks * w->qkv, w->C, w->qkv},
                                          {w->K_att, w->C, w->att, w->C},
                                          {w->K_C, w->blocks * w->up, w->C, w->up},
                                          {w->K_F, w->C, w->F, w->C},
                                          {w->C_all, w->V, w->C, w->V}};
    LinearDist d = layout_linear(&g->layout, kind);
    Dist y = d.y;
    y.owed = axes_none();
    *l = (Linear){.kind = kind,
                  .K = widths[kind][0],
                  .N = widths[kind][1],
                  .K_stored = widths[kind][2],
                  .N_stored = widths[kind][3],
                  .x = path_make(g, &d.x_stored, &d.x, what[kind][0]),
                  .y = path_make(g, &d.y, &d.y_stored, what[kind][1]),
                  .dy = path_make(g, &d.y_stored, &y, what[kind][2]),
                  .dx = path_make(g, &d.dx, &d.x_stored, what[kind][3]),
                  .what_w = what[kind][4],
                  .what_dw = what[kind][5]};
}

/* ---- room ---- */

Comm *stored_over(Model *m, int i, StoreKind kind) {
    return shard_stored(&m->tensors, i) ? grid_comm(m->grid, layout_store(&m->grid->layout, kind))
                                        : NULL;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static float *room(Arena *a, int64_t n) {
    return n ? arena_take(a, (size_t)n * sizeof(float)) : NULL;
}

/* stay=y: one panel of each operand, and what a reduction of one leaves. */
static void panel_room(Model *m, Arena *a) {
    int64_t n[4] = {0};
    for (int kind = 0; kind < LINEAR_HEAD; kind++) {
        const Linear *l = &m->linear[kind];
        n[0] = larger(n[0], m->tk.rows * l->K_stored);
        n[1] = larger(n[1], l->K_stored * l->N);
    }
    m->work.panel[0] = room(a, n[0]), m->work.panel[1] = room(a, n[1]);
    m->work.dx = m->shape.training ? room(a, n[0]) : NULL;
    m->work.y = m->shape.training ? room(a, n[1]) : NULL;
}

static void gathered_room(Model *m, Arena *a) {
    int64_t x = 0, y = 0, dx = 0, rows = m->tk.rows;
    for (int kind = 0; kind < LINEAR_HEAD; kind++) {
        const Linear *l = &m->linear[kind];
        if (l->x.n) x = larger(x, rows * l->K);
        if (scatters(&l->y)) y = larger(y, rows * l->N);
        if (scatters(&l->dx)) dx = larger(dx, rows * l->K);
    }
    m->work.x = room(a, x), m->work.y = room(a, y);
    m->work.dx = m->shape.training ? room(a, dx) : NULL;
}

static void weights_room(Model *m, Arena *a) {
    int64_t w = 0, dw = 0, part = 0;
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        int64_t block = shard_block(&m->tensors, i, m->grid);
        if (stored_over(m, i, STORE_PARAM)) w = larger(w, block);
        if (stored_over(m, i, STORE_GRAD))
            dw = larger(dw, block), part = larger(part, tensor_part(t, PART_GRAD));
    }
    m->work.w = room(a, w);
    if (!m->shape.training) return;
    m->work.dw = room(a, dw), m->work.part = room(a, part);
    if (m->grid->kv) m->work.kv = room(a, m->w.rows_C * 2 * m->w.Hkv * m->w.D);
}

void linear_workspace(Model *m, Arena *a) {
    const Mesh *mesh = &m->grid->mesh;
    int64_t T = m->tk.T * m->w.C_all, X = mesh->size[AXIS_X], Y = mesh->size[AXIS_Y];
    if (mesh->p == 1) return;
    if (m->grid->layout.stay)
        panel_room(m, a);
    else
        gathered_room(m, a);
    weights_room(m, a);
    if (X * Y == 1) return;
    m->work.h = room(a, T), m->work.tmp = room(a, T);
    m->work.dlast = m->shape.training ? room(a, T) : NULL;
    m->work.stats = room(a, larger(2 * m->tk.T_x, 3 * m->head_rows));
    m->work.parts = room(a, larger(Y * 2 * m->tk.T_x, X * Y * 3 * m->head_rows));
    m->work.log_sum = room(a, m->head_rows);
}

/* ---- weights and gradients that are stored cut over z ---- */

const float *weight_whole(Model *m, int i, const char *what) {
    const Tensor *t = &m->tensors.t[i];
    Comm *over = stored_over(m, i, STORE_PARAM);
    if (!over) return t->param;
    coll_gather(over, COLL_F32, t->param, tensor_part(t, PART_PARAM), m->work.w, what);
    probe(m, &(Probe){.name = t->name,
                      .layer = t->layer,
                      .at = m->work.w,
                      .weight = t,
                      .cause = {{over, COLL_ALL_GATHER, what}}});
    return m->work.w;
}

float *grad_open(Model *m, int i, bool *add) {
    Tensor *t = &m->tensors.t[i];
    if (stored_over(m, i, STORE_GRAD)) {
        int64_t n = t->local_rows * t->local_cols, all = shard_block(&m->tensors, i, m->grid);
        if (m->grid->layout.stay) n = 0; // rows of padding are in no panel
        m->k->zero(m->team, m->work.dw + n, all - n);
        *add = false;
        return m->work.dw;
    }
    *add = !m->grads_fresh;
    return t->grad;
}

void grad_done(Model *m, int i, const char *what) {
    Tensor *t = &m->tensors.t[i];
    Comm *over = stored_over(m, i, STORE_GRAD);
    if (!over) return;
    int64_t n = tensor_part(t, PART_GRAD);
    float *part = m->grads_fresh ? t->grad : m->work.part;
    coll_scatter(over, COLL_F32, m->work.dw, n, part, what);
    if (part != t->grad) m->k->bias_residual(m->team, t->grad, part, NULL, 1, n);
}

/* ---- for those who look ---- */

/* Names of x, y, dy, dx of each layer, and the features of x and y where they are stored; where products want
 * them they are "_WIDE", the stream is not. */
typedef struct Look {
    const char *x, *y, *dy, *dx;
    SideKind x_stored, y_stored, x_wide, y_wide;
} Look;

static const Look looks[N_LINEARS] = {
    [LINEAR_QKV] = {"h1", "qkv", "dqkv", "dh1", SIDE_STREAM, SIDE_QKV, SIDE_STREAM, SIDE_QKV_WIDE},
    [LINEAR_ATTN_OUT] = {"att", "x2", "dx2", "datt", SIDE_ATT, SIDE_STREAM, SIDE_ATT_WIDE,
                         SIDE_STREAM},
    [LINEAR_UP] = {"h2", "pre", "dpre", "dh2", SIDE_STREAM, SIDE_UP, SIDE_STREAM, SIDE_UP_WIDE},
    [LINEAR_DOWN] = {"act", "x'", "dx'", "dact", SIDE_ACT, SIDE_STREAM, SIDE_ACT_WIDE,
                     SIDE_STREAM}};

static void probe_gathered(Model *m, const char *name, int w, const float *at, SideKind side,
                           const Path *path) {
    probe(m, &(Probe){.name = name,
                      .layer = m->tensors.t[w].layer,
                      .gathered = true,
                      .copies_owe = side == SIDE_QKV_WIDE,
                      .at = at,
                      .rows = ROWS_MIDDLE,
                      .side = side,
                      .path = path});
}

/* With stay=y operands and results travel in panels. */
static void probe_product(Model *m, const Linear *l, int w, Probe p, const Path *path, Cause x) {
    p.layer = m->tensors.t[w].layer;
    p.rows = p.side == SIDE_STREAM ? ROWS_STREAM : ROWS_MIDDLE;
    p.path = m->grid->layout.stay ? NULL : path;
    if (m->grid->layout.stay) {
        p.cause[0] = x;
        p.cause[1] = (Cause){grid_comm(m->grid, axes_of("x")), COLL_BROADCAST, l->what_w};
    }
    probe(m, &p);
}

static void probe_y(Model *m, const Linear *l, int w, const float *y, const float *addend,
                    const float *bias) {
    if (!m->probing) return;
    const Look *k = &looks[l->kind];
    Probe p = {.name = k->y, .at = y, .side = k->y_stored, .addend = addend, .bias = bias};
    Cause panels = {grid_comm(m->grid, axes_of("y")), COLL_BROADCAST, l->x.what};
    probe_product(m, l, w, p, &l->y, panels);
}

static void probe_dx(Model *m, const Linear *l, int w, const float *dx, Epilogue epilogue) {
    if (!m->probing) return;
    const Look *k = &looks[l->kind];
    const char *name = epilogue == EPI_DGELU ? "dpre" : k->dx;
    Cause panels = {grid_comm(m->grid, axes_of("y")), COLL_REDUCE, l->dx.what};
    probe_product(m, l, w, (Probe){.name = name, .at = dx, .side = k->x_stored}, &l->dx, panels);
}

/* ---- the three products ---- */

void product_run(Model *m, Product p) {
    p.bf16 = m->shape.bf16;
    p.workspace = m->product_work;
    m->k->product(m->team, &p);
}

/* Rows of the stored x, and of the stored y: the stream's, or the middle's. */
int64_t rows_in(LinearKind kind, const Tokens *tk) {
    return kind == LINEAR_QKV || kind == LINEAR_UP ? tk->T_x : tk->rows;
}
int64_t rows_out(LinearKind kind, const Tokens *tk) {
    return kind == LINEAR_ATTN_OUT || kind == LINEAR_DOWN ? tk->T_x : tk->rows;
}

static const float *bias_of(const Model *m, int b) {
    return b < 0 ? NULL : m->tensors.t[b].param;
}

/* y[rows,N] = x w, with what an epilogue may do where nothing is owed. */
static void forward_product(Model *m, const Linear *l, const Tokens *tk, float *y, const float *x,
                            int w, const float *addend, const float *bias, Epilogue epilogue,
                            float *aux) {
    const float *in = path_run(&l->x, x, rows_in(l->kind, tk), l->K_stored, m->work.x, NULL);
    probe_gathered(m, looks[l->kind].x, w, in, looks[l->kind].x_wide, &l->x);
    Product p = product_xw(tk->rows, l->K, l->N, in, l->K, weight_whole(m, w, l->what_w));
    p.y = y, p.addend = addend, p.bias = bias, p.epilogue = epilogue, p.aux = aux;
    product_run(m, p);
}

void linear_forward(Model *m, LinearKind kind, const Tokens *tk, float *y, const float *x, int w,
                    int b, const float *addend, Epilogue epilogue, float *aux) {
    const Linear *l = &m->linear[kind];
    if (m->exact) {
        exact_linear_forward(m, kind, tk, y, x, w, b, addend, epilogue, aux);
        return;
    }
    bool stay = m->grid->layout.stay;
    if (!stay && l->y.n == 0) {
        forward_product(m, l, tk, y, x, w, addend, bias_of(m, b), epilogue, aux);
        probe_y(m, l, w, epilogue == EPI_GELU ? aux : y, addend, bias_of(m, b));
        return;
    }
    float *sum = epilogue == EPI_GELU ? aux : y; // before the activation
    int64_t rows = rows_out(kind, tk), N = l->N_stored;
    if (stay) {
        summa_forward(m, l, tk, sum, x, w);
    } else {
        float *part = scatters(&l->y) ? m->work.y : sum;
        forward_product(m, l, tk, part, x, w, NULL, NULL, EPI_NONE, NULL);
        path_run(&l->y, part, tk->rows, l->N, sum, NULL);
    }
    if (addend || b >= 0) m->k->bias_residual(m->team, sum, addend, bias_of(m, b), rows, N);
    probe_y(m, l, w, sum, addend, bias_of(m, b));
    if (epilogue == EPI_GELU) m->k->gelu_forward(m->team, y, sum, rows * N);
}

/* dx = dy w', its debt paid. */
static void backward_dx(Model *m, const Linear *l, const Tokens *tk, float *dx, const float *dy,
                        int w, Epilogue epilogue, float *aux) {
    bool owed = l->dx.n > 0;
    float *part = scatters(&l->dx) ? m->work.dx : dx;
    Product p = product_dx(tk->rows, l->K, l->N, dy, l->N, weight_whole(m, w, l->what_w));
    p.y = part, p.epilogue = owed ? EPI_NONE : epilogue, p.aux = owed ? NULL : aux;
    product_run(m, p);
    path_run(&l->dx, part, tk->rows, l->K, dx, NULL);
    if (owed && epilogue == EPI_DGELU)
        m->k->gelu_backward(m->team, dx, dx, aux, rows_in(l->kind, tk) * l->K_stored);
}

static void backward_dw(Model *m, const Linear *l, const Tokens *tk, const float *dy,
                        const float *x, int w) {
    bool add;
    float *dw = grad_open(m, w, &add);
    const float *in = path_run(&l->x, x, rows_in(l->kind, tk), l->K_stored, m->work.x, NULL);
    Product p = product_dw(tk->rows, l->K, l->N, in, l->K, dy);
    p.y = dw, p.addend = add ? dw : NULL;
    product_run(m, p);
    grad_done(m, w, l->what_dw);
}

void linear_backward(Model *m, LinearKind kind, const Tokens *tk, float *dx, const float *dy,
                     const float *x, int w, int b, Epilogue epilogue, float *aux) {
    const Linear *l = &m->linear[kind];
    int64_t rows = rows_out(kind, tk);
    if (m->exact) {
        exact_linear_backward(m, kind, tk, dx, dy, x, w, b, epilogue, aux);
        return;
    }
    if (m->grid->layout.stay) {
        summa_backward(m, l, tk, dx, dy, x, w);
        if (epilogue == EPI_DGELU)
            m->k->gelu_backward(m->team, dx, dx, aux, tk->rows * l->K_stored);
    } else {
        const float *whole = path_run(&l->dy, dy, rows, l->N_stored, m->work.y, NULL);
        probe_gathered(m, looks[kind].dy, w, whole, looks[kind].y_wide, &l->dy);
        backward_dx(m, l, tk, dx, whole, w, epilogue, aux);
        backward_dw(m, l, tk, whole, x, w);
    }
    probe_dx(m, l, w, dx, epilogue);
    if (b >= 0) m->k->bias_backward(m->team, m->tensors.t[b].grad, dy, rows, l->N_stored);
}
