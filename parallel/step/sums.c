/* sums -- the sums that complete the gradients of a step, in the list of its last micro-batch.
 *
 *   matrices of a layer    dmatrices [G] +d  = bucket          dqkv.weight, dattn_out.weight, ...
 *                          dmatrices [G]     = all_reduce d    dmatrices
 *   of zero1, one by one   dup.weight [C/d, N/x] = reduce_scatter d  dup.weight
 *   vectors of all layers  dvectors [G] +d.z = bucket          dqkv.bias, dup.bias, ...
 *                          dvectors [G]      = all_reduce d.z  dvectors
 *   with sp, stay=y also   dvectors [G] +d.x = bucket          dln1.weight, ddown.bias, ...
 *
 * A collective stands behind the last operation that adds to one of its gradients, so the scheduler
 * starts it under the backward of the layers before. The gradients of a bucket are contiguous in
 * memory (model.c), so OP_BUCKET copies nothing, and one all_reduce has the latency of one. Zero2
 * and zero3 have scattered the gradients of matrices in every micro-batch.
 *
 * Where neighbours along the axes of heads hold copies of a key head, their gradients are added
 * first. With --exact sums are of integers, and become floats here.
 *
 * Source: buckets are those of PyTorch's DistributedDataParallel (Li et al. 2020).
 */
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "parallel/step/program.h"

/* The gradient of a parameter. */
typedef struct Gradient {
    int dw, last; // tensor; the last operation that makes or adds to it, with its kernel
    bool matrix;
    int next; // of those with the same last operation; -1
} Gradient;

/* Gradients [i] whose sums begin together. */
typedef struct Bucket {
    int *i, n;
    int last; // operation
    int next; // as of gradients
} Bucket;

typedef struct Sums {
    Program *p;
    Gradient *gradient; // [n] in the order of the table of tensors
    int n;
    Bucket *bucket;
    int n_buckets;
    int *member; // [n] of all buckets
} Sums;

/* ---- the gradients ---- */

/* The last operation of a kernel that makes a tensor, or rows of it, for each. */
static int *last_makers(const Program *p) {
    int *last = mem_alloc((size_t)p->n_tensors * sizeof *last);
    for (int t = 0; t < p->n_tensors; t++) last[t] = -1;
    for (int i = 0, end; i < p->n_ops; i = end) {
        end = op_kernel_end(p->op, p->n_ops, i);
        for (int k = i; k < end; k++) {
            int whole = p->tensor[p->op[k].out].whole;
            last[p->op[k].out] = end - 1;
            if (whole >= 0) last[whole] = end - 1;
        }
    }
    return last;
}

/* Of both halves the second adds to what the first has made: its tensor is the gradient. */
static void find_gradients(Sums *s) {
    const Program *p = s->p;
    int *last = last_makers(p), n = 0;
    Gradient *of = s->gradient = mem_calloc((size_t)p->n_tensors, sizeof *of);
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensor[t].storage == STORAGE_PARAMETER)
            of[n++] =
                (Gradient){-1, -1, p->tensor[t].n_block != NO_FLAT_PARTS, -1}; // not of a vector
    for (int t = 0; t < p->n_tensors; t++) {
        const StepTensor *x = &p->tensor[t];
        if (x->storage != STORAGE_GRADIENT || last[t] <= of[x->parameter].last) continue;
        of[x->parameter].dw = t, of[x->parameter].last = last[t];
    }
    for (int i = 0; i < n; i++)
        if (of[i].dw >= 0) of[s->n++] = of[i];
    mem_free(last);
}

/* ---- buckets ---- */

static Axes to_be_summed(const Program *p, int t) {
    return grid_summed(p->grid, p->tensor[t].dist.partial);
}

static Bucket *add_bucket(Sums *s) {
    Bucket *b = &s->bucket[s->n_buckets], *before = b - 1;
    *b = (Bucket){.i = s->n_buckets ? before->i + before->n : s->member, .last = -1};
    s->n_buckets++;
    return b;
}

static void put(const Sums *s, Bucket *b, int i) {
    b->i[b->n++] = i;
    if (s->gradient[i].last > b->last) b->last = s->gradient[i].last;
}

