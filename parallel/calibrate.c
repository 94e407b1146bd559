#include <math.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/mem.h"
#include "parallel/calibrate_parts.h"
#include "parallel/coll_backend.h"
#include "parallel/ranks.h"

static const double works_share = 0.5; // of the budget, at most; the rest is for collectives
static const double pace = 0.95;       // of the budget, when the last collective is to be done
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
    int neighbours; // ranks on this node
    double beside
        [2]; // of groups inside a node, across nodes: kernels while their collectives are under way; 0: not known
    Calibration *c;
    bool doubted; // on rank 0: what c was
} Bench;

/* ---- what is missing */

static bool lacks_work(const Bench *b, const Work *w) {
    if (w->rows < 1 || w->threads != team_size(b->where->team)) return false;
    if (calibrate_work_memory(b->where, w).operands > most_operands) return false;
    const WorkCost *have = calibration_find_work(b->c, w);
    return b->where->talk.again || !have || have->work.rows * 2 < w->rows;
}

static bool lacks_send(const Bench *b, int group, int op) {
    const TapeGroup *g = &b->list->group[group];
    int64_t most = b->list->most[group][op];
    if (most < 1 || g->size < 2) return false;
    const SendCost *have = calibration_find_send(b->c, &g->place, (CollOp)op);
    return b->where->talk.again || !have || have->most * 2 < most;
}

/* A product of about a millisecond, and the largest collective that is to run beside such. A smaller one does where it takes
 * long enough. */
enum { BESIDE_BYTES = 4 << 20, BESIDE_TIMES = 5, BESIDE_TRIES = 2 };
static const double beside_least = 5e-3;
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

/* A collective, and products that take a little longer than it: alone or together. */
typedef struct Beside {
    Bench *b;
    Comm *comm;
    CollOp op;
    int64_t bytes;
    int products;
} Beside;

/* What the collective takes, what the products take, and both at once: the least of some times, in turns, for what else
 * runs on the machine only adds. NULL: not wanted. */
static void beside_seconds(const Beside *x, int times, double *sends, double *computes,
                           double *both) {
    const CalibrateWhere *w = x->b->where;
    WorkMemory bytes = calibrate_work_memory(w, &product_beside);
    char *operands = x->b->memory.base + bytes.workspace, *beside = operands + bytes.operands;
    double *const wanted[] = {sends, computes, both};
    for (int i = 0; i < 3 * times; i++) {
        int which = i % 3;
        if (!wanted[which]) continue;
        coll_barrier(world_comm(w->world));
        double begin = coll_now();
        Ticket t = {0};
        if (which != 1) t = calibrate_send_start(x->comm, x->op, x->bytes, beside);
        for (int k = 0; which > 0 && k < x->products; k++)
            work_run(&product_beside, w->kernels, w->team, operands, x->b->memory.base);
        coll_wait(t);
        double s = coll_now() - begin;
        *wanted[which] = i < 3 ? s : fmin(*wanted[which], s);
    }
    for (int i = 0; i < 3; i++)
        if (wanted[i]) *wanted[i] = meter_agree(&x->b->meter, *wanted[i]).mean;
}

/* Of a collective of C seconds, h C ran under W > C seconds of kernels, when both took C + W - h C: while it was under way
 * kernels did h of what they do alone. */
static double measure_beside(Bench *b, Comm *comm, CollOp op, int64_t most) {
    const double nothing = 100;
    Beside x = {.b = b, .comm = comm, .op = op, .products = 1};
    double C = 0, W = 0, both = 0;
    if (most > BESIDE_BYTES) most = BESIDE_BYTES;
    for (int64_t n = BESIDE_BYTES / 16; C < beside_least && x.bytes < most; n *= 4) {
        x.bytes = n < most ? n : most;
        beside_seconds(&x, BESIDE_TRIES, &C, &W, NULL);
    }
    x.products = (int)(1.2 * C / W) + 1;
    beside_seconds(&x, BESIDE_TIMES, &C, &W, &both);
    double hidden = fmin(fmax(C + W - both, C / nothing), C);
    return C / hidden;
}

/* Groups inside a node are alike in this, and groups across nodes: measured once, by the largest collective of any, for
 * of a small one most time is handshakes and the first half millisecond, which are nobody's. Nothing runs by itself between
 * threads; and where ranks share cores, what stays on the node takes the cores that compute, and of what leaves it the
 * network's own work does. */
