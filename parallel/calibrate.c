#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "parallel/calibrate_parts.h"
#include "parallel/coll_backend.h"

static const double works_share = 0.6;        // of the budget; the rest is for collectives
static const size_t most_operands = 1u << 30; // bytes of a work; larger ones are not measured
static const size_t most_window = 256u << 20,
                    least_window = 32u << 20; // bytes: of all ranks, of a rank

typedef struct Bench {
    const CalibrateWhere *where;
    const CalibrateList *list;
    Work *work; // those that are missing
    int n_works;
    WorkMemory bytes; // for works
    Arena memory;
    Meter meter;
    Calibration *c;
} Bench;

/* ---- what is missing */

static bool lacks_work(const Bench *b, const Work *w) {
    if (w->rows < 1 || w->threads != team_size(b->where->team)) return false;
    if (calibrate_work_memory(b->where, w).operands > most_operands) return false;
    const WorkCost *have = calibration_find_work(b->c, w);
    return b->where->again || !have || have->work.rows * 2 < w->rows;
}

static bool lacks_send(const Bench *b, int group, int op) {
    const TapeGroup *g = &b->list->group[group];
    int64_t most = b->list->most[group][op];
    if (most < 1 || g->size < 2) return false;
    const SendCost *have = calibration_find_send(b->c, &g->place, (CollOp)op);
    return b->where->again || !have || have->most * 2 < most;
}

/* A product of about a millisecond, and a collective that is to run beside it. */
enum { BESIDE_BYTES = 1 << 20, BESIDE_TIMES = 7 };
static const Work product_beside = {.kind = WORK_XW, .rows = 128, .a = 512, .b = 512};

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* The works that are missing; the memory for them. */
static void find_works(Bench *b) {
    size_t all = 0, most = 0, window = most_window / (size_t)world_size(b->where->world);
    b->work = mem_calloc((size_t)b->list->n_works + 1, sizeof *b->work);
    for (int i = 0; i < b->list->n_works; i++) {
        const Work *w = &b->list->work[i];
        WorkMemory bytes = calibrate_work_memory(b->where, w);
        if (bytes.operands <= most_operands) all += bytes.operands;
        if (!lacks_work(b, w)) continue;
        most = larger(most, bytes.operands);
        b->bytes.workspace = larger(b->bytes.workspace, bytes.workspace);
        b->work[b->n_works++] = *w;
    }
    window = larger(window, least_window);
    b->bytes.operands = larger(all < window ? all : window, most);
}

/* What is missing, and memory for it; false: nothing is. */
static bool find_missing(Bench *b) {
    WorkMemory beside = calibrate_work_memory(b->where, &product_beside);
    size_t memory = beside.workspace + beside.operands + (size_t)calibrate_send_bytes(BESIDE_BYTES);
    bool sends = false;
    find_works(b);
    memory = larger(memory, b->bytes.workspace + b->bytes.operands);
    for (int g = 0; g < b->list->n_groups; g++)
        for (int op = 0; op < N_COLL_OPS; op++) {
            if (!lacks_send(b, g, op)) continue;
            memory = larger(memory, (size_t)calibrate_send_bytes(b->list->most[g][op]));
            sends = true;
        }
    b->memory = arena_measure("calibration");
    arena_take(&b->memory, memory);
    return sends || b->n_works > 0;
}

/* ---- collectives, and products beside them */

/* Seconds of the product, while a collective is under way where comm is not NULL. */
static double product_seconds(Bench *b, Comm *comm, CollOp op) {
    const CalibrateWhere *w = b->where;
    WorkMemory bytes = calibrate_work_memory(w, &product_beside);
    char *operands = b->memory.base + bytes.workspace, *beside = operands + bytes.operands;
    double s[BESIDE_TIMES];
    for (int i = 0; i < BESIDE_TIMES; i++) {
        coll_barrier(world_comm(w->world));
        Ticket t = comm ? calibrate_send_start(comm, op, BESIDE_BYTES, beside) : (Ticket){0};
        coll_progress(w->world);
        double begin = coll_now();
        work_run(&product_beside, w->kernels, w->team, operands, b->memory.base);
        s[i] = coll_now() - begin;
        coll_progress(w->world);
        coll_wait(t);
    }
    return meter_agree(&b->meter, quartile(s, BESIDE_TIMES)).mean;
}

static void measure_slowdown(Bench *b, Comm *comm, CollOp op) {
    if (b->where->crowded) return; // who runs beside whom is the system's choice
    double alone = product_seconds(b, NULL, op), beside = product_seconds(b, comm, op);
    b->c->slowdown = beside > alone ? beside / alone : 1;
}

static void measure_sends(Bench *b) {
    bool first = true;
    double until = b->meter.elapsed + (1 - works_share) * b->where->budget;
    if (until < b->where->budget) until = b->where->budget;
    for (int g = 0; g < b->list->n_groups; g++) {
        Comm *comm = NULL;
        for (int op = 0; op < N_COLL_OPS && b->meter.elapsed < until; op++) {
            SendCost cost;
            if (!lacks_send(b, g, op)) continue;
            if (!comm) comm = calibrate_comm(b->where->world, &b->list->group[g]);
            calibrate_send(&b->meter, &b->list->group[g], comm, (CollOp)op, b->list->most[g][op],
                           b->memory.base, &cost);
            calibration_add_send(b->c, &cost);
            if (first) measure_slowdown(b, comm, (CollOp)op);
            first = false;
        }
    }
}

/* ---- all of it */

static void measure(Bench *b) {
    const CalibrateWhere *w = b->where;
    arena_commit(&b->memory);
    meter_start(&b->meter, w->world, w->crowded);
    double slowest = calibrate_works(&b->meter, w, b->work, b->n_works, b->memory.base, b->bytes,
                                     works_share * w->budget, b->c);
    if (b->n_works > 0) b->c->slowest = w->crowded ? 1 : slowest;
    measure_sends(b);
    meter_agree(&b->meter, 0);
    b->c->seconds = b->meter.elapsed;
    meter_end(&b->meter);
    arena_free(&b->memory);
}

/* What rank 0 has read, to all. */
static void share(const Group *g, Calibration *c) {
    Calibration head = *c;
    group_share(g, &head, sizeof head);
    c->slowdown = head.slowdown, c->slowest = head.slowest;
    if (g->rank > 0) {
        c->n_works = c->max_works = head.n_works, c->n_sends = c->max_sends = head.n_sends;
        c->work = mem_calloc((size_t)c->n_works + 1, sizeof *c->work);
        c->send = mem_calloc((size_t)c->n_sends + 1, sizeof *c->send);
    }
    if (c->n_works) group_share(g, c->work, (size_t)c->n_works * sizeof *c->work);
    if (c->n_sends) group_share(g, c->send, (size_t)c->n_sends * sizeof *c->send);
}

Calibration *calibrate(const CalibrateWhere *w, const CalibrateList *list) {
    Bench b = {.where = w, .list = list, .c = calibration_new()};
    Group all = comm_group(world_comm(w->world));
    if (all.rank == 0) calibration_load(b.c, w->key);
    share(&all, b.c);
    if (find_missing(&b)) {
        measure(&b);
        if (all.rank == 0) calibration_save(b.c, w->key);
    }
    mem_free(b.work);
    return b.c;
}
