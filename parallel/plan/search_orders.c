/* The orders of a mesh's axes, and in each order lower bounds of what collectives cost: lines in
 * their bytes. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/calibrate.h"
#include "parallel/plan/search_parts.h"

static CostLine lesser(CostLine a, CostLine b) {
    return (CostLine){fmin(a.start, b.start), fmin(a.rate, b.rate)};
}

/* A line in its bytes that a collective never costs less than. Described: its cost at 0 bytes, and
 * its slope up to 2^50 bytes. The formula is the least of some lines, so it lies above this chord
 * (machine.c). Measured: calibration_line. On machine_low_latency, which takes the lesser of
 * formula and measurement: the lesser of both lines. */
static CostLine line_of(const Machine *m, const CollGroup *g, CollOp op) {
    Collective few = {.op = op}, many = few;
    CostLine l;
    // of the measured cost: at 0 bytes; start of its line minus that; slope of its line
    double none, below = 0, least = INFINITY;
    bool known = m->measured && calibration_line(m->measured, g, op, &l);
    if (known && !m->low_latency) return l;
    if (known && calibration_collective(m->measured, g, op, 0, &none))
        below = l.start - none, least = l.rate;
    many.bytes = (int64_t)1 << 50;
    double start = machine_collective(m, g, &few);
    double rate = fmin(least, (machine_collective(m, g, &many) - start) / (double)many.bytes);
    return (CostLine){start + below, rate};
}

/* The line of a collective when replicas send in turns (machine_collective_in_turn). */
static CostLine line_in_turn(const Machine *m, const CollGroup *g, CollOp op) {
    CostLine l = line_of(m, g, op);
    double part = machine_turn(m, g, op);
    if (part >= 1) return l;
    l.start = part * l.start + (1 - part) * machine_collective(m, g, &(Collective){.op = op});
    l.rate *= part;
    return l;
}

/* A line that none of the collectives that may run along a group costs less than: gathers, sums and
 * shifts along x; gathers and sums along other axes; panels of stay=y. load: with the
 * bytes of all replicas (OpCost.load). An all_reduce counts as two collectives, so its line is
 * halved. A gather or scatter along x may run as a ring: p - 1 shifts of a block each. */
static CostLine least_line(const Machine *m, const CollGroup *g, int along, bool load) {
    static const CollOp ops[2][4] = {
        {COLL_ALL_GATHER, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE, COLL_SHIFT},
        {COLL_BROADCAST, COLL_REDUCE}};
    bool stream = along >= STREAM_X;
    int n = stream ? 2 : along == ALONG_X ? 4 : 3;
    double others = g->size - 1, p = g->size;
    CostLine least = {INFINITY, INFINITY};
    for (int i = 0; i < n; i++) {
        CollOp op = ops[stream][i];
        CostLine l = load ? line_of(m, g, op) : line_in_turn(m, g, op);
        if (op == COLL_ALL_REDUCE) l.start /= 2, l.rate /= 2;
        if (op == COLL_SHIFT) l.start *= others, l.rate *= others / p;
        least = lesser(least, l);
    }
    least.start *= 1 - 1e-9; // below all prices in spite of rounding
    least.rate *= 1 - 1e-9;
    return least;
}

/* The line of the seconds for which links are busy: where latency is high (machine_high_latency),
 * that of the same machine with low latency if it is lesser. */
static CostLine wire_line(const Machine *m, const CollGroup *g, int along, bool load,
                          CostLine line) {
    if (!machine_high_latency(m, g)) return line;
    Machine low = machine_low_latency(m);
    return lesser(line, least_line(&low, g, along, load));
}

static AlongCost cost_along(const Machine *m, const CollGroup *g, int along) {
    CostLine load = least_line(m, g, along, true),
             one = g->replicas.n ? least_line(m, g, along, false) : load;
    return (AlongCost){.whole = one,
                       .wire = wire_line(m, g, along, false, one),
                       .load = wire_line(m, g, along, true, load),
                       .level = (uint8_t)machine_level(m, g)};
}

/* Fills the lines of collectives along some axes in each order. */
static void costs_along(Orders *o, const Machine *m, const Mesh *mesh, Axes axes, int along) {
    Axes d = mesh_real(&mesh[0], axes_of("d"));
    for (int k = 0; k < o->n; k++) {
        CollGroup g = {.place = placement_of(&mesh[k], axes), .size = mesh_blocks(&mesh[k], axes)};
        if (!axes_has(axes, AXIS_D)) g.replicas = placement_of(&mesh[k], d);
        o->along[k][along] = cost_along(m, &g, along);
    }
}

Layout *orders_list(const Space *s, const Machine *m, const int size[N_AXES], int *n) {
    int unit[MAX_LEVELS];
    Layout l = layout_of_sizes(size);
    for (int i = 0; i < m->n_levels; i++) unit[i] = m->level[i].ranks;
    Layout *order = layout_orders(&l, unit, s->only ? 0 : m->n_levels, n);
    if (s->only) order[0] = *s->only;
    return order;
}

Orders orders_of(const Space *s, const Machine *m, const int size[N_AXES]) {
    static const char *const along[N_ALONG] = {"x", "y", "z", "d", "z.d", "x", "y"};
    Orders o;
    memcpy(o.size, size, sizeof o.size);
    o.layout = orders_list(s, m, size, &o.n);
    o.along = mem_calloc((size_t)o.n, sizeof *o.along);
    Mesh *mesh = mem_alloc((size_t)o.n * sizeof *mesh);
    for (int k = 0; k < o.n; k++) mesh[k] = mesh_make(&o.layout[k].factors, 0);
    for (int i = 0; i < N_ALONG; i++) {
        Axes real = mesh_real(&mesh[0], axes_of(along[i]));
        if (real.n > 0) costs_along(&o, m, mesh, real, i);
    }
    mem_free(mesh);
    return o;
}

void orders_free(Orders *o) {
    mem_free(o->layout), mem_free(o->along);
}
