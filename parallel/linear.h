/* linear -- one linear layer on a mesh: y = x w + b, forward and backward.
 *
 *                  as stored              as the product wants it
 *   forward   x    [T/d.z.x, C/y]    ->   [T/d.z, C/y]           all_gather
 *             w    flat over z       ->   [C/y, N/x]             all_gather
 *             y    [T/d.z, N/x.y]    <-   [T/d.z, N/x] +y        reduce_scatter, or all_reduce
 *                  then + b, + addend, gelu, where they could not be part of the product
 *   backward  dy   gathered where y was scattered; x and w gathered again
 *             dx   back to the storage of x, its debt paid
 *             dw   [C/y, N/x] +d.z   ->   flat over z            reduce_scatter; the sum over d waits
 *             db   column sums of the stored dy
 *
 * Which of these there are, along which axis and which dimension, follows from dist_path between the
 * distributions of parallel/layout.h. What is stored as the product wants it is used in place: on one
 * rank a linear layer is three products. With stay=y the products are streamed in panels
 * (parallel/summa.c). Source: parallel/README.md, section 4.
 */
#ifndef PARALLEL_LINEAR_H
#define PARALLEL_LINEAR_H

#include "base/arena.h"
#include "layers/kernels.h"
#include "parallel/acts.h"
#include "parallel/grid.h"
#include "parallel/shard.h"

typedef struct Model Model;

/* Collectives between two distributions of a matrix, in order. */
typedef struct Path {
    int n;
    Change change[MAX_CHANGES];
    Comm *comm[MAX_CHANGES];
    const char *what;
} Path;

typedef struct Linear {
    LinearKind kind;
    int64_t K, N;               // widths of the local product
    int64_t K_stored, N_stored; // of what is stored of x and y
    Path x, y, dy, dx;
    const char *what_w, *what_dw;
} Linear;

/* Room for what is gathered or partial; NULL where nothing is. */
typedef struct MeshWork {
    float *x, *y, *dx;      // gathered x, partial y or gathered dy, partial dx
    float *w, *dw, *part;   // gathered weight, whole gradient, its scattered part
    float *stats, *parts;   // of norms: [T_x,2], [Y,T_x,2]; of the classifier: [rows,3], [n,rows,3]
    float *log_sum;         // [rows]
    float *h, *dlast, *tmp; // of embedding and head: [T, C_all], and on the way
    float *panel[2];        // stay=y: of x or dx [T_x, panel]; of w or dw [panel, N]
    float *kv;              // gradients of copied key and value heads
} MeshWork;

/* The same under --exact, where sums are integers: parallel/exact.h. */
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

/* Collective over the axes of the layer. y = addend + x w + b, or aux = that and y = gelu(aux). w, b:
 * indices into the table of tensors, b may be -1; addend and aux may be NULL. */
void linear_forward(Model *m, LinearKind kind, const Tokens *tk, float *y, const float *x, int w,
                    int b, const float *addend, Epilogue epilogue, float *aux);
/* Collective over the axes of the layer. dx = dy w' (times gelu'(aux) with EPI_DGELU), dw += x' dy,
 * db += column sums of dy. */
void linear_backward(Model *m, LinearKind kind, const Tokens *tk, float *dx, const float *dy,
                     const float *x, int w, int b, Epilogue epilogue, float *aux);

/* Local. Cuts m->work out of an arena, for m's tokens. */
void linear_workspace(Model *m, Arena *a);

/* The pieces, which embedding and head use as well. */

/* Collective over z. The whole local block of a weight: in place, or gathered into work.w. */
const float *weight_whole(Model *m, int i, const char *what);
/* Where the gradient of the whole block goes, and whether it is added to what is there. grad_done:
 * collective over the axes that its storage cuts; adds it to what is stored. */
float *grad_open(Model *m, int i, bool *add);
void grad_done(Model *m, int i, const char *what);
/* Collective. Takes src [rows, cols], one rank's block, along a path to dst; tmp holds what lies
 * between two steps. With an empty path src itself is returned. */
const float *path_run(const Path *p, const float *src, int64_t rows, int64_t cols, float *dst,
                      float *tmp);
const void *path_run_of(const Path *p, CollType type, const void *src, int64_t rows, int64_t cols,
                        void *dst, void *tmp);
Path path_make(const Grid *g, const Dist *from, const Dist *to, const char *what);
void product_run(Model *m, Product p);
/* Local. The group over which such parts of a matrix are cut; NULL: not cut. */
Comm *stored_over(Model *m, int i, StoreKind kind);
/* Local. Rows of the stored x, and of the stored y: the stream's, or the middle's. */
int64_t rows_in(LinearKind kind, const Tokens *tk);
int64_t rows_out(LinearKind kind, const Tokens *tk);

/* stay=y: parallel/summa.c. A panel of input features, and the pieces of x and w that belong to it, here or
 * broadcast by their owners (collective over y, over x). */
typedef struct Panel {
    int64_t begin, n;     // input features
    int64_t in_x, in_w;   // where it begins in its owner's block of x, of w
    int owner_x, owner_w; // index along y, along x
} Panel;
Panel summa_panel(const Model *m, const Linear *l, int64_t k, int w);
const float *summa_x(Model *m, const Linear *l, const Tokens *tk, const Panel *p, const float *x,
                     int64_t *ld);
const float *summa_w(Model *m, const Linear *l, const Panel *p, const float *w);
/* Collective over a group (NULL: nothing): a broadcast or a reduce of one panel [rows, cols]. */
void summa_stream(Comm *c, CollOp op, CollType type, const void *src, void *dst, int64_t rows,
                  int64_t cols, int root, const char *what);
void summa_forward(Model *m, const Linear *l, const Tokens *tk, float *y, const float *x, int w);
void summa_backward(Model *m, const Linear *l, const Tokens *tk, float *dx, const float *dy,
                    const float *x, int w);

#endif
