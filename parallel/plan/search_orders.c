/* The orders of a mesh's axes, and lines below what collectives cost in each. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/calibrate.h"
#include "parallel/plan/search_parts.h"

Layout reorder(const Layout *words, const Layout *order) {
    Layout l = *order;
    l.sp = words->sp, l.heads = words->heads, l.stay = words->stay, l.zero = words->zero;
    l.exact = words->exact;
    return l;
}

/* What a collective costs is not below a line in its bytes: between the ends of a range that which
 * joins them, as by its formula it takes the least of one or more lines, and is above its chords
 * (machine.c); or calibration_line where it was measured. */
static void line_of(const Machine *m, const SendGroup *g, CollOp op, Range bytes, double *start,
                    double *rate) {
    Send few = {.op = op, .bytes = bytes.from, .type_bytes = 4}, many = few;
    if (m->measured && calibration_line(m->measured, g, op, start, rate)) return;
    assert(bytes.to > bytes.from);
    many.bytes = bytes.to;
    double first = machine_send(m, g, &few);
    *rate = (machine_send(m, g, &many) - first) / (double)(bytes.to - bytes.from);
    *start = first - *rate * (double)bytes.from;
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

/* The least line of the collectives that may run along a group, of so many bytes; or, load, what
 * they keep its links busy with all replicas. An all_reduce is a scatter and a gather; where x
 * gathers or scatters it may be a ring of shifts. */
static void least_line(const Machine *m, const SendGroup *g, LineKind kind, Range bytes, bool load,
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
        line_of(m, g, op, bytes, &once, &byte);
        if (!load) line_in_turn(m, g, op, &once, &byte);
        if (op == COLL_ALL_REDUCE) once /= 2, byte /= 2;
        if (op == COLL_SHIFT) once *= others, byte *= others / p; // of a block each
        *start = fmin(*start, once), *rate = fmin(*rate, byte);
    }
    *start *= 1 - 1e-9; // what follows from one division is not what follows from another
    *rate *= 1 - 1e-9;
}

/* The least of two lines, and of the same collectives on links that are not long. */
static void wire_line(const Machine *m, const SendGroup *g, LineKind kind, Range bytes, bool load,
                      double *start, double *rate) {
    if (!machine_long(m, g)) return;
    Machine near = machine_near(m);
    double once, byte;
    least_line(&near, g, kind, bytes, load, &once, &byte);
    *start = fmin(*start, once), *rate = fmin(*rate, byte);
}

static uint32_t hash_of(const Placement *p, uint32_t h) {
    for (int i = 0; i < p->n; i++)
        h = (h ^ (uint32_t)p->size[i] ^ (uint32_t)p->stride[i] << 16) * 0x9e3779b1u;
    return (h ^ (uint32_t)p->n) * 0x9e3779b1u;
}

static bool known_is(const KnownLine *k, LineKind kind, Range bytes, const SendGroup *g) {
    return k->bytes.to == bytes.to && k->bytes.from == bytes.from && k->kind == kind &&
           memcmp(&k->place, &g->place, sizeof k->place) == 0 &&
           memcmp(&k->replicas, &g->replicas, sizeof k->replicas) == 0;
}

/* The lines of a group, from those that are known where it has been asked for. */
static const KnownLine *known_line(KnownLines *all, const Machine *m, const SendGroup *g,
                                   LineKind kind, Range bytes) {
    uint32_t h = hash_of(&g->replicas, hash_of(&g->place, (uint32_t)kind ^ (uint32_t)bytes.to));
    KnownLine *k = &all->line[h >> (32 - KNOWN_LINES_BITS)];
    if (known_is(k, kind, bytes, g)) return k;
    *k = (KnownLine){
        .bytes = bytes, .kind = (uint8_t)kind, .place = g->place, .replicas = g->replicas};
    k->level = (uint8_t)machine_level(m, g);
    least_line(m, g, kind, bytes, true, &k->load_start, &k->load_rate);
    k->start = k->load_start, k->rate = k->load_rate;
    if (g->replicas.n) least_line(m, g, kind, bytes, false, &k->start, &k->rate);
    k->wire_start = k->start, k->wire_rate = k->rate;
    wire_line(m, g, kind, bytes, false, &k->wire_start, &k->wire_rate);
    wire_line(m, g, kind, bytes, true, &k->load_start, &k->load_rate);
    return k;
}

/* What collectives along some axes cost in each order. */
static void lines_along(Orders *o, KnownLines *known, const Machine *m, const Mesh *mesh, Axes axes,
                        int along, Range bytes) {
    double least_start = INFINITY, least_rate = INFINITY;
    Axes d = mesh_real(&mesh[0], axes_of("d"));
    bool replicas = !axes_has(axes, AXIS_D);
    for (int k = 0; k < o->n; k++) {
        Order *at = &o->at[k];
        SendGroup g = {.place = placement_of(&mesh[k], axes), .size = mesh_blocks(&mesh[k], axes)};
        if (replicas) g.replicas = placement_of(&mesh[k], d);
        const KnownLine *l = known_line(known, m, &g, line_kind(along), bytes);
        at->level[along] = l->level;
        at->start[along] = l->start, at->rate[along] = l->rate;
        at->wire_start[along] = l->wire_start, at->wire_rate[along] = l->wire_rate;
        at->load_start[along] = l->load_start, at->load_rate[along] = l->load_rate;
        least_start = fmin(least_start, l->wire_start);
        least_rate = fmin(least_rate, l->wire_rate);
    }
    o->least_start[along] = least_start, o->least_rate[along] = least_rate;
}

static void list_orders(Orders *o, const Space *s, const Machine *m) {
    int unit[MAX_LEVELS];
    Layout l = layout_of_sizes(o->size);
    for (int i = 0; i < m->n_levels; i++) unit[i] = m->level[i].ranks;
    o->layout = layout_orders(&l, unit, s->only ? 0 : m->n_levels, &o->n);
    if (s->only) o->layout[0] = *s->only; // of one order
    o->at = mem_calloc((size_t)o->n, sizeof *o->at);
}

void orders_of(Orders *o, KnownLines *known, const Space *s, const Machine *m,
               const int size[N_AXES]) {
    const Range any = {0, (int64_t)1 << 50};
    static const char *const along[N_ALONG] = {"x", "y", "z", "d", "z.d", "x", "y"};
    if (o->n > 0 && memcmp(o->size, size, sizeof o->size) == 0) return;
    orders_free(o);
    memcpy(o->size, size, sizeof o->size);
    o->n_levels = m->n_levels;
    list_orders(o, s, m);
    Mesh *mesh = mem_alloc((size_t)o->n * sizeof *mesh);
    for (int k = 0; k < o->n; k++) mesh[k] = mesh_make(&o->layout[k].factors, 0);
    for (int i = 0; i < N_ALONG; i++) {
        Axes real = mesh_real(&mesh[0], axes_of(along[i]));
        if (real.n > 0) lines_along(o, known, m, mesh, real, i, any);
    }
    mem_free(mesh);
}

void orders_free(Orders *o) {
    mem_free(o->layout);
    mem_free(o->at);
    *o = (Orders){0};
}
