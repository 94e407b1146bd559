#include "parallel/step/stored.h"

#include "parallel/comm/coll_call.h"
#include "parallel/step/model.h"
#include "parallel/step/probe.h"

Comm *stored_over(Model *m, int i, StoreKind kind) {
    return shard_stored(&m->tensors, i) ? grid_comm(m->grid, layout_store(&m->grid->layout, kind))
                                        : NULL;
}

/* ---- weights */

/* The matrix of a block that is wanted after matrix i of it; -1: not known. */
static int next_weight(const Model *m, int i, const char **what) {
    int l = m->tensors.t[i].layer, k = 0, L = (int)m->shape.config.layers;
    const Stored *s = &m->stored;
    if (l < 0) return -1;
    const BlockTensors *b = &m->blocks[l];
    const int list[] = {b->qkv_w, b->attn_out_w, b->up_w, b->down_w};
    while (list[k] != i) k++;
    bool full = m->shape.recompute == RECOMPUTE_FULL, down = s->back && !s->recompute;
    k += down ? -1 : 1;
    if (s->recompute && k == LINEAR_ATTN_OUT && m->keeps_x2) k++;
    if (k > LINEAR_DOWN) l++, k = 0;
    if (k < 0) l--, k = full ? LINEAR_QKV : LINEAR_DOWN;
    if (l < 0 || l == L) return -1;
    b = &m->blocks[l];
    *what = m->linear[k].what_w;
    return (const int[]){b->qkv_w, b->attn_out_w, b->up_w, b->down_w}[k];
}

static void arrive(Model *m, int slot) {
    Ticket t = m->stored.w[slot].coming;
    m->stored.w[slot].coming = (Ticket){0};
    coll_wait(t);
}

static void fetch(Model *m, int slot, int i, const char *what) {
    arrive(m, slot); // what nobody came for
    m->stored.w[slot].tensor = i;
    m->stored.w[slot].coming =
        coll_gather_start(stored_over(m, i, STORE_PARAM), acts_type(m), m->tensors.t[i].words,
                          tensor_part(&m->tensors.t[i], PART_WORDS), m->work.w[slot], what);
}

/* The slot where weight i is, with bulk perhaps since the product before. */
static int find(Model *m, int i, const char *what) {
    Stored *s = &m->stored;
    bool bulk = m->shape.overlap.bulk && m->tensors.t[i].layer >= 0;
    for (int slot = 0; bulk && slot < 2; slot++)
        if (s->w[slot].tensor == i) return slot;
    int slot = bulk ? 1 - s->w_at : 0;
    fetch(m, slot, i, what);
    return slot;
}

const Act *weight_whole(Model *m, int i, const char *what) {
    const Tensor *t = &m->tensors.t[i];
    Stored *s = &m->stored;
    Comm *over = stored_over(m, i, STORE_PARAM);
    if (!over) return t->words;
    int slot = s->w_at = find(m, i, what);
    const char *next_what;
    int next = m->shape.overlap.bulk ? next_weight(m, i, &next_what) : -1;
    arrive(m, slot);
    if (next >= 0 && s->w[1 - slot].tensor != next) fetch(m, 1 - slot, next, next_what);
    probe(m, &(Probe){.name = t->name,
                      .layer = t->layer,
                      .at = m->work.w[slot],
                      .weight = t,
                      .cause = {{over, COLL_ALL_GATHER, what}}});
    return m->work.w[slot];
}

/* ---- gradients */

static void finish(Model *m, int slot) {
    int i = m->stored.g[slot].tensor;
    if (i < 0) return;
    Tensor *t = &m->tensors.t[i];
    const float *part = m->stored.g[slot].to;
    coll_wait(m->stored.g[slot].going);
    m->stored.g[slot].tensor = -1;
    if (part != t->grad) m->k->add_to(m->team, t->grad, part, tensor_part(t, PART_GRAD));
}

float *grad_open(Model *m, int i, bool *add) {
    Tensor *t = &m->tensors.t[i];
    *add = false;
    if (!stored_over(m, i, STORE_GRAD)) {
        *add = !m->grads_fresh;
        return t->grad;
    }
    int64_t n = t->local_rows * t->local_cols, all = shard_block(&m->tensors, i, m->grid);
    int slot = m->stored.g_at = m->shape.overlap.bulk && t->layer >= 0 ? 1 - m->stored.g_at : 0;
    finish(m, slot);
    if (m->grid->layout.stay) n = 0; // rows of padding are in no panel
    m->k->zero(m->team, m->work.dw[slot] + n, (size_t)(all - n) * sizeof(float));
    return m->work.dw[slot];
}

void grad_done(Model *m, int i, const char *what) {
    Tensor *t = &m->tensors.t[i];
    Comm *over = stored_over(m, i, STORE_GRAD);
    int slot = m->stored.g_at;
    if (!over) return;
    float *to = m->grads_fresh ? t->grad : m->work.part[slot];
    m->stored.g[slot].tensor = i;
    m->stored.g[slot].to = to;
    m->stored.g[slot].going =
        coll_scatter_start(over, COLL_F32, m->work.dw[slot], tensor_part(t, PART_GRAD), to, what);
    if (!m->shape.overlap.bulk) finish(m, slot);
}

/* ---- passes */

void stored_begin(Model *m) {
    Stored *s = &m->stored;
    *s = (Stored){.w = {{.tensor = -1}, {.tensor = -1}}, .g = {{.tensor = -1}, {.tensor = -1}}};
}

void stored_end(Model *m) {
    for (int slot = 0; slot < 2; slot++) arrive(m, slot);
    finish(m, 1 - m->stored.g_at); // the older one first
    finish(m, m->stored.g_at);
}
