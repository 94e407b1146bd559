/* fuse -- operations that run in the kernel of another one.
 *
 *   before                                          after
 *   up   = matmul  h2, up.weight                      up   = matmul  h2, up.weight
 *   up   = bias    up, up.bias                      + up   = bias    up, up.bias
 *   act  = gelu    up                               + act  = gelu    up
 *
 *   y    = matmul  act, down.weight                   y    = matmul  act, down.weight
 *   y    = reduce_scatter x  y                        y    = reduce_scatter x  y
 *
 *                                                   one kernel, residual add and norm:
 *   y    = bias    y, down.bias                       y    = bias    y, down.bias
 *   x    = add     x, y                             + x    = add     x, y
 *   s    = norm_statistics  x                       + s    = norm_statistics  x
 *   s    = norm_merge  s                            + s    = norm_merge  s
 *   h1   = norm    x, s, ln1.weight, ln1.bias       + h1   = norm    x, s, ln1.weight, ln1.bias
 *
 * `+` marks what is fused (Op.fused), as in listings. No collective may lie between the two. A
 * group stands where its last member stood, so that all operands are there. Values between members
 * stay in the list: most are read again in backward. Without fusion (ModelShape.unfused) only what
 * is ALWAYS in one kernel joins.
 */
#include "base/mem.h"
#include "parallel/step/program.h"

/* How an operation joins a group by the kind of the group's first one. */
enum {
    READS = 1,  // it reads a result of the group
    BESIDE = 2, // it reads the first operand of the group's first one
    ALWAYS = 4  // it has no kernel of its own, or adds to a stored gradient
};

static const uint8_t joining[N_OP_KINDS][N_OP_KINDS] = {
    [OP_MATMUL] = {[OP_BIAS] = READS, [OP_ADD] = READS, [OP_ACT] = READS},
    [OP_MATMUL_BT] = {[OP_ACT_BACKWARD] = READS},
    [OP_MATMUL_AT] = {[OP_ADD] = READS | ALWAYS}, // of chunks
    // statistics of the residual stream: whole_rows
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
    [OP_BIAS_BACKWARD] = {[OP_MATMUL_AT] = BESIDE}, // where kernels sum the columns of dy beside dw
};
enum { REACH = 24 }; // operations back in the list that a group is looked for

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

/* Does an operation in between, of no member, read what the group makes? Then the group may not
 * move. */
static bool read_before(const Fuse *f, int group, int i) {
    for (int k = group + 1; k < i; k++)
        if (f->group[k] != group && reads_group(f, group, &f->p->op[k])) return true;
    return false;
}

/* Is bias i of a row-parallel layer? It is added with the residual stream, where the matmul's own
 * addend is not the residual stream but the panels before (panels.c). */
static bool before_residual(const Fuse *f, int i) {
    const Op *next = &f->p->op[i + 1];
    return i + 1 < f->p->n_ops && next->kind == OP_ADD && reads(next, f->p->op[i].out);
}

/* Does the kernel of a group with this member have whole rows of features or logits? With --exact
 * their statistics are those of panels. */
static bool of_whole_rows(OpKind member) {
    return member == OP_NORM_STATISTICS || member == OP_NORM_MERGE || member == OP_NORM ||
           member == OP_NORM_BACKWARD || member == OP_LOSS || member == OP_LOSS_BACKWARD;
}

/* A kernel for whole rows of the residual stream and their norm. */
static bool whole_rows(const Program *p, const Op *statistics) {
    const StepTensor *x = &p->tensor[statistics->in[0]];
    return x->dist.shard[1].n == 0;
}

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
    if (residual && b->kind == OP_NORM_STATISTICS && !whole_rows(f->p, b)) return false;
    if (b->kind == OP_MATMUL_AT && (!bias_with_dw || layout->stay || layout->exact)) return false;
    bool operands = how & BESIDE ? reads(b, a->in[0]) : reads_group(f, group, b);
    return operands && !read_before(f, group, i);
}

static void emit_group(Program *p, const Op *old, const Fuse *f, int group) {
    bool first = true;
    for (int i = group; i <= f->last[group]; i++) {
        if (f->group[i] != group) continue;
        program_append(p, &old[i]);
        p->op[p->n_ops - 1].fused = !first;
        first = false;
    }
}

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
