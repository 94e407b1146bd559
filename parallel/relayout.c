#include "parallel/relayout.h"

#include <assert.h>

#include "base/mem.h"
#include "parallel/coll_call.h"

/* Weights and both moments. */
enum { N_VALUES = 3 };
static float *values(const Tensor *t, int which) {
    return which == 0 ? t->param : which == 1 ? t->m : t->v;
}
static TensorPart part_of(int which) {
    return which == 0 ? PART_PARAM : PART_MOMENTS;
}

/* Copies what this rank stores of the logical elements [begin, begin + n) into piece[n] (give: only what it is the
 * first to hold), or from there. */
static void exchange(const Model *m, const Tensor *t, int which, int64_t begin, int64_t n,
                     float *piece, bool give) {
    TensorRun r;
    for (TensorRuns i = tensor_runs(t, part_of(which), give); tensor_next(&i, &r);) {
        int64_t run = r.row * t->cols + r.col, from = run, to = run + r.n;
        if (from < begin) from = begin;
        if (to > begin + n) to = begin + n;
        if (from >= to) continue;
        float *own = values(t, which) + r.at + (from - run), *at = piece + (from - begin);
        m->k->copy(m->team, give ? at : own, 0, give ? own : at, 0, 1, to - from);
    }
}

static void move(Model *to, const Model *from, int i, int which, float *piece) {
    const Tensor *a = &from->tensors.t[i], *b = &to->tensors.t[i];
    for (int64_t begin = 0; begin < tensor_size(a); begin += RELAYOUT_PIECE) {
        int64_t left = tensor_size(a) - begin, n = left < RELAYOUT_PIECE ? left : RELAYOUT_PIECE;
        from->k->zero(from->team, piece, n);
        exchange(from, a, which, begin, n, piece, true);
        coll_sum(from->grid->all, COLL_I32, piece, n, "weights and moments that move");
        exchange(to, b, which, begin, n, piece, false);
    }
}

void relayout(Model *to, const Model *from) {
    assert(to->tensors.n == from->tensors.n && !from->grid->apart && !to->grid->apart);
    float *piece = mem_alloc_aligned(RELAYOUT_PIECE * sizeof *piece, ARENA_ALIGN);
    for (int i = 0; i < from->tensors.n; i++)
        for (int which = 0; which < N_VALUES; which++) move(to, from, i, which, piece);
    mem_free(piece);
}

int64_t relayout_bytes(const Config *c, int p) {
    return N_VALUES * (int64_t)sizeof(float) * config_parameters(c) * 2 * (p - 1) / p;
}
