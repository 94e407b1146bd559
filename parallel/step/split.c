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
 * A chunk is rows of its parent, the whole tensor, which later operations read. Where tokens are
 * sharded along the axis of the collective, chunk k has the k-th part of the rows of every rank's
 * block, so a chunk of an all_gather writes each row to its place in the parent. These rows are not
 * contiguous: if the matmul has a collective along another axis at its other end, that one is not
 * split. Operations fused into a matmul are split with it. Source: ATP (2023), section 4.1.
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
#include "base/mem.h"
#include "parallel/step/program.h"

/* How a matmul and the collective before it are split: into chunks, or by blocks of ranks that a
 * ring brings to the matmul (RING_IN) or takes from it (RING_OUT). The collective behind it is
 * appended with the matmul. */
enum { NOT_SPLIT, CHUNKS, RING_IN, RING_OUT, WITH_MATMUL };

typedef struct Split {
    Program *p;
    Op *old;
    int n_ops, chunks, parts; // parts: most chunks or blocks of a tensor
    bool ring;
    Uses uses;
    int *before; // [operations] of a matmul: the collective that makes its operand; -1: none
    int *after;  // [operations] of a matmul: the collective that reads its result; -1: none
    int *how;    // [operations] of a matmul and its collectives: CHUNKS, RING_IN, ...
    int *part;   // [tensors][parts] chunk or block k of a tensor, the latest one made; -1: none yet
} Split;

static int64_t local_rows(const Split *s, int t) {
    return step_tensor_local(s->p, &s->p->tensor[t], 0);
}

/* The rows of chunk or block k: n local rows from `row` on in each block of `every` rows. every 0:
 * all rows are one block. */
typedef struct Rows {
    int64_t k, row, n, every;
} Rows;

/* A tensor of these rows of t; t itself where its rows are not tokens (weights). Two matmuls may
 * split t by blocks of different sizes: each makes or reads tensors of its own. */
static int part_of(Split *s, int t, Rows r) {
    if (step_tensor_tokens(&s->p->tensor[t]) != 0) return t;
    int *part = &s->part[t * s->parts + r.k];
    const StepTensor *x = &s->p->tensor[*part < 0 ? t : *part];
    bool same = *part >= 0 && x->every == r.every && (r.every || local_rows(s, *part) == r.n);
    if (!same) *part = program_rows(s->p, t, r.row, r.n, r.every);
    return *part;
}

/* Appends operation i, with the operations fused into it, for these rows alone; returns the rows of
 * its result. before: a tensor that has to be made earlier, though no kernel reads it; -1: none. */
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

/* ---- which matmuls are split, and how ---- */

/* i, where there is an operation i and it is a collective; else -1. */
static int collective(const Split *s, int i) {
    return i >= 0 && op_info(s->old[i].kind)->collective ? i : -1;
}

/* Does a collective gather or scatter blocks of tokens? */
static bool moves_tokens(const Split *s, int i) {
    return i >= 0 && s->old[i].dim == 0 && s->old[i].kind != OP_ALL_REDUCE;
}

/* Local tokens of a block of a collective: of the operand of a gather, of the result of a scatter;
 * all tokens of an all_reduce. */
static int64_t block_rows(const Split *s, int i) {
    const Op *op = &s->old[i];
    return local_rows(s, op->kind == OP_REDUCE_SCATTER ? op->out : op->in[0]);
}

/* Rows of the blocks by which matmul i is split: the smaller of the blocks of its two collectives.
 * A collective with larger blocks is not split. */
static int64_t block_of(Split *s, int i) {
    int *coll[] = {&s->before[i], &s->after[i]};
    int64_t rows = INT64_MAX;
    for (int c = 0; c < 2; c++)
        if (*coll[c] >= 0 && block_rows(s, *coll[c]) < rows) rows = block_rows(s, *coll[c]);
    for (int c = 0; c < 2; c++)
        if (*coll[c] >= 0 && block_rows(s, *coll[c]) != rows) *coll[c] = -1;
    return rows;
}

