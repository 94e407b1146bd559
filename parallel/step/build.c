/* build -- the forward pass, from tokens to losses or logits: the one place that knows the model.
 *
 * The code reads like the forward pass of one rank. In block() each line has the type of its result
 * on a mesh d.z.x.y with sequence parallelism; without it the residual stream is [T/d.z, C/y]. A
 * linear layer is four steps: redistribute x to the type that the matmul reads, gather the weight
 * where it is stored sharded, multiply, redistribute y to the type in which it is stored. The table
 * of these types is in parallel/mesh/layout.h. Its column-parallel and row-parallel layers are
 * Megatron-LM's ColumnParallelLinear and RowParallelLinear.
 */
#include <string.h>

#include "parallel/step/program.h"

typedef struct Builder {
    Program p;
    const Config *c;
    Widths w;
    LinearDist linear[N_LINEARS];
    int64_t T;        // tokens of all ranks, padded to equal parts
    int64_t hidden;   // features of attention's result, padded; of all ranks
    int wte;          // tensor of the stored embedding table; -1: not made yet
    int n_parameters; // made so far
} Builder;

static const char *const linear_names[N_LINEARS] = {"qkv", "attn_out", "up", "down", "head"};

static Dist named(const char *name, Dist d) {
    dist_name(d.name, name);
    return d;
}

/* A parameter of the layer that is being built. Its row in the table of tensors (base/tensor.c) is
 * the next one, so the forward pass has to make parameters in the order of the table. */
static int parameter(Builder *b, Dist dist, int64_t size0, int64_t size1, CollType dtype) {
    int t = program_tensor(&b->p, dist, (int64_t[]){size0, size1}, dtype);
    b->p.tensor[t].storage = STORAGE_WEIGHT;
    b->p.tensor[t].parameter = b->n_parameters++;
    return t;
}

/* A new tensor with the type of tensor t and another name. */
static int like(Builder *b, int t, const char *name) {
    StepTensor x = b->p.tensor[t];
    int out = program_tensor(&b->p, named(name, x.dist), x.size, x.dtype);
    b->p.tensor[out].stride = x.stride;
    return out;
}

/* A vector parameter, sharded as dimension 1 of tensor t: a bias or a norm's weight. */
static int vector(Builder *b, int t, const char *name) {
    const StepTensor *x = &b->p.tensor[t];
    Dist d = dist_make(name, x->dist.dim[1], x->dist.shard[1], NULL, axes_none());
    return parameter(b, d, x->size[1], 1, COLL_F32);
}

/* Rows and columns of a linear layer's weight [K, N] on all ranks, padded; the head's is [V, C]. */
static void weight_sizes(const Builder *b, LinearKind kind, int64_t size[2]) {
    const Widths *w = &b->w;
    int64_t n = mesh_blocks(b->p.mesh, grid_hidden_axes(b->p.grid)),
            xy = mesh_blocks(b->p.mesh, axes_of("x.y")), C = w->C_all;
    const int64_t sizes[N_LINEARS][2] = {[LINEAR_QKV] = {C, n * w->qkv},
                                         [LINEAR_ATTN_OUT] = {n * w->att, C},
                                         [LINEAR_UP] = {C, n * w->up},
                                         [LINEAR_DOWN] = {n * w->F, C},
                                         [LINEAR_HEAD] = {xy * w->V, C}};
    const int64_t local_rows[N_LINEARS] = {[LINEAR_QKV] = w->rows_C, // of stay=y
                                           [LINEAR_ATTN_OUT] = w->rows_att,
                                           [LINEAR_UP] = w->rows_C,
                                           [LINEAR_DOWN] = w->rows_F};
    size[0] = sizes[kind][0], size[1] = sizes[kind][1];
    if (b->p.layout->stay && kind != LINEAR_HEAD) // rows over x, padded to equal blocks
        size[0] = b->p.mesh->size[AXIS_X] * local_rows[kind];
}

/* The weight of a linear layer in the type that its matmul reads. A rank stores a flat part of its
 * block of the weight: over z (as PyTorch's FSDP), with zero3 also over d. In the type these axes
 * shard the rows once more, so one redistribution gathers the block. stored: the tensor that is
 * stored; -1: makes it. */
