/* The products of a linear layer with stay=y: the output stays where it is, x and w stream past it.
 *
 *   y[T/r, N/y] = sum over panels k of   x[T/r, k]  broadcast along y by its owner
 *                                        w[k, N/y]  broadcast along x by its owner
 *   dx[T/r, k]  = dy w[k]'               reduced along y to the owner of x's panel
 *   dw[k, N/y]  = x[:, k]' dy            reduced along x to the owner of w's panel
 *
 * Input features K are cut in Y blocks for x and in X blocks for w; a panel ends where either does, so
 * any X x Y works. Only one panel of x and one of w are here besides the rank's own. Source: van de
 * Geijn, Watts, "SUMMA", 1997; Xu et al., Optimus, 2021, section 3.
 */
#include "parallel/model.h"

/* The panel that begins at feature k; x is cut in blocks of `x`, w in blocks of `w` features. */
static Panel panel_at(int64_t k, int64_t x, int64_t w, int64_t K) {
    Panel p = {
        .begin = k, .owner_x = (int)(k / x), .owner_w = (int)(k / w), .in_x = k % x, .in_w = k % w};
    int64_t left_x = x - p.in_x, left_w = w - p.in_w;
    p.n = left_x < left_w ? left_x : left_w;
    if (k + p.n > K) p.n = K - k;
    return p;
}

void summa_stream(Comm *c, CollOp op, CollType type, const void *src, void *dst, int64_t rows,
                  int64_t cols, int root, const char *what) {
    if (!c) return;
    coll_run(c, &(CollCall){.op = op,
                            .type = type,
                            .rows = rows,
                            .cols = cols,
                            .src = src,
                            .dst = dst,
                            .root = root,
                            .what = what,
                            .file = __FILE__,
                            .line = __LINE__});
}

const float *summa_x(Model *m, const Linear *l, const Tokens *tk, const Panel *p, const float *x,
                     int64_t *ld) {
    Comm *y = grid_comm(m->grid, axes_of("y"));
    *ld = y ? p->n : l->K_stored;
    if (!y) return x + p->in_x;
    if (comm_rank(y) == p->owner_x)
        m->k->copy(m->team, m->work.panel[0], p->n, x + p->in_x, l->K_stored, tk->rows, p->n);
    summa_stream(y, COLL_BROADCAST, COLL_F32, m->work.panel[0], m->work.panel[0], tk->rows, p->n,
                 p->owner_x, l->x.what);
    return m->work.panel[0];
}

const float *summa_w(Model *m, const Linear *l, const Panel *p, const float *w) {
    Comm *x = grid_comm(m->grid, axes_of("x"));
    const float *own = w + p->in_w * l->N;
    if (!x) return own;
    float *dst = m->work.panel[1];
    bool mine = comm_rank(x) == p->owner_w;
    if (mine) m->k->copy(m->team, dst, l->N, own, l->N, p->n, l->N);
    summa_stream(x, COLL_BROADCAST, COLL_F32, dst, dst, p->n, l->N, p->owner_w, l->what_w);
    return dst;
}

Panel summa_panel(const Model *m, const Linear *l, int64_t k, int w) {
    return panel_at(k, l->K_stored, m->tensors.t[w].local_rows, l->K);
}

void summa_forward(Model *m, const Linear *l, const Tokens *tk, float *y, const float *x, int w) {
    const float *own = weight_whole(m, w, l->what_w);
    Panel p;
    for (int64_t k = 0; k < l->K; k += p.n) {
        int64_t ld;
        p = summa_panel(m, l, k, w);
        const float *xp = summa_x(m, l, tk, &p, x, &ld), *wp = summa_w(m, l, &p, own);
        Product part = product_xw(tk->rows, p.n, l->N, xp, ld, wp);
        part.y = y, part.addend = k ? y : NULL;
        product_run(m, part);
    }
}

static void panel_dx(Model *m, const Linear *l, const Tokens *tk, const Panel *p, float *dx,
                     const float *dy, const float *w) {
    Comm *y = grid_comm(m->grid, axes_of("y"));
    float *part = y ? m->work.panel[0] : dx + p->in_x;
    int64_t ld = y ? p->n : l->K_stored;
    bool mine = !y || comm_rank(y) == p->owner_x;
    Product to_x = product_dx(tk->rows, p->n, l->N, dy, l->N, summa_w(m, l, p, w));
    to_x.y = part, to_x.ldy = ld;
    product_run(m, to_x);
    summa_stream(y, COLL_REDUCE, COLL_F32, part, mine ? m->work.dx : NULL, tk->rows, p->n,
                 p->owner_x, l->dx.what);
    if (y && mine) m->k->copy(m->team, dx + p->in_x, l->K_stored, m->work.dx, p->n, tk->rows, p->n);
}

static void panel_dw(Model *m, const Linear *l, const Tokens *tk, const Panel *p, float *dw,
                     bool add, const float *dy, const float *x) {
    Comm *c = grid_comm(m->grid, axes_of("x"));
    int64_t ld;
    const float *xp = summa_x(m, l, tk, p, x, &ld);
    bool mine = !c || comm_rank(c) == p->owner_w;
    float *own = dw + p->in_w * l->N, *part = c ? m->work.panel[1] : own,
          *sum = add ? m->work.y : own;
    Product to_w = product_dw(tk->rows, p->n, l->N, xp, ld, dy);
    to_w.y = part, to_w.addend = !c && add ? own : NULL;
    product_run(m, to_w);
    summa_stream(c, COLL_REDUCE, COLL_F32, part, mine ? sum : NULL, p->n, l->N, p->owner_w,
                 l->what_dw);
    if (c && mine && add) m->k->bias_residual(m->team, own, sum, NULL, p->n, l->N);
}

void summa_backward(Model *m, const Linear *l, const Tokens *tk, float *dx, const float *dy,
                    const float *x, int w) {
    const float *own = weight_whole(m, w, l->what_w);
    bool add;
    float *dw = grad_open(m, w, &add);
    Panel p;
    for (int64_t k = 0; k < l->K; k += p.n) {
        p = summa_panel(m, l, k, w);
        panel_dx(m, l, tk, &p, dx, dy, own);
        panel_dw(m, l, tk, &p, dw, add, dy, x);
    }
    grad_done(m, w, l->what_dw);
}
