#include "tests/theory.h"

#include <string.h>

#include "base/arena.h"
#include "base/die.h"
#include "base/minmax.h"
#include "parallel/step/program.h"

enum { F32 = 4, F64 = 8 };

/* A walk through the step of one rank, which adds its collectives to c. Sizes in capital letters
 * are those of the logical dimension, padded to equal blocks. */
typedef struct Walk {
    Theory *c;
    const ModelShape *s;
    const Layout *l;
    const Mesh *m;
    Widths w;
    int64_t T, T_x; // tokens of this coordinate of d x z; rows of the residual stream on this rank
} Walk;

/* ---- rows ---- */

/* The row of (what, op, label) in the table; added if it is new. */
static CollCount *row(Walk *k, const char *what, CollOp op, const char *label, int size) {
    Theory *c = k->c;
    for (int i = 0; i < c->n; i++)
        if (c->row[i].op == op && strcmp(c->row[i].what, what) == 0 &&
            strcmp(c->row[i].label, label) == 0)
            return &c->row[i];
    if (c->n == COUNT_ROWS_OF_THEORY)
        die("more than %d kinds of collectives in a step", COUNT_ROWS_OF_THEORY);
    c->row[c->n] = (CollCount){.what = what, .op = op, .size = size};
    snprintf(c->row[c->n].label, sizeof c->row[c->n].label, "%s", label);
    return &c->row[c->n++];
}

/* Counts a collective of a group of p ranks, of which this is rank r. n: elements of the gathered
 * tensor of an all_gather or a reduce_scatter, of the buffer of an all_reduce. */
static void call_group(Walk *k, const char *what, CollOp op, const char *label, int p, int r,
                       int64_t n, int n_bytes) {
    CollCount *to = row(k, what, op, label, p);
    int64_t own = n / p; // blocks of all_gathers and reduce_scatters are equal
    if (op == COLL_ALL_REDUCE) own += (n % p * (r + 1)) / p - (n % p * r) / p;
    to->calls++;
    to->bytes += n_bytes * (op == COLL_ALL_REDUCE ? (p - 1) * own + n - own : n - own);
}

/* Counts a collective along axes; none if they have only one rank. */
static void call(Walk *k, const char *what, CollOp op, Axes axes, int64_t n, int n_bytes) {
    char label[2 * N_AXES + 1];
    Axes real = mesh_real(k->m, axes);
    if (real.n == 0) return;
    call_group(k, what, op, axes_print(real, label), mesh_blocks(k->m, real),
               mesh_block(k->m, real), n, n_bytes);
}

/* Bytes of an element of activations, and of weights as matmuls read them. */
static int elem_bytes(const Walk *k) {
    return k->c->elem_bytes ? k->c->elem_bytes : F32;
}

static int64_t local(const Walk *k, Axes shard, int64_t whole) {
    return whole / mesh_blocks(k->m, shard);
}

/* ---- linear layers ---- */

/* Logical sizes of the tensors of a linear layer, y[T, N] = x[T, K] w[K, N]. T: tokens of all
 * coordinates of d x z. */
typedef struct Sizes {
    int64_t T, K, N;
} Sizes;

static Sizes sizes(const Walk *k, LinearKind kind) {
    const Widths *w = &k->w;
    int64_t n = mesh_blocks(k->m, grid_hidden_axes(k->s->grid));
    int64_t V = w->V * mesh_blocks(k->m, axes_of("x.y"));
    Sizes s = {.T = k->T * mesh_blocks(k->m, axes_of("d.z"))};
    switch (kind) {
    case LINEAR_QKV:
        s.K = w->C_all, s.N = n * w->qkv;
        break;
    case LINEAR_ATTN_OUT:
        s.K = n * w->att, s.N = w->C_all;
        break;
    case LINEAR_UP:
        s.K = w->C_all, s.N = n * w->up;
        break;
    case LINEAR_DOWN:
        s.K = n * w->F, s.N = w->C_all;
        break;
    case LINEAR_HEAD:
    case N_LINEARS:
        s.K = w->C_all, s.N = V;
    }
    return s;
}