static int weight(Builder *b, LinearKind kind, int stored, const char *what) {
    const LinearDist *d = &b->linear[kind];
    char name[DIST_NAME];
    if (kind == LINEAR_HEAD)
        dist_name(name, b->wte < 0 ? "wte" : "head"); // tied: the embedding's
    else
        dist_join(name, linear_names[kind], ".weight");
    Dist block = named(name, d->w_stored), flat = block;
    flat.shard[0] = axes_join(flat.shard[0], layout_store(b->p.layout, STORE_PARAM));
    if (stored < 0) {
        int64_t size[2];
        weight_sizes(b, kind, size);
        stored = parameter(b, flat, size[0], size[1], b->p.dtype);
        b->p.tensor[stored].n_block = block.shard[0].n;
    }
    if (kind == LINEAR_HEAD && b->wte < 0) b->wte = stored;
    int w = program_redistribute(&b->p, stored, &block, what);
    return program_redistribute(&b->p, w, &d->w, what); // stay=y: gathers all rows K
}

/* y = x w + b. Column-parallel (qkv, up) and row-parallel (attn_out, down) differ in their types
 * alone. */
static int linear(Builder *b, LinearKind kind, const char *y_name, int x) {
    Program *p = &b->p;
    const LinearDist *d = &b->linear[kind];
    const char *name = linear_names[kind], *y_of = linear_what(kind, TENSOR_Y);
    x = program_redistribute(p, x, &d->x, linear_what(kind, TENSOR_X));
    int w = weight(b, kind, -1, linear_what(kind, TENSOR_W));
    int y = program_matmul(p, OP_MATMUL, y_name, x, w);
    p->tensor[y].what = y_of;
    y = program_redistribute(p, y, &d->y_stored, y_of);
    if (!config_biased(b->c, kind == LINEAR_QKV)) return y;
    char bias[DIST_NAME];
    dist_join(bias, name, ".bias");
    return EMIT(p, OP_BIAS, like(b, y, y_name), y, vector(b, y, bias));
}

/* norm(x) in three kernels. First each rank computes statistics of its C/y features of each token:
 * mean and sum of squared deviations [2Y/y, T] (never E[x^2] - E[x]^2, which cancels); with --exact
 * those of each panel [2P/y, T]. Then the statistics are gathered along y, and every rank merges
 * them in the order of the features, so all ranks get the same bits. Then each rank normalizes its
 * features. */
static int norm(Builder *b, const char *layer, const char *name, int x) {
    Program *p = &b->p;
    StepTensor in = p->tensor[x];
    int64_t size[] = {2 * b->w.parts_C, in.size[0]};
    char stats[DIST_NAME], mean_rstd[DIST_NAME], weight[DIST_NAME], bias[DIST_NAME];
    dist_join(stats, layer, ".stats"), dist_join(mean_rstd, layer, ".mean_rstd");
    dist_join(weight, layer, ".weight"), dist_join(bias, layer, ".bias");
    const char *numbers = p->layout->exact ? "2P" : "2Y";
    Dist part = dist_make(stats, numbers, in.dist.shard[1], "T", in.dist.shard[0]), whole = part;
    whole.shard[0] = axes_none();
    int s = EMIT(p, OP_NORM_STATISTICS, program_tensor(p, part, size, COLL_F32), x);
    s = program_redistribute(p, s, &whole, "statistics of norm");
    Dist merged = dist_make(mean_rstd, "2", axes_none(), "T", in.dist.shard[0]);
    size[0] = 2;
    s = EMIT(p, OP_NORM_MERGE, program_tensor(p, merged, size, COLL_F32), s);
    bool biased = b->c->bias && b->c->norm == NORM_LAYER;
    int w = vector(b, x, weight);
    return EMIT(p, OP_NORM, like(b, x, name), x, s, w, biased ? vector(b, x, bias) : -1);
}

static int add(Builder *b, const char *name, int x, int y) {
    return EMIT(&b->p, OP_ADD, like(b, x, name), x, y);
}

/* The KV cache of a layer: keys and values of all positions of one sequence, of this rank's
 * heads. */
static int cache(Builder *b, Axes heads) {
    Dist d = dist_make("cache", "S", axes_none(), "KV", heads);
    int64_t row = 2 * b->w.Hkv * b->w.D * mesh_blocks(b->p.mesh, heads);
    int t = program_tensor(&b->p, d, (int64_t[]){b->c->seq, row}, b->p.dtype);
    b->p.tensor[t].storage = STORAGE_CACHE;
    return t;
}

