/* Names the first tensor that went bad; model.h has the contract. */
#include <math.h>
#include <stdio.h>

#include "parallel/model.h"

/* A sum of squares in double is finite exactly when every float is. */
static bool finite_all(Model *m, const float *x, int64_t n) {
    return !x || isfinite(m->k->sum_of_squares(m->team, x, n));
}

static bool block_finite(Model *m, int l, char *name, size_t n) {
    const Config *c = &m->shape.config;
    const BlockActs *a = &m->acts[l];
    int64_t T = m->shape.B * m->shape.S, C = c->channels,
            up = c->act == ACT_SWIGLU ? 2 * c->ffn : c->ffn;
    bool kept = m->shape.recompute !=
                RECOMPUTE_FULL; // else what lies between the stages belongs to another block
    const struct {
        const char *what;
        const float *x;
        int64_t n;
    } list[] = {{"input", a->x, T * C},
                {"qkv", kept ? a->qkv : NULL, T * config_qkv(c)},
                {"attention output", kept ? a->att : NULL, T * C},
                {"residual after attention", kept ? a->x2 : NULL, T * C},
                {"MLP before the activation", kept ? a->pre : NULL, T * up}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (finite_all(m, list[i].x, list[i].n)) continue;
        snprintf(name, n, "activation h.%d %s", l, list[i].what);
        return false;
    }
    return true;
}

void model_first_nonfinite(Model *m, char *name, size_t n) {
    const Config *c = &m->shape.config;
    const Tensor *t = m->tensors.t;
    int64_t T = m->shape.B * m->shape.S;
    name[0] = 0;
    for (int i = 0; i < m->tensors.n && !name[0]; i++)
        if (!finite_all(m, t[i].param, tensor_size(&t[i])))
            snprintf(name, n, "parameter %s", t[i].name);
    for (int l = 0; l < c->layers && !name[0]; l++) block_finite(m, l, name, n);
    if (!name[0] && !finite_all(m, m->x_last, T * c->channels))
        snprintf(name, n, "output of the last block");
    if (!name[0] && !finite_all(m, m->losses, T)) snprintf(name, n, "loss of a token");
    for (int i = m->tensors.n - 1; i >= 0 && !name[0]; i--)
        if (!finite_all(m, t[i].grad, tensor_size(&t[i])))
            snprintf(name, n, "gradient of %s", t[i].name);
}