/* Counts the collectives that redistribute a matrix of logical size rows x cols. */
static void path(Walk *k, const char *what, const Dist *from, const Dist *to, int64_t rows,
                 int64_t cols) {
    static const CollOp ops[] = {[CHANGE_GATHER] = COLL_ALL_GATHER,
                                 [CHANGE_SCATTER] = COLL_REDUCE_SCATTER,
                                 [CHANGE_REDUCE] = COLL_ALL_REDUCE};
    Change change[MAX_CHANGES];
    Err e;
    int n = dist_path(from, to, change, &e);
    if (n < 0) die("%s: %s", what, e.text);
    int64_t here = local(k, from->shard[0], rows) * local(k, from->shard[1], cols);
    for (int i = 0; i < n; i++) {
        Axes one = {1, {(uint8_t)change[i].axis}};
        int size = mesh_blocks(k->m, one);
        if (change[i].kind == CHANGE_GATHER) here *= size;
        call(k, what, ops[change[i].kind], one, here, elem_bytes(k));
        if (change[i].kind == CHANGE_SCATTER) here /= size;
    }
}

/* Floats of the local block of a weight, padded so that the ranks that shard its moments have equal
 * parts. */
static int64_t weight_block(const Walk *k, LinearKind kind) {
    Sizes s = sizes(k, kind);
    LinearDist d = layout_linear(k->l, kind);
    int64_t parts = mesh_blocks(k->m, layout_store(k->l, STORE_MOMENTS)),
            X = mesh_blocks(k->m, d.w_stored.shard[0]), rows = kind == LINEAR_HEAD ? s.N : s.K,
            cols = kind == LINEAR_HEAD ? s.K : s.N;
    int64_t n = (rows + X - 1) / X * local(k, d.w_stored.shard[1], cols);
    return (n + parts - 1) / parts * parts;
}

static void weight(Walk *k, LinearKind kind, const char *what) {
    call(k, what, COLL_ALL_GATHER, layout_store(k->l, STORE_PARAM), weight_block(k, kind),
         elem_bytes(k));
}

static void weight_gradient(Walk *k, LinearKind kind, const char *what) {
    call(k, what, COLL_REDUCE_SCATTER, layout_store(k->l, STORE_GRAD), weight_block(k, kind), F32);
}

#define NAMES(of)                                                                                  \
    { "x of " of, "w of " of, "y of " of, "dy of " of, "dx of " of, "dw of " of }
static const char *const names[N_LINEARS][6] = {NAMES("qkv"), NAMES("attn_out"), NAMES("up"),
                                                NAMES("down"), NAMES("head")};
enum { NAME_X, NAME_W, NAME_Y, NAME_DY, NAME_DX, NAME_DW };

/* stay=y: counts the broadcasts or reduces of all panels of one operand. each: bytes per feature.
 * own: features of the K that this rank owns. A broadcast receives the features that other ranks
 * own; a reduce receives the other ranks' partial sums of the own features. */
static void panels(Walk *k, const char *what, CollOp op, const char *axis, int64_t n_panels,
                   int64_t K, int64_t own, int64_t each) {
    Axes a = axes_of(axis);
    int p = mesh_blocks(k->m, a);
    if (p == 1) return;
    CollCount *to = row(k, what, op, axis, p);
    to->calls += n_panels;
    to->bytes += each * (op == COLL_BROADCAST ? K - own : (p - 1) * own);
}

/* RECOMPUTE gathers no x and no w: it reads those that are gathered for backward. */
typedef enum { FORWARD, RECOMPUTE, BACKWARD } Pass;

/* SUMMA: the K features are sharded in Y blocks in x and in X blocks in w. A panel ends where a
 * block of either ends. */
