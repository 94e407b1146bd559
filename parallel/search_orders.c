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

static bool alike(const TapeGroup *a, const TapeGroup *b) {
    return memcmp(&a->place, &b->place, sizeof a->place) == 0 &&
           memcmp(&a->replicas, &b->replicas, sizeof a->replicas) == 0;
}

/* What collectives along some axes cost in each order. Many orders put the ranks of a group in like places. */
static void lines_along(Orders *o, const Machine *m, const Mesh *mesh, Axes axes, int along) {
    TapeGroup g[SEARCH_ORDERS];
    for (int k = 0; k < o->n; k++) {
        int like = 0;
        g[k] =
            (TapeGroup){.place = placement_of(&mesh[k], axes), .size = mesh_blocks(&mesh[k], axes)};
        if (!axes_has(axes, AXIS_D))
            g[k].replicas = placement_of(&mesh[k], mesh_real(&mesh[k], axes_of("d")));
        while (!alike(&g[like], &g[k])) like++;
        double *start = &o->start[k][along], *rate = &o->rate[k][along];
        double *load_start = &o->load_start[k][along], *load_rate = &o->load_rate[k][along];
        if (like == k) {
            o->level[k][along] = (uint8_t)machine_level(m, &g[k]);
            least_line(m, &g[k], along, true, load_start, load_rate);
            *start = *load_start, *rate = *load_rate;
            if (g[k].replicas.n) least_line(m, &g[k], along, false, start, rate);
        }
        *start = o->start[like][along], *rate = o->rate[like][along];
        *load_start = o->load_start[like][along], *load_rate = o->load_rate[like][along];
        o->level[k][along] = o->level[like][along];
    }
    double *start = &o->least_start[along], *rate = &o->least_rate[along];
    *start = *rate = INFINITY;
    for (int k = 0; k < o->n; k++) {
        *start = fmin(*start, o->start[k][along]);
        *rate = fmin(*rate, o->rate[k][along]);
    }
}

void orders_of(Orders *o, const Space *s, const Machine *m, const int size[N_AXES]) {
    static const char *const along[N_ALONG] = {"x", "y", "z", "d", "z.d", "x", "y"};
    int unit[MAX_LEVELS];
    Mesh mesh[SEARCH_ORDERS];
    if (o->n > 0 && memcmp(o->size, size, sizeof o->size) == 0) return;
    Layout l = layout_of_sizes(size);
    *o = (Orders){.n = 1, .n_levels = m->n_levels, .layout = {s->only ? *s->only : l}};
    memcpy(o->size, size, sizeof o->size);
    for (int i = 0; i < m->n_levels; i++) unit[i] = m->level[i].ranks;
    if (!s->only) o->n = layout_orders(&l, unit, m->n_levels, o->layout, SEARCH_ORDERS);
    for (int k = 0; k < o->n; k++) mesh[k] = mesh_make(&o->layout[k].factors, 0);
    for (int i = 0; i < N_ALONG; i++) {
        Axes real = mesh_real(&mesh[0], axes_of(along[i]));
        if (real.n > 0) lines_along(o, m, mesh, real, i);
    }
}
