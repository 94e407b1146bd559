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
 * stay in the list: most are read again in backward. Without fusion (ModelShape.unfused) only pairs
 * that are `always` one kernel join.
 */
#include "base/mem.h"
#include "parallel/step/program.h"

/* `member` joins a group that begins with `first` when it reads a result of the group, or
 * (same_input) the first operand of `first`. */
typedef struct Pair {
    OpKind first, member;
    bool same_input;
    bool always; // the member has no kernel of its own, or adds to a stored gradient
} Pair;

static const Pair pairs[] = {
    {OP_MATMUL, OP_BIAS, false, false},
    {OP_MATMUL, OP_ADD, false, false},
    {OP_MATMUL, OP_ACT, false, false},
    {OP_MATMUL_BT, OP_ACT_BACKWARD, false, false},
    {OP_BIAS, OP_ADD, false, false},
    {OP_BIAS, OP_NORM_STATISTICS, false, false}, // of the residual stream: whole_rows
    {OP_BIAS, OP_NORM_MERGE, false, false},
    {OP_BIAS, OP_NORM, false, false},
    {OP_ADD, OP_NORM_STATISTICS, false, false},
    {OP_ADD, OP_NORM_MERGE, false, false},
    {OP_ADD, OP_NORM, false, false},
    {OP_NORM_STATISTICS, OP_NORM_MERGE, false, false},
    {OP_NORM_STATISTICS, OP_NORM, false, false},
    {OP_NORM_WEIGHT_BACKWARD, OP_NORM_WEIGHT_BACKWARD, true, true},
    {OP_NORM_WEIGHT_BACKWARD, OP_NORM_SUMS, true, true},
    {OP_NORM_WEIGHT_BACKWARD, OP_NORM_BACKWARD, false, false},
    {OP_NORM_WEIGHT_BACKWARD, OP_ADD, false, false},
    {OP_NORM_BACKWARD, OP_ADD, false, false},
    {OP_LOSS_TARGET, OP_LOSS_EXPONENTIALS, true, true},
    {OP_LOSS_STATISTICS, OP_LOSS, false, false},
    {OP_LOSS_STATISTICS, OP_LOSS_BACKWARD, false, false},
    {OP_EMBEDDING, OP_POSITION, false, false},
    {OP_EMBEDDING_BACKWARD, OP_ADD, false, true},
    {OP_MATMUL_AT, OP_ADD, false, true},           // of chunks
    {OP_BIAS_BACKWARD, OP_MATMUL_AT, true, false}, // where kernels sum the columns of dy beside dw
};
enum {
    N_PAIRS = sizeof pairs / sizeof *pairs,
    REACH = 24 // operations back in the list that a group is looked for
};

typedef struct Fuse {
    Program *p;
    int *group; // [ops] first member of its group, which may be itself
    int *last;  // [ops] of a first member: the last member
    Uses uses;
    uint8_t pair[N_OP_KINDS][N_OP_KINDS]; // of first and member: index into pairs, and 1; 0: none
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

/* A kernel for whole rows of the residual stream and their norm. */
static bool whole_rows(const Program *p, const Op *statistics) {
    const StepTensor *x = &p->tensor[statistics->in[0]];
    return x->dist.shard[1].n == 0;
}

static bool joins(const Fuse *f, int group, int i, bool bias_with_dw) {
    const Op *a = &f->p->op[group], *b = &f->p->op[i];
    const Layout *layout = f->p->layout;
    int found = f->pair[a->kind][b->kind];
    if (found == 0) return false;
    const Pair *pair = &pairs[found - 1];
    if (f->p->shape->unfused && !pair->always) return false;
    if (a->phase != b->phase && b->kind != OP_LOSS_BACKWARD) return false;
    if (b->kind != OP_NORM_WEIGHT_BACKWARD && has(f, group, b->kind)) return false;
    if (b->kind == OP_BIAS && has(f, group, OP_ADD) && before_residual(f, i)) return false;
    bool residual = a->kind == OP_BIAS || a->kind == OP_ADD;
    if (residual && b->kind == OP_NORM && !has(f, group, OP_NORM_STATISTICS)) return false;
    if (residual && b->kind == OP_NORM_STATISTICS && !whole_rows(f->p, b)) return false;
    if (b->kind == OP_MATMUL_AT && (!bias_with_dw || layout->stay || layout->exact)) return false;
    bool operands = pair->same_input ? reads(b, a->in[0]) : reads_group(f, group, b);
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
    for (int i = N_PAIRS; i-- > 0;) f.pair[pairs[i].first][pairs[i].member] = (uint8_t)(i + 1);
    find_groups(&f, bias_with_dw);
    Op *old = program_take(p);
    for (int i = 0; i < n; i++)
        if (f.last[f.group[i]] == i) emit_group(p, old, &f, f.group[i]);
    mem_free(old);
    mem_free(memory), mem_free(f.uses.maker);
}
