/* The orders of ranks that differ in cost. The cost of a collective depends on which ranks share a
 * unit of the cluster (a socket, a node), not on their order within the unit. So the enumeration
 * chooses, for the units of every level, how many ranks along each axis one unit holds: a tile of
 * d x z x x x y ranks.
 */
#include <assert.h>

#include "base/mem.h"
#include "parallel/mesh/layout.h"

/* Levels of units. The whole job is one level more; every level adds up to N_AXES factors. */
enum { MAX_UNITS = MAX_FACTORS / N_AXES - 1 };

typedef struct Found {
    const Layout *l;
    Layout *out;
    int n, max, n_units;
    // the tile of each level, innermost level first: along each axis its size in units of the level
    // below; the last level is the whole job
    int tile[MAX_UNITS + 1][N_AXES];
} Found;

/* Appends the layout of the chosen tiles: factors from the outermost level to the innermost, within
 * a level in the order d, z, x, y. Axes that continue on the next inner level come last, so that
 * the factors of the two levels can be neighbours and merge. */
static void append_layout(Found *o) {
    mem_grow(o->out, o->n, o->max);
    Layout *l = &o->out[o->n++];
    *l = *o->l;
    l->factors = (Factors){0};
    for (int level = o->n_units; level >= 0; level--)
        for (int k = 0; k < 2 * N_AXES; k++) {
            int axis = k % N_AXES;
            bool continues = level > 0 && o->tile[level - 1][axis] > 1;
            if (continues != (k >= N_AXES)) continue;
            bool room = factors_add(&l->factors, axis, o->tile[level][axis]);
            assert(room); // by the choice of MAX_UNITS
            (void)room;
        }
}

/* Chooses the tile of a level from `axis` on, then the tiles of the outer levels, in all ways.
 * ranks: the product that the rest of this tile must have. left[]: size of each axis divided by the
 * tiles chosen so far. */
static void choose_tiles(Found *o, const int *unit, int level, int ranks, int axis,
                         int left[N_AXES]) {
    if (level == o->n_units) {
        for (int i = 0; i < N_AXES; i++) o->tile[level][i] = left[i];
        append_layout(o);
        return;
    }
    if (axis == N_AXES) {
        int next = level + 1 < o->n_units ? unit[level + 1] / unit[level] : 0;
        if (ranks == 1) choose_tiles(o, unit, level + 1, next, 0, left);
        return;
    }
    for (int n = ranks; n >= 1; n--) { // whole axes first
        if (ranks % n || left[axis] % n) continue;
        o->tile[level][axis] = n;
        left[axis] /= n;
        choose_tiles(o, unit, level, ranks / n, axis + 1, left);
        left[axis] *= n;
    }
}

Layout *layout_orders(const Layout *l, const int *unit, int n_units, int *n) {
    Found o = {.l = l};
    int left[N_AXES], p = layout_ranks(l), inner = 1, kept[MAX_UNITS];
    for (int i = 0; i < N_AXES; i++) left[i] = l->size[i];
    for (int i = 0; i < n_units; i++) { // keeps units that nest and that the job fills evenly
        if (unit[i] <= inner || unit[i] >= p || p % unit[i] != 0 || unit[i] % inner != 0) continue;
        assert(o.n_units < MAX_UNITS);
        kept[o.n_units++] = inner = unit[i];
    }
    choose_tiles(&o, kept, 0, o.n_units ? kept[0] : 0, 0, left);
    *n = o.n;
    return o.out;
}
