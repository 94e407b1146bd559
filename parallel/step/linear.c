#include "parallel/step/linear.h"
#include "parallel/comm/coll_call.h"

#include <assert.h>

#include "base/die.h"
#include "parallel/step/exact.h"
#include "parallel/step/model.h"
#include "parallel/step/probe.h"
#include "parallel/step/summa.h"

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
    y.partial = axes_none();
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

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static float *room(Arena *a, int64_t n) {
    return n ? arena_take(a, (size_t)n * sizeof(float)) : NULL;
}
static Act *act_room(const Model *m, Arena *a, int64_t n) {
    return n ? arena_take(a, (size_t)n * m->k->word) : NULL;
}

/* stay=y: panels of each operand, and what a reduction of one leaves. */
static void panel_room(Model *m, Arena *a) {
    int64_t n[2] = {0};
    for (int kind = 0; kind < LINEAR_HEAD; kind++) {
        const Linear *l = &m->linear[kind];
        n[0] = larger(n[0], m->tk.rows * l->K_stored);
        n[1] = larger(n[1], l->K_stored * l->N);
    }
    for (int i = 0; i < 2; i++) {
        bool alias = i > 0 && !m->shape.overlap.bulk;
        m->work.panel_x[i] = alias ? m->work.panel_x[0] : act_room(m, a, n[0]);
        m->work.panel_w[i] = alias ? m->work.panel_w[0] : room(a, n[1]);
    }
    m->work.dx = m->shape.training ? act_room(m, a, n[0]) : NULL;
    m->work.y = m->shape.training ? room(a, n[1]) : NULL; // sums of dw
}

static void gathered_room(Model *m, Arena *a) {
    int64_t x = 0, y = 0, dx = 0, ring = 0, rows = m->tk.rows;
    for (int kind = 0; kind < LINEAR_HEAD; kind++) {
        const Linear *l = &m->linear[kind];
        if (l->x.n) x = larger(x, rows * l->K);
        if (path_scatters(&l->y)) y = larger(y, rows * l->N);
        if (path_scatters(&l->dx)) dx = larger(dx, rows * l->K);
        ring = larger(ring, pieces_room(m, &l->y, rows, l->N));
        if (m->shape.training) ring = larger(ring, pieces_room(m, &l->dx, rows, l->K));
    }
    m->work.x = act_room(m, a, x), m->work.y = act_room(m, a, y);
    m->work.dx = m->shape.training ? act_room(m, a, dx) : NULL;
    m->work.ring = act_room(m, a, ring);
}

/* Elements of the largest whole that is sent in blocks that do not touch. */
static int64_t place_of(Model *m, const Linear *l) {
    const Tokens *tk = &m->tk;
    int64_t in = rows_in(l->kind, tk), out = rows_out(l->kind, tk);
    if (l->kind == LINEAR_HEAD)
        return larger(path_place(&l->x, tk->T_x, m->w.C), path_place(&l->dx, tk->T, m->w.C_all));
    if (m->grid->layout.stay) return 0; // panels
    int64_t y = pieces_place((Pieces){.m = m,
                                      .in = &l->x,
                                      .out = &l->y,
                                      .src_rows = in,
                                      .src_cols = l->K_stored,
                                      .p = product_xw(tk->rows, l->K, l->N, NULL, l->K, NULL)});
    int64_t dx = pieces_place((Pieces){.m = m,
                                       .in = &l->dy,
                                       .out = &l->dx,
                                       .src_rows = out,
                                       .src_cols = l->N_stored,
                                       .p = product_dx(tk->rows, l->K, l->N, NULL, l->N, NULL)});
    return larger(y, m->shape.training ? larger(dx, path_place(&l->x, in, l->K_stored)) : 0);
}

/* One for all layers: their collectives on a device are in one stream. */
static void place_room(Model *m, Arena *a) {
    int64_t n = 0;
    CollStaging place = {0};
    for (int kind = 0; kind < N_LINEARS; kind++) n = larger(n, place_of(m, &m->linear[kind]));
    if (m->k->memory && n) place.p = act_room(m, a, n), place.n_bytes = (size_t)n * m->k->word;
    for (int kind = 0; kind < N_LINEARS; kind++) {
        Linear *l = &m->linear[kind];
        l->x.staging = l->y.staging = l->dy.staging = l->dx.staging = place;
    }
}

static void weights_room(Model *m, Arena *a) {
    int64_t w[2] = {0}, dw[2] = {0}, part[2] = {0};
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        int64_t block = shard_block(&m->tensors, i, m->grid);
        // the tables of embedding and head have no neighbour whose product could hide them
        for (int k = 0; k < (m->shape.overlap.bulk && t->layer >= 0 ? 2 : 1); k++) {
            if (stored_over(m, i, STORE_PARAM)) w[k] = larger(w[k], block);
            if (stored_over(m, i, STORE_GRAD))
                dw[k] = larger(dw[k], block), part[k] = larger(part[k], tensor_part(t, PART_GRAD));
        }
    }
    for (int k = 0; k < 2; k++) {
        m->work.w[k] = act_room(m, a, w[k]);
        if (!m->shape.training) continue;
        m->work.dw[k] = room(a, dw[k]), m->work.part[k] = room(a, part[k]);
    }
    linear_workspace_kv(m, a);
}

