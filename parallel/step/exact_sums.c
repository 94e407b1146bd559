/* exact_sums -- the pass of --exact: sums over what a mesh may shard become sums of integers, which
 * have one value in whatever order their terms are added (layers/exact.h): in every kernel and in
 * every collective. run_exact.c has the kernels.
 *
 *   sum over                    terms                      parts are added over
 *   K of a matmul               panels of K                y of x w, x of dy w'
 *   tokens, of x' dy            panels of a sequence       micro-batches, d, z (and x with stay=y)
 *   features of a norm          elements                   y
 *   tokens of dgamma, db        elements                   micro-batches, d, z, x
 *   vocabulary of the softmax   exponentials               x, y
 *   losses, squared gradients   elements                   d, z; all ranks
 *
 * A panel lies on one rank: blocks are whole numbers of panels (exact_panel, widths_of in
 * parallel/mesh/shard.c), so a mesh may leave ranks with more padding than without --exact; key
 * heads are never copied. What has no sum over a dimension that a mesh cuts (attention,
 * activations, AdamW) is as without --exact. The list before and after the pass; i64 is a tensor of
 * integers, W the dimension of the two integers, high and low, that are one wide sum (2W: of two
 * sums, those of a norm's backward):
 *
 *   before                                 after
 *   y  [T, C/y] +x = matmul att, w         y  [T, C/y] +x i64 = matmul att, w
 *   y  [T/x, C/y]  = reduce_scatter x y    y  [T/x, C/y] i64  = reduce_scatter x y
 *                                          y  [T/x, C/y]      = round y
 *   x  [T/x, C/y]  = add x, y              x  [T/x, C/y]      = add x, y
 *
 *   stats   [2Y/y, T] = norm_statistics x  sum     [W, T] +y i64 = norm_sum x
 *                                          sum     [W, T] i64    = all_reduce y sum
 *                                          mean    [1, T]        = norm_mean sum
 *                                          squares [W, T] +y i64 = norm_squares x, mean
 *   stats   [2Y, T]   = all_gather y stats squares [W, T] i64    = all_reduce y squares
 *   mean_rstd [2, T]  = norm_merge stats   mean_rstd [2, T]      = norm_rstd squares, mean
 *
 *   exps, stats  = loss_statistics logits  largest        = loss_largest logits
 *                                          largest        = all_reduce x.y largest  (max)
 *                                          target         = loss_target logits
 *                                          exps, sums i64 = loss_exponentials logits, largest
 *   stats        = all_gather x.y stats    sums, target   = all_reduce x.y each
 *   losses, logs = loss exps, stats        losses, logs   = loss_of_sums sums, target, largest
 *
 * Sums of matmuls are integers on one rank, too: what another mesh would shard decides, not this
 * mesh. Only logits stay floats: no mesh cuts the features of the head's input. Gradients of
 * parameters are never rounded here: they stay integers from the kernel to the end of the step,
 * over all micro-batches.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "layers/exact.h"
#include "parallel/step/program.h"

/* What stands for statistics of a norm or of the loss. */
typedef struct Parts {
    int sums, mean;      // mean: -1 of an RMS norm
    int target, largest; // of the loss
} Parts;

typedef struct Exact {
    Program *p;
    StepTensor *was; // [tensors] their types before the pass
    int *rounded;    // [tensors] the floats of a sum of integers; -1: not needed yet
    Parts *parts;    // [tensors] of statistics
} Exact;

static bool integers(const Exact *e, int t) {
    return e->p->tensor[t].bytes == sizeof(int64_t);
}

/* Does the result of an operation sum over a dimension that some mesh shards? Logits do not: no
 * mesh shards the features of the head's input. */
static bool is_sum(const Program *p, const Op *op) {
    return op_info(op->kind)->sums && strcmp(p->tensor[op->out].dist.dim[1], "V") != 0;
}

/* Is the result of integers made of them as integers? */
static bool adds_integers(const Exact *e, const Op *op) {
    bool of_two = op->kind != OP_ADD || integers(e, op->in[1]);
    return (op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE ||
            op->kind == OP_ADD || op->kind == OP_ACCUMULATE) &&
           integers(e, op->in[0]) && of_two;
}

/* wide: sums of rows, which have two integers each. */
static void make_integers(Exact *e, int t, bool wide) {
    StepTensor *x = &e->p->tensor[t];
    x->bytes = sizeof(int64_t);
    if (wide) x->size[0] *= WIDE, snprintf(x->dist.dim[0], DIST_DIM, "2W"); // of two sums
    if (x->parent >= 0) make_integers(e, x->parent, wide);
}

static bool is_wide(const Exact *e, int t) {
    return e->p->tensor[t].size[0] != e->was[t].size[0];
}

/* A tensor as floats. */
static int floats(Exact *e, int t) {
    Program *p = e->p;
    if (!integers(e, t)) return t;
    if (e->rounded[t] >= 0) return e->rounded[t];
    return e->rounded[t] = EMIT(p, OP_ROUND, program_add_tensor(p, e->was[t]), t);
}

/* ---- statistics ---- */

