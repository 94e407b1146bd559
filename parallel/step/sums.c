/* sums -- the sums that complete the gradients of a step. They run in its last micro-batch alone.
 *
 *   matrices of a layer    dmatrices [G]     = all_reduce d      dmatrices: dqkv.weight, ...
 *   of zero1, one by one   dup.weight [C/d, N/x] = reduce_scatter d  dup.weight
 *   vectors of all layers  dvectors [G]      = all_reduce d.z    dvectors: dqkv.bias, ...
 *   with sp, stay=y also   dvectors.x [G]    = all_reduce d.z.x  dvectors.x: dln1.weight, ...
 *   with QK-norm           dvectors.x [G]    = all_reduce d.z.x  dqk_norm.weight; with heads and
 *                                                                stay=y over y, too
 *
 * The collective of a bucket follows the last operation that adds to any gradient of the bucket. So
 * the scheduler can start the all_reduce of layer l during the backward of layers l-1, l-2, ... The
 * gradients of a bucket are contiguous in memory (model.c): nothing is copied, and a bucket costs
 * the latency of a single collective. Along z, with zero2 and zero3 also along d, gradients of
 * matrices need no sum here: differentiate.c reduce-scatters them in every micro-batch.
 *
 * Where neighbouring ranks along the axes of heads hold copies of one key head (fewer key heads
 * than ranks), the gradients of the copies are summed first. With --exact all sums are of integers,
 * and each gradient is rounded to floats when its sum is complete.
 *
 * Source: buckets are those of PyTorch's DistributedDataParallel (Li et al. 2020).
 */
#include <string.h>

#include "base/mem.h"
#include "parallel/step/program.h"

/* The gradient of a parameter. */
typedef struct Gradient {
    int dw;      // tensor
    int last_op; // end of the last kernel that makes dw or adds to dw: its last operation
    bool matrix;
    int axes; // number of axes along which dw is partial; orders gradients in memory (model.c)
} Gradient;

/* Gradients that one collective sums. */
typedef struct Bucket {
    Gradient *g; // [n]
    int n;
    int last_op; // the latest last_op of the n gradients
} Bucket;

typedef struct Sums {
    Program *p;
    Gradient *gradient; // [n] in their order in memory, in which buckets are contiguous
    int n;
    Bucket *bucket;
    int n_buckets;
} Sums;

/* ---- the gradients ---- */

/* Finds the final gradient of each parameter: the result of the last kernel that makes the gradient
 * or rows of it. With --overlap halves two kernels do: the second half's adds to the first half's
 * result, and makes the final one. */
static void find_gradients(Sums *s, const TensorTable *table) {
    const Program *p = s->p;
    int n = table->n;
    Gradient *found = mem_calloc((size_t)n, sizeof *found); // by row of the table
    for (int i = 0; i < n; i++)
        found[i] = (Gradient){-1, -1, shard_has_flat_parts(table, i),
                              shard_partial_axes(table, i, p->layout).n};
    for (int i = 0; i < p->n_ops; i++) {
        int t = p->op[i].out, end = op_kernel_end(p->op, p->n_ops, i) - 1;
        if (p->tensor[t].parent >= 0) t = p->tensor[t].parent;
        if (p->tensor[t].storage != STORAGE_GRADIENT) continue;
        Gradient *g = &found[p->tensor[t].parameter];
        g->dw = t, g->last_op = end;
    }
    s->gradient = mem_calloc((size_t)n, sizeof *found);
    for (int axes = 1; axes <= N_AXES; axes++)
        for (int i = 0; i < n; i++)
            if (found[i].dw >= 0 && found[i].axes == axes) s->gradient[s->n++] = found[i];
    mem_free(found);
}

/* ---- buckets ---- */

/* Axes along which the pending sum of tensor t is reduced here: not d while replicas take local
 * steps. */
static Axes to_be_summed(const Program *p, int t) {
    return grid_summed_axes(p->grid, p->tensor[t].dist.partial);
}

