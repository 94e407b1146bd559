/* fuse_collectives -- --overlap fused: a matmul and the collective of its operand or its result in
 * one kernel, which communicates while it multiplies.
 *
 *   before                                      after
 *   h    = all_gather x  h                    & h    = all_gather x  h
 *   up   = matmul  h, up.weight               + up   = matmul  h, up.weight
 *   up   = bias    up, up.bias                + up   = bias    up, up.bias
 *
 *   down = matmul  act, down.weight             down = matmul  act, down.weight
 *   down = reduce_scatter x  down             & down = reduce_scatter x  down
 *
 * As in listings, `&` marks a collective that runs in the kernel of a matmul, `+` an operation that
 * runs in the kernel of the operation before it.
 *
 * all_gather: the gathered h is never stored. The matmul packs rows of h out of the memory of the
 * rank that holds them, its own rank's rows first. Where dgrad and wgrad read the same gathered
 * tensor, both are in the kernel. On devices h is stored, and its rows are copied while the matmul
 * runs.
 *
 * reduce_scatter: the partial sum is never stored as a whole. The matmul stores rows that belong to
 * another rank in a slot of that rank's memory (the memory of `down` there), and computes the rows
 * of its own rank last. Then each rank adds its slots in the order of coll_reduce.h. Neither kernel
 * changes the order of a sum.
 *
 * Fused are collectives along tokens of matmuls in layers, where only these matmuls read the result
 * of the all_gather, or only the reduce_scatter reads the result of the matmul. Source: FLUX (Chang
 * et al. 2024).
 */
#include "base/mem.h"
#include "parallel/step/program.h"

typedef struct Fuse {
    Program *p;
    const Op *old;
    int n_ops;
    Uses uses;
    int *with; // [operations] of a matmul: its collective; of a collective: its first matmul; -1
} Fuse;

/* Is an operation the matmul of a layer, not of the head? */
static bool is_layer_matmul(const Op *op) {
    return op->layer >= 0 && op_is_matmul(op);
}

/* Does a collective gather or scatter rows of tokens? */
static bool moves_tokens(const Program *p, const Op *op) {
    return op->dim == 0 && step_tensor_tokens(&p->tensor[op->in[0]]) == 0;
}

static int kernel_end(const Fuse *f, int i) {
    return op_kernel_end(f->old, f->n_ops, i);
}

/* Fuses reduce_scatter i with the matmul that makes its operand, if nothing else reads the matmul's
 * result: no operation is fused into the matmul then. */
static void find_scatter(Fuse *f, int i) {
    const Op *op = &f->old[i];
    int maker = f->uses.maker[op->in[0]];
    if (!moves_tokens(f->p, op) || !is_layer_matmul(&f->old[maker])) return;
    if (f->uses.readers[op->in[0]] != 1) return;
    f->with[i] = maker, f->with[maker] = i;
}

/* Can matmul i read tensor x in blocks of `rows` rows, one of each rank? A wgrad sums over these
 * rows, in bf16 by groups of rows, so there a block has a multiple of 32. */
static bool reads_blocks(const Fuse *f, int i, int x, int64_t rows) {
    const Op *op = &f->old[i];
    if (!is_layer_matmul(op) || op->fused || f->with[i] >= 0) return false;
    if (op->kind != OP_MATMUL_AT) return op->in[0] == x;
    return (op->in[0] == x) != (op->in[1] == x) && (!f->p->shape->bf16 || rows % 32 == 0);
}

/* Fuses all_gather i with the matmuls that read its result, if these are all of its readers and
 * follow each other in the list. */
static void find_gather(Fuse *f, int i) {
    const Op *op = &f->old[i];
    int first = i + 1, left = f->uses.readers[op->out], end;
    if (!moves_tokens(f->p, op) || left == 0) return;
    int64_t rows = step_tensor_local(f->p, &f->p->tensor[op->in[0]], 0);
    while (first < f->n_ops && !reads_blocks(f, first, op->out, rows)) first++;
    for (end = first; end < f->n_ops && left > 0; end = kernel_end(f, end), left--)
        if (!reads_blocks(f, end, op->out, rows)) return;
    if (left > 0) return;
    f->with[i] = first;
    for (int k = first; k < end; k = kernel_end(f, k)) f->with[k] = i;
}

/* Appends operation i of the old list. */
static void append(Fuse *f, int i, bool fused) {
    program_append(f->p, &f->old[i]);
    f->p->op[f->p->n_ops - 1].fused = fused;
}

void program_fuse_collectives(Program *p, bool on_device) {
    Fuse f = {.p = p, .old = p->op, .n_ops = p->n_ops, .uses = program_uses(p)};
    f.with = mem_alloc((size_t)f.n_ops * sizeof *f.with);
    for (int i = 0; i < f.n_ops; i++) f.with[i] = -1;
    for (int i = 0; i < f.n_ops; i++)
        if (f.old[i].kind == OP_REDUCE_SCATTER) find_scatter(&f, i);
    for (int i = 0; i < f.n_ops; i++)
        if (f.old[i].kind == OP_ALL_GATHER) find_gather(&f, i);
    Op *old = program_take(p);
    p->copied = on_device;
    for (int i = 0; i < f.n_ops; i++) {
        int with = f.with[i];
        if (with >= 0 && op_info(f.old[i].kind)->collective) continue; // appended with its matmul
        bool gather = with >= 0 && f.old[with].kind == OP_ALL_GATHER;
        if (gather && f.with[with] == i) append(&f, with, false);
        append(&f, i, gather || f.old[i].fused);
        if (with >= 0 && !gather) append(&f, with, true);
    }
    mem_free(old);
    mem_free(f.with), mem_free(f.uses.maker);
}
