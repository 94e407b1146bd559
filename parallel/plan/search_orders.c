/* The orders of a mesh's axes, and lines below what collectives cost in each. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/calibrate.h"
#include "parallel/plan/search_parts.h"

Layout reorder(const Layout *flags, const Layout *order) {
    Layout l = *order;
    l.sp = flags->sp, l.heads = flags->heads, l.stay = flags->stay, l.zero = flags->zero;
    l.exact = flags->exact;
    return l;
}

/* What a collective costs is not below a line in its bytes: that from nothing to more than there
 * is, as by its formula it takes the least of one or more lines, and is above its chords
 * (machine.c); or calibration_line where it was measured; of machine_low_latency the least of
 * both. */
static void line_of(const Machine *m, const SendGroup *g, CollOp op, double *start, double *rate) {
    Send few = {.op = op, .type_bytes = 4}, many = few;
    double none, below = 0, least = INFINITY; // of what was measured
    bool known = m->measured && calibration_line(m->measured, g, op, start, rate);
    if (known && !m->low_latency) return;
    if (known && calibration_send(m->measured, g, op, 0, &none))
        below = *start - none, least = *rate;
    many.bytes = (int64_t)1 << 50;
    *start = machine_send(m, g, &few);
    *rate = fmin(least, (machine_send(m, g, &many) - *start) / (double)many.bytes);
    *start += below;
}

/* The same where replicas send in turns. */
static void line_in_turn(const Machine *m, const SendGroup *g, CollOp op, double *start,
                         double *rate) {
    double part = machine_turn(m, g, op);
    if (part >= 1) return;
    *start = part * *start + (1 - part) * machine_send(m, g, &(Send){.op = op, .type_bytes = 4});
    *rate *= part;
}

typedef enum { LINE_X, LINE_OTHER, LINE_STREAM } LineKind; // which collectives there are

static LineKind line_kind(int along) {
    return along >= STREAM_X ? LINE_STREAM : along == ALONG_X ? LINE_X : LINE_OTHER;
}

/* The least line of the collectives that may run along a group; or, load, what they keep its links
 * busy with all replicas. An all_reduce is a scatter and a gather; where x gathers or scatters it
 * may be a ring of shifts. */
static void least_line(const Machine *m, const SendGroup *g, LineKind kind, bool load,
                       double *start, double *rate) {
    static const CollOp ops[2][4] = {
        {COLL_ALL_GATHER, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE, COLL_SHIFT},
        {COLL_BROADCAST, COLL_REDUCE}};
    bool stream = kind == LINE_STREAM;
    int n = stream ? 2 : kind == LINE_X ? 4 : 3;
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

/* The least of two lines, and of the same collectives on links of low latency. */
static void wire_line(const Machine *m, const SendGroup *g, LineKind kind, bool load, double *start,
                      double *rate) {
    if (!machine_high_latency(m, g)) return;
    Machine low = machine_low_latency(m);
    double once, byte;
    least_line(&low, g, kind, load, &once, &byte);
    *start = fmin(*start, once), *rate = fmin(*rate, byte);
}

static AlongLine line_along(const Machine *m, const SendGroup *g, LineKind kind) {
    AlongLine l = {.level = (uint8_t)machine_level(m, g)};
    least_line(m, g, kind, true, &l.load_start, &l.load_rate);
    l.start = l.load_start, l.rate = l.load_rate;
    if (g->replicas.n) least_line(m, g, kind, false, &l.start, &l.rate);
    l.wire_start = l.start, l.wire_rate = l.rate;
    wire_line(m, g, kind, false, &l.wire_start, &l.wire_rate);
    wire_line(m, g, kind, true, &l.load_start, &l.load_rate);
    return l;
}

/* What collectives along some axes cost in each order. */
static void lines_along(Orders *o, const Machine *m, const Mesh *mesh, Axes axes, int along) {
    Axes d = mesh_real(&mesh[0], axes_of("d"));
    for (int k = 0; k < o->n; k++) {
        SendGroup g = {.place = placement_of(&mesh[k], axes), .size = mesh_blocks(&mesh[k], axes)};
        if (!axes_has(axes, AXIS_D)) g.replicas = placement_of(&mesh[k], d);
        o->at[k].along[along] = line_along(m, &g, line_kind(along));
    }
}

static void list_orders(Orders *o, const Space *s, const Machine *m) {
    int unit[MAX_LEVELS];
    Layout l = layout_of_sizes(o->size);
    for (int i = 0; i < m->n_levels; i++) unit[i] = m->level[i].ranks;
    o->layout = layout_orders(&l, unit, s->only ? 0 : m->n_levels, &o->n);
    if (s->only) o->layout[0] = *s->only; // of one order
    o->at = mem_calloc((size_t)o->n, sizeof *o->at);
}

void orders_of(Orders *o, const Space *s, const Machine *m, const int size[N_AXES]) {
    static const char *const along[N_ALONG] = {"x", "y", "z", "d", "z.d", "x", "y"};
    if (o->n > 0 && memcmp(o->size, size, sizeof o->size) == 0) return;
    orders_free(o);
    memcpy(o->size, size, sizeof o->size);
    list_orders(o, s, m);
    Mesh *mesh = mem_alloc((size_t)o->n * sizeof *mesh);
    for (int k = 0; k < o->n; k++) mesh[k] = mesh_make(&o->layout[k].factors, 0);
    for (int i = 0; i < N_ALONG; i++) {
        Axes real = mesh_real(&mesh[0], axes_of(along[i]));
        if (real.n > 0) lines_along(o, m, mesh, real, i);
    }
    mem_free(mesh);
}

void orders_free(Orders *o) {
    mem_free(o->layout);
    mem_free(o->at);
    *o = (Orders){0};
}
