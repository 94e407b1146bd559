/* A cluster knows who shares a node with whom, not who is first: all orders in which the same ranks
 * fill its units cost the same. So what is enumerated is how many ranks of each axis a unit of
 * every level holds: a tile d x z x x x y of it.
 */
#include <assert.h>

#include "base/mem.h"
#include "parallel/mesh/layout.h"

enum { MAX_UNITS = MAX_FACTORS / N_AXES - 1 }; // so that all orders have room

typedef struct Found {
    const Layout *l;
    Layout *out;
    int n, max, n_units;
    int tile[MAX_UNITS + 1][N_AXES]; // ranks along each axis, innermost level first
} Found;

/* The levels from the outermost in, each with its axes as d, z, x, y; but one that goes on inside
 * comes last, so that it is not split. */
static void put(Found *o) {
    mem_grow(o->out, o->n, o->max);
    Layout *l = &o->out[o->n++];
    *l = *o->l;
    l->factors = (Factors){0};
    for (int level = o->n_units; level >= 0; level--)
        for (int k = 0; k < 2 * N_AXES; k++) {
            int axis = k % N_AXES;
            bool goes_on = level > 0 && o->tile[level - 1][axis] > 1;
            if (goes_on != (k >= N_AXES)) continue;
            bool room = factors_add(&l->factors, axis, o->tile[level][axis]);
            assert(room); // MAX_UNITS
            (void)room;
        }
}

/* Fills `ranks` of the unit of a level with axes from `axis` on; left[]: ranks that are not in a
 * unit yet. */
static void fill(Found *o, const int *unit, int level, int ranks, int axis, int left[N_AXES]) {
    if (level == o->n_units) {
        for (int i = 0; i < N_AXES; i++) o->tile[level][i] = left[i];
        put(o);
        return;
    }
    if (axis == N_AXES) {
        int next = level + 1 < o->n_units ? unit[level + 1] / unit[level] : 0;
        if (ranks == 1) fill(o, unit, level + 1, next, 0, left);
        return;
    }
    for (int n = ranks; n >= 1; n--) { // whole axes first
        if (ranks % n || left[axis] % n) continue;
        o->tile[level][axis] = n;
        left[axis] /= n;
        fill(o, unit, level, ranks / n, axis + 1, left);
        left[axis] *= n;
    }
}

Layout *layout_orders(const Layout *l, const int *unit, int n_units, int *n) {
    Found o = {.l = l};
    int left[N_AXES], p = layout_ranks(l), inner = 1, kept[MAX_UNITS];
    for (int i = 0; i < N_AXES; i++) left[i] = l->size[i];
    for (int i = 0; i < n_units; i++) { // units that the job fills, each in the next
        if (unit[i] <= inner || unit[i] >= p || p % unit[i] != 0 || unit[i] % inner != 0) continue;
        assert(o.n_units < MAX_UNITS);
        kept[o.n_units++] = inner = unit[i];
    }
    fill(&o, kept, 0, o.n_units ? kept[0] : 0, 0, left);
    *n = o.n;
    return o.out;
}