/* Do gradients a and b belong to one bucket? They do where they are partial along the same axes and
 * both are vectors, or both are matrices of one layer. With ZeRO each matrix is scattered alone. */
static bool in_one_bucket(const Program *p, const Gradient *a, const Gradient *b) {
    const StepTensor *x = &p->tensor[a->dw], *y = &p->tensor[b->dw];
    if (a->matrix != b->matrix || !axes_equal(x->dist.partial, y->dist.partial)) return false;
    return !a->matrix || (p->layout->zero == 0 && x->layer == y->layer);
}

/* Splits the gradients, in their order in memory, into buckets of neighbours. */
static void find_buckets(Sums *s) {
    s->bucket = mem_calloc((size_t)s->n + 1, sizeof *s->bucket);
    for (Gradient *g = s->gradient; g < s->gradient + s->n; g++) {
        if (g == s->gradient || !in_one_bucket(s->p, g - 1, g))
            s->bucket[s->n_buckets++] = (Bucket){.g = g, .last_op = -1};
        Bucket *b = &s->bucket[s->n_buckets - 1];
        b->n++;
        if (g->last_op > b->last_op) b->last_op = g->last_op;
    }
}

/* ---- operations ---- */

/* Lets tensor t lie in the memory of gradient dw. */
static int in_memory_of(Program *p, int t, int dw) {
    p->tensor[t].storage = STORAGE_BUCKET, p->tensor[t].gradient = dw;
    return t;
}

/* A tensor [G] of all gradients of a bucket. */
static int bucket_of(Program *p, const Bucket *b) {
    int first = b->g->dw;
    CollType dtype = p->tensor[first].dtype;
    int64_t size[] = {0, 1};
    Dist d = {.n_dims = 1, .dim = {"G"}, .partial = p->tensor[first].dist.partial};
    char axes[2 * N_AXES + 1];
    Axes more = axes_without(d.partial, axes_of("d.z"));
    dist_name(d.name, b->g->matrix ? "dmatrices" : "dvectors");
    if (!b->g->matrix && more.n) dist_join(d.name, "dvectors.", axes_print(more, axes));
    for (int k = 0; k < b->n; k++)
        size[0] += step_tensor_aligned(p, &p->tensor[b->g[k].dw]) / coll_type_bytes(dtype);
    int t = in_memory_of(p, program_tensor(p, d, size, dtype), first);
    for (int k = 0; k < b->n; k++) p->tensor[b->g[k].dw].bucket = t;
    return t;
}

static Dist summed_type(const Program *p, int t) {
    Dist d = p->tensor[t].dist;
    d.partial = axes_without(d.partial, to_be_summed(p, t));
    return d;
}

/* Reduce-scatters the gradient of a matrix to the shard whose moments this rank stores. The type of
 * the result has the flat parts of the moments in place of the gradient's coarser ones. */
static int scatter_matrix(Program *p, int dw) {
    Dist to = summed_type(p, dw);
    int n_block = p->tensor[dw].n_block;
    to.shard[0].n = (uint8_t)n_block;
    to.shard[0] = axes_join(to.shard[0], layout_store(p->layout, STORE_MOMENTS));
    int t = program_redistribute(p, dw, &to, "gradients of matrices");
    p->tensor[t].storage = STORAGE_GRADIENT;
    return t;
}

/* --exact: rounds a gradient whose sum of integers is complete to floats. sum: the result of the
 * collective; -1: no collective was needed. The floats have the type of the scattered shard where
 * `sum` is one, else of dw. */
static void round_gradient(Program *p, int dw, int sum) {
    bool scattered = sum >= 0 && p->tensor[sum].storage == STORAGE_GRADIENT;
    int from = scattered ? sum : dw, out = program_tensor_like(p, from);
    p->tensor[out].dtype = COLL_F32, p->tensor[out].storage = STORAGE_GRADIENT;
    p->tensor[out].dist = summed_type(p, from);
    p->layer = p->tensor[out].layer = p->tensor[dw].layer;
    EMIT(p, OP_ROUND, out, from, scattered ? -1 : sum);
}

