/* exact_sums -- the pass of --exact: sums over what a mesh may shard become sums of integers, which
 * have one value in whatever order their terms are added (layers/exact.h): in every kernel and in
 * every collective. run_kernels.c has the kernels.
 *
 *   sum over                    terms                      parts are added over
 *   K of a matmul               panels of K                y of x w, x of dy w'
 *   tokens, of x' dy            panels of a sequence       micro-batches, d, z (and x with stay=y)
 *   tokens of dgamma, db        elements                   micro-batches, d, z, x
 *   losses, squared gradients   elements                   d, z; all ranks
 *
 * A panel lies on one rank: blocks are whole numbers of panels (exact_panel, widths_of in
 * parallel/mesh/shard.c), so a mesh may leave ranks with more padding than without --exact; key
 * heads are never copied. What has no sum over a dimension that a mesh cuts (attention,
 * activations, AdamW) is as without --exact. Sums over the features or logits of a token, of norms
 * and of the loss, stay floats: those of each panel are gathered, and every rank merges them in the
 * order of the panels, on one rank, too (build.c, norm_rule of differentiate.c). The list before
 * and after the pass; i64 is a tensor of integers:
 *
 *   before                                 after
 *   y  [T, C/y] +x = matmul att, w         y  [T, C/y] +x i64 = matmul att, w
 *   y  [T/x, C/y]  = reduce_scatter x y    y  [T/x, C/y] i64  = reduce_scatter x y
 *                                          y  [T/x, C/y]      = round y
 *   x  [T/x, C/y]  = add x, y              x  [T/x, C/y]      = add x, y
 *
 * Sums of matmuls are integers on one rank, too: what another mesh would shard decides, not this
 * mesh. Only logits stay floats: no mesh cuts the features of the head's input. Gradients of
 * parameters are never rounded here: they stay integers from the kernel to the end of the step,
 * over all micro-batches.
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

typedef struct Exact {
    Program *p;
    StepTensor *was; // [tensors] their types before the pass
    int *rounded;    // [tensors] the floats of a sum of integers; -1: not needed yet
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

static void make_integers(Exact *e, int t) {
    StepTensor *x = &e->p->tensor[t];
    x->bytes = sizeof(int64_t);
    if (x->parent >= 0) make_integers(e, x->parent);
}

/* A tensor as floats. */
static int floats(Exact *e, int t) {
    Program *p = e->p;
    if (!integers(e, t)) return t;
    if (e->rounded[t] >= 0) return e->rounded[t];
    return e->rounded[t] = EMIT(p, OP_ROUND, program_add_tensor(p, e->was[t]), t);
}

static void rewrite(Exact *e, const Op *old) {
    Program *p = e->p;
    Op op = *old;
    p->phase = op.phase, p->layer = op.layer;
    if (adds_integers(e, &op)) {
        make_integers(e, op.out);
    } else {
        for (int k = 0; k < op_operands(&op); k++) op.in[k] = floats(e, op.in[k]);
        if (is_sum(p, &op)) make_integers(e, op.out);
    }
    program_append(p, &op);
}

void program_exact(Program *p) {
    size_t n = (size_t)p->n_tensors;
    int n_ops = p->n_ops;
    Exact e = {.p = p};
    e.was = mem_alloc(n * sizeof *e.was);
    e.rounded = mem_alloc(n * sizeof *e.rounded);
    memcpy(e.was, p->tensor, n * sizeof *e.was);
    for (size_t t = 0; t < n; t++) e.rounded[t] = -1;
    Op *old = program_take(p);
    for (int i = 0; i < n_ops; i++) rewrite(&e, &old[i]);
    mem_free(old);
    mem_free(e.was), mem_free(e.rounded);
}
