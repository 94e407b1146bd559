#include "parallel/step/relayout.h"

#include <assert.h>

#include "base/minmax.h"
#include "parallel/comm/coll.h"
#include "parallel/comm/ranks.h"
#include "parallel/step/memory.h"

/* The values of a tensor that are copied. which: 0 weights, 1 first moments, 2 second moments. */
enum { N_VALUES = 3 };
static float *values(const Tensor *t, int which) {
    return which == 0 ? t->param : which == 1 ? t->m : t->v;
}
static TensorPart part_of(int which) {
    return which == 0 ? PART_PARAM : PART_MOMENTS;
}

/* Copies between this rank's shard of a tensor and chunk[n], which holds the logical elements
 * [begin, begin + n). give: from the shard to the chunk, only elements that this rank is the first
 * to hold. Else from the chunk to the shard, all elements that this rank stores. */
static void exchange(const Model *m, const Tensor *t, int which, int64_t begin, int64_t n,
                     float *chunk, bool give) {
    TensorRun r;
    for (TensorRuns i = tensor_runs(t, part_of(which), give); tensor_next(&i, &r);) {
        int64_t run = r.row * t->cols + r.col;
        int64_t from = max_i64(run, begin), to = min_i64(run + r.n, begin + n);
        if (from >= to) continue;
        float *own = values(t, which) + r.offset + (from - run), *at = chunk + (from - begin);
        m->k->copy(m->team, give ? at : own, 0, give ? own : at, 0, 1, to - from, sizeof(float));
    }
}

static void move(Model *to, const Model *from, int i, int which, float *chunk) {
    const Tensor *a = &from->tensors.t[i], *b = &to->tensors.t[i];
    for (int64_t begin = 0; begin < tensor_size(a); begin += RELAYOUT_CHUNK) {
        int64_t left = tensor_size(a) - begin, n = left < RELAYOUT_CHUNK ? left : RELAYOUT_CHUNK;
        from->k->zero(from->team, chunk, (size_t)n * sizeof(float));
        exchange(from, a, which, begin, n, chunk, true);
        coll_sum(from->grid->all, COLL_I32, chunk, n, "weights and moments that move");
        exchange(to, b, which, begin, n, chunk, false);
    }
}

void relayout(Model *to, const Model *from) {
    assert(to->tensors.n == from->tensors.n && !from->grid->local_steps && !to->grid->local_steps);
    Arena a = arena_block("piece of a tensor", from->k->memory, RELAYOUT_CHUNK * sizeof(float));
    float *chunk = (void *)a.base;
    for (int i = 0; i < from->tensors.n; i++)
        for (int which = 0; which < N_VALUES; which++) move(to, from, i, which, chunk);
    model_cast(to);
    arena_free(&a);
}

static int64_t resident(const Model *m, bool state) {
    size_t sum = 0;
    for (int i = 0; i < N_ARENAS; i++)
        if (state || (i != ARENA_PARAMS && i != ARENA_OPTIMIZER))
            sum += arena_resident(&m->arena[i]);
    return (int64_t)sum;
}

/* Pages are taken when they are touched: during the move both states lie in memory, afterwards the
 * new model alone. A device has no such pages: there the new model lies beside the old state. */
static bool fits(const Model *to, const Model *from, int neighbours) {
    int64_t have = memory_free(to) / neighbours;
    if (to->k->memory)
        return memory_needed(to) + RELAYOUT_CHUNK * (int64_t)sizeof(float) <=
               have + resident(from, false);
    int64_t state = (int64_t)(to->arena[ARENA_PARAMS].used + to->arena[ARENA_OPTIMIZER].used);
    return have == 0 ||
           (state + RELAYOUT_CHUNK * (int64_t)sizeof(float) <= have + resident(from, false) &&
            memory_needed(to) <= have + resident(from, true));
}

bool relayout_model(Model *m, Grid *g, const Layout *l, const ModelShape *shape, Team *team) {
    Model old = *m;
    Grid old_grid = *g;
    Layout layout = *l;
    ModelShape s = *shape;
    Group all = comm_group(world_comm(g->world));
    int neighbours = ranks_on_node(g->world).local_size;
    layout.exact = old_grid.layout.exact;
    s.grid = g;
    grid_make(g, old_grid.world, &layout, &s.config);
    model_plan(m, &s, old.k, team);
    if (!group_all(&all, fits(m, &old, neighbours))) {
        model_free(m);
        grid_free(g);
        *m = old, *g = old_grid;
        return false;
    }
    old.grid = old.shape.grid = &old_grid;
    model_keep_state(&old);
    model_allocate(m);
    relayout(m, &old);
    model_free(&old);
    grid_free(&old_grid);
    return true;
}
