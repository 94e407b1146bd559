/* differentiate -- the backward pass, derived from the forward pass by walking its list in reverse.
 *
 *   forward    h1 [T/x, C]   -- all_gather x -->   h1 [T, C]  -- matmul w -->     qkv [T, N/x]
 *   backward  dh1 [T/x, C]  <- reduce_scatter x - dh1 [T, C] +x <- matmul w' -   dqkv [T, N/x]
 *                                                  dw [C, N/x] <- matmul h1' -   dqkv [T, N/x]
 *
 * A gradient may differ in type from its value: a sum is pending, or it is still whole where the
 * value is sharded. It is brought to the value's type before a kernel reads it (`gradient_as`);
 * collectives pass it on, and gradients of one type are added as they are. So a collective has no
 * derivative of its own: the reduce-scatter above is what redistributing [T, C] +x to [T/x, C]
 * takes.
 * Gradients of parameters end in the type in which they are stored; where that is not sharded over
 * the data-parallel ranks, their sum stays pending until the last micro-batch (sums.c).
 * Source: reverse-mode differentiation; Xu et al. 2021 (GSPMD) for the pending sums.
 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

/* The type of tensor t with no sum pending, named d<name>. */
static Dist gradient_type(const Program *p, int t) {
    Dist d = p->tensor[t].dist;
    dist_join(d.name, "d", p->tensor[t].dist.name);
    d.partial = axes_none();
    return d;
}

static int gradient_like(Program *p, int t) {
    StepTensor like = p->tensor[t];
    int g = program_tensor(p, gradient_type(p, t), like.size, like.bytes);
    p->tensor[g].stride = like.stride;
    return g;
}

/* Gradient g in the type of tensor t. The label of the collective (--count): a reduction has that
 * of the sum, given where it arose; a gather has `what`. */
static int gradient_as(Program *p, int g, int t, const char *what) {
    Dist want = gradient_type(p, t);
    const char *own = p->tensor[g].what;
    return program_redistribute(p, g, &want, p->tensor[g].dist.partial.n || !what ? own : what);
}

static void add_gradient(Program *p, int *grads, int t, int g) {
    int other = grads[t];
    if (other >= 0) {
        assert(dist_equal(&p->tensor[g].dist, &p->tensor[other].dist));
        int out = program_tensor_part(p, other);
        dist_join(p->tensor[out].dist.name, "d", p->tensor[t].dist.name);
        g = EMIT(p, OP_ADD, out, other, g);
    }
    grads[t] = g;
}

/* ---- matmuls ---- */

/* y = x w gives dx = dy w' and dw = x' dy; y = x w' gives dx = dy w and dw = dy' x. */
void matmul_rule(Program *p, const Op *op, int g, int *grads) {
    bool plain = op->kind == OP_MATMUL; // y = x w
    const char *y_of = p->tensor[op->out].what;
    g = gradient_as(p, g, op->out, linear_what_like(y_of, WHAT_DY)); // gathered as y was scattered
    Dist dx = gradient_type(p, op->in[0]), dw = gradient_type(p, op->in[1]);
    int x = program_matmul(p, plain ? OP_MATMUL_BT : OP_MATMUL, dx.name, g, op->in[1]);
    p->tensor[x].what = linear_what_like(y_of, WHAT_DX);
    p->tensor[x].size[1] = p->tensor[op->in[0]].size[1]; // x's own size: g's padding may differ
    int w = program_matmul(p, OP_MATMUL_AT, dw.name, plain ? op->in[0] : g, plain ? g : op->in[0]);
    p->tensor[w].what = linear_what_like(y_of, WHAT_DW);
    p->tensor[w].size[0] = p->tensor[op->in[1]].size[0];
    add_gradient(p, grads, op->in[0], x);
    add_gradient(p, grads, op->in[1], w);
}

/* ---- what acts on each token by itself ---- */

/* The gradient of a vector parameter (or the table of positions), from dy whose tokens are sharded:
 * the sum over those axes is pending. */
