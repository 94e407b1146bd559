/* Names the first tensor that went bad; model.h has the contract. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "parallel/step/model.h"

/* A sum of squares in double is finite exactly when every float is. */
static bool finite_all(Model *m, const float *x, int64_t n) {
    return !x || isfinite(m->k->sum_of_squares(m->team, x, n));
}

static bool acts_finite(Model *m, const Act *x, int64_t n) {
    float some[1024];
    bool all = true;
    for (int64_t i = 0; x && i < n; i += 1024) {
        int64_t here = n - i < 1024 ? n - i : 1024;
        m->k->to_floats(some, acts_at(m, x, i), here);
        for (int64_t k = 0; k < here; k++) all &= isfinite(some[k]) != 0;
    }
    return all;
}

static bool block_finite(Model *m, int l, char *name, size_t n) {
    const BlockActs *a = &m->acts[l];
    int64_t stream = m->tk.T_x * m->w.C, rows = m->tk.rows;
    bool kept = m->shape.recompute !=
                RECOMPUTE_FULL; // else what lies between the stages belongs to another block
    const struct {
        const char *what;
        const Act *x;
        int64_t n;
    } list[] = {{"input", a->x, stream},
                {"qkv", kept ? a->qkv : NULL, rows * m->w.qkv},
                {"attention output", kept ? a->att : NULL, rows * m->w.att},
                {"residual after attention", kept ? a->x2 : NULL, stream},
                {"MLP before the activation", kept ? a->pre : NULL, rows * m->w.up}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (acts_finite(m, list[i].x, list[i].n)) continue;
        snprintf(name, n, "activation h.%d %s", l, list[i].what);
        return false;
    }
    return true;
}

/* Its place in the order of the search, which is that of a step. */
static int64_t first_here(Model *m, char *name, size_t n) {
    const Config *c = &m->shape.config;
    const Tensor *t = m->tensors.t;
    int64_t place = 0;
    name[0] = 0;
    for (int i = 0; i < m->tensors.n; i++, place++)
        if (!finite_all(m, t[i].param, tensor_part(&t[i], PART_PARAM))) {
            snprintf(name, n, "parameter %s", t[i].name);
            return place;
        }
    for (int l = 0; l < c->layers; l++, place++)
        if (!block_finite(m, l, name, n)) return place;
    if (!acts_finite(m, m->x_last, m->tk.T_x * m->w.C)) {
        snprintf(name, n, "output of the last block");
        return place;
    }
    if (!finite_all(m, m->losses, m->halves * m->tk.T)) {
        snprintf(name, n, "loss of a token");
        return place + 1;
    }
    place += 2;
    for (int i = m->tensors.n - 1; i >= 0; i--, place++)
        if (!finite_all(m, t[i].grad, tensor_part(&t[i], PART_GRAD))) {
            snprintf(name, n, "gradient of %s", t[i].name);
            return place;
        }
    return place;
}

/* The smallest place over all ranks went bad first. */
void model_first_nonfinite(Model *m, char *name, size_t n) {
    struct Found {
        int64_t place;
        char name[160];
    } mine = {0}, *all;
    mine.place = first_here(m, mine.name, sizeof mine.name);
    Group g = m->grid->all ? comm_group(m->grid->all) : group_alone();
    all = mem_calloc((size_t)g.size, sizeof *all);
    group_all_gather(&g, &mine, sizeof mine, all);
    for (int i = 0; i < g.size; i++)
        if (all[i].place < mine.place) mine = all[i];
    snprintf(name, n, "%s", mine.name);
    mem_free(all);
}
