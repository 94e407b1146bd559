/* allocate -- places temporaries: an offset in one arena for each, from its life in the list.
 *
 *   operations   0    1    2    3    4    5    6
 *   x            [==================]             life: from the operation that makes
 *   h            .    [=========]                 it to the last that reads it
 *   qkv          .    .    [==============]
 *   datt         .    .    .    .    [=========]  takes the memory of h, which is over
 *
 * The peak is the memory of the step. Tensors that share memory are one block:
 *   in place     an elementwise kernel writes its result over an operand that no operation reads
 *                later; so does an all_reduce, from its start to its wait
 *   rows         rows of a parent lie in the parent
 *   gradients    a result that is added to a stored gradient lies where the gradient is stored
 * A value between operations that are fused in one kernel is in registers and has no memory, unless
 * an operation outside of the kernel reads it, or ranks access it in each other's memory: the
 * operand of a reduce_scatter in the kernel, on devices also the result of an all_gather there.
 *
 * Blocks are placed one after the other, each at the lowest offset that is free during its life.
 * Three orders are tried, and the one with the lowest peak is kept: longest life first, largest
 * block first (Pisarchyk, Lee 2020), largest product of both first.
 */
#include <stdlib.h>

#include "base/arena.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/step/program.h"

/* Tensors that share memory. */
typedef struct Block {
    int64_t bytes, offset;
    int begin, end; // life: index of the first and of the last operation
    int tensor;     // the tensor by which block_of() names the block
} Block;

typedef struct Life {
    const Program *p;
    int *kernel; // [ops] the first operation of its kernel
    int *block;  // [tensors] union-find: another tensor of its block, or itself; block_of()
    // of a block, at its tensor block_of():
    int *made, *read; // [tensors] the first kernel that makes it, the last that reads it; -1: none
    bool *inner;      // [tensors] only the kernel that makes it reads it
    bool *fixed;      // [tensors] neither overwritten nor placed over an operand: rows of a
                      // parent, or not in the arena
} Life;

/* Does a tensor lie outside of the arena of temporaries, in memory that several lists share? */
static bool outside_arena(const StepTensor *t) {
    return t->storage != STORAGE_TEMPORARY && t->storage != STORAGE_GRADIENT;
}

static int block_of(const Life *l, int t) {
    while (l->block[t] != t) t = l->block[t];
    return t;
}

/* Unites the block of tensor b with the block of tensor a. */
static void join(Life *l, int a, int b) {
    a = block_of(l, a), b = block_of(l, b);
    l->block[b] = a;
    if (l->made[a] < 0 || (l->made[b] >= 0 && l->made[b] < l->made[a])) l->made[a] = l->made[b];
    if (l->read[b] > l->read[a]) l->read[a] = l->read[b];
    l->inner[a] &= l->inner[b], l->fixed[a] |= l->fixed[b];
}

int64_t step_tensor_bytes(const Program *p, const StepTensor *t) {
    int64_t n = t->stride ? step_tensor_local(p, t, 0) * t->stride : step_tensor_elements(p, t);
    return n * coll_type_bytes(t->dtype);
}

int64_t step_tensor_aligned(const Program *p, const StepTensor *t) {
    return div_up(step_tensor_bytes(p, t), ARENA_ALIGN) * ARENA_ALIGN;
}

/* The operands over which an operation may write its result, the better one first; -1: none. A sum
 * may overwrite either operand. */
static void operands_in_place(const Op *op, int operand[2]) {
    operand[0] = operand[1] = -1;
    if (op->adds) operand[0] = op->in[op->n_in - 1];
    if (op_info(op->kind)->in_place) operand[0] = op->in[0];
    if (op->kind == OP_ADD) operand[0] = op->in[1], operand[1] = op->in[0];
    if (op->kind == OP_SQUARES && op->n_in > 1) operand[0] = op->in[1];
}

/* Does the result fit the memory of the operand? Both have the same bytes, except for a stored
 * gradient: its memory has the padding of flat parts at the end, too. */
static bool fits(const Program *p, const StepTensor *result, const StepTensor *operand) {
    int64_t more = step_tensor_bytes(p, result) - step_tensor_bytes(p, operand);
    return more == 0 || (more > 0 && result->storage == STORAGE_GRADIENT);
}

/* Is operation i the last to read block b? A collective reads until it is waited for. */
static bool reads_last(const Life *l, int i, int b) {
    const Op *op = l->p->op;
    int last = l->read[b];
    if (last <= l->kernel[i]) return true;
    for (int k = i + 1; k <= last; k++) {
        if (op[k].kind == OP_WAIT && op[k].in[0] == op[i].out) return k == last;
        for (int in = 0; in < op[k].n_in; in++)
            if (block_of(l, op[k].in[in]) == b) return false;
    }
    return false;
}

/* May operation i write its result over tensor t? Only if operation i is the last to read the
 * memory of t. The result may be a stored gradient, t may not. */