/* How matmul i is split, in blocks of `block` rows. */
static int how_split(const Split *s, int i, int64_t block) {
    bool in = moves_tokens(s, s->before[i]), out = moves_tokens(s, s->after[i]);
    int64_t blocks = local_rows(s, s->old[i].out) / block;
    if (s->ring && in != out && blocks <= MAX_RING) return in ? RING_IN : RING_OUT;
    return s->chunks > 1 && block >= s->chunks && blocks <= MAX_STRIPES ? CHUNKS : NOT_SPLIT;
}

/* Finds the matmuls to split: those of layers whose operand a collective makes, or whose result
 * only a collective reads. Each gather is read by one of them, so that it is split in one way. */
static void find_matmuls(Split *s) {
    for (int i = 0; i < s->n_ops; i++) {
        const Op *op = &s->old[i];
        bool matmul = op->kind == OP_MATMUL || op->kind == OP_MATMUL_BT;
        if (!matmul || op->layer < 0 || s->p->layout->stay) continue;
        s->before[i] = collective(s, s->uses.maker[op->in[0]]);
        if (s->uses.readers[op->out] == 1) s->after[i] = collective(s, s->uses.reader[op->out]);
        if (s->before[i] < 0 && s->after[i] < 0) continue;
        int how = how_split(s, i, block_of(s, i));
        if (s->before[i] >= 0) s->how[s->before[i]] = how;
        if (s->after[i] >= 0 && how != NOT_SPLIT) s->how[s->after[i]] = WITH_MATMUL;
        s->how[i] = how;
    }
}

/* ---- chunks, and blocks of a ring ---- */

/* The rows of rank b's block, in blocks of `rows` rows. */
static Rows block(int64_t b, int64_t rows) {
    return (Rows){b, b * rows, rows, 0};
}

/* The number of parts of collective i and of its matmul, CHUNKS or RING_IN. */
static int64_t n_parts(const Split *s, int i, int how) {
    return how == CHUNKS ? s->chunks : mesh_blocks(s->p->mesh, s->old[i].axes);
}

/* The rows of part k. Chunk k has its part of each block of the collective. Of a ring part 0 is the
 * rank's own block, then come the blocks of the ranks before it, the nearest rank's first. */
static Rows rows_of(const Split *s, int i, int how, int64_t k) {
    int64_t n = n_parts(s, i, how), rows = block_rows(s, i);
    if (how == RING_IN) return block((mesh_block(s->p->mesh, s->old[i].axes) - k + n) % n, rows);
    int64_t begin = k * rows / n, end = (k + 1) * rows / n;
    return (Rows){k, begin, end - begin, rows};
}

/* Appends the parts of matmul i, each followed by the same chunk of the collective that reads the
 * result. An all_reduce is in place: its operand becomes rows of its result. */
static void emit_matmul(Split *s, int i) {
    int after = s->after[i], coll = after < 0 ? s->before[i] : after, how = s->how[i];
    if (after >= 0 && s->old[after].kind == OP_ALL_REDUCE)
        s->p->tensor[s->old[after].in[0]].parent = s->old[after].out;
    for (int64_t k = 0; k < n_parts(s, coll, how); k++) {
        emit_part(s, i, rows_of(s, coll, how, k), -1);
        if (after >= 0) emit_part(s, after, rows_of(s, coll, how, k), -1);
    }
}

/* Operations appended from here on have the phase and layer of `like`. */
static void set_phase(Split *s, const Op *like) {
    s->p->phase = like->phase, s->p->layer = like->layer;
}

/* Appends out = shift of `in` by k ranks along the axes of collective `like`. */
static void shift(Split *s, const Op *like, int64_t k, int out, int in) {
    set_phase(s, like);
    EMIT(s->p, OP_SHIFT, out, in);
    Op *op = &s->p->op[s->p->n_ops - 1];
    op->axes = like->axes, op->distance = (int)k;
}

