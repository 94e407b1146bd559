/* fuse_collectives -- --overlap fused: a matmul and the collective of its operand or its result in
 * one kernel, which communicates while it multiplies.
 *
 *   before                                      after
 *   h    = all_gather x  h                      h    = all_gather x  h
 *   up   = matmul  h, up.weight                 up   = + matmul  h, up.weight
 *   up   = bias    up, up.bias                  up   = + bias    up, up.bias
 *
 *   down = matmul  act, down.weight             down = matmul  act, down.weight
 *   down = reduce_scatter x  down               down = + reduce_scatter x  down
 *
 * all_gather: no rank has the whole of h in memory. The matmul packs the rows of each rank where
 * that rank has them, its own first. reduce_scatter: the partial sum is in no rank's memory. Rows
 * that another rank sums are stored in a slot of its memory, which is the memory of `down` there,
 * and the rank's own come last; then each rank adds its slots in the order of ranks. So neither
 * changes a sum.
 *
 * Fused are matmuls of layers along tokens, where nothing else reads what the collective brings or
 * takes. Source: FLUX (Chang et al. 2024).
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

typedef struct Fuse {
    Program *p;
    const Op *old;
    int n_ops;
    int *maker;   // [tensors] the operation that makes it; -1
    int *readers; // [tensors] how many operations read it
    int *with;    // [operations] of a matmul: its collective; of that: the matmul; -1
} Fuse;

static bool is_matmul(const Op *op) {
    return (op->kind == OP_MATMUL || op->kind == OP_MATMUL_BT) && op->layer >= 0;
}

/* Has a tensor rows of tokens that lie together, of floats? */
static bool has_rows(const Program *p, int t) {
    const StepTensor *x = &p->tensor[t];
    return strcmp(x->dist.dim[0], "T") == 0 && x->whole < 0 && x->bytes == (int)sizeof(float) &&
           x->storage == STORAGE_TEMPORARY;
}

/* Is operation i a kernel of its own, with which nothing is fused? */
static bool alone(const Fuse *f, int i) {
    return !f->old[i].fused && (i + 1 == f->n_ops || !f->old[i + 1].fused);
}

static void join(Fuse *f, int matmul, int collective) {
    if (matmul < 0 || f->with[matmul] >= 0 || !is_matmul(&f->old[matmul])) return;
    f->with[matmul] = collective, f->with[collective] = matmul;
}

/* A reduce_scatter with the matmul that makes its operand; an all_gather with the one that reads
 * its result. */
static void find(Fuse *f) {
    const Program *p = f->p;
    for (int i = 0; i < f->n_ops; i++) {
        const Op *op = &f->old[i];
        if (op->kind != OP_REDUCE_SCATTER || op->dim != 0 || !has_rows(p, op->in[0])) continue;
        int maker = f->maker[op->in[0]];
        if (maker >= 0 && alone(f, maker) && f->readers[op->in[0]] == 1) join(f, maker, i);
    }
    for (int i = 0; i < f->n_ops; i++) {
        const Op *op = &f->old[i];
        int from = f->maker[op->in[0]];
        if (op->fused || from < 0 || f->readers[op->in[0]] != 1) continue;
        const Op *gather = &f->old[from];
        if (gather->kind == OP_ALL_GATHER && gather->dim == 0 && has_rows(p, gather->in[0]))
            join(f, i, from);
    }
}

static void append(Fuse *f, int i, bool fused) {
    const Op *op = &f->old[i];
    program_emit(f->p, op->kind, op->out, op->in, op->n_in);
    f->p->op[f->p->n_ops - 1] = *op;
    f->p->op[f->p->n_ops - 1].fused = fused;
}

void program_fuse_collectives(Program *p) {
    size_t n = (size_t)p->n_ops, tensors = (size_t)p->n_tensors;
    Fuse f = {.p = p, .old = p->op, .n_ops = p->n_ops};
    f.maker = mem_alloc((n + 2 * tensors) * sizeof *f.maker);
    f.readers = f.maker + tensors, f.with = f.readers + tensors;
    for (size_t t = 0; t < tensors; t++) f.maker[t] = -1, f.readers[t] = 0;
    for (int i = 0; i < f.n_ops; i++) {
        f.maker[p->op[i].out] = i, f.with[i] = -1;
        for (int k = 0; k < p->op[i].n_in; k++) f.readers[p->op[i].in[k]]++;
    }
    find(&f);
    p->op = NULL, p->n_ops = p->cap_ops = 0;
    for (int i = 0; i < f.n_ops; i++) {
        int with = f.with[i];
        bool matmul = is_matmul(&f.old[i]);
        if (with >= 0 && !matmul) continue; // beside its matmul
        bool gather = with >= 0 && f.old[with].kind == OP_ALL_GATHER;
        if (gather) append(&f, with, false);
        append(&f, i, gather || f.old[i].fused);
        if (with >= 0 && !gather) append(&f, with, true);
    }
    mem_free((void *)(uintptr_t)f.old);
    mem_free(f.maker);
}
