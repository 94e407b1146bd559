#include "parallel/step/outer.h"
#include "parallel/comm/coll.h"

#include <string.h>

int outer_copies(const Outer *o) {
    return o->every == 1 ? 0 : o->momentum > 0 ? 2 : 1;
}

static void sum_over_d(Model *m, CollType type, void *x, int64_t n, const char *what) {
    coll_sum(grid_comm(m->grid, axes_of("d")), type, x, n, what);
}

double outer_mean(Model *m, double x) {
    int replicas = grid_replicas(m->grid);
    if (replicas > 1) sum_over_d(m, COLL_F64, &x, 1, "mean of replicas");
    return x / replicas;
}

static float *params(const Model *m) {
    return m->tensors.t[0].param;
}

/* Floats of an arena, alignment gaps included: gaps are zeros and stay zeros. */
static int64_t floats(const Model *m, int arena) {
    return (int64_t)(m->arena[arena].used / sizeof(float));
}

/* Offset of fragment f in the arena of the parameters, in floats. A tensor belongs to the fragment
 * in which its midpoint lies. Midpoints are computed with the sizes of the logical model, so that
 * every mesh has the same fragments. */
static int64_t fragment_begin(const Outer *o, const Model *m, int f) {
    double before = 0, all = (double)config_parameters(&m->shape.config);
    Arena a = arena_measure("parameters"); // takes the parameters as the model's arena does
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        double middle = before + (double)tensor_size(t) / 2;
        if (middle * o->fragments >= all * f) return (int64_t)(a.used / sizeof(float));
        before += (double)tensor_size(t);
        arena_take(&a, (size_t)tensor_part(t, PART_PARAM) * sizeof(float));
    }
    return floats(m, ARENA_PARAMS);
}

static bool is_due(const Outer *o, int f, int64_t step) {
    return (step - (f + 1) * o->every / o->fragments) % o->every == 0;
}

/* Argument of update_range. */
typedef struct OuterUpdate {
    float *param, *anchor, *velocity; // param: on entry the sum over the replicas. velocity or NULL
    float replicas, rate, momentum;
} OuterUpdate;

static void update_range(void *ctx, int64_t begin, int64_t end) {
    const OuterUpdate u = *(const OuterUpdate *)ctx;
    for (int64_t i = begin; i < end; i++) {
        float mean = u.param[i] / u.replicas, delta = u.anchor[i] - mean, push = 0;
        if (u.velocity) {
            u.velocity[i] = u.momentum * u.velocity[i] + delta;
            push = u.momentum * u.velocity[i];
        }
        u.param[i] = u.anchor[i] = mean + (1 - u.rate) * delta - u.rate * push;
    }
}

enum { GRAIN = 32768 }; // floats of one range of team_for

int64_t outer_floats(const Outer *o, const Model *m, int f) {
    return fragment_begin(o, m, f + 1) - fragment_begin(o, m, f);
}

/* The outer step of fragment f: averages its parameters over the replicas and updates them. */
static void average(const Outer *o, Model *m, int f) {
    int64_t begin = fragment_begin(o, m, f), n = outer_floats(o, m, f);
    if (n > 0) sum_over_d(m, COLL_F32, params(m) + begin, n, "parameters of replicas");
    OuterUpdate u = {.param = params(m) + begin,
                     .anchor = m->anchor + begin,
                     .velocity = m->velocity ? m->velocity + begin : NULL,
                     .replicas = (float)grid_replicas(m->grid),
                     .rate = o->rate,
                     .momentum = o->momentum};
    team_for(m->team, n, GRAIN, update_range, &u);
}

void outer_begin(Outer *o, Model *m, int64_t step) {
    o->averaged = step;
    if (m->anchor) memcpy(m->anchor, params(m), m->arena[ARENA_PARAMS].used);
}

void outer_step(const Outer *o, Model *m, int64_t step) {
    for (int f = 0; m->anchor && f < o->fragments; f++)
        if (is_due(o, f, step)) average(o, m, f);
}

void outer_average(Outer *o, Model *m, int64_t step) {
    if (!m->anchor || o->averaged == step) return;
    for (int f = 0; f < o->fragments; f++)
        if (!is_due(o, f, step)) average(o, m, f);
    o->averaged = step;
}

void outer_mean_moments(Model *m) {
    int64_t n = floats(m, ARENA_OPTIMIZER);
    int replicas = grid_replicas(m->grid);
    float *moments = m->tensors.t[0].m;
    if (replicas == 1) return;
    sum_over_d(m, COLL_F32, moments, n, "moments of replicas");
    for (int64_t i = 0; i < n; i++) moments[i] /= (float)replicas;
}

void outer_swap(Model *m) {
    for (int64_t i = 0; m->anchor && i < floats(m, ARENA_PARAMS); i++) {
        float x = m->anchor[i];
        m->anchor[i] = params(m)[i];
        params(m)[i] = x;
    }
}
