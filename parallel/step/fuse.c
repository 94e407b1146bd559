/* fuse -- operations that run in the kernel of another one.
 *
 *   before                                          after
 *   up   = matmul  h2, up.weight                      up   = matmul  h2, up.weight
 *   up   = bias    up, up.bias                      + up   = bias    up, up.bias
 *   act  = gelu    up                               + act  = gelu    up
 *
 *   y    = matmul  act, down.weight                   y    = matmul  act, down.weight
 *   y    = reduce_scatter x  y                        y    = reduce_scatter x  y     ends a group
 *
 *                                                   one kernel, residual add and norm:
 *   y    = bias    y, down.bias                       y    = bias    y, down.bias
 *   x    = add     x, y                             + x    = add     x, y
 *   s    = norm_statistics  x                       + s    = norm_statistics  x
 *   s    = norm_merge  s                            + s    = norm_merge  s
 *   h1   = norm    x, s, ln1.weight, ln1.bias       + h1   = norm    x, s, ln1.weight, ln1.bias
 *
 * `+` marks an operation that runs in the kernel of the operation before it (Op.fused), as in
 * listings. Operations of one kernel are a group. A group never extends across a collective: the
 * bias of a row-parallel layer is added to the complete sum. A group moves to the place of its last
 * member, where all operands of all members have been made. Values between members stay in the list
 * as tensors: backward reads most of them. Without fusion (ModelShape.unfused) only pairs that are
 * marked ALWAYS join.
 */
#include "base/mem.h"
#include "parallel/step/program.h"

/* The condition on which an operation joins a group. */
enum {
    READS = 1,  // the operation reads a result of the group
    BESIDE = 2, // the operation reads the first operand of the group's first operation
    ALWAYS = 4  // also without fusion: it has no kernel of its own, or adds to a stored gradient
};

/* [kind of the group's first operation][kind of the operation that joins]; 0: does not join. */
static const uint8_t joining[N_OP_KINDS][N_OP_KINDS] = {
    [OP_MATMUL] = {[OP_BIAS] = READS, [OP_ADD] = READS, [OP_ACT] = READS},
    [OP_MATMUL_BT] = {[OP_ACT_BACKWARD] = READS},
    [OP_MATMUL_AT] = {[OP_ADD] = READS | ALWAYS}, // dwte of chunks
    // residual add and norm: where has_whole_rows()
    [OP_BIAS] = {[OP_ADD] = READS,
                 [OP_NORM_STATISTICS] = READS,
                 [OP_NORM_MERGE] = READS,
                 [OP_NORM] = READS},
    [OP_ADD] = {[OP_NORM_STATISTICS] = READS, [OP_NORM_MERGE] = READS, [OP_NORM] = READS},
    [OP_NORM_STATISTICS] = {[OP_NORM_MERGE] = READS, [OP_NORM] = READS},
    [OP_NORM_WEIGHT_BACKWARD] = {[OP_NORM_WEIGHT_BACKWARD] = BESIDE | ALWAYS,
                                 [OP_NORM_SUMS] = BESIDE | ALWAYS,
                                 [OP_NORM_BACKWARD] = READS,
                                 [OP_ADD] = READS},
    [OP_NORM_BACKWARD] = {[OP_ADD] = READS},
    [OP_LOSS_STATISTICS] = {[OP_LOSS] = READS, [OP_LOSS_BACKWARD] = READS},
    [OP_EMBEDDING] = {[OP_POSITION] = READS},
    [OP_EMBEDDING_BACKWARD] = {[OP_ADD] = READS | ALWAYS},
    [OP_BIAS_BACKWARD] = {[OP_MATMUL_AT] = BESIDE}, // if bias_with_dw
};
enum { REACH = 24 }; // a group begins at most so many operations before one that joins

typedef struct Fuse {
    Program *p;
    int *group; // [ops] first member of its group, which may be itself
    int *last;  // [ops] of a first member: the last member
    Uses uses;
} Fuse;

static bool reads(const Op *op, int tensor) {
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] == tensor) return true;
    return false;
}

/* Has a group a member of this kind? */
static bool has(const Fuse *f, int group, OpKind kind) {
    for (int i = group; i <= f->last[group]; i++)
        if (f->group[i] == group && f->p->op[i].kind == kind) return true;
    return false;
}

static bool reads_group(const Fuse *f, int group, const Op *op) {
    for (int k = 0; k < op->n_in; k++) {
        int maker = f->uses.maker[op->in[k]];
        if (maker >= 0 && f->group[maker] == group) return true;
    }
    return false;
}

