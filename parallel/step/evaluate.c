#include "parallel/step/evaluate.h"

#include <string.h>

#include "base/mem.h"
#include "parallel/comm/coll.h"

/* Fills a micro-batch with sequences [first, first + B). Sequences from number n on are padding.
 * Returns the number of targets that are not -1. */
static int64_t fill(const Model *m, const Sequences *s, int64_t first, int64_t n, int32_t *in,
                    int32_t *target) {
    int64_t S = m->shape.S, counted = 0;
    for (int64_t b = 0; b < m->shape.B; b++, in += S, target += S) {
        if (first + b < n)
            s->fill(s->ctx, first + b, in, target);
        else
            for (int64_t t = 0; t < S; t++) in[t] = 0, target[t] = -1;
        for (int64_t t = 0; t < S; t++) counted += target[t] >= 0;
    }
    return counted;
}

EvalSum evaluate(Model *m, const Sequences *s, int64_t n, float *losses, bool (*stop)(void *),
                 void *ctx) {
    int64_t B = m->shape.B, S = m->shape.S;
    Axes d_z = axes_of("d.z");
    int64_t n_blocks = mesh_blocks(&m->grid->mesh, d_z), block = mesh_block(&m->grid->mesh, d_z);
    Comm *over_d_z = grid_comm(m->grid, d_z);
    int32_t *in = mem_alloc((size_t)(B * S) * sizeof *in),
            *target = mem_alloc((size_t)(B * S) * sizeof *target);
    float *loss = mem_alloc((size_t)(B * S) * sizeof *loss);
    EvalSum sum = {0};
    model_zero_losses(m);
    if (losses) memset(losses, 0, (size_t)(n * S) * sizeof *losses);
    for (int64_t round = 0; round < n && !(stop && stop(ctx)); round += n_blocks * B) {
        int64_t first = round + block * B, here = n - first < B ? n - first : B;
        sum.n += fill(m, s, first, n, in, target);
        model_loss(m, in, target, loss);
        if (losses && here > 0) memcpy(losses + first * S, loss, (size_t)(here * S) * sizeof *loss);
    }
    sum.loss = model_losses(m);
    coll_sum(over_d_z, COLL_I64, &sum.n, 1, "sum of losses");
    if (losses) coll_sum(over_d_z, COLL_F32, losses, n * S, "losses of tokens");
    mem_free(in), mem_free(target), mem_free(loss);
    return sum;
}
