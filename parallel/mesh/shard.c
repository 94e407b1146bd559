#include "parallel/mesh/shard.h"

#include <string.h>

#include "base/mem.h"

/* Number of elements of [begin, begin + n) below `all`: the rest is padding. */
static int64_t real(int64_t begin, int64_t n, int64_t all) {
    return begin >= all ? 0 : begin + n > all ? all - begin : n;
}

int64_t exact_panel(int64_t n) {
    int64_t panel = 1;
    while (panel < 64 && 32 * panel <= n) panel *= 2;
    return panel;
}

Widths widths_of(const Config *c, const Grid *g) {
    const Mesh *m = &g->mesh;
    Axes hidden = grid_hidden_axes(g);
    int n = mesh_blocks(m, hidden), X = m->size[AXIS_X], Y = m->size[AXIS_Y];
    bool exact = g->layout.exact;
    HeadBlocks h = head_blocks(c, n, g->layout.heads || exact);
    // Blocks are whole numbers of panels; without --exact a panel is one element.
    int64_t in_C = exact ? exact_panel(c->channels) : 1, in_F = exact ? exact_panel(c->ffn) : 1;
    int64_t in_V = exact ? exact_panel(c->vocab) : 1, in_att = exact ? config_head_size(c) : 1;
    Widths w = {.H = h.heads, .Hkv = h.kv_heads, .D = config_head_size(c)};
    w.C = div_up(div_up(c->channels, in_C), Y) * in_C;
    w.C_0 = m->coord[AXIS_Y] * w.C, w.C_n = real(w.C_0, w.C, c->channels);
    w.C_all = w.C * Y;
    w.V = div_up(div_up(c->vocab, in_V), X * Y) * in_V;
    w.V_0 = mesh_block(m, axes_of("x.y")) * w.V, w.V_n = real(w.V_0, w.V, c->vocab);
    w.qkv = (w.H + 2 * w.Hkv) * w.D, w.att = w.H * w.D;
    w.F = div_up(div_up(c->ffn, in_F), n) * in_F, w.up = c->act == ACT_SWIGLU ? 2 * w.F : w.F;
    w.blocks = g->layout.heads && !g->layout.stay ? Y : 1;
    w.rows_C = div_up(w.C_all / in_C, X) * in_C;
    w.rows_att = div_up(n * w.att / in_att, X) * in_att;
    w.rows_F = div_up(n * w.F / in_F, X) * in_F;
    w.parts_C = exact ? w.C_all / in_C : Y;
    w.parts_V = exact ? w.V / in_V * X * Y : X * Y;
    return w;
}

/* Appends a range; one of no elements is left out. */
static void add_range(DimShard *d, int64_t global, int64_t n, int64_t local, bool first) {
    if (n <= 0) return;
    d->s = mem_realloc(d->s, (size_t)d->n + 1, sizeof *d->s);
    d->s[d->n++] = (DimRange){global, n, local, first};
}

/* The block [begin, begin + size) of a dimension of `all` elements, padded to `padded`. */
static DimShard block(int64_t begin, int64_t size, int64_t all, int64_t padded) {
    DimShard d = {.size = padded};
    add_range(&d, begin, real(begin, size, all), 0, true);
    return d;
}

/* Blocks `from` to `from` + n - 1, each [q | k | v] of its heads. */
static DimShard qkv_dim(const Config *c, const Widths *w, int64_t copies, int64_t from, int64_t n) {
    DimShard d = {.size = n * w->qkv};
    for (int64_t i = 0; i < n; i++) {
        int64_t b = from + i, at = i * w->qkv, D = w->D, kv = b / copies * w->Hkv;
        int64_t q_n = real(b * w->H, w->H, c->heads),
                kv_n = q_n ? real(kv, w->Hkv, c->kv_heads) : 0;
        bool first = b % copies == 0;
        add_range(&d, b * w->att, q_n * D, at, true);
        add_range(&d, (c->heads + kv) * D, kv_n * D, at + w->H * D, first);
        add_range(&d, (c->heads + c->kv_heads + kv) * D, kv_n * D, at + (w->H + w->Hkv) * D, first);
    }
    return d;
}