/* Does an operation between the group's first member and i that is no member read a result of the
 * group? Then the group cannot move to i, behind that reader. */
static bool read_before(const Fuse *f, int group, int i) {
    for (int k = group + 1; k < i; k++)
        if (f->group[k] != group && reads_group(f, group, &f->p->op[k])) return true;
    return false;
}

/* Does the residual add follow bias i, as in a row-parallel layer? Then the bias does not join a
 * matmul in panels (panels.c), whose addend is the sum of the panels before: bias and residual add
 * are a kernel of their own. */
static bool before_residual(const Fuse *f, int i) {
    const Op *next = &f->p->op[i + 1];
    return i + 1 < f->p->n_ops && next->kind == OP_ADD && reads(next, f->p->op[i].out);
}

/* Does a kernel with this member compute statistics of whole rows of features or logits? With
 * --exact statistics are of panels, so these kinds are not fused. */
static bool of_whole_rows(OpKind member) {
    return member == OP_NORM_STATISTICS || member == OP_NORM_MERGE || member == OP_NORM ||
           member == OP_NORM_BACKWARD || member == OP_LOSS || member == OP_LOSS_BACKWARD;
}

/* Has this rank whole rows of the residual stream, [T/.., C]? The kernel of residual add and norm
 * needs them. */
static bool has_whole_rows(const Program *p, const Op *statistics) {
    const StepTensor *x = &p->tensor[statistics->in[0]];
    return x->dist.shard[1].n == 0;
}

/* Does operation i join a group, given by its first member? */
static bool joins(const Fuse *f, int group, int i, bool bias_with_dw) {
    const Op *a = &f->p->op[group], *b = &f->p->op[i];
    const Layout *layout = f->p->layout;
    int how = joining[a->kind][b->kind];
    if (how == 0 || (f->p->shape->unfused && !(how & ALWAYS))) return false;
    if (layout->exact && of_whole_rows(b->kind)) return false;
    if (a->phase != b->phase && b->kind != OP_LOSS_BACKWARD) return false;
    if (b->kind != OP_NORM_WEIGHT_BACKWARD && has(f, group, b->kind)) return false;
    if (b->kind == OP_BIAS && has(f, group, OP_ADD) && before_residual(f, i)) return false;
    bool residual = a->kind == OP_BIAS || a->kind == OP_ADD;
    if (residual && b->kind == OP_NORM && !has(f, group, OP_NORM_STATISTICS)) return false;
    if (residual && b->kind == OP_NORM_STATISTICS && !has_whole_rows(f->p, b)) return false;
    if (b->kind == OP_MATMUL_AT && (!bias_with_dw || layout->stay || layout->exact)) return false;
    bool operands = how & BESIDE ? reads(b, a->in[0]) : reads_group(f, group, b);
    return operands && !read_before(f, group, i);
}

/* Appends the members of a group one after the other; all but the first are fused. */
static void emit_group(Program *p, const Op *old, const Fuse *f, int group) {
    bool first = true;
    for (int i = group; i <= f->last[group]; i++) {
        if (f->group[i] != group) continue;
        program_append(p, &old[i]);
        p->op[p->n_ops - 1].fused = !first;
        first = false;
    }
}

/* Each kernel joins the nearest group before it, or begins a group. bias_with_dw: the kernel of a
 * wgrad can sum the columns of dy, the gradient of the bias. */
static void find_groups(Fuse *f, bool bias_with_dw) {
    for (int i = 0; i < f->p->n_ops; i++) {
        const Op *op = &f->p->op[i];
        f->group[i] = f->last[i] = i;
        if (op_info(op->kind)->collective) continue;
        for (int k = i - 1; k >= 0 && k >= i - REACH; k--) {
            if (f->group[k] != k || !joins(f, k, i, bias_with_dw)) continue;
            f->group[i] = k, f->last[k] = i;
            break;
        }
    }
}

void program_fuse(Program *p, bool bias_with_dw) {
    int n = p->n_ops, *memory = mem_alloc(2 * (size_t)n * sizeof *memory);
    Fuse f = {.p = p, .group = memory, .last = memory + n, .uses = program_uses(p)};
    find_groups(&f, bias_with_dw);
    Op *old = program_take(p);
    for (int i = 0; i < n; i++)
        if (f.last[f.group[i]] == i) emit_group(p, old, &f, f.group[i]);
    mem_free(old);
    mem_free(memory), mem_free(f.uses.maker);
}