static void summa(Walk *k, LinearKind kind, Pass pass) {
    const char *const *name = names[kind];
    Sizes s = sizes(k, kind);
    int64_t X = k->m->size[AXIS_X], Y = k->m->size[AXIS_Y], x = k->m->coord[AXIS_X];
    int64_t of_x = s.K / Y, of_w = (s.K + X - 1) / X, n = 0;
    for (int64_t at = 0; at < s.K; n++)
        at = min_i64(s.K, min_i64((at / of_x + 1) * of_x, (at / of_w + 1) * of_w));
    int64_t own_w = s.K > x * of_w ? min_i64(of_w, s.K - x * of_w) : 0, N = s.N / Y;
    if (pass != RECOMPUTE) weight(k, kind, name[NAME_W]);
    panels(k, name[NAME_X], COLL_BROADCAST, "y", n, s.K, of_x, k->T_x * elem_bytes(k));
    panels(k, name[NAME_W], COLL_BROADCAST, "x", n, s.K, own_w, N * elem_bytes(k));
    if (pass != BACKWARD) return;
    panels(k, name[NAME_DX], COLL_REDUCE, "y", n, s.K, of_x, k->T_x * elem_bytes(k));
    panels(k, name[NAME_DW], COLL_REDUCE, "x", n, s.K, own_w, N * F32);
    weight_gradient(k, kind, name[NAME_DW]);
}

/* Distributions of y = x w and of dx of a layer, with their pending sums. */
static Dist y_of(const LinearDist *d) {
    Dist y;
    Err e;
    if (!dist_matmul(&y, "y", &d->x, &d->w, &e)) die("%s", e.text);
    return y;
}
static Dist dx_of(const LinearDist *d, LinearKind kind) {
    Dist dx = d->x;
    dx.partial = d->w.shard[kind != LINEAR_HEAD]; // the outputs of the head are the rows of its w
    return dx;
}

static void forward(Walk *k, LinearKind kind, Pass pass) {
    if (k->l->stay) {
        summa(k, kind, pass);
        return;
    }
    LinearDist d = layout_linear(k->l, kind);
    Sizes s = sizes(k, kind);
    if (pass != RECOMPUTE) path(k, names[kind][NAME_X], &d.x_stored, &d.x, s.T, s.K);
    if (pass != RECOMPUTE) weight(k, kind, names[kind][NAME_W]);
    Dist y = y_of(&d);
    path(k, names[kind][NAME_Y], &y, &d.y_stored, s.T, s.N);
}

static void backward(Walk *k, LinearKind kind) {
    if (k->l->stay) {
        summa(k, kind, BACKWARD);
        return;
    }
    LinearDist d = layout_linear(k->l, kind);
    Sizes s = sizes(k, kind);
    Dist dy = y_of(&d), dx = dx_of(&d, kind);
    dy.partial = axes_none();
    path(k, names[kind][NAME_DY], &d.y_stored, &dy, s.T, s.N);
    weight(k, kind, names[kind][NAME_W]);
    path(k, names[kind][NAME_DX], &dx, &d.x_stored, s.T, s.K);
    path(k, names[kind][NAME_X], &d.x_stored, &d.x, s.T, s.K);
    weight_gradient(k, kind, names[kind][NAME_DW]);
}

/* ---- the rest of a micro-batch ---- */

static void norm_stats(Walk *k) {
    Axes y = axes_of("y");
    call(k, "statistics of norm", COLL_ALL_GATHER, y, 2 * k->T_x * mesh_blocks(k->m, y), F32);
}

static void norm_sums(Walk *k) {
    call(k, "sums of dnorm", COLL_ALL_REDUCE, axes_of("y"), 2 * k->T_x, F32);
}

static void block_forward_walk(Walk *k) {
    norm_stats(k);
    forward(k, LINEAR_QKV, FORWARD);
    forward(k, LINEAR_ATTN_OUT, FORWARD);
    norm_stats(k);
    forward(k, LINEAR_UP, FORWARD);
    forward(k, LINEAR_DOWN, FORWARD);
}

/* Recomputes a layer's forward, except the results that are kept: the next layer's input, and x2 if
 * a collective along x made it. */
static void block_recompute_walk(Walk *k) {
    norm_stats(k);
    forward(k, LINEAR_QKV, RECOMPUTE);
    if (!k->l->stay && k->m->size[AXIS_X] == 1) forward(k, LINEAR_ATTN_OUT, RECOMPUTE);
    norm_stats(k);
    forward(k, LINEAR_UP, RECOMPUTE);
}