static void vector_gradient(Program *p, OpKind kind, const int *in, int n_in, int vector,
                            int *grads) {
    StepTensor v = p->tensor[vector];
    Dist d = gradient_type(p, vector);
    d.partial = p->tensor[in[0]].dist.shard[0];
    int g = program_emit(p, kind, program_tensor(p, d, v.size, sizeof(float)), in, n_in);
    add_gradient(p, grads, vector, g);
}

/* y = x + b. */
void vector_rule(Program *p, const Op *op, int g, int *grads) {
    OpKind kind = op->kind == OP_BIAS ? OP_BIAS_BACKWARD : OP_POSITION_BACKWARD;
    g = gradient_as(p, g, op->out, NULL);
    vector_gradient(p, kind, &g, 1, op->in[1], grads);
    add_gradient(p, grads, op->in[0], g);
}

/* dx = kind(dy[, x[, y, also]]). */
void unary_rule(Program *p, const Op *op, int g, int *grads) {
    static const OpKind kinds[] = {[OP_ROPE] = OP_ROPE_BACKWARD,
                                   [OP_ATTENTION] = OP_ATTENTION_BACKWARD,
                                   [OP_ACT] = OP_ACT_BACKWARD,
                                   [OP_SWIGLU] = OP_SWIGLU_BACKWARD};
    int x = op->in[0], y = op->also >= 0 ? op->out : -1;
    g = gradient_as(p, g, op->out, NULL);
    int dx = gradient_like(p, x);
    EMIT(p, kinds[op->kind], dx, g, op->kind == OP_ROPE ? -1 : x, y, op->also);
    add_gradient(p, grads, x, dx);
}

void add_rule(Program *p, const Op *op, int g, int *grads) {
    g = gradient_as(p, g, op->out, NULL);
    add_gradient(p, grads, op->in[0], g);
    add_gradient(p, grads, op->in[1], g);
}

/* dx of a norm needs two sums over all features, of which a rank has its part: their sum is
 * pending. With --exact it has those of its panels, which are added where dx is made, in order. */
void norm_rule(Program *p, const Op *op, int g, int *grads) {
    int x = op->in[0], mean_rstd = op->in[1], weight = op->in[2];
    g = gradient_as(p, g, op->out, NULL);
    for (int i = 2; i < op->n_in; i++)
        vector_gradient(p, OP_NORM_WEIGHT_BACKWARD, (int[]){g, x, mean_rstd}, 3, op->in[i], grads);
    StepTensor s = p->tensor[mean_rstd];
    Dist part = s.dist, whole;
    dist_beside(part.name, s.dist.name, "sums");
    if (p->layout->exact) {
        memcpy(part.dim[0], "2P", sizeof "2P");
        s.size[0] = 2 * widths_of(&p->shape->config, p->grid).parts_C;
    }
    whole = part;
    if (p->layout->exact)
        part.shard[0] = p->tensor[x].dist.shard[1];
    else
        part.partial = p->tensor[x].dist.shard[1];
    int sums = EMIT(p, OP_NORM_SUMS, program_tensor(p, part, s.size, 4), g, x, mean_rstd, weight);
    sums = program_redistribute(p, sums, &whole, "sums of dnorm");
    int dx = gradient_like(p, x);
    add_gradient(p, grads, x, EMIT(p, OP_NORM_BACKWARD, dx, g, x, mean_rstd, weight, sums));
}

/* ---- the ends of the model ---- */

void embedding_rule(Program *p, const Op *op, int g, int *grads) {
    StepTensor w = p->tensor[op->in[0]];
    g = gradient_as(p, g, op->out, "dx of embedding");
    Dist d = gradient_type(p, op->in[0]);
    d.partial = p->tensor[g].dist.shard[0];
    int dw = EMIT(p, OP_EMBEDDING_BACKWARD, program_tensor(p, d, w.size, sizeof(float)), g);
    p->tensor[dw].what = "dw of embedding";
    add_gradient(p, grads, op->in[0], dw);
}

