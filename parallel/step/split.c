/* split -- chunk=n: a matmul and the collectives at its ends in n chunks of tokens, so that one
 * chunk is gathered or reduced under the matmul of another.
 *
 *   before                          after, n = 2
 *   x = all_gather x  h             x.0 = all_gather x  h.0
 *                                   x.1 = all_gather x  h.1      under the matmul of x.0
 *   y = matmul  x, w                y.0 = matmul  x.0, w
 *   y = reduce_scatter x  y         y.0 = reduce_scatter x y.0   under the matmul of x.1
 *                                   y.1 = matmul  x.1, w
 *                                   y.1 = reduce_scatter x y.1
 *
 * A chunk is rows of its parent, which later operations read. Where tokens are sharded along the
 * axis of the collective, chunk k takes the k-th part of the rows of every rank's block: so what
 * is gathered lies where it belongs. Then no collective along another axis is split: its rows would
 * not lie together. What is fused into a matmul is split with it. Source: ATP (2023), section 4.1.
 *
 * ring: where tokens are gathered or scattered, the chunks are the blocks that the ranks hold.
 *
 *   x = all_gather x  h      rank r:  x.r   = copy h               its own block is there
 *   y = matmul  x, w                  x.r-1 = shift 1 x  h         under the matmul of x.r
 *                                     x.r-2 = shift 2 x  h         under the matmul of x.r-1
 *
 *   y = matmul  x, w         rank r:  y.r+1 = matmul x.r+1, w      the block of the next rank first
 *   y = reduce_scatter x y            p.r-1 = shift 1 x  y.r+1     under the next matmul; then the
 *                                     y     = add of all parts   sum, in the tree of coll_reduce.h
 *
 * Source: Wang et al. (ASPLOS 2023).
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

enum { NOT_SPLIT, CHUNKS, RING_IN, RING_OUT };

typedef struct Split {
    Program *p;
    const Op *old;
    int n_ops, chunks, parts;
    bool ring;
    Uses uses;
    int *before; // [operations] of a matmul: the collective that brings its operand; -1
    int *after;  // [operations] the collective that takes its result; -1
    int *matmul; // [operations] of such a collective that comes before: the matmul; -1
    int *how;    // [operations] what becomes of a matmul and its collectives
    int *part;   // [tensors * parts] the last chunk, or block, k of it; -1: none yet
} Split;

static bool of_tokens(const Split *s, int t) {
    return strcmp(s->p->tensor[t].dist.dim[0], "T") == 0;
}

static int64_t local_rows(const Split *s, int t) {
    return step_tensor_local(s->p, &s->p->tensor[t], 0);
}

/* Rows of which a chunk, or block, k is: n local ones from `row` on, of each block of `every` rows;
 * 0: of all rows. */
typedef struct Rows {
    int64_t k, row, n, every;
} Rows;

/* Those rows of a tensor; the tensor itself where it has no rows of tokens. A tensor may be in
 * chunks of several matmuls, whose blocks differ: each of those makes or reads its own. */
static int part_of(Split *s, int t, Rows r) {
    if (!of_tokens(s, t)) return t;
    int *part = &s->part[t * s->parts + r.k];
    const StepTensor *x = &s->p->tensor[*part < 0 ? t : *part];
    bool same = *part >= 0 && x->every == r.every && (r.every || local_rows(s, *part) == r.n);
    if (!same) *part = program_rows(s->p, t, r.row, r.n, r.every);
    return *part;
}

/* Those rows of operation i with what is fused into it; returns its result. It runs behind the one
 * that makes `before`; -1: behind none. */
static int emit_part(Split *s, int i, Rows r, int before) {
    int end = op_kernel_end(s->old, s->n_ops, i);
    for (int j = i; j < end; j++) {
        Op op = s->old[j];
        for (int k = 0; k < op.n_in; k++) op.in[k] = part_of(s, op.in[k], r);
        if (j == i && before >= 0) op.in[op.n_in++] = before;
        op.out = part_of(s, op.out, r);
        program_append(s->p, &op);
    }
    return part_of(s, s->old[i].out, r);
}

/* ---- which ---- */

/* The collective that makes a tensor, or that alone reads it; -1: none. */
static int collective(const Split *s, int i) {
    return i >= 0 && op_info(s->old[i].kind)->collective ? i : -1;
}