static bool may_overwrite(const Life *l, int i, int t) {
    const Program *p = l->p;
    int b = block_of(l, t), out = p->op[i].out;
    return p->tensor[t].storage == STORAGE_TEMPORARY && !l->fixed[b] &&
           !l->fixed[block_of(l, out)] && fits(p, &p->tensor[out], &p->tensor[t]) &&
           reads_last(l, i, b);
}

/* Unites the result of operation i with an operand that it may overwrite. An operand made by an
 * earlier kernel is preferred to one inside of the same kernel, which has no memory. */
static void reuse(Life *l, int i) {
    int operand[2];
    operands_in_place(&l->p->op[i], operand);
    for (int inner = 0; inner < 2; inner++)
        for (int k = 0; k < 2; k++) {
            if (operand[k] < 0 || l->inner[block_of(l, operand[k])] != inner) continue;
            if (!may_overwrite(l, i, operand[k])) continue;
            join(l, operand[k], l->p->op[i].out);
            return;
        }
}

/* Kernel `kernel` makes tensor t, which lives at least as long as this kernel runs. */
static void make(Life *l, int t, int kernel) {
    l->made[t] = kernel;
    l->read[t] = l->read[t] > kernel ? l->read[t] : kernel;
}

/* Sets kernel, made and read from the list, and inner of tensors that another kernel reads. */
static void find_lives(Life *l) {
    const Program *p = l->p;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        int at = l->kernel[i] = op->fused ? l->kernel[i - 1] : i;
        if (op->kind != OP_WAIT) make(l, op->out, at);
        if (op->out2 >= 0) make(l, op->out2, at);
        for (int k = 0; k < op->n_in; k++) {
            int t = op->in[k];
            if (l->read[t] < at) l->read[t] = at;
            if (l->made[t] != at && op->kind != OP_WAIT) l->inner[t] = false;
        }
    }
}

/* Clears inner of values that are not in registers: values that no operation reads, the result of
 * the list, results of collectives, and the operand of a reduce_scatter in a kernel. The result of
 * an all_gather in a kernel has memory on devices alone. */
static void find_inner(Life *l) {
    const Program *p = l->p;
    Uses uses = program_uses(p);
    for (int t = 0; t < p->n_tensors; t++) // a parent is read where its rows are
        if (p->tensor[t].parent >= 0) uses.readers[p->tensor[t].parent]++;
    for (int t = 0; t < p->n_tensors; t++) l->inner[t] &= uses.readers[t] > 0 && t != p->result;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        bool stored = p->copied || op->kind != OP_ALL_GATHER || !op_in_kernel(p, i);
        if (op->fused && op->kind == OP_REDUCE_SCATTER) l->inner[op->in[0]] = false;
        if (op_info(op->kind)->collective && stored) l->inner[op->out] = false;
    }
    mem_free(uses.maker);
}

static int by_size(const void *a, const void *b) {
    const Block *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->tensor - y->tensor;
}

static int by_life(const void *a, const void *b) {
    const Block *x = a, *y = b;
    int64_t lx = x->end - x->begin, ly = y->end - y->begin;
    if (lx != ly) return lx < ly ? 1 : -1;
    return by_size(a, b);
}

/* The size of a block in bytes times the operations of its life. */
static int by_area(const void *a, const void *b) {
    const Block *x = a, *y = b;
    int64_t ax = (x->end - x->begin + 1) * x->bytes, ay = (y->end - y->begin + 1) * y->bytes;
    if (ax != ay) return ax < ay ? 1 : -1;
    return x->tensor - y->tensor;
}

/* The lowest offset at which block b overlaps none of the n placed blocks whose lives overlap its
 * life. placed: sorted by offset. */
static int64_t lowest(const Block *placed, int n, const Block *b) {
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (placed[i].end < b->begin || placed[i].begin > b->end) continue;
        if (placed[i].offset >= at + b->bytes) break;
        at = max_i64(at, placed[i].offset + placed[i].bytes);
    }
    return at;
}

/* Places blocks in this order, each at its lowest free offset; returns the peak in bytes. The time
 * is quadratic in the number of blocks: 15 to 500 ms for the list of 256 layers, with stay=y 1.4
 * seconds. */
static int64_t place(Block *block, int n, int (*order)(const void *, const void *)) {
    Block *placed = mem_calloc((size_t)n + 1, sizeof *placed);
    int64_t peak = 0;
    qsort(block, (size_t)n, sizeof *block, order);
    for (int i = 0, k; i < n; i++) {
        Block *b = &block[i];
        b->offset = lowest(placed, i, b);
        for (k = i; k > 0 && placed[k - 1].offset > b->offset; k--) placed[k] = placed[k - 1];
        placed[k] = *b;
        peak = max_i64(peak, b->offset + b->bytes);
    }
    mem_free(placed);
    return peak;
}

/* The most bytes that are in use at the same time: no placement has a lower peak. */
static int64_t most_in_use(const Block *block, int n, int n_ops) {
    int64_t *change = mem_calloc((size_t)n_ops + 2, sizeof *change), in_use = 0, most = 0;
    for (int i = 0; i < n; i++)
        change[block[i].begin] += block[i].bytes, change[block[i].end + 1] -= block[i].bytes;
    for (int i = 0; i <= n_ops; i++) {
        in_use += change[i];
        most = max_i64(most, in_use);
    }
    mem_free(change);
    return most;
}