void loss_rule(Program *p, const Op *op, int g, int *grads) {
    (void)g; // 1 / tokens: the scale of the loss
    int d = gradient_like(p, op->in[0]);
    dist_name(p->tensor[d].dist.name, "dlogits");
    EMIT(p, OP_LOSS_BACKWARD, d, op->in[0], op->in[1], op->also);
    add_gradient(p, grads, op->in[0], d);
}

void pass_on_rule(Program *p, const Op *op, int g, int *grads) {
    add_gradient(p, grads, op->in[0], g);
}

/* ---- the walk ---- */

static bool made_by_collective(const Program *p, int t) {
    int i = p->n_ops - 1;
    while (i > 0 && p->op[i].out != t) i--;
    return op_info(p->op[i].kind)->collective;
}

/* The stored gradient of a parameter adds up over micro-batches: kernels add to it, collectives do
 * not. */
static void store(Program *p, int g, int parameter) {
    if (made_by_collective(p, g)) g = EMIT(p, OP_ACCUMULATE, program_tensor_like(p, g), g);
    p->tensor[g].storage = STORAGE_GRADIENT;
    p->tensor[g].parameter = p->tensor[parameter].parameter;
}

/* Gradient g sharded as `to`; what is pending along other axes (data parallel) stays so. */
static int shard_gradient(Program *p, int g, Dist to, const char *what) {
    to.partial = axes_without(p->tensor[g].dist.partial, to.shard[0]);
    return program_redistribute(p, g, &to, what);
}

/* The gradient of a matrix: first the local block, then the flat part of it that this rank stores
 * (the block itself without z, zero2 and zero3). */
static int store_matrix(Program *p, int g, int weight) {
    const char *what = p->tensor[g].what;
    Dist block = gradient_type(p, weight), part;
    block.shard[0].n = (uint8_t)p->tensor[weight].n_block; // without the weight's flat parts
    g = shard_gradient(p, g, block, what);
    p->tensor[g].n_block = block.shard[0].n;
    part = block, part.shard[0] = axes_join(block.shard[0], layout_store(p->layout, STORE_GRAD));
    return shard_gradient(p, g, part, what);
}

/* A layer's gradients are stored when its backward ends; those outside of the layers in the end.
 * t: any tensor of the layer. Tensors of a layer follow each other, so its first one is found by
 * walking back. The table of positions has no flat parts, like a vector. */
static void store_layer(Program *p, int *grads, int n, int t) {
    int layer = p->tensor[t].layer;
    while (t > 0 && (layer < 0 || p->tensor[t - 1].layer == layer)) t--;
    for (; t < n && (layer < 0 || p->tensor[t].layer == layer); t++) {
        const StepTensor *w = &p->tensor[t];
        if (w->storage != STORAGE_PARAMETER || grads[t] < 0 || w->layer != layer) continue;
        if (w->dist.n_dims == 2 && strcmp(w->dist.dim[0], "S") != 0)
            grads[t] = store_matrix(p, grads[t], t);
        store(p, grads[t], t);
    }
}

void program_differentiate(Program *p) {
    int n_ops = p->n_ops, n = p->n_tensors;
    int *grads = mem_alloc((size_t)n * sizeof *grads);
    for (int i = 0; i < n; i++) grads[i] = -1;
    grads[p->result] = p->result;
    p->phase = PHASE_BACKWARD;
    for (int i = n_ops - 1; i >= 0; i--) {
        Op op = p->op[i];
        Rule *rule = op_info(op.kind)->backward;
        p->layer = op.layer;
        if (rule && grads[op.out] >= 0) rule(p, &op, grads[op.out], grads);
        if (i == 0 || (op.layer >= 0 && p->op[i - 1].layer != op.layer))
            store_layer(p, grads, n, op.out);
    }
    mem_free(grads);
}