/* Matrices of a layer, then vectors by the axes along which they are partial: the order in which
 * gradients lie in memory. */
static void find_buckets(Sums *s) {
    const Program *p = s->p;
    Bucket *b = NULL;
    s->bucket = mem_calloc((size_t)s->n + 1, sizeof *s->bucket);
    s->member = mem_calloc((size_t)s->n + 1, sizeof *s->member);
    for (int i = 0, layer = 0; i < s->n; i++) {
        if (!s->gradient[i].matrix) continue;
        int own = p->tensor[s->gradient[i].dw].layer;
        if (!b || own != layer || p->layout->zero > 0) b = add_bucket(s);
        layer = own;
        put(s, b, i);
    }
    for (int over_x = 0; over_x < 2; over_x++) {
        b = NULL;
        for (int i = 0; i < s->n; i++) {
            const Dist *d = &p->tensor[s->gradient[i].dw].dist;
            if (s->gradient[i].matrix || axes_has(d->partial, AXIS_X) != over_x) continue;
            if (!b) b = add_bucket(s);
            put(s, b, i);
        }
    }
}

/* ---- operations ---- */

/* A tensor of gradients in the memory of another one. */
static int in_memory_of(Program *p, int t, int dw) {
    p->tensor[t].storage = STORAGE_BUCKET, p->tensor[t].gradient = dw;
    return t;
}

/* All gradients of a bucket as one tensor. */
static int together(const Sums *s, const Bucket *b) {
    Program *p = s->p;
    int first = s->gradient[b->i[0]].dw, t = -1;
    int64_t size[] = {0, 1};
    Dist d = {.n_dims = 1, .dim = {"G"}, .partial = p->tensor[first].dist.partial};
    dist_name(d.name, s->gradient[b->i[0]].matrix ? "dmatrices" : "dvectors");
    for (int k = 0; k < b->n;) {
        int in[OP_INPUTS], n = 0;
        if (t >= 0) in[n++] = t;
        for (; n < OP_INPUTS && k < b->n; k++) {
            in[n++] = s->gradient[b->i[k]].dw;
            size[0] += step_tensor_aligned(p, &p->tensor[in[n - 1]]) / p->tensor[first].bytes;
        }
        t = program_tensor(p, d, size, p->tensor[first].bytes);
        program_emit(p, OP_BUCKET, in_memory_of(p, t, first), in, n);
    }
    return t;
}

static const char *what_of(const Gradient *g) {
    return g->matrix ? "gradients of matrices" : "gradients of vectors";
}

static Dist summed_type(const Program *p, int t) {
    Dist d = p->tensor[t].dist;
    d.partial = axes_without(d.partial, to_be_summed(p, t));
    return d;
}

/* The gradient of a matrix in the shard of its moments. */
static int scatter(Program *p, int dw, const char *what) {
    Dist to = summed_type(p, dw);
    int n_block = p->tensor[dw].n_block;
    to.shard[0].n = (uint8_t)n_block;
    to.shard[0] = axes_join(to.shard[0], layout_store(p->layout, STORE_MOMENTS));
    int t = program_redistribute(p, dw, &to, what);
    p->tensor[t].storage = STORAGE_GRADIENT;
    return t;
}

/* What is complete as integers becomes floats. */
static void round_gradients(const Sums *s, const Bucket *b, int sum) {
    Program *p = s->p;
    for (int k = 0; k < b->n; k++) {
        int dw = s->gradient[b->i[k]].dw;
        if (p->tensor[dw].bytes != sizeof(int64_t)) continue;
        bool alone = p->tensor[sum].storage == STORAGE_GRADIENT;
        int from = alone ? sum : dw, out = program_tensor_like(p, from);
        p->tensor[out].bytes = sizeof(float), p->tensor[out].storage = STORAGE_GRADIENT;
        p->tensor[out].dist = summed_type(p, from);
        p->layer = p->tensor[out].layer = p->tensor[dw].layer;
        EMIT(p, OP_ROUND, out, from, alone ? -1 : sum);
    }
}

