#include "parallel/step/rounding.h"

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/step/mirror.h"
#include "parallel/step/model.h"

static bool by_chance(const Model *m, int i) {
    const Tensor *t = &m->tensors.t[i];
    return m->shape.stochastic && m->shape.training && has_bf16_copies(m) && t->in_products;
}

void rounding_allocate(Model *m, Arena *a) {
    if (!m->shape.stochastic) return;
    if (!m->rounding.column)
        m->rounding.column = mem_calloc((size_t)m->tensors.n, sizeof *m->rounding.column);
    for (int i = 0; i < m->tensors.n; i++)
        if (by_chance(m, i))
            m->rounding.column[i] =
                arena_take(a, (size_t)m->tensors.t[i].local_cols * sizeof(int32_t));
}

/* Rows of a block are one stretch of the tensor's, columns may be several; padding is zero and
 * stays so. */
void rounding_make(Model *m) {
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        if (!by_chance(m, i)) continue;
        int32_t *column = mem_calloc((size_t)t->local_cols, sizeof *column);
        for (int k = 0; k < t->n_rects; k++)
            for (int64_t c = 0; c < t->rects[k].cols; c++)
                column[t->rects[k].at % t->local_cols + c] = (int32_t)(t->rects[k].col + c);
        model_put(m, m->rounding.column[i], column, (size_t)t->local_cols * sizeof *column);
        mem_free(column);
    }
}

void rounding_free(Model *m) {
    mem_free(m->rounding.column);
    m->rounding.column = NULL;
}

const Rounding *rounding_of(const Model *m, int i, Rounding *r) {
    const Tensor *t = &m->tensors.t[i];
    if (!by_chance(m, i)) return NULL;
    int64_t row = t->n_rects ? t->rects[0].row - t->rects[0].at / t->local_cols : 0;
    *r = (Rounding){.seed = m->shape.seed ^ rng_stream(t->name),
                    .step = m->rounding.step,
                    .begin = t->begin[PART_MOMENTS],
                    .width = t->local_cols,
                    .row = row,
                    .cols = t->cols,
                    .column = m->rounding.column[i]};
    return r;
}
