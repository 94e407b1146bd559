#include "parallel/step/mirror.h"

#include <string.h>

#include "base/mem.h"

struct Mirror {
    TensorTable tensors;
    Arena arena;
};

static void cut(Mirror *h, const Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        Tensor *own = &h->tensors.t[i];
        size_t moments = (size_t)tensor_part(t, PART_MOMENTS) * sizeof(float);
        own->param = arena_take(&h->arena, (size_t)tensor_part(t, PART_PARAM) * sizeof(float));
        own->cast = own->param;
        if (!m->shape.training) continue;
        own->m = arena_take(&h->arena, moments), own->v = arena_take(&h->arena, moments);
    }
}

void mirror_make(Model *m) {
    Mirror *h = m->mirror = mem_calloc(1, sizeof *h);
    h->tensors = tensors_describe(&m->shape.config);
    shard_tensors(&h->tensors, m->grid, has_bf16_copies(m));
    h->arena = arena_measure("weights and moments on the host");
    cut(h, m);
    arena_commit(&h->arena);
    cut(h, m);
}

void mirror_free(Model *m) {
    if (!m->mirror) return;
    arena_free(&m->mirror->arena);
    tensors_free(&m->mirror->tensors);
    mem_free(m->mirror);
    m->mirror = NULL;
}

TensorTable *model_host(Model *m) {
    return m->mirror ? &m->mirror->tensors : &m->tensors;
}

TensorTable *model_pull(Model *m) {
    TensorTable *host = model_host(m);
    for (int i = 0; m->mirror && i < host->n; i++) {
        const Tensor *t = &m->tensors.t[i], *h = &host->t[i];
        size_t moments = (size_t)tensor_part(t, PART_MOMENTS) * sizeof(float);
        model_get(m, h->param, t->param, (size_t)tensor_part(t, PART_PARAM) * sizeof(float));
        if (t->m) model_get(m, h->m, t->m, moments), model_get(m, h->v, t->v, moments);
    }
    return host;
}

void model_push(Model *m) {
    const TensorTable *host = model_host(m);
    for (int i = 0; m->mirror && i < host->n; i++) {
        const Tensor *t = &m->tensors.t[i], *h = &host->t[i];
        size_t moments = (size_t)tensor_part(t, PART_MOMENTS) * sizeof(float);
        model_put(m, t->param, h->param, (size_t)tensor_part(t, PART_PARAM) * sizeof(float));
        if (t->m) model_put(m, t->m, h->m, moments), model_put(m, t->v, h->v, moments);
    }
    model_cast(m);
}

void model_put(const Model *m, void *to, const void *from, size_t n_bytes) {
    if (m->k->memory)
        m->k->memory->put(to, from, n_bytes);
    else
        memcpy(to, from, n_bytes);
}

void model_get(const Model *m, void *to, const void *from, size_t n_bytes) {
    if (m->k->memory)
        m->k->memory->get(to, from, n_bytes);
    else
        memcpy(to, from, n_bytes);
}