static void sum_bucket(const Sums *s, const Bucket *b) {
    Program *p = s->p;
    const Gradient *first = &s->gradient[b->i[0]];
    int t = first->dw;
    p->phase = PHASE_BACKWARD, p->layer = first->matrix ? p->tensor[t].layer : -1;
    if (to_be_summed(p, t).n == 0) {
        for (int k = 0; k < b->n; k++) {
            Bucket one = {&b->i[k], 1, b->last, -1};
            round_gradients(s, &one, s->gradient[b->i[k]].dw);
        }
        return;
    }
    if (first->matrix && p->layout->zero > 0) {
        t = scatter(p, t, what_of(first));
    } else {
        t = together(s, b);
        Dist to = summed_type(p, t);
        t = in_memory_of(p, program_redistribute(p, t, &to, what_of(first)), first->dw);
    }
    round_gradients(s, b, t);
}

/* ---- copies of key and value heads ---- */

/* Elements of key and value heads in what this rank stores of a gradient. */
static int64_t copied_elements(const TensorTable *table, const StepTensor *dw) {
    int64_t n = 0, queries = table->config.heads * config_head_size(&table->config);
    TensorRun r;
    for (TensorRuns i = tensor_runs(&table->t[dw->parameter], PART_GRAD, false);
         tensor_next(&i, &r);)
        if (r.col >= queries) n += r.n;
    return n;
}

/* Key and value heads of a gradient are copied out of it, added, and copied back. */
static void add_copies(Program *p, const TensorTable *table, Gradient *g) {
    const char *name = p->tensor[g->dw].dist.name;
    if (strncmp(name, "dqkv.", 5) != 0) return;
    p->layer = p->tensor[g->dw].layer, p->phase = PHASE_BACKWARD;
    Dist d = {.n_dims = 1, .dim = {"G"}, .partial = p->tensor[g->dw].dist.partial};
    dist_name(d.name, "dkv");
    int64_t size[] = {copied_elements(table, &p->tensor[g->dw]), 1};
    int kv = EMIT(p, OP_PACK_COPIES, program_tensor(p, d, size, sizeof(float)), g->dw);
    int sum = program_tensor_like(p, kv);
    p->tensor[sum].what = "gradients of copied heads";
    EMIT(p, OP_ALL_REDUCE, sum, kv);
    p->op[p->n_ops - 1].axes = grid_hidden_axes(p->grid);
    p->op[p->n_ops - 1].copies = true;
    int dw = program_tensor_like(p, g->dw);
    p->tensor[dw].storage = STORAGE_GRADIENT;
    g->dw = EMIT(p, OP_UNPACK_COPIES, dw, g->dw, sum);
}

/* ---- the walk ---- */

void program_sums(Program *p) {
    Sums s = {.p = p};
    TensorTable table = tensors_describe(&p->shape->config);
    bool copies = grid_head_copies(p->grid, &p->shape->config).max > 1;
    shard_tensors(&table, p->grid, false);
    find_gradients(&s);
    find_buckets(&s);
    int n = p->n_ops, *complete = mem_alloc(2 * (size_t)n * sizeof *complete), *full = complete + n;
    for (int i = 0; i < n; i++) complete[i] = full[i] = -1;
    for (int g = s.n; g-- > 0 && copies;)
        s.gradient[g].next = complete[s.gradient[g].last], complete[s.gradient[g].last] = g;
    for (int b = s.n_buckets; b-- > 0;)
        s.bucket[b].next = full[s.bucket[b].last], full[s.bucket[b].last] = b;
    Op *old = program_take(p);
    for (int i = 0; i < n; i++) {
        program_append(p, &old[i]);
        for (int g = complete[i]; g >= 0; g = s.gradient[g].next)
            add_copies(p, &table, &s.gradient[g]);
        for (int b = full[i]; b >= 0; b = s.bucket[b].next) sum_bucket(&s, &s.bucket[b]);
    }
    mem_free(old), mem_free(complete);
    mem_free(s.gradient), mem_free(s.bucket), mem_free(s.member);
    tensors_free(&table);
}
