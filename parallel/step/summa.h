/* summa -- the products of a linear layer with stay=y: the output stays where it is, x and w stream
 * past it.
 *
 *   y[T/r, N/y] = sum over panels k of   x[T/r, k]  broadcast along y by its owner
 *                                        w[k, N/y]  broadcast along x by its owner
 *   dx[T/r, k]  = dy w[k]'               reduced along y to the owner of x's panel
 *   dw[k, N/y]  = x[:, k]' dy            reduced along x to the owner of w's panel
 *
 * Input features K are cut in Y blocks for x and in X blocks for w; a panel ends where either does,
 * so any X x Y works. Without overlap whoever sends waits, and one panel of each operand is here
 * besides the rank's own. With bulk (parallel/step/overlap.h) there is room for two, and what is on
 * its way is under a product. Time goes right:
 *
 *   forward    along y     x0 |    x1     |    x2     |    x3
 *              along x     w0 |    w1     |    w2     |    w3
 *              product        | y = x0 w0 | y += x1 w1| y += x2 w2 ..
 *
 *   backward   along y        |    x0     |    dx0    |    x1     |    dx1
 *              along x     w0 |           |    w1     |    dw0    |    w2
 *              product        | dx0=dy w0'| dw0=x0'dy | dx1=dy w1'| dw1=x1'dy ..
 *
 * In backward the products take turns, so that one panel of x and one of w are enough: the second
 * ones make room for dx and dw. Sums are the same with and without. Source: van de Geijn, Watts,
 * "SUMMA", 1997; Xu et al., Optimus, 2021, section 3.
 */
#ifndef PARALLEL_STEP_SUMMA_H
#define PARALLEL_STEP_SUMMA_H

#include "parallel/step/model.h"

/* A panel's part of x and dx, or of w and dw. */
typedef struct Slice {
    int owner;      // index along y, or along x
    int64_t at, ld; // in its block: where it begins, and from row to row
    int64_t rows, cols;
} Slice;

typedef struct Panel {
    int64_t begin, n; // input features; n is 0 after the last panel
    Slice x, w;
} Panel;

/* Local. The panel that begins at input feature k; w is the weight's index. */
Panel summa_panel(const Model *m, const Linear *l, const Tokens *tk, int w, int64_t k);

/* Panels of x or of w that come from their owners one by one. */
typedef struct Inflow {
    Model *m;
    Comm *comm; // NULL: this rank owns all of them
    const char *what;
    const Act *own;
    Act *buffer[2]; // take turns; they may be one
    int turn;
    bool coming;
    Ticket ticket;
} Inflow;

/* Local. x as stored; w: the whole local block. */
Inflow summa_x(Model *m, const Linear *l, const Act *x);
Inflow summa_w(Model *m, const Linear *l, const Act *w);
/* Collective over y, or x. With bulk, panel p is on its way, if there is one. */
void inflow_ahead(Inflow *f, const Slice *p);
/* Collective over y, or x. Panel p is here, its rows inflow_ld apart; it stays while the next comes
 * into the other buffer. */
const Act *inflow_take(Inflow *f, const Slice *p);
int64_t inflow_ld(const Inflow *f, const Slice *p);

/* Collective over c. The sum of src is on its way to the dst of the owner of p; dst is NULL
 * elsewhere. Without bulk it is there. */
Ticket summa_reduce(Model *m, Comm *c, CollType type, const void *src, void *dst, const Slice *p,
                    const char *what);

/* Collective over x and y. Panels of x and w pass by, one ahead with bulk: `run` gets the product
 * of each, y not set, and where its panel begins in K. */
void summa_pass(Model *m, const Linear *l, const Tokens *tk, const Act *x, int w,
                void (*run)(void *ctx, Product part, int64_t begin), void *ctx);
/* Collective over x and y. The products of linear_forward and linear_backward, in fp32 and in
 * bf16. */
void summa_forward(Model *m, const Linear *l, const Tokens *tk, Act *y, const Act *x, int w);
void summa_backward(Model *m, const Linear *l, const Tokens *tk, Act *dx, const Act *dy,
                    const Act *x, int w);

#endif