static void block_backward_walk(Walk *k) {
    if (k->s->recompute == RECOMPUTE_FULL) block_recompute_walk(k);
    backward(k, LINEAR_DOWN);
    backward(k, LINEAR_UP);
    norm_sums(k);
    backward(k, LINEAR_ATTN_OUT);
    backward(k, LINEAR_QKV);
    norm_sums(k);
}

/* The embedding uses the table of the head: its output has the distribution of the head's dx, with
 * the same pending sums. The gradient of a tied table is reduced once, with the head's. */
static void embedding(Walk *k, bool backward) {
    LinearDist d = layout_linear(k->l, LINEAR_HEAD);
    Dist partial = dx_of(&d, LINEAR_HEAD);
    Sizes s = sizes(k, LINEAR_HEAD);
    if (backward) {
        path(k, "dx of embedding", &d.x_stored, &d.x, s.T, s.K);
        if (!k->s->config.tied) weight_gradient(k, LINEAR_HEAD, "dw of embedding");
    } else {
        weight(k, LINEAR_HEAD, "w of embedding");
        path(k, "x of embedding", &partial, &d.x_stored, s.T, s.K);
    }
}

/* Logits are computed in chunks of tokens. The loss needs three numbers of each token and rank. */
static void head(Walk *k) {
    LinearDist d = layout_linear(k->l, LINEAR_HEAD);
    Dist dx = dx_of(&d, LINEAR_HEAD);
    Sizes s = sizes(k, LINEAR_HEAD);
    int64_t chunk = head_chunk(k->T, k->w.V, false);
    Axes xy = axes_of("x.y");
    path(k, names[LINEAR_HEAD][NAME_X], &d.x_stored, &d.x, s.T, s.K);
    weight(k, LINEAR_HEAD, names[LINEAR_HEAD][NAME_W]);
    for (int64_t t = 0; t < k->T; t += chunk)
        call(k, "statistics of loss", COLL_ALL_GATHER, xy,
             3 * min_i64(chunk, k->T - t) * mesh_blocks(k->m, xy), F32);
    weight_gradient(k, LINEAR_HEAD, names[LINEAR_HEAD][NAME_DW]);
    path(k, names[LINEAR_HEAD][NAME_DX], &dx, &d.x_stored, s.T, s.K);
}

static Walk walk(Theory *c, const ModelShape *s) {
    const Grid *g = s->grid ? s->grid : grid_one();
    Walk k = {.c = c, .s = s, .l = &g->layout, .m = &g->mesh};
    k.w = widths_of(&s->config, g);
    int64_t X = k.m->size[AXIS_X], T = s->B * s->S;
    k.T_x = k.l->stay ? (s->B + X - 1) / X * s->S : k.l->sp ? (T + X - 1) / X : T;
    k.T = k.l->stay || k.l->sp ? X * k.T_x : T; // padded to equal parts
    return k;
}

void theory_block(Theory *c, const ModelShape *s) {
    Walk k = walk(c, s);
    block_forward_walk(&k);
    block_backward_walk(&k);
}

void theory_micro_batch(Theory *c, const ModelShape *s) {
    Walk k = walk(c, s);
    embedding(&k, false);
    for (int64_t l = 0; l < s->config.layers; l++) block_forward_walk(&k);
    norm_stats(&k);
    head(&k);
    norm_sums(&k);
    for (int64_t l = 0; l < s->config.layers; l++) block_backward_walk(&k);
    embedding(&k, true);
}

/* ---- the end of a step ---- */

/* Elements of key and value heads in the gradient that this rank stores. */
static int64_t kv_elements(const Tensor *t, int64_t queries) {
    int64_t n = 0;
    TensorRun r;
    for (TensorRuns i = tensor_runs(t, PART_GRAD, false); tensor_next(&i, &r);)
        if (r.col >= queries) n += r.n;
    return n;
}

