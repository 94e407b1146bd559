#include <string.h>

#include "parallel/layout.h"

typedef struct Orders {
    const Layout *l;
    Layout *out;
    int n, max;
} Orders;

static void put(Orders *o, const Factors *f) {
    if (o->n == o->max) return;
    for (int i = 0; i < o->n;
         i++) // factors_add keeps lists canonical: equal orders are equal bytes
        if (memcmp(&o->out[i].factors, f, sizeof *f) == 0) return;
    o->out[o->n] = *o->l;
    o->out[o->n++].factors = *f;
}

/* f with two of its axes split: what is left of them where it was, and a x b = ranks innermost. */
static void put_tiles(Orders *o, const Factors *f, int ranks) {
    for (int i = 0; i < f->n; i++)
        for (int j = 0; j < f->n; j++)
            for (int a = 2; i != j && a <= ranks / 2; a++) {
                int b = ranks / a;
                if (ranks % a || f->at[i].size % a || f->at[j].size % b) continue;
                Factors tile = {0};
                for (int k = 0; k < f->n; k++)
                    factors_add(&tile, f->at[k].axis,
                                f->at[k].size / (k == i   ? a
                                                 : k == j ? b
                                                          : 1));
                factors_add(&tile, f->at[i].axis, a);
                factors_add(&tile, f->at[j].axis, b);
                put(o, &tile);
            }
}

/* Puts f with the axes that are left inside it, in every order; or the tiles of those orders. */
static void each_order(Orders *o, Factors f, unsigned left, int tile) {
    for (int axis = 0; axis < N_AXES; axis++) {
        if (!(left >> axis & 1)) continue;
        Factors next = f;
        factors_add(&next, axis, o->l->size[axis]);
        each_order(o, next, left & ~(1u << axis), tile);
    }
    if (left) return;
    if (tile)
        put_tiles(o, &f, tile);
    else
        put(o, &f);
}

int layout_orders(const Layout *l, int ranks_per_node, Layout *out, int max) {
    Orders o = {.l = l, .out = out, .max = max};
    unsigned real = 0;
    for (int axis = 0; axis < N_AXES; axis++)
        if (l->size[axis] > 1) real |= 1u << axis;
    each_order(&o, (Factors){0}, real, 0);
    if (ranks_per_node > 1) each_order(&o, (Factors){0}, real, ranks_per_node);
    return o.n;
}