/* softmax(q k') v. Every rank has whole heads and whole sequences, so attention needs no
 * collective. When sampling, a prompt also stores its keys and values in the cache. In a later
 * pass (S = 1) the query is one token, over the keys and values in the cache. */
static int attention(Builder *b, int qkv) {
    Program *p = &b->p;
    const ModelShape *s = p->shape;
    if (b->c->qk_norm) {
        Dist d = dist_make("qk_norm.weight", "2D", axes_none(), NULL, axes_none());
        int weight = parameter(b, d, 2 * b->w.D, 1, COLL_F32);
        qkv = EMIT(p, OP_QK_NORM, like(b, qkv, "qkv"), qkv, weight);
    }
    if (b->c->pos == POS_ROPE) qkv = EMIT(p, OP_ROPE, like(b, qkv, "qkv"), qkv);
    const LinearDist *d = &b->linear[LINEAR_ATTN_OUT];
    int64_t size[] = {b->T, b->hidden}, heads = b->hidden / b->w.D;
    int att = program_tensor(p, named("att", d->x_stored), size, p->dtype), kv = -1;
    if (s->output == OUTPUT_NEXT) kv = EMIT(p, OP_CACHE, cache(b, d->x_stored.shard[1]), qkv);
    if (s->output == OUTPUT_NEXT && s->S == 1) return EMIT(p, OP_ATTENTION_CACHE, att, qkv, kv);
    Dist logs = dist_make("lse", "T", d->x_stored.shard[0], "H", d->x_stored.shard[1]);
    int lse = program_tensor(p, logs, (int64_t[]){b->T, heads}, COLL_F32);
    EMIT(p, OP_ATTENTION, att, qkv);
    p->op[p->n_ops - 1].out2 = lse;
    return att;
}

/* act(up); with SwiGLU silu(gate) up of [gate | up], which has twice the features. */
static int activation(Builder *b, int up) {
    Program *p = &b->p;
    bool gated = b->c->act == ACT_SWIGLU; // silu(gate) up
    Dist d = named("act", b->linear[LINEAR_DOWN].x_stored);
    int64_t size[] = {b->T, p->tensor[up].size[1] / (gated ? 2 : 1)};
    return EMIT(p, gated ? OP_SWIGLU : OP_ACT, program_tensor(p, d, size, p->dtype), up);
}

/* One layer of the transformer, pre-norm. The comments are types on a mesh d.z.x.y with sequence
 * parallelism: N output features and K input features of a linear layer. */
static int block(Builder *b, int x) {
    int h = norm(b, "ln1", "h1", x);                // [T/d.z.x, C/y]
    int qkv = linear(b, LINEAR_QKV, "qkv", h);      // [T/d.z, N/x]      column-parallel
    int att = attention(b, qkv);                    // [T/d.z, K/x]      heads over x
    int o = linear(b, LINEAR_ATTN_OUT, "o", att);   // [T/d.z.x, C/y]    row-parallel
    x = add(b, "x2", x, o);                         // [T/d.z.x, C/y]
    h = norm(b, "ln2", "h2", x);                    // [T/d.z.x, C/y]
    int up = linear(b, LINEAR_UP, "up", h);         // [T/d.z, N/x]      column-parallel
    int act = activation(b, up);                    // [T/d.z, K/x]
    int down = linear(b, LINEAR_DOWN, "down", act); // [T/d.z.x, C/y]    row-parallel
    return add(b, "x3", x, down);                   // [T/d.z.x, C/y]
}

/* The table wte is sharded by vocabulary as the head's weight, [V/x.y, C] (Megatron-LM's
 * VocabParallelEmbedding). A rank looks up the tokens whose rows it holds and writes zeros for the
 * others. So the result has a pending sum over x and y, of which one term is not zero: the type of
 * the head's dx. Positions are added once, after the sum. */
static int embedding(Builder *b) {
    Program *p = &b->p;
    const LinearDist *d = &b->linear[LINEAR_HEAD];
    Dist residual = layout_residual(p->layout), partial = named("x", d->x);
    partial.partial = d->w.shard[0];
    int wte = weight(b, LINEAR_HEAD, -1, "w of embedding");
    int64_t size[] = {b->T, b->w.C_all};
    int x = EMIT(p, OP_EMBEDDING, program_tensor(p, partial, size, p->dtype), wte);
    x = program_redistribute(p, x, &residual, "x of embedding");
    if (b->c->pos != POS_LEARNED) return x;
    Dist wpe = dist_make("wpe", "S", axes_none(), "C", p->tensor[x].dist.shard[1]);
    int table = parameter(b, wpe, b->c->seq, p->tensor[x].size[1], COLL_F32);
    return EMIT(p, OP_POSITION, like(b, x, "x"), x, table);
}

