#include "parallel/step/mirror.h"

#include <string.h>

#include "base/mem.h"

struct Mirror {
    TensorTable tensors;
    // contents of the fp32 weights in ARENA_PARAMS, without bf16 copies, and of ARENA_OPTIMIZER
    Arena weights, moments;
};

/* Takes the tensors from the arenas: the first call measures, a second call sets the pointers. */
static void place_tensors(Mirror *h, const Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        Tensor *own = &h->tensors.t[i];
        size_t moments = (size_t)tensor_part(t, PART_MOMENTS) * sizeof(float);
        own->param = arena_take(&h->weights, (size_t)tensor_part(t, PART_PARAM) * sizeof(float));
        own->cast = own->param;
        if (!m->shape.training) continue;
        own->m = arena_take(&h->moments, moments), own->v = arena_take(&h->moments, moments);
    }
}

void mirror_make(Model *m) {
    Mirror *h = m->mirror = mem_calloc(1, sizeof *h);
    h->tensors = tensors_describe(&m->shape.config);
    shard_tensors(&h->tensors, m->grid, has_bf16_copies(m));
    h->weights = arena_measure("weights on the host");
    h->moments = arena_measure("moments on the host");
    place_tensors(h, m);
    arena_commit(&h->weights), arena_commit(&h->moments);
    place_tensors(h, m);
}

void mirror_free(Model *m) {
    if (!m->mirror) return;
    arena_free(&m->mirror->weights), arena_free(&m->mirror->moments);
    tensors_free(&m->mirror->tensors);
    mem_free(m->mirror);
    m->mirror = NULL;
}

TensorTable *model_host(Model *m) {
    return m->mirror ? &m->mirror->tensors : &m->tensors;
}

TensorTable *model_pull(Model *m) {
    const Mirror *h = m->mirror;
    if (h) model_get(m, h->weights.base, m->arena[ARENA_PARAMS].base, h->weights.used);
    if (h) model_get(m, h->moments.base, m->arena[ARENA_OPTIMIZER].base, h->moments.used);
    return model_host(m);
}

void model_push(Model *m) {
    const Mirror *h = m->mirror;
    if (h) model_put(m, m->arena[ARENA_PARAMS].base, h->weights.base, h->weights.used);
    if (h) model_put(m, m->arena[ARENA_OPTIMIZER].base, h->moments.base, h->moments.used);
    model_cast(m);
}

void model_put(const Model *m, void *to, const void *from, size_t n_bytes) {
    m->k->memory ? m->k->memory->put(to, from, n_bytes) : (void)memcpy(to, from, n_bytes);
}

void model_get(const Model *m, void *to, const void *from, size_t n_bytes) {
    m->k->memory ? m->k->memory->get(to, from, n_bytes) : (void)memcpy(to, from, n_bytes);
}