static double beside_of(Bench *b, const TapeGroup *g) {
    const double nothing = 100;
    bool across = placement_extent(&g->place) >= b->neighbours;
    double *known = &b->beside[across];
    int group;
    CollOp op;
    if (!b->where->world->backend->polled) return nothing;
    if (b->where->crowded && !across) return nothing;
    if (*known > 0) return *known;
    int64_t most = calibrate_largest(b->list, b->neighbours, across, &group, &op);
    Comm *comm = calibrate_comm(b->where->world, &b->list->group[group]);
    return *known = measure_beside(b, comm, op, most);
}

static int count_sends(const Bench *b) {
    int n = 0;
    for (int g = 0; g < b->list->n_groups; g++)
        for (int op = 0; op < N_COLL_OPS; op++) n += lacks_send(b, g, op);
    return n;
}

/* Where works took long, or collectives do, those that are left are repeated less often: all of them are to be known in the end,
 * for a plan needs them all. */
static void measure_sends(Bench *b) {
    double until = b->meter.elapsed + (1 - works_share) * b->where->budget;
    int left = count_sends(b);
    if (until < b->where->budget) until = b->where->budget;
    for (int g = 0; g < b->list->n_groups; g++) {
        Comm *comm = NULL;
        for (int op = 0; op < N_COLL_OPS && b->meter.elapsed < until; op++) {
            const TapeGroup *group = &b->list->group[g];
            SendCost cost;
            if (!lacks_send(b, g, op)) continue;
            if (!comm) comm = calibrate_comm(b->where->world, group);
            b->meter.enough = (pace * b->where->budget - b->meter.elapsed) / (SEND_POINTS * left--);
            calibrate_send(&b->meter, group, comm, (CollOp)op, b->list->most[g][op], b->memory.base,
                           &cost);
            cost.beside = beside_of(b, group);
            calibration_add_send(b->c, &cost);
        }
    }
}

/* ---- all of it */

bool calibration_doubt(const Calibration *c, const CalibrateTalk *talk) {
    const int least = 3, most = 4; // doublings: as many lines as a ledger is asked for
    return *c->measured && strcmp(c->measured, talk->doubtful) == 0 &&
           talk->doubtful_times >= least << (c->doubts < most ? c->doubts : most);
}

/* Rank 0's table, and whether it is believed. */
static void load(Bench *b) {
    const CalibrateWhere *w = b->where;
    Calibration *c = b->c;
    calibration_load(c, w->key);
    if (w->talk.again) c->doubts = 0;
    b->doubted = calibration_doubt(c, &w->talk);
    if (b->doubted) c->n_works = c->n_sends = 0, c->doubts++;
}

static void set_time(Calibration *c, const Group *all) {
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm)) strftime(c->measured, sizeof c->measured, "%Y-%m-%dT%H:%M:%SZ", &tm);
    group_share(all, c->measured, sizeof c->measured);
}

static void measure(Bench *b) {
    const CalibrateWhere *w = b->where;
    char *path = calibration_path(w->key);
    arena_commit(&b->memory);
    meter_start(&b->meter, w->world, w->crowded);
    b->neighbours = ranks_on_node(w->world);
    b->meter.news = (CalibrateNews){.path = path, .doubted = b->doubted};
    b->meter.talk = &w->talk;
    meter_agree(&b->meter, 0); // rank 0 is told
    double slowest = calibrate_works(&b->meter, w, b->work, b->n_works, b->memory.base, b->bytes,
                                     works_share * w->budget, b->c);
    if (b->n_works > 0) b->c->slowest = w->crowded ? 1 : slowest;
    measure_sends(b);
    meter_agree(&b->meter, 0);
    b->c->seconds = b->meter.elapsed;
    set_time(b->c, &b->meter.all);
    meter_end(&b->meter);
    arena_free(&b->memory);
    mem_free(path);
}

/* What rank 0 has read, to all. */
static void share(const Group *g, Calibration *c) {
    Calibration head = *c;
    group_share(g, &head, sizeof head);
    c->slowest = head.slowest, c->doubts = head.doubts;
    memcpy(c->measured, head.measured, sizeof c->measured);
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
    if (all.rank == 0) load(&b);
    share(&all, b.c);
    if (find_missing(&b)) {
        measure(&b);
        if (all.rank == 0) calibration_save(b.c, w->key);
    }
    mem_free(b.work);
    return b.c;
}

Calibration *calibrate_kept(const CalibrateWhere *w, const CalibrateList *list) {
    Bench b = {.where = w, .list = list, .c = calibration_new()};
    Group all = comm_group(world_comm(w->world));
    if (all.rank == 0) calibration_load(b.c, w->key);
    share(&all, b.c);
    bool lacks = find_missing(&b);
    mem_free(b.work);
    if (!lacks) return b.c;
    calibration_free(b.c);
    return NULL;
}