/* Blocks `from` to `from` + n - 1 of the MLP's features, each [gate | up] with swiglu. */
static DimShard up_dim(const Config *c, const Widths *w, int64_t from, int64_t n) {
    DimShard d = {.size = n * w->up};
    for (int64_t i = 0; i < n; i++)
        for (int64_t part = 0; part < w->up / w->F; part++) {
            int64_t f = (from + i) * w->F;
            add_range(&d, part * c->ffn + f, real(f, w->F, c->ffn), i * w->up + part * w->F, true);
        }
    return d;
}

DimShard shard_features(const Config *c, const Grid *g, FeatureKind kind, bool wide) {
    Widths w = widths_of(c, g);
    int blocks = mesh_blocks(&g->mesh, grid_hidden_axes(g));
    int64_t copies = head_blocks(c, blocks, g->layout.heads || g->layout.exact).copies;
    int64_t own = mesh_block(&g->mesh, grid_hidden_axes(g)), n = wide ? w.blocks : 1;
    int64_t from = own / n * n, C = c->channels;
    switch (kind) {
    case FEATURES_RESIDUAL:
        return wide ? block(0, C, C, w.C_all) : block(w.C_0, w.C, C, w.C);
    case FEATURES_QKV:
        return qkv_dim(c, &w, copies, from, n);
    case FEATURES_ATT:
        return block(from * w.att, n * w.att, c->heads * w.D, n * w.att);
    case FEATURES_UP:
        return up_dim(c, &w, from, n);
    case FEATURES_ACT:
        return block(from * w.F, n * w.F, c->ffn, n * w.F);
    case FEATURES_ONE:
        break;
    }
    return block(0, 1, 1, 1);
}

static bool ends_with(const Tensor *t, const char *tail) {
    size_t n = strlen(t->name), k = strlen(tail);
    return n >= k && strcmp(t->name + n - k, tail) == 0;
}

/* Matmul weights are the tensors with weight decay, except the table of positions. */
bool shard_has_flat_parts(const TensorTable *t, int i) {
    return t->t[i].decay && !ends_with(&t->t[i], "wpe");
}

Axes shard_partial_axes(const TensorTable *t, int i, const Layout *l) {
    const Tensor *x = &t->t[i];
    if (shard_has_flat_parts(t, i)) return axes_of("d");
    bool of_hidden = ends_with(x, "qkv.bias") || ends_with(x, "up.bias");
    // types do not name an x of size 1
    bool tokens_over_x = layout_tokens_over_x(l) && l->size[AXIS_X] > 1;
    if (ends_with(x, "qk_norm.weight")) return axes_of(l->stay || l->heads ? "d.z.x.y" : "d.z.x");
    return tokens_over_x && (l->stay || !of_hidden) ? axes_of("d.z.x") : axes_of("d.z");
}

/* The rows of a weight matrix: sharded as its input features (kind); with stay=y over x instead. */
static DimShard rows_in(const Config *c, const Grid *g, FeatureKind kind, int64_t rows,
                        int64_t all) {
    int64_t x = g->mesh.coord[AXIS_X];
    if (g->layout.stay) return block(x * rows, rows, all, rows);
    return shard_features(c, g, kind, kind != FEATURES_RESIDUAL);
}

/* The rows and columns of a tensor in this rank's block, and the axes that shard them. */
static void block_dims(const TensorTable *table, const Tensor *t, const Grid *g, DimShard *rows,
                       DimShard *cols, Axes *axes) {
    const Config *c = &table->config;
    Widths w = widths_of(c, g);
    FeatureKind across = FEATURES_RESIDUAL;
    bool wide = false;
    *rows = (DimShard){.size = 0}, *axes = axes_of("x.y"); // of a matmul weight
    if (ends_with(t, "wte") || ends_with(t, "head")) {
        *rows = block(w.V_0, w.V, c->vocab, w.V);
        wide = true;
    } else if (ends_with(t, "qk_norm.weight")) {
        *rows = block(0, 1, 1, 1), *cols = block(0, t->cols, t->cols, t->cols);
        *axes = axes_none();
        return;
    } else if (ends_with(t, "qkv.bias") || ends_with(t, "up.bias")) {
        across = ends_with(t, "qkv.bias") ? FEATURES_QKV : FEATURES_UP, *axes = grid_hidden_axes(g);
    } else if (ends_with(t, "qkv.weight") || ends_with(t, "up.weight")) {
        *rows = rows_in(c, g, FEATURES_RESIDUAL, w.rows_C, c->channels);
        across = ends_with(t, "qkv.weight") ? FEATURES_QKV : FEATURES_UP, wide = true;
    } else if (ends_with(t, "attn_out.weight")) {
        *rows = rows_in(c, g, FEATURES_ATT, w.rows_att, c->heads * w.D);
    } else if (ends_with(t, "down.weight")) {
        *rows = rows_in(c, g, FEATURES_ACT, w.rows_F, c->ffn);
    } else {
        *axes = axes_of("y");
    }
    if (across == FEATURES_RESIDUAL && t->cols != c->channels)
        die("%s: block_dims() does not say which of its %lld columns a rank holds", t->name,
            (long long)t->cols);
    if (rows->size == 0) *rows = block(0, t->rows, t->rows, t->rows);
    *cols = shard_features(c, g, across, wide);
}

