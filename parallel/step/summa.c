#include "parallel/step/summa.h"

/* ---- panels ---- */

Panel summa_panel(const Model *m, const Linear *l, const Tokens *tk, int w, int64_t k) {
    int64_t x_block = l->K_stored, w_block = m->tensors.t[w].local_rows;
    int64_t left_x = x_block - k % x_block, left_w = w_block - k % w_block;
    int64_t n = left_x < left_w ? left_x : left_w;
    if (k + n > l->K) n = l->K - k;
    return (Panel){.begin = k,
                   .n = n,
                   .x = {.owner = (int)(k / x_block),
                         .at = k % x_block,
                         .ld = x_block,
                         .rows = tk->rows,
                         .cols = n},
                   .w = {.owner = (int)(k / w_block),
                         .at = k % w_block * l->N,
                         .ld = l->N,
                         .rows = n,
                         .cols = l->N}};
}

/* With bulk it is waited for late, else here. */
static Ticket start(const Model *m, Comm *c, const CollCall *call) {
    Ticket t = coll_start(c, call);
    if (m->shape.overlap.bulk) return t;
    coll_wait(t);
    return (Ticket){0};
}

/* ---- operands ---- */

static Inflow inflow(Model *m, const char *axis, const char *what, const Act *own,
                     Act *const buffer[2]) {
    return (Inflow){.m = m,
                    .comm = grid_comm(m->grid, axes_of(axis)),
                    .what = what,
                    .own = own,
                    .buffer = {buffer[0], buffer[1]}};
}

Inflow summa_x(Model *m, const Linear *l, const Act *x) {
    return inflow(m, "y", l->x.what, x, m->work.panel_x);
}

Inflow summa_w(Model *m, const Linear *l, const Act *w) {
    return inflow(m, "x", l->what_w, w, m->work.panel_w);
}

static void inflow_start(Inflow *f, const Slice *p) {
    Model *m = f->m;
    f->turn = !f->turn;
    Act *to = f->buffer[f->turn];
    if (comm_rank(f->comm) == p->owner)
        m->k->copy(m->team, to, p->cols, acts_at(m, f->own, p->at), p->ld, p->rows, p->cols,
                   m->k->word);
    f->ticket = start(m, f->comm,
                      &(CollCall){.op = COLL_BROADCAST,
                                  .type = acts_type(m),
                                  .rows = p->rows,
                                  .cols = p->cols,
                                  .src = to,
                                  .dst = to,
                                  .root = p->owner,
                                  .what = f->what,
                                  .file = __FILE__,
                                  .line = __LINE__});
    f->coming = true;
}

void inflow_ahead(Inflow *f, const Slice *p) {
    if (f->comm && f->m->shape.overlap.bulk && p->rows * p->cols > 0) inflow_start(f, p);
}

const Act *inflow_take(Inflow *f, const Slice *p) {
    if (!f->comm) return acts_at(f->m, f->own, p->at);
    if (!f->coming) inflow_start(f, p);
    coll_wait(f->ticket);
    f->coming = false;
    return f->buffer[f->turn];
}

int64_t inflow_ld(const Inflow *f, const Slice *p) {
    return f->comm ? p->cols : p->ld;
}

/* ---- results ---- */

Ticket summa_reduce(Model *m, Comm *c, CollType type, const void *src, void *dst, const Slice *p,
                    const char *what) {
    return start(m, c,
                 &(CollCall){.op = COLL_REDUCE,
                             .type = type,
                             .rows = p->rows,
                             .cols = p->cols,
                             .src = src,
                             .dst = comm_rank(c) == p->owner ? dst : NULL,
                             .root = p->owner,
                             .what = what,
                             .file = __FILE__,
                             .line = __LINE__});
}

/* Panels of dx or of dw that go to their owners one by one: at most one is on its way. */
typedef struct Outflow {
    Comm *comm; // NULL: products write where panels are kept
    const char *what;
    Act *part; // of the panel, by this rank
    Act *sum;  // at the owner: where it arrives; NULL: where it is kept
    Act *own;  // where panels are kept
    bool add;  // to what is there
    bool wide; // gradients of weights, in fp32; else activations
    Slice going;
    Ticket ticket;
} Outflow;

static size_t outflow_word(const Model *m, const Outflow *f) {
    return f->wide ? sizeof(float) : m->k->word;
}
static Act *kept(const Model *m, const Outflow *f, const Slice *p) {
    return act_at(f->own, p->at, outflow_word(m, f));
}
/* Where the product writes panel p. */
static Act *outflow_part(const Model *m, const Outflow *f, const Slice *p) {
    return f->comm ? f->part : kept(m, f, p);
}