/* Appends the parts of collective i, in front of the matmul that reads its result. */
static void emit_collective(Split *s, int i) {
    const Op *op = &s->old[i];
    int how = s->how[i], in = op->in[0];
    for (int64_t k = 0; k < n_parts(s, i, how); k++) {
        Rows r = rows_of(s, i, how, k);
        if (how == CHUNKS) {
            emit_part(s, i, r, -1);
        } else if (k > 0) {
            shift(s, op, k, part_of(s, op->out, r), in);
        } else {
            set_phase(s, op);
            EMIT(s->p, OP_COPY, part_of(s, op->out, r), in);
        }
    }
}

/* Appends matmul i and its reduce_scatter as a ring: the block of the next rank first, whose
 * partial sum is shifted to that rank, the rank's own block last, then the sum of the own block's
 * parts.
 *
 * Received parts are rows of one tensor, `came`. The additions read these rows as tensors that no
 * operation makes, so each addition waits for all received parts, and by its operand `own` for the
 * last matmul. So all ranks have one order of operations, though the index of the own part differs.
 * Each matmul waits for the one before by the operand `own`: otherwise a later block whose operand
 * arrives first would run first, and the last shift would have no matmul to run under. */
static void emit_ring_out(Split *s, int i) {
    const Op *scatter = &s->old[s->after[i]];
    int64_t X = mesh_blocks(s->p->mesh, scatter->axes), me = mesh_block(s->p->mesh, scatter->axes);
    int64_t rows = local_rows(s, scatter->out);
    int part[MAX_RING], own = -1; // part[r]: rank r's term of this rank's block; own: latest result
    int came = program_tensor_part(s->p, scatter->out);
    s->p->tensor[came].size[0] *= X - 1;
    for (int64_t k = 1; k <= X; k++) {
        own = emit_part(s, i, block((me + k) % X, rows), own);
        if (k == X) break;
        shift(s, scatter, k, program_rows(s->p, came, (k - 1) * rows, rows, 0), own);
        part[(me - k + X) % X] = program_rows(s->p, came, (k - 1) * rows, rows, 0);
    }
    part[me] = own;
    set_phase(s, scatter);
    for (int64_t step = 1; step < X; step *= 2)
        for (int64_t r = 0; r + step < X; r += 2 * step) {
            bool last = 2 * step >= X;
            int sum = last ? scatter->out : program_tensor_part(s->p, scatter->out);
            part[r] = EMIT(s->p, OP_ADD, sum, part[r], part[r + step], own);
        }
}

/* ---- the list ---- */

/* Appends the kernel or collective that begins with operation i, split or whole; returns the index
 * after it. */
static int emit(Split *s, int i) {
    int end = op_kernel_end(s->old, s->n_ops, i);
    if (s->how[i] == NOT_SPLIT)
        for (int k = i; k < end; k++) program_append(s->p, &s->old[k]);
    else if (s->how[i] == RING_OUT)
        emit_ring_out(s, i);
    else if (op_is_matmul(&s->old[i]))
        emit_matmul(s, i);
    else if (s->how[i] != WITH_MATMUL)
        emit_collective(s, i);
    return end;
}

void program_split(Program *p, int chunks, bool ring) {
    int parts = ring && MAX_RING > chunks ? MAX_RING : chunks;
    size_t n = (size_t)p->n_ops, tensors = (size_t)p->n_tensors;
    size_t all = 2 * n + tensors * (size_t)parts;
    Split s = {.p = p, .n_ops = p->n_ops, .chunks = chunks, .parts = parts, .ring = ring};
    int *memory = mem_alloc(all * sizeof *memory);
    s.before = memory, s.after = s.before + n, s.part = s.after + n;
    s.how = mem_calloc(n, sizeof *s.how);
    for (size_t t = 0; t < all; t++) memory[t] = -1;
    s.uses = program_uses(p), s.old = program_take(p);
    find_matmuls(&s);
    for (int i = 0; i < s.n_ops;) i = emit(&s, i);
    mem_free(s.old);
    mem_free(s.how), mem_free(s.uses.maker);
    mem_free(memory);
}