/* Does a collective gather or scatter blocks of tokens? */
static bool moves_tokens(const Split *s, int i) {
    return i >= 0 && s->old[i].dim == 0 && s->old[i].kind != OP_ALL_REDUCE;
}

/* Rows of the blocks in which a collective takes tokens. */
static int64_t block_rows(const Split *s, int i) {
    const Op *op = &s->old[i];
    return local_rows(s, op->kind == OP_REDUCE_SCATTER ? op->out : op->in[0]);
}

/* The smallest block decides; a collective of another one stays whole. */
static int64_t block_of(Split *s, int i) {
    int *ends[] = {&s->before[i], &s->after[i]};
    int64_t rows = INT64_MAX;
    for (int e = 0; e < 2; e++)
        if (*ends[e] >= 0 && block_rows(s, *ends[e]) < rows) rows = block_rows(s, *ends[e]);
    for (int e = 0; e < 2; e++)
        if (*ends[e] >= 0 && block_rows(s, *ends[e]) != rows) *ends[e] = -1;
    return rows;
}

/* What becomes of matmul i, in blocks of `block` rows. */
static int way(const Split *s, int i, int64_t block) {
    bool in = moves_tokens(s, s->before[i]), out = moves_tokens(s, s->after[i]);
    int64_t blocks = local_rows(s, s->old[i].out) / block;
    if (s->ring && in != out && blocks <= MAX_RING) return in ? RING_IN : RING_OUT;
    return s->chunks > 1 && block >= s->chunks && blocks <= MAX_STRIPES ? CHUNKS : NOT_SPLIT;
}

/* Matmuls of layers whose operand or result a collective moves. */
static void find(Split *s) {
    for (int i = 0; i < s->n_ops; i++) {
        const Op *op = &s->old[i];
        bool matmul = op->kind == OP_MATMUL || op->kind == OP_MATMUL_BT;
        if (!matmul || op->layer < 0 || s->p->layout->stay) continue;
        int from = collective(s, s->uses.maker[op->in[0]]);
        if (from >= 0 && !s->how[from]) s->before[i] = from;
        if (s->uses.readers[op->out] == 1) s->after[i] = collective(s, s->uses.reader[op->out]);
        if (s->before[i] < 0 && s->after[i] < 0) continue;
        int how = way(s, i, block_of(s, i));
        if (s->before[i] >= 0) s->how[s->before[i]] = how, s->matmul[s->before[i]] = i;
        if (s->after[i] >= 0) s->how[s->after[i]] = how;
        s->how[i] = how;
    }
}

/* ---- chunks ---- */

/* Chunk k of blocks of `block` rows. */
static Rows chunk(const Split *s, int64_t block, int k) {
    int64_t begin = k * block / s->chunks, end = (k + 1) * block / s->chunks;
    return (Rows){k, begin, end - begin, block};
}

/* The chunks of a matmul with what is fused into it, each before the collective that takes it. An
 * all_reduce is in place: its result is the parent of its operand. */
static void emit_matmul(Split *s, int i) {
    int after = s->after[i];
    int64_t block = block_rows(s, after < 0 ? s->before[i] : after);
    if (after >= 0 && s->old[after].kind == OP_ALL_REDUCE)
        s->p->tensor[s->old[after].in[0]].parent = s->old[after].out;
    for (int k = 0; k < s->chunks; k++) {
        emit_part(s, i, chunk(s, block, k), -1);
        if (after >= 0) emit_part(s, after, chunk(s, block, k), -1);
    }
}

/* ---- rings ---- */

/* Block b, of `rows` rows. */
static Rows block(int64_t b, int64_t rows) {
    return (Rows){b, b * rows, rows, 0};
}

static void set_place(Split *s, const Op *like) {
    s->p->phase = like->phase, s->p->layer = like->layer;
}

static void shift(Split *s, const Op *like, int64_t k, int out, int in) {
    set_place(s, like);
    EMIT(s->p, OP_SHIFT, out, in);
    Op *op = &s->p->op[s->p->n_ops - 1];
    op->axes = like->axes, op->dim = (int)k;
}