/* A number, or a wide sum, of each token, of which ranks along `over` have a part. */
static int of_tokens(Exact *e, const char *name, const StepTensor *like, Axes over, bool wide) {
    Dist d = {.n_dims = 2, .shard = {axes_none(), like->dist.shard[1]}, .partial = over};
    dist_beside(d.name, like->dist.name, name);
    snprintf(d.dim[0], sizeof d.dim[0], wide ? "W" : "1");
    snprintf(d.dim[1], sizeof d.dim[1], "T");
    int64_t size[] = {wide ? WIDE : 1, like->size[1]};
    return program_tensor(e->p, d, size, wide ? sizeof(int64_t) : sizeof(float));
}

static int reduced(Exact *e, int t, const char *what) {
    Dist whole = e->p->tensor[t].dist;
    whole.partial = axes_none();
    return program_redistribute(e->p, t, &whole, what);
}

static void statistics_of_norm(Exact *e, const Op *op) {
    Program *p = e->p;
    StepTensor stats = p->tensor[op->out];
    Axes over = stats.dist.shard[0];
    Parts *parts = &e->parts[op->out];
    int x = floats(e, op->in[0]);
    if (p->shape->config.norm == NORM_LAYER) {
        int sum = EMIT(p, OP_NORM_SUM, of_tokens(e, "sum", &stats, over, true), x);
        sum = reduced(e, sum, "statistics of norm");
        int mean = of_tokens(e, "mean", &stats, axes_none(), false);
        parts->mean = EMIT(p, OP_NORM_MEAN, mean, sum);
    }
    int squares = of_tokens(e, "squares", &stats, over, true);
    EMIT(p, OP_NORM_SQUARES, squares, x, parts->mean);
    parts->sums = reduced(e, squares, "statistics of norm");
}

static void statistics_of_loss(Exact *e, const Op *op) {
    static const char *const what = "statistics of loss";
    Program *p = e->p;
    StepTensor stats = p->tensor[op->also];
    Axes over = stats.dist.shard[0];
    Parts *parts = &e->parts[op->also];
    int logits = floats(e, op->in[0]);
    int largest = of_tokens(e, "largest", &stats, over, false);
    p->tensor[largest].largest = true;
    EMIT(p, OP_LOSS_LARGEST, largest, logits);
    parts->largest = reduced(e, largest, what);
    int target = of_tokens(e, "target", &stats, over, false);
    int sums = of_tokens(e, "sums", &stats, over, true);
    EMIT(p, OP_LOSS_TARGET, target, logits);
    EMIT(p, OP_LOSS_EXPONENTIALS, op->out, logits, parts->largest);
    p->op[p->n_ops - 1].also = sums;
    parts->sums = reduced(e, sums, what);
    parts->target = reduced(e, target, what);
}

/* Operations on statistics; true: nothing else is to be done. */
static bool of_statistics(Exact *e, const Op *op) {
    Program *p = e->p;
    const Parts *of = &e->parts[op->in[0]];
    switch (op->kind) {
    case OP_NORM_STATISTICS:
        statistics_of_norm(e, op);
        return true;
    case OP_NORM_MERGE:
        EMIT(p, OP_NORM_RSTD, op->out, of->sums, of->mean);
        return true;
    case OP_LOSS_STATISTICS:
        statistics_of_loss(e, op);
        return true;
    case OP_LOSS:
        of = &e->parts[op->in[1]];
        EMIT(p, OP_LOSS_OF_SUMS, op->out, of->sums, of->target, of->largest);
        p->op[p->n_ops - 1].also = op->also;
        return true;
    case OP_LOSS_BACKWARD:
        of = &e->parts[op->in[1]];
        EMIT(p, OP_LOSS_GRADIENT, op->out, op->in[0], of->largest, op->in[2]);
        return true;
    case OP_ALL_GATHER: // of statistics: their sums are reduced already
        e->parts[op->out] = *of;
        return of->sums >= 0;
    default:
        return false;
    }
}

/* ---- the walk ---- */

static void rewrite(Exact *e, const Op *old) {
    Program *p = e->p;
    Op op = *old;
    p->phase = op.phase, p->layer = op.layer;
    if (of_statistics(e, &op)) return;
    if (adds_integers(e, &op)) {
        make_integers(e, op.out, is_wide(e, op.in[0]));
    } else {
        for (int k = 0; k < op_operands(&op); k++) op.in[k] = floats(e, op.in[k]);
        if (is_sum(p, &op)) make_integers(e, op.out, op.kind == OP_NORM_SUMS);
    }
    program_append(p, &op);
}

void program_exact(Program *p) {
    size_t n = (size_t)p->n_tensors;
    int n_ops = p->n_ops;
    Exact e = {.p = p};
    e.was = mem_alloc(n * sizeof *e.was);
    e.rounded = mem_alloc(n * sizeof *e.rounded);
    e.parts = mem_alloc(n * sizeof *e.parts);
    memcpy(e.was, p->tensor, n * sizeof *e.was);
    for (size_t t = 0; t < n; t++) e.rounded[t] = -1, e.parts[t] = (Parts){-1, -1, -1, -1};
    Op *old = program_take(p);
    for (int i = 0; i < n_ops; i++) rewrite(&e, &old[i]);
    mem_free(old);
    mem_free(e.was), mem_free(e.rounded), mem_free(e.parts);
}
