/* run_bind -- plans the lists of a model and gives their tensors addresses. Temporaries lie in an
 * arena, at the offsets of program_allocate. Weights, gradients and moments lie where the table of
 * tensors stores them. */
#include <assert.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/step/passes.h"
#include "parallel/step/run.h"
#include "parallel/step/run_call.h"

/* ---- lists ---- */

/* Size of the staging buffer: bytes of the largest tensor that a collective sends in strided blocks
 * (columns, or rows that are not adjacent). */
static size_t staging_bytes(const Program *p) {
    size_t most = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        const StepTensor *whole = &p->tensor[op->kind == OP_ALL_GATHER ? op->out : op->in[0]];
        if (!op_info(op->kind)->collective || (op->dim != 1 && !whole->every)) continue;
        most = max_size(most, (size_t)step_tensor_bytes(p, whole));
    }
    return most;
}

static size_t caches_bytes(const Program *p) {
    size_t bytes = 0;
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensor[t].storage == STORAGE_CACHE)
            bytes += (size_t)step_tensor_aligned(p, &p->tensor[t]);
    return bytes;
}

/* Makes a list of the model and plans its memory. */
static void plan(StepRun *r, int list, const ModelShape *shape, const Kernels *k) {
    Bound *b = &r->list[list];
    b->shape = *shape;
    b->p = list < END ? program_passes(&b->shape, PASS_SCHEDULE, k)
                      : program_end_passes(&b->shape, PASS_SCHEDULE, k, list == CASTS);
    b->bytes = program_allocate(&b->p);
    if (kernels_on_device(k)) b->staging.n_bytes = staging_bytes(&b->p);
    size_t n = (size_t)b->p.n_tensors;
    b->at_first = mem_calloc(2 * n, sizeof *b->at_first), b->at_later = b->at_first + n;
    b->ticket = mem_calloc(n, sizeof *b->ticket);
}

void step_run_plan_end(StepRun *r, const Kernels *k) {
    plan(r, END, &r->list[TRAIN].shape, k);
    while (r->list[END].p.op[r->clip].kind != OP_CLIP) r->clip++;
}

size_t step_run_place(StepRun *r) {
    Bound *b = &r->list[TRAIN];
    size_t in_use = b->bytes;
    b->shape.unplaced = false; // b->p has this shape
    b->bytes = program_allocate(&b->p);
    return b->bytes - in_use;
}

StepRun *step_run_plan(const Model *m) {
    StepRun *r = mem_calloc(1, sizeof *r);
    ModelShape s = m->shape;
    s.B = m->B;
    s.overlap.halves = m->halves > 1;
    if (s.training) plan(r, TRAIN, &s, m->k);
    if (s.step_alone) return r;
    if (s.training) step_run_plan_end(r, m->k);
    if (has_bf16_copies(m) && s.output == OUTPUT_LOSSES) plan(r, CASTS, &s, m->k);
    s.training = false;
    plan(r, FORWARD, &s, m->k);
    s.S = 1;
    if (s.output == OUTPUT_NEXT) plan(r, NEXT, &s, m->k);
    return r;
}

void step_run_free(StepRun *r) {
    for (int i = 0; r && i < N_LISTS; i++) {
        program_free(&r->list[i].p);
        mem_free(r->list[i].at_first), mem_free(r->list[i].ticket);
    }
    mem_free(r);
}

/* ---- addresses ---- */

const Tensor *step_run_row(const Model *m, const StepTensor *t) {
    assert(t->parameter >= 0 && m->tensors.t[t->parameter].layer == t->layer);
    return &m->tensors.t[t->parameter];
}

/* Address of tensor x of the list inside the stored tensor `row`. This rank may store several flat
 * shards of the tensor, of which x is one. */
static char *in_storage(const Model *m, const Program *p, const StepTensor *x, const Tensor *row) {
    void *grad = x->dtype == COLL_I64 ? (void *)m->grad_64[row - m->tensors.t] : row->grad;
    const struct {
        void *base;
        TensorPart part;
    } stored[N_STORAGES] = {[STORAGE_WEIGHT] = {row->cast, PART_CAST},
                            [STORAGE_GRADIENT] = {grad, PART_GRAD},
                            [STORAGE_MASTER] = {row->param, PART_PARAM},
                            [STORAGE_MOMENT] = {row->m, PART_MOMENTS},
                            [STORAGE_SECOND_MOMENT] = {row->v, PART_MOMENTS}};
    TensorPart part = stored[x->storage].part;
    Axes flat = axes_none();
    for (int i = x->n_block; i < x->dist.shard[0].n; i++)
        flat.axis[flat.n++] = x->dist.shard[0].axis[i];
    int64_t n = step_tensor_elements(p, x), begin = mesh_block(p->mesh, flat) * n;
    assert(begin >= row->begin[part] && begin + n <= row->end[part]);
    return (char *)stored[x->storage].base + (begin - row->begin[part]) * coll_type_bytes(x->dtype);
}

/* Does a gradient lie in its bucket? */
static bool in_bucket(const Bound *b, int gradient, int bucket) {
    int64_t at = b->at_first[gradient] - b->at_first[bucket],
            end = at + step_tensor_bytes(&b->p, &b->p.tensor[gradient]);
    return at >= 0 && end <= step_tensor_bytes(&b->p, &b->p.tensor[bucket]);
}

/* Sets the addresses of all tensors of a list. base: memory of temporaries. cache: memory of the
 * key-value cache, all layers. */
static void bind(Bound *b, const Model *m, char *base, char *cache) {
    const Program *p = &b->p;
    for (int t = 0; t < p->n_tensors; t++) {
        const StepTensor *x = &p->tensor[t], *own = x->gradient < 0 ? x : &p->tensor[x->gradient];
        char *at = x->offset < 0 ? NULL : base + x->offset;
        if (x->storage == STORAGE_CACHE) {
            at = cache + x->layer * step_tensor_aligned(p, x);
        } else if (own->storage != STORAGE_TEMPORARY) {
            at = in_storage(m, p, own, step_run_row(m, own));
            if (own != x) at += step_tensor_begin(p, x);
        } else if (x->parent >= 0 && x->offset < 0 && b->at_first[x->parent]) { // part of a weight
            at = b->at_first[x->parent] + step_tensor_begin(p, x);
        }
        b->at_first[t] = b->at_later[t] = at;
    }
    for (int t = 0; t < p->n_tensors; t++)
        assert(p->tensor[t].bucket < 0 || in_bucket(b, t, p->tensor[t].bucket));
    // In the first micro-batch a part of a gradient is received where the gradient is stored:
    // OP_ACCUMULATE has nothing to add.
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == OP_ACCUMULATE) b->at_first[p->op[i].in[0]] = b->at_first[p->op[i].out];
}

void step_run_bind(Model *m, Arena *a) {
    StepRun *r = m->program;
    size_t bytes = 0, staging = 0, caches = 0;
    for (int i = 0; i < N_LISTS; i++) {
        bytes = max_size(bytes, r->list[i].bytes);
        staging = max_size(staging, r->list[i].staging.n_bytes);
        caches = max_size(caches, caches_bytes(&r->list[i].p));
    }
    char *base = arena_take(a, bytes), *cache = caches ? arena_take(a, caches) : NULL;
    void *stage = staging ? arena_take(a, staging) : NULL;
    for (int i = 0; base && i < N_LISTS; i++) {
        r->list[i].staging.p = stage;
        bind(&r->list[i], m, base, cache);
    }
}
