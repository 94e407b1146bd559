/* The orders of a mesh's axes, and lines below what collectives cost in each. */
#include <math.h>
#include <string.h>

#include "parallel/calibrate.h"
#include "parallel/search_parts.h"

Layout reorder(const Layout *words, const Layout *order) {
    Layout l = *order;
    l.sp = words->sp, l.heads = words->heads, l.stay = words->stay, l.zero = words->zero;
    l.exact = words->exact;
    return l;
}

/* What a collective costs is never below a line in its bytes: machine.h, and calibration_line where it was measured. */
static void line_of(const Machine *m, const TapeGroup *g, CollOp op, double *start, double *rate) {
    const int64_t much = (int64_t)1 << 50; // bytes, beyond which nothing bends any more
    Send s = {.op = op, .bytes = much, .type_bytes = 4}, more = s, none = s;
    if (m->measured && calibration_line(m->measured, g, op, start, rate)) return;
    more.bytes = 2 * much, none.bytes = 0;
    *start = machine_send(m, g, &none);
    *rate = (machine_send(m, g, &more) - machine_send(m, g, &s)) / (double)much;
}

/* The same where replicas send in turns. */
static void line_in_turn(const Machine *m, const TapeGroup *g, CollOp op, double *start,
                         double *rate) {
    double part = machine_turn(m, g, op);
    if (part >= 1) return;
    *start = part * *start + (1 - part) * machine_send(m, g, &(Send){.op = op, .type_bytes = 4});
    *rate *= part;
}

/* The least line of the collectives that may run along a group, or, load, what they keep its links busy with all replicas.
 * An all_reduce is a scatter and a gather; where x gathers or scatters it may be a ring of shifts. */
static void least_line(const Machine *m, const TapeGroup *g, int along, bool load, double *start,
                       double *rate) {
    static const CollOp ops[2][4] = {
        {COLL_ALL_GATHER, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE, COLL_SHIFT},
        {COLL_BROADCAST, COLL_REDUCE}};
    bool stream = along >= STREAM_X;
    int n = stream ? 2 : along == ALONG_X ? 4 : 3;
    *start = *rate = INFINITY;
    for (int i = 0; i < n; i++) {
        double once, byte, others = g->size - 1, p = g->size;
        CollOp op = ops[stream][i];
        line_of(m, g, op, &once, &byte);
        if (!load) line_in_turn(m, g, op, &once, &byte);
        if (op == COLL_ALL_REDUCE) once /= 2, byte /= 2;
        if (op == COLL_SHIFT) once *= others, byte *= others / p; // of a block each
        *start = fmin(*start, once), *rate = fmin(*rate, byte);
    }
    *start *= 1 - 1e-9; // what follows from one division is not what follows from another
    *rate *= 1 - 1e-9;
}

void orders_of(Orders *o, const Space *s, const Machine *m, const int size[N_AXES]) {
    static const char *const along[N_ALONG] = {"x", "y", "z", "d", "z.d", "x", "y"};
    if (o->n > 0 && memcmp(o->size, size, sizeof o->size) == 0) return;
    memcpy(o->size, size, sizeof o->size);
    o->n_levels = m->n_levels;
    Layout l = layout_of_sizes(size);
    o->n = 1;
    o->layout[0] = s->only ? *s->only : l;
    int unit[MAX_LEVELS];
    for (int i = 0; i < m->n_levels; i++) unit[i] = m->level[i].ranks;
    if (!s->only) o->n = layout_orders(&l, unit, m->n_levels, o->layout, SEARCH_ORDERS);
    for (int k = 0; k < o->n; k++) {
        Mesh mesh = mesh_make(&o->layout[k].factors, 0);
        Axes d = mesh_real(&mesh, axes_of("d"));
        for (int i = 0; i < N_ALONG; i++) {
            Axes real = mesh_real(&mesh, axes_of(along[i]));
            o->start[k][i] = o->rate[k][i] = 0, o->level[k][i] = 0;
            o->load_start[k][i] = o->load_rate[k][i] = 0;
            if (real.n == 0) continue;
            TapeGroup g = {.place = placement_of(&mesh, real), .size = mesh_blocks(&mesh, real)};
            if (!axes_has(real, AXIS_D)) g.replicas = placement_of(&mesh, d);
            o->level[k][i] = (uint8_t)machine_level(m, &g);
            least_line(m, &g, i, true, &o->load_start[k][i], &o->load_rate[k][i]);
            o->start[k][i] = o->load_start[k][i], o->rate[k][i] = o->load_rate[k][i];
            if (g.replicas.n) least_line(m, &g, i, false, &o->start[k][i], &o->rate[k][i]);
        }
    }
}