/* Adjacent blocks of heads that hold copies of one key-value head sum its gradients. */
static void copied_heads(Walk *k, const TensorTable *t) {
    const Config *c = &k->s->config;
    Axes hidden = grid_hidden_axes(k->s->grid);
    int n = mesh_blocks(k->m, hidden), own = mesh_block(k->m, hidden);
    int copies = (int)head_blocks(c, n, k->l->heads).copies, first = own / copies * copies;
    if (copies == 1) return;
    for (int i = 0; i < t->n; i++)
        if (strstr(t->t[i].name, ".qkv."))
            call_group(k, "gradients of copied heads", COLL_ALL_REDUCE, "kv",
                       n - first < copies ? n - first : copies, own - first,
                       kv_elements(&t->t[i], c->heads * k->w.D), F32);
}

/* Floats of a gradient in its arena, with alignment. */
static int64_t gradient(const Tensor *t) {
    int64_t align = ARENA_ALIGN / F32;
    return (tensor_part(t, PART_GRAD) + align - 1) / align * align;
}

/* Reduction of the gradients of matrices over d: the matrices of a layer in one all_reduce, or with
 * zero1 each in its own reduce_scatter. With zero2 gradients were reduce-scattered in backward. */
static void matrices(Walk *k, const TensorTable *t) {
    int64_t together = 0;
    Axes d = axes_of("d");
    for (int i = 0, next; k->l->zero < 2 && i < t->n; i = next) {
        for (next = i + 1; next < t->n && !shard_has_flat_parts(t, next);) next++;
        if (!shard_has_flat_parts(t, i)) continue;
        if (k->l->zero == 1) {
            call(k, "gradients of matrices", COLL_REDUCE_SCATTER, d,
                 tensor_part(&t->t[i], PART_MOMENTS) * k->m->size[AXIS_D], F32);
            continue;
        }
        together += gradient(&t->t[i]);
        if (next < t->n && t->t[next].layer == t->t[i].layer) continue;
        call(k, "gradients of matrices", COLL_ALL_REDUCE, grid_summed_axes(k->s->grid, d), together,
             F32);
        together = 0;
    }
}

static void vectors(Walk *k, const TensorTable *t) {
    // Vectors are partial over lists of axes, each a prefix of the next: a call for each length.
    for (int along = 1; along <= N_AXES; along++) {
        int64_t n = 0;
        Axes axes = axes_none();
        for (int i = 0; i < t->n; i++) {
            Axes over = mesh_real(k->m, shard_partial_axes(t, i, k->l));
            if (!shard_has_flat_parts(t, i) && over.n == along)
                axes = over, n += gradient(&t->t[i]);
        }
        if (n)
            call(k, "gradients of vectors", COLL_ALL_REDUCE, grid_summed_axes(k->s->grid, axes), n,
                 F32);
    }
}

static void new_weights(Walk *k, const TensorTable *t) {
    for (int i = 0; i < t->n; i++) {
        int64_t n = tensor_part(&t->t[i], PART_MOMENTS);
        if (n != tensor_part(&t->t[i], PART_CAST))
            call(k, "new weights", COLL_ALL_GATHER, axes_of("d"), n * k->m->size[AXIS_D],
                 elem_bytes(k));
    }
}

void theory_update(Theory *c, const ModelShape *s) {
    Walk k = walk(c, s);
    if (k.m->p == 1) return;
    TensorTable t = tensors_describe(&s->config);
    shard_tensors(&t, s->grid, false); // PART_CAST is the same with bf16 copies
    call(&k, "sum of losses", COLL_ALL_REDUCE, axes_of("d.z"), 1, F64);
    copied_heads(&k, &t);
    matrices(&k, &t);
    vectors(&k, &t);
    if (s->grid->local_steps) {
        call(&k, "gradient norm", COLL_ALL_REDUCE, axes_of("z.x.y"), 1, F64);
        call(&k, "mean of replicas", COLL_ALL_REDUCE, axes_of("d"), 1, F64);
    } else
        call_group(&k, "gradient norm", COLL_ALL_REDUCE, "all", k.m->p, k.m->rank, 1, F64);
    new_weights(&k, &t);
    tensors_free(&t);
}

/* ---- the table ---- */

int64_t theory_calls(const Theory *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n; i++) n += c->row[i].calls;
    return n;
}

int64_t theory_bytes(const Theory *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n; i++) n += c->row[i].bytes;
    return n;
}