/* Splits a tensor's block into equal flat parts for each storage: weights, gradients, moments, bf16
 * copies. The parts of the moments are the smallest; every other part is a whole number of these.
 * axes: those that shard the block. */
static void split_flat(TensorTable *table, int i, const Grid *g, Axes axes, bool bf16_copies) {
    const StoreKind kinds[N_PARTS] = {[PART_PARAM] = bf16_copies ? STORE_MOMENTS : STORE_PARAM,
                                      [PART_GRAD] = STORE_GRAD,
                                      [PART_MOMENTS] = STORE_MOMENTS,
                                      [PART_CAST] = STORE_PARAM};
    Tensor *t = &table->t[i];
    bool flat = shard_has_flat_parts(table, i);
    int64_t n = t->local_rows * t->local_cols;
    int all = flat ? mesh_blocks(&g->mesh, layout_store(&g->layout, STORE_MOMENTS)) : 1;
    int64_t fine = div_up(n, all);
    for (int part = 0; part < N_PARTS; part++) {
        Axes a = flat ? layout_store(&g->layout, kinds[part]) : axes_none();
        int64_t size = fine * (all / mesh_blocks(&g->mesh, a));
        t->begin[part] = mesh_block(&g->mesh, a) * size;
        t->end[part] = t->begin[part] + size;
        t->first[part] = true;
        for (int axis = 0; axis < N_AXES; axis++)
            if (g->mesh.coord[axis] && !axes_has(a, axis) && !axes_has(axes, axis) &&
                // with local steps each replica has its own gradients
                !(part == PART_GRAD && axis == AXIS_D && g->local_steps))
                t->first[part] = false;
    }
}

static void shard_tensor(TensorTable *table, int i, const Grid *g, bool bf16_copies) {
    Tensor *t = &table->t[i];
    DimShard rows, cols;
    Axes axes;
    block_dims(table, t, g, &rows, &cols, &axes);
    t->local_rows = rows.size, t->local_cols = cols.size;
    t->n_rects = 0;
    t->rects = mem_realloc(t->rects, (size_t)(rows.n * cols.n) + 1, sizeof *t->rects);
    for (int r = 0; r < rows.n; r++)
        for (int k = 0; k < cols.n; k++)
            t->rects[t->n_rects++] =
                (TensorRect){.row = rows.s[r].global,
                             .col = cols.s[k].global,
                             .rows = rows.s[r].n,
                             .cols = cols.s[k].n,
                             .offset = rows.s[r].local * cols.size + cols.s[k].local,
                             .first = cols.s[k].first};
    mem_free(rows.s), mem_free(cols.s);
    split_flat(table, i, g, axes, bf16_copies);
}

void shard_tensors(TensorTable *table, const Grid *g, bool bf16_copies) {
    if (g->mesh.p == 1 && !g->layout.exact) return;
    for (int i = 0; i < table->n; i++) shard_tensor(table, i, g, bf16_copies);
}

double shard_waste(const Config *c, const Grid *g) {
    TensorTable t = tensors_describe(c);
    shard_tensors(&t, g, false);
    double held = 0, all = 0;
    for (int i = 0; i < t.n; i++) {
        const Tensor *x = &t.t[i];
        if (!shard_has_flat_parts(&t, i)) continue;
        held +=
            (double)(x->local_rows * x->local_cols) * g->mesh.size[AXIS_X] * g->mesh.size[AXIS_Y];
        all += (double)tensor_size(x);
    }
    tensors_free(&t);
    return 1 - all / held;
}
