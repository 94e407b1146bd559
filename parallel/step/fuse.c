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
    // residual add and norm: kernel_can()
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
    [OP_BIAS_BACKWARD] = {[OP_MATMUL_AT] = BESIDE},
};
enum { REACH = 24 }; // a group begins at most so many operations before one that joins

typedef struct Fuse {
    Program *p;
    int *group; // [ops] first member of its group, which may be itself
    int *last;  // [ops] of a first member: the last member
    Uses uses;
    bool bias_with_dw; // the kernel of a wgrad can sum the columns of dy, the gradient of the bias
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

/* Does the residual add follow bias i, as in a row-parallel layer? */
static bool before_residual(const Fuse *f, int i) {
    const Op *next = &f->p->op[i + 1];
    return i + 1 < f->p->n_ops && next->kind == OP_ADD && reads(next, f->p->op[i].out);
}

/* Does the kernel of the group have a form that computes operation i, too? */
static bool kernel_can(const Fuse *f, int group, int i) {
    const Program *p = f->p;
    const Op *op = &p->op[i];
    OpKind first = p->op[group].kind;
    bool residual = first == OP_BIAS || first == OP_ADD;
    bool whole_rows = !p->layout->exact; // of statistics; with --exact they are of panels of a row
    switch (op->kind) {
    // A matmul in panels (panels.c) adds the sum of the panels before: bias and residual add are a
    // kernel of their own then.
    case OP_BIAS:
        return !(has(f, group, OP_ADD) && before_residual(f, i));
    case OP_MATMUL_AT:
        return f->bias_with_dw && !p->layout->stay && !p->layout->exact;
    // The kernel of residual add and norm needs whole rows [T/.., C] of the residual stream on this
    // rank.
    case OP_NORM_STATISTICS:
        return whole_rows && !(residual && p->tensor[op->in[0]].dist.shard[1].n > 0);
    case OP_NORM:
        return whole_rows && !(residual && !has(f, group, OP_NORM_STATISTICS));
    case OP_NORM_MERGE:
    case OP_NORM_BACKWARD:
    case OP_LOSS:
    case OP_LOSS_BACKWARD:
        return whole_rows;
    default:
        return true;
    }
}

/* Does operation i join a group, given by its first member? */
static bool joins(const Fuse *f, int group, int i) {
    const Op *first = &f->p->op[group], *op = &f->p->op[i];
    int how = joining[first->kind][op->kind];
    if (how == 0 || (f->p->shape->unfused && !(how & ALWAYS))) return false;
    if (op->phase != first->phase && op->kind != OP_LOSS_BACKWARD) return false;
    if (op->kind != OP_NORM_WEIGHT_BACKWARD && has(f, group, op->kind)) return false;
    if (!kernel_can(f, group, i)) return false;
    bool operand = how & BESIDE ? reads(op, first->in[0]) : reads_group(f, group, op);
    return operand && !read_before(f, group, i);
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

/* Each operation joins the nearest group before it, or begins one. `joining` has no collectives. */
static void find_groups(Fuse *f) {
    for (int i = 0; i < f->p->n_ops; i++) {
        f->group[i] = f->last[i] = i;
        for (int k = i - 1; k >= 0 && k >= i - REACH; k--) {
            if (f->group[k] != k || !joins(f, k, i)) continue;
            f->group[i] = k, f->last[k] = i;
            break;
        }
    }
}

void program_fuse(Program *p, bool bias_with_dw) {
    int n = p->n_ops, *memory = mem_alloc(2 * (size_t)n * sizeof *memory);
    Fuse f = {p, memory, memory + n, program_uses(p), bias_with_dw};
    find_groups(&f);
    Op *old = program_take(p);
    for (int i = 0; i < n; i++)
        if (f.last[f.group[i]] == i) emit_group(p, old, &f, f.group[i]);
    mem_free(old);
    mem_free(memory), mem_free(f.uses.maker);
}
