/* linear -- one linear layer on a mesh: y = x w + b, forward and backward.
 *
 *                  as stored              as the product wants it
 *   forward   x    [T/d.z.x, C/y]    ->   [T/d.z, C/y]           all_gather
 *             w    flat over z       ->   [C/y, N/x]             all_gather
 *             y    [T/d.z, N/x.y]    <-   [T/d.z, N/x] +y        reduce_scatter, or all_reduce
 *                  then + b, + addend, gelu, where they could not be part of the product, and on the stream the
 *                  norm of it in one pass with them
 *   backward  dy   gathered where y was scattered; x and w gathered again
 *             dx   back to the storage of x, its debt paid
 *             dw   [C/y, N/x] +d.z   ->   flat over z            reduce_scatter; the sum over d waits
 *             db   column sums of the stored dy; with dw, where that is the product's dy and kernels gain by it
 *
 * Which of these there are, along which axis and which dimension, follows from dist_path between the
 * distributions of parallel/mesh/layout.h. What is stored as the product wants it is used in place: on one
 * rank a linear layer is three products. With stay=y the products are streamed in panels
 * (parallel/step/summa.h). Source: parallel/README.md, section 4.
 */
#ifndef PARALLEL_STEP_LINEAR_H
#define PARALLEL_STEP_LINEAR_H

#include "base/arena.h"
#include "layers/kernels.h"
#include "parallel/mesh/path.h"
#include "parallel/mesh/shard.h"
#include "parallel/step/acts.h"
#include "parallel/step/pieces.h"

typedef struct Linear {
    LinearKind kind;
    int64_t K, N;               // widths of the local product
    int64_t K_stored, N_stored; // of what is stored of x and y
    Path x, y, dy, dx;
    const char *what_w, *what_dw;
} Linear;

/* A norm of the stream: which, into what, and its statistics. */
typedef struct NormOf {
    Norm args;
    Act *h;
    float *mean, *rstd;
} NormOf;

/* Room for what is gathered or partial; NULL where nothing is. */
typedef struct MeshWork {
    Act *x, *y, *dx;        // gathered x, partial y or gathered dy, partial dx
    Act *ring;              // parts of other ranks that a ring brings
    Act *w[2];              // gathered weights: of the product at hand, and of the next (bulk)
    float *dw[2], *part[2]; // whole gradient, its scattered part: of two tensors (bulk)
    float *stats, *parts;   // of norms: [T_x,2], [Y,T_x,2]; of the classifier: [rows,3], [n,rows,3]
    float *log_sum;         // [rows]
    Act *h, *dlast, *tmp;   // of embedding and head: [T, C_all], and on the way
    Act *panel_x[2];        // stay=y: of x or dx [T_x, panel]; without bulk both are one
    Act *panel_w[2];        // of w or dw [panel, N]
    float *kv;              // gradients of copied key and value heads
} MeshWork;

/* The same under --exact, where sums are integers: parallel/step/exact.h. */
typedef struct ExactWork {
    int64_t *sum, *part, *tmp; // of a product, on its way to storage
    int64_t *dw, *dw_part;     // as in MeshWork
    int64_t *panel[2];         // stay=y: of dw, and its sum
    int64_t *stats;            // wide sums of norms and of the classifier
    float *sums, *max, *target, *log_sum;
    int64_t *head_dw; // between the chunks of the head
    bool head_fresh;
} ExactWork;

/* Local. The linear layers of a grid, for widths w. */
void linear_plan(Linear *l, LinearKind kind, const Grid *g, const Widths *w);

/* Local, pure. Is the sum of its product owed, so that bias and addend come after it and not with it? */
bool linear_owes(const Model *m, LinearKind kind);

/* Collective over the axes of the layer. y = addend + x w + b, or aux = that and y = gelu(aux). w, b:
 * indices into the table of tensors, b may be -1; addend and aux may be NULL. */
typedef struct LinearFront {
    LinearKind kind;
    int w, b;
    Act *y, *aux;
    const Act *x, *addend;
    Epilogue epilogue;
    const NormOf *norm; // of y, where linear_owes and there is an addend; else NULL
} LinearFront;
void linear_forward(Model *m, const Tokens *tk, const LinearFront *f);
/* Collective over the axes of the layer. dx = dy w' (times gelu'(aux) with EPI_DACT), dw += x' dy,
 * db += column sums of dy. */
void linear_backward(Model *m, LinearKind kind, Act *dx, const Act *dy, const Act *x, int w, int b,
                     Epilogue epilogue, Act *aux);
/* The same in two parts: with bulk dx may be on its way in between, and nothing else is. */
typedef struct LinearBack {
    LinearKind kind;
    int w;
    Act *dx, *aux;
    const Act *dy, *x;
    Epilogue epilogue;
    Pieces product;
    bool open;
} LinearBack;
void linear_backward_begin(Model *m, LinearBack *b, int bias);
void linear_backward_end(Model *m, LinearBack *b);

/* Local. Cuts m->work out of an arena, for m's tokens. */
void linear_workspace(Model *m, Arena *a);
void linear_workspace_kv(Model *m, Arena *a);

/* The pieces, which embedding and head use as well (parallel/mesh/path.h, stored.h). */

void product_run(Model *m, Product p);
/* Local. Rows of the stored x, and of the stored y: the stream's, or the middle's. */
int64_t rows_in(LinearKind kind, const Tokens *tk);
int64_t rows_out(LinearKind kind, const Tokens *tk);

#endif