/* Places blocks in the best of three orders; returns the peak. Stops early at the lower bound. */
static int64_t place_best(Block *block, int n, int n_ops) {
    int (*const orders[])(const void *, const void *) = {by_life, by_size, by_area};
    int64_t least = INT64_MAX, bound = most_in_use(block, n, n_ops);
    int best = 0, i = 0;
    for (; i < 3 && least > bound; i++) {
        int64_t peak = place(block, n, orders[i]);
        if (peak < least) least = peak, best = i;
    }
    return best == i - 1 ? least : place(block, n, orders[best]);
}

/* Finds the lives of all tensors, then unites tensors into blocks: rows with their parent, results
 * with operands that they may overwrite. */
static Life life_make(const Program *p) {
    size_t n = (size_t)p->n_tensors;
    Life l = {.p = p};
    l.kernel = mem_alloc((3 * n + (size_t)p->n_ops) * sizeof *l.kernel);
    l.block = l.kernel + p->n_ops, l.made = l.block + n, l.read = l.made + n;
    l.inner = mem_alloc(2 * n * sizeof *l.inner);
    l.fixed = l.inner + n;
    for (int t = 0; t < p->n_tensors; t++) {
        l.block[t] = t, l.made[t] = l.read[t] = -1, l.inner[t] = true;
        l.fixed[t] = outside_arena(&p->tensor[t]) || p->tensor[t].parent >= 0;
    }
    find_lives(&l);
    find_inner(&l);
    if (p->n_tensors > 0) l.read[p->result] = p->n_ops; // the caller reads it after the list
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensor[t].parent >= 0) join(&l, p->tensor[t].parent, t);
    for (int i = 0; i < p->n_ops; i++) reuse(&l, i);
    return l;
}

/* Sets StepTensor.gradient, the stored gradient in whose memory a tensor lies; -1: none. Buckets
 * have theirs from sums.c. */
static void find_gradients(const Life *l, Program *p) {
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensor[t].storage != STORAGE_BUCKET) p->tensor[t].gradient = -1;
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensor[t].storage == STORAGE_GRADIENT) p->tensor[block_of(l, t)].gradient = t;
    for (int t = 0; t < p->n_tensors; t++)
        p->tensor[t].gradient = p->tensor[block_of(l, t)].gradient;
}

/* The n blocks that need memory in the arena, each with the bytes of its largest tensor. */
static Block *make_blocks(const Life *l, int *n) {
    const Program *p = l->p;
    Block *block = mem_calloc((size_t)p->n_tensors + 1, sizeof *block);
    int *number = mem_alloc((size_t)p->n_tensors * sizeof *number);
    *n = 0;
    for (int t = 0; t < p->n_tensors; t++) {
        const StepTensor *x = &p->tensor[t];
        bool none = outside_arena(x) || x->gradient >= 0 || l->made[t] < 0 || l->inner[t];
        number[t] = -1;
        if (block_of(l, t) != t || none) continue;
        block[*n] = (Block){.begin = l->made[t], .end = l->read[t], .tensor = t};
        number[t] = (*n)++;
    }
    for (int t = 0; t < p->n_tensors; t++) {
        int k = number[block_of(l, t)];
        if (k >= 0) block[k].bytes = max_i64(block[k].bytes, step_tensor_aligned(p, &p->tensor[t]));
    }
    mem_free(number);
    return block;
}

/* Sets the offset of each tensor: the offset of its block, for rows plus their distance in it. */
static void set_offsets(const Life *l, Program *p, const Block *block, int n) {
    int64_t *offset = mem_alloc((size_t)p->n_tensors * sizeof *offset);
    for (int t = 0; t < p->n_tensors; t++) offset[t] = -1;
    for (int i = 0; i < n; i++) offset[block[i].tensor] = block[i].offset;
    for (int t = 0; t < p->n_tensors; t++) {
        StepTensor *x = &p->tensor[t];
        x->offset = offset[block_of(l, t)];
        if (x->offset >= 0 && x->parent >= 0) x->offset += step_tensor_begin(p, x);
    }
    mem_free(offset);
}

size_t program_allocate(Program *p) {
    Life l = life_make(p);
    int n;
    find_gradients(&l, p);
    Block *block = make_blocks(&l, &n);
    p->kept = 0;
    for (int i = 0; i < n; i++) // in use when the result, the loss, is made
        if (block[i].begin <= l.made[p->result] && block[i].end > l.made[p->result])
            p->kept += block[i].bytes;
    int64_t peak =
        p->shape->unplaced ? most_in_use(block, n, p->n_ops) : place_best(block, n, p->n_ops);
    set_offsets(&l, p, block, n);
    mem_free(block), mem_free(l.kernel), mem_free(l.inner);
    return (size_t)peak;
}