/* Appends the collective of a bucket: a reduce_scatter of its matrix with ZeRO, else an all_reduce
 * of the bucket. With --exact roundings follow. */
static void sum_bucket(Program *p, const Bucket *b) {
    const Gradient *first = b->g;
    int sum = -1;
    p->layer = first->matrix ? p->tensor[first->dw].layer : -1;
    if (to_be_summed(p, first->dw).n > 0 && first->matrix && p->layout->zero > 0) {
        sum = scatter_matrix(p, first->dw);
    } else if (to_be_summed(p, first->dw).n > 0) {
        const char *what = first->matrix ? "gradients of matrices" : "gradients of vectors";
        sum = bucket_of(p, b);
        Dist to = summed_type(p, sum);
        sum = in_memory_of(p, program_redistribute(p, sum, &to, what), first->dw);
    }
    for (int k = 0; k < b->n; k++)
        if (p->tensor[b->g[k].dw].dtype == COLL_I64) round_gradient(p, b->g[k].dw, sum);
}

/* ---- copies of key and value heads ---- */

/* Elements of key and value heads in the part of gradient dw that this rank stores. */
static int64_t copied_elements(const TensorTable *table, const StepTensor *dw) {
    int64_t n = 0, queries = table->config.heads * config_head_size(&table->config);
    TensorRun r;
    for (TensorRuns i = tensor_runs(&table->t[dw->parameter], PART_GRAD, false);
         tensor_next(&i, &r);)
        if (r.col >= queries) n += r.n;
    return n;
}

/* Sums the gradients of copied key and value heads: packs these heads out of dqkv.weight and
 * dqkv.bias, all-reduces them among the ranks that hold copies, unpacks the sums again. */
static void add_kv_copies(Program *p, const TensorTable *table, Gradient *g) {
    const char *name = p->tensor[g->dw].dist.name;
    if (strncmp(name, "dqkv.", 5) != 0) return;
    p->layer = p->tensor[g->dw].layer;
    Dist d = {.n_dims = 1, .dim = {"G"}, .partial = p->tensor[g->dw].dist.partial};
    dist_name(d.name, "dkv");
    int64_t size[] = {copied_elements(table, &p->tensor[g->dw]), 1};
    int kv = EMIT(p, OP_PACK_COPIES, program_tensor(p, d, size, COLL_F32), g->dw);
    int sum = program_tensor_like(p, kv);
    p->tensor[sum].what = "gradients of copied heads";
    EMIT(p, OP_ALL_REDUCE, sum, kv);
    p->op[p->n_ops - 1].axes = grid_hidden_axes(p->grid);
    p->op[p->n_ops - 1].kv = true;
    int dw = program_tensor_like(p, g->dw);
    p->tensor[dw].storage = STORAGE_GRADIENT;
    g->dw = EMIT(p, OP_UNPACK_COPIES, dw, g->dw, sum);
}

/* ---- the walk ---- */

void program_sums(Program *p) {
    Sums s = {.p = p};
    TensorTable table = tensors_describe(&p->shape->config);
    bool kv_copies = grid_head_copies(p->grid, &p->shape->config).max > 1;
    if (kv_copies) shard_tensors(&table, p->grid, false);
    find_gradients(&s, &table);
    find_buckets(&s);
    int n = p->n_ops;
    p->phase = PHASE_SUMS;
    Op *old = program_take(p);
    for (int i = 0; i < n; i++) {
        program_append(p, &old[i]);
        for (int g = 0; kv_copies && g < s.n; g++)
            if (s.gradient[g].last_op == i) add_kv_copies(p, &table, &s.gradient[g]);
        for (int b = 0; b < s.n_buckets; b++)
            if (s.bucket[b].last_op == i) sum_bucket(p, &s.bucket[b]);
    }
    mem_free(old), mem_free(s.gradient), mem_free(s.bucket);
    tensors_free(&table);
}