void linear_workspace_kv(Model *m, Arena *a) {
    if (m->shape.training && m->grid->kv) m->work.kv = room(a, m->w.rows_C * 2 * m->w.Hkv * m->w.D);
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
    place_room(m, a);
    m->work.h = act_room(m, a, T), m->work.tmp = act_room(m, a, T);
    m->work.dlast = m->shape.training ? act_room(m, a, T) : NULL;
    m->work.stats = room(a, larger(2 * m->tk.T_x, 3 * m->head_rows));
    m->work.parts = room(a, larger(Y * 2 * m->tk.T_x, X * Y * 3 * m->head_rows));
    m->work.log_sum = room(a, m->head_rows);
}

/* ---- for those who look ---- */

/* Names of x, y, dy, dx of each layer, and the features of x and y where they are stored; where
 * products want them they are "_WIDE", the stream is not. */
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

static void probe_gathered(Model *m, const char *name, int w, const Act *at, SideKind side,
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

static void probe_y(Model *m, const Linear *l, int w, const Act *y, const Act *addend,
                    const float *bias) {
    if (!m->probing) return;
    const Look *k = &looks[l->kind];
    Probe p = {.name = k->y, .at = y, .side = k->y_stored, .addend = addend, .bias = bias};
    Cause panels = {grid_comm(m->grid, axes_of("y")), COLL_BROADCAST, l->x.what};
    probe_product(m, l, w, p, &l->y, panels);
}

static void probe_dx(Model *m, const Linear *l, int w, const Act *dx, Epilogue epilogue) {
    if (!m->probing) return;
    const Look *k = &looks[l->kind];
    const char *name = epilogue == EPI_DACT ? "dpre" : k->dx;
    Cause panels = {grid_comm(m->grid, axes_of("y")), COLL_REDUCE, l->dx.what};
    probe_product(m, l, w, (Probe){.name = name, .at = dx, .side = k->x_stored}, &l->dx, panels);
}

/* ---- the three products ---- */

void product_run(Model *m, Product p) {
    p.bf16 = m->shape.bf16;
    p.act = m->shape.config.act;
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

/* As it is added to a sum that is whole. */
static const float *bias_of(const Model *m, int b) {
    return b < 0 ? NULL : m->tensors.t[b].param;
}
/* As a product adds it. */
static const Act *bias_words(const Model *m, int b) {
    return b < 0 ? NULL : m->tensors.t[b].words;
}

/* y = x w, whole or cut; with what an epilogue may do where nothing is owed. */
static Pieces forward_pieces(Model *m, const Linear *l, const Tokens *tk, Act *y, const Act *x,
                             int w) {
    Pieces c = {.m = m,
                .in = &l->x,
                .out = &l->y,
                .src = x,
                .src_rows = rows_in(l->kind, tk),
                .src_cols = l->K_stored,
                .whole = m->work.x,
                .dst = y,
                .p = product_xw(tk->rows, l->K, l->N, NULL, l->K, weight_whole(m, w, l->what_w))};
    c.p.y = path_scatters(&l->y) ? m->work.y : y;
    return c;
}

bool linear_owes(const Model *m, LinearKind kind) {
    return m->grid->layout.stay || m->linear[kind].y.n > 0;
}

/* What an epilogue would have done, on a sum that is whole now. */
static void complete(Model *m, const LinearFront *f, Act *sum, int64_t rows) {
    int64_t N = m->linear[f->kind].N_stored;
    const float *bias = bias_of(m, f->b);
    const NormOf *n = f->norm;
    if (n)
        m->k->residual_norm(m->team, &n->args, sum, f->addend, bias, n->h, n->mean, n->rstd);
    else if (f->addend || bias)
        m->k->bias_residual(m->team, sum, f->addend, bias, rows, N);
}

void linear_forward(Model *m, const Tokens *tk, const LinearFront *f) {
    const Linear *l = &m->linear[f->kind];
    const float *bias = bias_of(m, f->b);
    if (m->exact) {
        exact_linear_forward(m, tk, f);
        return;
    }
    bool owed = linear_owes(m, f->kind), gelu = f->epilogue == EPI_ACT;
    Act *sum = gelu ? f->aux : f->y; // before the activation
    int64_t rows = rows_out(f->kind, tk);
    if (m->grid->layout.stay) {
        summa_forward(m, l, tk, sum, f->x, f->w);
    } else {
        Pieces c = forward_pieces(m, l, tk, owed ? sum : f->y, f->x, f->w);
        if (!owed)
            c.p.addend = f->addend, c.p.bias = bias_words(m, f->b), c.p.epilogue = f->epilogue,
            c.p.aux = f->aux;
        const Act *in = pieces_begin(&c);
        probe_gathered(m, looks[f->kind].x, f->w, in, looks[f->kind].x_wide, &l->x);
        pieces_end(&c);
    }
    if (owed) complete(m, f, sum, rows);
    probe_y(m, l, f->w, sum, f->addend, bias);
    if (owed && gelu)
        m->k->act_forward(m->team, m->shape.config.act, f->y, sum, rows * l->N_stored);
}

/* Does a bias' gradient come with dw = x' dy? Of the dy that is stored, once: what is gathered
 * along an axis is counted by all of its ranks, and panels of stay=y share one. */
static bool bias_with_dw(const Model *m, const Linear *l) {
    return m->k->bias_with_dw && !m->grid->layout.stay && l->dy.n == 0;
}

static void backward_dw(Model *m, const Linear *l, const Tokens *tk, const Act *dy, const Act *x,
                        int w, int bias) {
    bool add;
    float *dw = grad_open(m, w, &add);
    Product p = product_dw(tk->rows, l->K, l->N, x, l->K, dy);
    p.y = dw, p.addend = add ? dw : NULL;
    if (bias >= 0 && bias_with_dw(m, l)) p.bias_grad = m->tensors.t[bias].grad;
    product_run(m, p);
    grad_done(m, w, l->what_dw);
}

/* dx = dy w', and dw = x' dy. With bulk x comes again under the product dx, and dx is summed under
 * the product dw. */
static void backward_products(Model *m, LinearBack *b, int bias) {
    const Linear *l = &m->linear[b->kind];
    const Tokens *tk = &m->tk;
    bool bulk = m->shape.overlap.bulk, owed = l->dx.n > 0;
    int64_t rows_x = rows_in(b->kind, tk);
    b->product = (Pieces){
        .m = m,
        .in = &l->dy,
        .out = &l->dx,
        .src = b->dy,
        .src_rows = rows_out(b->kind, tk),
        .src_cols = l->N_stored,
        .whole = m->work.y,
        .dst = b->dx,
        .p = product_dx(tk->rows, l->K, l->N, NULL, l->N, weight_whole(m, b->w, l->what_w))};
    Product *p = &b->product.p;
    PathRun x = {0};
    p->y = path_scatters(&l->dx) ? m->work.dx : b->dx;
    if (!owed) p->epilogue = b->epilogue, p->aux = b->aux;
    if (bulk) x = path_begin(&l->x, acts_type(m), b->x, rows_x, l->K_stored, m->work.x, NULL);
    const Act *whole = pieces_begin(&b->product);
    probe_gathered(m, looks[b->kind].dy, b->w, whole, looks[b->kind].y_wide, &l->dy);
    if (!bulk) pieces_end(&b->product);
    if (!bulk) x = path_begin(&l->x, acts_type(m), b->x, rows_x, l->K_stored, m->work.x, NULL);
    backward_dw(m, l, tk, whole, path_end(&x), b->w, bias);
}

void linear_backward_begin(Model *m, LinearBack *b, int bias) {
    const Linear *l = &m->linear[b->kind];
    const Tokens *tk = &m->tk;
    b->open = false;
    if (m->exact) {
        exact_linear_backward(m, b->kind, tk, b->dx, b->dy, b->x, b->w, bias, b->epilogue, b->aux);
        return;
    }
    if (m->grid->layout.stay)
        summa_backward(m, l, tk, b->dx, b->dy, b->x, b->w);
    else
        backward_products(m, b, bias), b->open = m->shape.overlap.bulk;
    if (bias >= 0 && !bias_with_dw(m, l))
        m->k->bias_backward(m->team, m->tensors.t[bias].grad, b->dy, rows_out(b->kind, tk),
                            l->N_stored);
}

void linear_backward_end(Model *m, LinearBack *b) {
    const Linear *l = &m->linear[b->kind];
    if (m->exact) return;
    if (b->open) pieces_end(&b->product);
    if (b->epilogue == EPI_DACT && (m->grid->layout.stay || l->dx.n > 0))
        m->k->act_backward(m->team, m->shape.config.act, b->dx, b->dx, b->aux,
                           rows_in(b->kind, &m->tk) * l->K_stored);
    probe_dx(m, l, b->w, b->dx, b->epilogue);
}

void linear_backward(Model *m, LinearKind kind, Act *dx, const Act *dy, const Act *x, int w, int b,
                     Epilogue epilogue, Act *aux) {
    LinearBack l = {
        .kind = kind, .w = w, .dx = dx, .aux = aux, .dy = dy, .x = x, .epilogue = epilogue};
    linear_backward_begin(m, &l, b);
    linear_backward_end(m, &l);
}