static void outflow_start(Model *m, Outflow *f, const Slice *p) {
    if (!f->comm) return;
    f->going = *p;
    f->ticket = summa_reduce(m, f->comm, f->wide ? COLL_F32 : acts_type(m), f->part,
                             f->sum ? f->sum : kept(m, f, p), p, f->what);
}

/* The panel that is on its way, if any, is with its owner. */
static void outflow_done(Model *m, Outflow *f) {
    Slice p = f->going;
    if (!f->comm || p.rows == 0) return;
    coll_wait(f->ticket);
    f->going = (Slice){0};
    if (comm_rank(f->comm) != p.owner || !f->sum) return;
    if (f->add)
        m->k->add_to(m->team, kept(m, f, &p), f->sum, p.rows * p.cols); // rows that touch: of dw
    else
        m->k->copy(m->team, kept(m, f, &p), p.ld, f->sum, p.cols, p.rows, p.cols,
                   outflow_word(m, f));
}

/* ---- the three products ---- */

void summa_pass(Model *m, const Linear *l, const Tokens *tk, const Act *x, int w,
                void (*run)(void *ctx, Product part, int64_t begin), void *ctx) {
    Inflow x_in = summa_x(m, l, x), w_in = summa_w(m, l, weight_whole(m, w, l->what_w));
    Panel p = summa_panel(m, l, tk, w, 0);
    inflow_ahead(&x_in, &p.x), inflow_ahead(&w_in, &p.w);
    for (Panel next; p.n; p = next) {
        const Act *xp = inflow_take(&x_in, &p.x), *wp = inflow_take(&w_in, &p.w);
        next = summa_panel(m, l, tk, w, p.begin + p.n);
        inflow_ahead(&x_in, &next.x), inflow_ahead(&w_in, &next.w);
        run(ctx, product_xw(tk->rows, p.n, l->N, xp, inflow_ld(&x_in, &p.x), wp), p.begin);
    }
}

typedef struct Forward {
    Model *m;
    Act *y;
} Forward;

static void forward_panel(void *ctx, Product part, int64_t begin) {
    const Forward *f = ctx;
    part.y = f->y, part.addend = begin ? f->y : NULL;
    product_run(f->m, part);
}

void summa_forward(Model *m, const Linear *l, const Tokens *tk, Act *y, const Act *x, int w) {
    summa_pass(m, l, tk, x, w, forward_panel, &(Forward){m, y});
}

/* Where the next panels of x and w come in forward, dx and dw leave in backward. */
void summa_backward(Model *m, const Linear *l, const Tokens *tk, Act *dx, const Act *dy,
                    const Act *x, int w) {
    Inflow x_in = summa_x(m, l, x), w_in = summa_w(m, l, weight_whole(m, w, l->what_w));
    x_in.buffer[1] = x_in.buffer[0], w_in.buffer[1] = w_in.buffer[0];
    bool add;
    float *dw = grad_open(m, w, &add);
    Outflow dx_out = {.comm = x_in.comm,
                      .what = l->dx.what,
                      .part = m->work.panel_x[1],
                      .sum = m->work.dx,
                      .own = dx};
    Outflow dw_out = {.comm = w_in.comm,
                      .what = l->what_dw,
                      .part = m->work.panel_w[1],
                      .sum = add ? m->work.y : NULL,
                      .own = dw,
                      .add = add,
                      .wide = true};
    Panel p = summa_panel(m, l, tk, w, 0);
    inflow_ahead(&w_in, &p.w);
    for (Panel next; p.n; p = next) {
        next = summa_panel(m, l, tk, w, p.begin + p.n);
        inflow_ahead(&x_in, &p.x);
        Product part = product_dx(tk->rows, p.n, l->N, dy, l->N, inflow_take(&w_in, &p.w));
        part.y = outflow_part(m, &dx_out, &p.x), part.ldy = inflow_ld(&x_in, &p.x);
        product_run(m, part);
        outflow_done(m, &dw_out);

        outflow_start(m, &dx_out, &p.x);
        inflow_ahead(&w_in, &next.w);
        const Act *xp = inflow_take(&x_in, &p.x);
        part = product_dw(tk->rows, p.n, l->N, xp, inflow_ld(&x_in, &p.x), dy);
        part.y = outflow_part(m, &dw_out, &p.w), part.addend = !dw_out.comm && add ? part.y : NULL;
        product_run(m, part);
        outflow_done(m, &dx_out);
        outflow_start(m, &dw_out, &p.w);
    }
    outflow_done(m, &dw_out);
    grad_done(m, w, l->what_dw);
}
