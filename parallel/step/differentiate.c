/* differentiate -- the backward pass, derived from the forward pass by walking its list in reverse.
 *
 *   forward    h1 [T/x, C]   -- all_gather x -->   h1 [T, C]  -- matmul w -->     qkv [T, N/x]
 *   backward  dh1 [T/x, C]  <- reduce_scatter x - dh1 [T, C] +x <- matmul w' -   dqkv [T, N/x]
 *                                                  dw [C, N/x] <- matmul h1' -   dqkv [T, N/x]
 *
 * The type of a gradient may differ from the type of its value: the gradient has a pending sum, as
 * dh1 [T, C] +x, or is whole where the value is sharded. gradient_as() redistributes a gradient to
 * the type of its value before a kernel reads it. The derivative of a collective passes the
 * gradient on unchanged. Two gradients of one value are added first and reduced once. So no
 * collective has a derivative of its own: the reduce_scatter above is the redistribution of
 * dh1 [T, C] +x to [T/x, C]. Megatron-LM's conjugate operators follow: f (identity forward,
 * all_reduce backward; Shoeybi et al. 2019) without sequence parallelism, g (all_gather forward,
 * reduce_scatter backward; Korthikanti et al. 2022) with it.
 *
 * The gradient of a parameter ends in the type in which it is stored. Along axes of data
 * parallelism that do not shard the stored gradient, its sum stays pending until the last
 * micro-batch (sums.c).
 *
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

/* A new tensor for the gradient of t: type, size and dtype of t, no sum pending. */
static int gradient_like(Program *p, int t) {
    StepTensor like = p->tensor[t];
    int g = program_tensor(p, gradient_type(p, t), like.size, like.dtype);
    p->tensor[g].stride = like.stride;
    return g;
}

/* Redistributes gradient g to the type of tensor t. Label of the collective, as in --count: for a
 * reduction the label of the pending sum ("dx of qkv"), which g got where the sum arose; for a
 * gather `what`, or g's label where `what` is NULL. */
static int gradient_as(Program *p, int g, int t, const char *what) {
    Dist want = gradient_type(p, t);
    const char *own = p->tensor[g].what;
    return program_redistribute(p, g, &want, p->tensor[g].dist.partial.n || !what ? own : what);
}

/* Adds g to the gradient of tensor t. Where t has two readers, as the residual stream or a tied
 * embedding, an OP_ADD adds both gradients. */
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
    LinearTensor y;
    LinearKind layer = linear_named(p->tensor[op->out].what, &y);
    g = gradient_as(p, g, op->out, linear_what(layer, TENSOR_DY)); // gathered as y was scattered
    Dist dx = gradient_type(p, op->in[0]), dw = gradient_type(p, op->in[1]);
    int x = program_matmul(p, plain ? OP_MATMUL_BT : OP_MATMUL, dx.name, g, op->in[1]);
    p->tensor[x].what = linear_what(layer, TENSOR_DX);
    p->tensor[x].size[1] = p->tensor[op->in[0]].size[1]; // K with the padding of x, not of w
    int w = program_matmul(p, OP_MATMUL_AT, dw.name, plain ? op->in[0] : g, plain ? g : op->in[0]);
    p->tensor[w].what = linear_what(layer, TENSOR_DW);
    p->tensor[w].size[0] = p->tensor[op->in[1]].size[0];
    add_gradient(p, grads, op->in[0], x);
    add_gradient(p, grads, op->in[1], w);
}

/* ---- biases, positions, elementwise operations, attention, norms ---- */

/* The gradient of a vector parameter, or of wpe [S, C]: a sum over the tokens of dy = in[0]. Along
 * the axes that shard these tokens the sum is pending; that of qk_norm.weight, which all heads
 * share, also along the axes that shard the heads. */
static void vector_gradient(Program *p, OpKind kind, const int *in, int n_in, int vector,
                            int *grads) {
    StepTensor v = p->tensor[vector];
    Dist d = gradient_type(p, vector);
    const Dist *dy = &p->tensor[in[0]].dist;
    d.partial = axes_join(dy->shard[0], axes_without(dy->shard[1], d.shard[d.n_dims - 1]));
    int g = program_emit(p, kind, program_tensor(p, d, v.size, COLL_F32), in, n_in);
    add_gradient(p, grads, vector, g);
}

/* y = x + b. */
void vector_rule(Program *p, const Op *op, int g, int *grads) {
    static const OpKind kinds[N_OP_KINDS] = {
        [OP_BIAS] = OP_BIAS_BACKWARD, [OP_POSITION] = OP_POSITION_BACKWARD};
    assert(kinds[op->kind]);
    g = gradient_as(p, g, op->out, NULL);
    vector_gradient(p, kinds[op->kind], &g, 1, op->in[1], grads);
    add_gradient(p, grads, op->in[0], g);
}

/* Operations of one operand. The backward kernel reads dy; of all but rope also x; of attention
 * also its results y and lse. */
void unary_rule(Program *p, const Op *op, int g, int *grads) {
    static const OpKind kinds[N_OP_KINDS] = {[OP_ROPE] = OP_ROPE_BACKWARD,
                                             [OP_ATTENTION] = OP_ATTENTION_BACKWARD,
                                             [OP_ACT] = OP_ACT_BACKWARD,
                                             [OP_SWIGLU] = OP_SWIGLU_BACKWARD};
    assert(kinds[op->kind]);
    int x = op->in[0], y = op->out2 >= 0 ? op->out : -1;
    g = gradient_as(p, g, op->out, NULL);
    int dx = gradient_like(p, x);
    EMIT(p, kinds[op->kind], dx, g, op->kind == OP_ROPE ? -1 : x, y, op->out2);
    add_gradient(p, grads, x, dx);
}