/* Losses of logits that stay sharded by vocabulary, [T/d.z, V/x.y] (Megatron-LM's
 * vocab_parallel_cross_entropy). Only three numbers of each token and block of the vocabulary are
 * gathered: the largest logit, the sum of exponentials, the target's logit; with --exact of each
 * panel. Exponentials are relative to the largest logit of their own block or panel. So loss and
 * backward read the block's own numbers as well as the gathered ones. */
static int losses(Builder *b, int logits) {
    Program *p = &b->p;
    p->tensor[logits].stride = (int)head_ld(b->w.V);
    StepTensor l = p->tensor[logits];
    int64_t size[] = {3 * b->w.parts_V, b->T};
    const char *numbers = p->layout->exact ? "3P" : "3V";
    Dist part = dist_make("loss.stats", numbers, l.dist.shard[1], "T", l.dist.shard[0]),
         whole = part;
    whole.shard[0] = axes_none();
    int own = program_tensor(p, part, size, COLL_F32);
    int exps = EMIT(p, OP_LOSS_STATISTICS, like(b, logits, "exps"), logits);
    p->op[p->n_ops - 1].out2 = own;
    int all = program_redistribute(p, own, &whole, "statistics of loss");
    Dist losses = dist_make("losses", "T", l.dist.shard[0], NULL, axes_none()), logs = losses;
    dist_name(logs.name, "log_sum");
    size[0] = b->T, size[1] = 1;
    int out = EMIT(p, OP_LOSS, program_tensor(p, losses, size, COLL_F32), exps, own, all);
    p->op[p->n_ops - 1].out2 = program_tensor(p, logs, size, COLL_F32);
    return out;
}

/* Logits of the normalized residual stream h, then what the pass ends with: losses, the logits of
 * this rank's tokens with the whole vocabulary, or the logits after the last token. */
static int head(Builder *b, int h) {
    Program *p = &b->p;
    const LinearDist *d = &b->linear[LINEAR_HEAD];
    h = program_redistribute(p, h, &d->x, linear_what(LINEAR_HEAD, TENSOR_X));
    if (p->shape->output == OUTPUT_NEXT) // the last token alone; padding may follow it
        h = program_rows(p, h, p->shape->S - 1, 1, 0);
    int w = weight(b, LINEAR_HEAD, b->c->tied ? b->wte : -1, linear_what(LINEAR_HEAD, TENSOR_W));
    int logits = program_matmul(p, OP_MATMUL_BT, "logits", h, w); // [T/d.z, V/x.y]
    p->tensor[logits].what = linear_what(LINEAR_HEAD, TENSOR_Y);
    if (p->shape->output == OUTPUT_LOSSES) return losses(b, logits);
    Dist whole = p->tensor[logits].dist;
    whole.shard[1] = axes_none();
    return program_redistribute(p, logits, &whole, "logits");
}

/* Tokens T of all ranks in a pass, padded. */
static int64_t tokens(const Program *p) {
    int64_t T = tokens_of(p->grid, p->shape->B, p->shape->S, 0).T;
    return T * mesh_blocks(p->mesh, axes_of("d.z"));
}

void program_resize(Program *p) {
    int64_t T = tokens(p);
    for (int t = 0; t < p->n_tensors; t++) {
        int dim = step_tensor_tokens(&p->tensor[t]);
        if (dim >= 0) p->tensor[t].size[dim] = T;
    }
}

void program_forward(Program *p) {
    const ModelShape *s = p->shape;
    Builder b = {.p = *p, .c = &s->config, .w = widths_of(&s->config, p->grid), .wte = -1};
    for (int k = 0; k < N_LINEARS; k++) b.linear[k] = layout_linear(p->layout, (LinearKind)k);
    b.T = tokens(p);
    b.hidden = b.w.att * mesh_blocks(p->mesh, grid_hidden_axes(p->grid));
    int x = embedding(&b);
    for (int l = 0; l < s->config.layers; l++) {
        b.p.layer = l;
        x = block(&b, x);
    }
    b.p.layer = -1;
    b.p.result = head(&b, norm(&b, "lnf", "h", x));
    *p = b.p;
}
