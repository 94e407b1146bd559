/* exact_sums -- the pass of --exact: sums over a dimension that a mesh may shard become sums of
 * integers, in every kernel and in every collective. A sum of integers has the same value in any
 * order of its terms (layers/exact.h). run_kernels.c calls the kernels.
 *
 *   sum over                    terms                      parts are added over
 *   K of a matmul               panels of K                y of x w, x of dy w'
 *   tokens, of x' dy            panels of a sequence       micro-batches, d, z (and x with stay=y)
 *   tokens of dgamma, db        elements                   micro-batches, d, z, x
 *   losses, squared gradients   elements                   d, z; all ranks
 *
 * A panel lies on one rank: blocks are whole numbers of panels (exact_panel, widths_of in
 * parallel/mesh/shard.c). So ranks may have more padding than without --exact. Key heads are never
 * copied. Operations without a sum over a dimension that a mesh shards (attention, activations,
 * AdamW) are the same without --exact. Sums over the features or logits of a token, in norms and in
 * the loss, stay floats: the sums of all panels are gathered, and every rank merges them in the
 * order of the panels, also on a mesh of one rank (build.c, norm_rule of differentiate.c). The list
 * before and after the pass, where i64 marks tensors of integers:
 *
 *   before                                 after
 *   y  [T, C/y] +x = matmul att, w         y  [T, C/y] +x i64 = matmul att, w
 *   y  [T/x, C/y]  = reduce_scatter x y    y  [T/x, C/y] i64  = reduce_scatter x y
 *                                          y  [T/x, C/y]      = round y
 *   x  [T/x, C/y]  = add x, y              x  [T/x, C/y]      = add x, y
 *
 * Sums of matmuls are integers on one rank, too: the question is what any mesh could shard, not
 * what this mesh shards. Of the matmuls only logits stay floats, because no mesh shards the
 * features of the head's input. Gradients of parameters are not rounded in this pass: they stay
 * integers over all micro-batches until their sum over the ranks is complete (sums.c).
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

typedef struct Exact {
    Program *p;
    int *rounded; // [tensors] of integers: the same value as floats; -1: not made yet
} Exact;

/* Is tensor t of 64-bit integers? */
static bool integers(const Exact *e, int t) {
    return e->p->tensor[t].dtype == COLL_I64;
}

/* Does the result of an operation sum over a dimension that some mesh shards? Logits do not: no
 * mesh shards the features of the head's input. */
static bool is_sum(const Program *p, const Op *op) {
    return op_info(op->kind)->sums && strcmp(p->tensor[op->out].dist.dim[1], "V") != 0;
}

/* Does an operation add or reduce integers, without rounding them to floats first? All of its
 * operands are integers then. */
static bool adds_integers(const Exact *e, const Op *op) {
    bool second = op->kind != OP_ADD || integers(e, op->in[1]);
    return (op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE ||
            op->kind == OP_ADD || op->kind == OP_ACCUMULATE) &&
           integers(e, op->in[0]) && second;
}

/* Tensor t becomes one of integers, and so does the parent in whose memory it lies. */
static void make_integers(Exact *e, int t) {
    StepTensor *x = &e->p->tensor[t];
    x->dtype = COLL_I64;
    if (x->parent >= 0) make_integers(e, x->parent);
}

/* Tensor t, an activation or its gradient, as floats. Appends the rounding where t is of integers
 * and is read for the first time. */
static int floats(Exact *e, int t) {
    Program *p = e->p;
    StepTensor x = p->tensor[t];
    if (!integers(e, t)) return t;
    if (e->rounded[t] >= 0) return e->rounded[t];
    x.dtype = p->dtype;
    return e->rounded[t] = EMIT(p, OP_ROUND, program_add_tensor(p, x), t);
}

/* Appends an operation of the old list: on integers where it adds them, else on floats, with a
 * result of integers where it sums. */
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
    e.rounded = mem_alloc(n * sizeof *e.rounded);
    for (size_t t = 0; t < n; t++) e.rounded[t] = -1;
    Op *old = program_take(p);
    for (int i = 0; i < n_ops; i++) rewrite(&e, &old[i]);
    mem_free(old);
    mem_free(e.rounded);
}