/* What a gather brings, block after block. */
static void emit_ring_gather(Split *s, const Op *gather) {
    int64_t X = mesh_blocks(s->p->mesh, gather->axes), me = mesh_block(s->p->mesh, gather->axes);
    int64_t rows = local_rows(s, gather->in[0]);
    int here = gather->in[0];
    set_place(s, gather);
    EMIT(s->p, OP_COPY, part_of(s, gather->out, block(me, rows)), here);
    for (int64_t k = 1; k < X; k++)
        shift(s, gather, k, part_of(s, gather->out, block((me - k + X) % X, rows)), here);
}

static void emit_ring_in(Split *s, int i) {
    const Op *gather = &s->old[s->before[i]];
    int64_t X = mesh_blocks(s->p->mesh, gather->axes), me = mesh_block(s->p->mesh, gather->axes);
    for (int64_t k = 0; k < X; k++)
        emit_part(s, i, block((me - k + X) % X, local_rows(s, gather->in[0])), -1);
}

/* What has come lies in one tensor, of which sums read rows that no operation makes by itself: so
 * each waits for all that comes, and for the last matmul. Which part is this rank's own depends on
 * the rank, but no order does. Matmuls keep their order, even where the operand of a later one is
 * there first: what is sent after the last of them is under nothing. */
static void emit_ring_out(Split *s, int i) {
    const Op *scatter = &s->old[s->after[i]];
    int64_t X = mesh_blocks(s->p->mesh, scatter->axes), me = mesh_block(s->p->mesh, scatter->axes);
    int64_t rows = local_rows(s, scatter->out);
    int part[MAX_RING], own = -1; // of this rank's sum: what each rank has
    int came = program_tensor_part(s->p, scatter->out);
    s->p->tensor[came].size[0] *= X - 1;
    for (int64_t k = 1; k <= X; k++) {
        own = emit_part(s, i, block((me + k) % X, rows), own);
        if (k == X) break;
        shift(s, scatter, k, program_rows(s->p, came, (k - 1) * rows, rows, 0), own);
        part[(me - k + X) % X] = program_rows(s->p, came, (k - 1) * rows, rows, 0);
    }
    part[me] = own;
    set_place(s, scatter);
    for (int64_t apart = 1; apart < X; apart *= 2)
        for (int64_t r = 0; r + apart < X; r += 2 * apart) {
            bool last = 2 * apart >= X;
            int sum = last ? scatter->out : program_tensor_part(s->p, scatter->out);
            part[r] = EMIT(s->p, OP_ADD, sum, part[r], part[r + apart], own);
        }
}

/* ---- all of it ---- */

/* Operation i, which is not fused; returns the next one. */
static int emit(Split *s, int i) {
    const Op *op = &s->old[i];
    bool collective = op_info(op->kind)->collective;
    int end = op_kernel_end(s->old, s->n_ops, i);
    if (collective && s->how[i] && s->matmul[i] < 0) return end; // behind its matmul
    if (collective && s->how[i] == CHUNKS)
        for (int k = 0; k < s->chunks; k++) emit_part(s, i, chunk(s, block_rows(s, i), k), -1);
    else if (collective && s->how[i] == RING_IN)
        emit_ring_gather(s, op);
    else if (s->how[i] == CHUNKS)
        emit_matmul(s, i);
    else if (s->how[i] == RING_IN)
        emit_ring_in(s, i);
    else if (s->how[i] == RING_OUT)
        emit_ring_out(s, i);
    else
        for (int k = i; k < end; k++) program_append(s->p, &s->old[k]);
    return end;
}

void program_split(Program *p, int chunks, bool ring) {
    int parts = ring && MAX_RING > chunks ? MAX_RING : chunks;
    size_t n = (size_t)p->n_ops, tensors = (size_t)p->n_tensors;
    size_t all = 3 * n + tensors * (size_t)parts;
    Split s = {
        .p = p, .old = p->op, .n_ops = p->n_ops, .chunks = chunks, .parts = parts, .ring = ring};
    int *memory = mem_alloc(all * sizeof *memory);
    s.before = memory, s.after = s.before + n, s.matmul = s.after + n, s.part = s.matmul + n;
    s.how = mem_calloc(n, sizeof *s.how);
    for (size_t t = 0; t < all; t++) memory[t] = -1;
    s.uses = program_uses(p);
    find(&s);
    Op *old = program_take(p);
    for (int i = 0; i < s.n_ops;) i = emit(&s, i);
    mem_free(old);
    mem_free(s.how), mem_free(s.uses.maker);
    mem_free(memory);
}