/* y = norm(x) of each head; the backward kernel computes the statistics of x again. */
void qk_norm_rule(Program *p, const Op *op, int g, int *grads) {
    int x = op->in[0], weight = op->in[1];
    g = gradient_as(p, g, op->out, NULL);
    vector_gradient(p, OP_QK_NORM_WEIGHT_BACKWARD, (int[]){g, x}, 2, weight, grads);
    int dx = EMIT(p, OP_QK_NORM_BACKWARD, gradient_like(p, x), g, x, weight);
    add_gradient(p, grads, x, dx);
}

void add_rule(Program *p, const Op *op, int g, int *grads) {
    g = gradient_as(p, g, op->out, NULL);
    add_gradient(p, grads, op->in[0], g);
    add_gradient(p, grads, op->in[1], g);
}

/* dx of a norm needs two sums over the C features of each token. A rank with C/y of the features
 * has one term of each sum: [2, T] +y is pending and is all-reduced. With --exact a rank has the
 * two sums of each of its panels: [2P/y, T] is gathered, and norm_backward adds the panels in their
 * order. */
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
    int sums =
        EMIT(p, OP_NORM_SUMS, program_tensor(p, part, s.size, COLL_F32), g, x, mean_rstd, weight);
    sums = program_redistribute(p, sums, &whole, "sums of dnorm");
    int dx = gradient_like(p, x);
    add_gradient(p, grads, x, EMIT(p, OP_NORM_BACKWARD, dx, g, x, mean_rstd, weight, sums));
}

/* ---- embedding and loss ---- */

/* dwte: row v is the sum of dx over the tokens v. Along the axes that shard the tokens the sum is
 * pending. */
void embedding_rule(Program *p, const Op *op, int g, int *grads) {
    StepTensor w = p->tensor[op->in[0]];
    g = gradient_as(p, g, op->out, "dx of embedding");
    Dist d = gradient_type(p, op->in[0]);
    d.partial = p->tensor[g].dist.shard[0];
    int dw = EMIT(p, OP_EMBEDDING_BACKWARD, program_tensor(p, d, w.size, COLL_F32), g);
    p->tensor[dw].what = "dw of embedding";
    add_gradient(p, grads, op->in[0], dw);
}

void loss_rule(Program *p, const Op *op, int g, int *grads) {
    (void)g; // a constant, the `scale` of model_step: the kernel multiplies by it
    int dlogits = gradient_like(p, op->in[0]);
    dist_name(p->tensor[dlogits].dist.name, "dlogits");
    EMIT(p, OP_LOSS_BACKWARD, dlogits, op->in[0], op->in[1], op->out2);
    add_gradient(p, grads, op->in[0], dlogits);
}

void pass_on_rule(Program *p, const Op *op, int g, int *grads) {
    add_gradient(p, grads, op->in[0], g);
}

/* ---- the walk over the list, in reverse ---- */

/* Redistributes gradient g to the sharding of `to`. Along axes that do not shard `to` (data
 * parallel) the sum stays pending. */
static int shard_gradient(Program *p, int g, Dist to, const char *what) {
    to.partial = axes_without(p->tensor[g].dist.partial, to.shard[0]);
    return program_redistribute(p, g, &to, what);
}

/* Shards the gradient of a matrix in two steps: to the block of the matrix that this rank holds,
 * [K/y, N/x], then to the flat part of the block that this rank stores (over z, with zero2 and
 * zero3 also over d; else the whole block). */
static int store_matrix(Program *p, int g, int weight) {
    const char *what = p->tensor[g].what;
    Dist block = gradient_type(p, weight), part;
    block.shard[0].n = (uint8_t)p->tensor[weight].n_block; // without the weight's flat parts
    g = shard_gradient(p, g, block, what);
    p->tensor[g].n_block = block.shard[0].n;
    part = block, part.shard[0] = axes_join(block.shard[0], layout_store(p->layout, STORE_GRAD));
    return shard_gradient(p, g, part, what);
}

/* Makes the gradients of a layer's parameters stored gradients, which accumulate over
 * micro-batches, when the backward of the layer ends; gradients of parameters outside of the layers
 * at the end of the list. n: tensors of the forward pass. t: any tensor of the layer. Tensors of a
 * layer are consecutive, so the loop walks back from t to the first one. wpe [S, C] has no flat
 * parts and is stored like a vector. A kernel adds its result to the stored gradient itself. A
 * collective overwrites its result, so after a collective an OP_ACCUMULATE adds. */
static void store_layer(Program *p, const int *grads, int n, int t) {
    int layer = p->tensor[t].layer;
    while (t > 0 && (layer < 0 || p->tensor[t - 1].layer == layer)) t--;
    for (; t < n && (layer < 0 || p->tensor[t].layer == layer); t++) {
        StepTensor w = p->tensor[t];
        int g = grads[t];
        if (w.storage != STORAGE_WEIGHT || g < 0 || w.layer != layer) continue;
        if (w.dist.n_dims == 2 && strcmp(w.dist.dim[0], "S") != 0) g = store_matrix(p, g, t);
        if (g != grads[t]) g = EMIT(p, OP_ACCUMULATE, program_tensor_like(p, g), g);
        p->tensor[g].storage = STORAGE_GRADIENT;
        p->tensor[g].parameter = w.parameter;
    }
}

void program_differentiate(Program *p) {
    int n_ops = p->n_ops, n = p->n_tensors;
    int *grads = mem_alloc((size_t)n * sizeof *grads);
    for (int i = 0; i < n; i++) grads[i] = -1;
    grads[p->result] = p->result; // any tensor: loss_rule does not read it
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
