/* parallel/plan/program_price: the price of a program against that of the recorded step
 * (parallel/plan/price.h), which runs the same kernels and sends the same bytes; against the
 * price of all layers; and its bound. */
#include "parallel/plan/program_price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/price.h"
#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

static const char *const models[] = {
    "layers=6,heads=8,channels=256,vocab=1000,seq=128",
    "layers=12,heads=12,channels=768,vocab=50257,seq=1024",
    "llama,layers=5,heads=16,channels=1024,vocab=32000,seq=512,ffn=2816",
    "layers=24,heads=32,channels=4096,vocab=50257,seq=2048"};
static const char *const machines[] = {"cpu:8", "h100:1", "v100:2", "consumer:1", "h100:8"};

static void shape_of(ModelShape *s, Grid *g, const char *spec, const char *model, int64_t B) {
    Err e;
    *g = (Grid){0};
    *s = (ModelShape){.B = B, .training = true, .grid = g};
    if (!layout_parse(&g->layout, spec, 0, &e)) die("%s", e.text);
    if (!config_parse(&s->config, model, &e)) die("%s", e.text);
    g->mesh = mesh_make(&g->layout.factors, 0);
    s->S = s->config.seq < 2048 ? s->config.seq : 512;
}

static Machine machine_of(const char *name) {
    Machine m;
    Err e;
    if (!machine_open(&m, name, &e)) die("%s", e.text);
    return m;
}

/* The price of one micro-batch of the recorded step, neither the first of the step nor the last. */
static Price recorded_price(const ModelShape *m, const Machine *machine) {
    const Mesh *mesh = &m->grid->mesh;
    int64_t places = (int64_t)mesh->size[AXIS_D] * mesh->size[AXIS_Z];
    PriceShape s = {.config = m->config,
                    .S = m->S,
                    .batch = 4 * m->B * m->S * places,
                    .micro = m->B,
                    .bf16 = m->bf16,
                    .recompute = m->recompute,
                    .overlap = m->overlap,
                    .threads = machine->threads,
                    .kernels = machine_kernels(machine, m->bf16)};
    Tape t = {0};
    Price price;
    price_record(&t, &s, &m->grid->layout, 0);
    for (int k = 0; k < 2; k++) {
        int *at = t.run[k].begin, begin = at[PART_MICRO_2], end = at[PART_LAST];
        at[PART_ZERO] = at[PART_MICRO_1] = begin;
        at[PART_END] = at[N_TAPE_PARTS] = t.run[k].met = end;
    }
    t.repeats = 1;
    tape_play(&t, machine, &price);
    tape_free(&t);
    return price;
}

/* ---- against the recorded step ---- */

enum { MAX_CASES = 512 };

/* Relative differences of seconds. */
typedef struct Compare {
    double diff[MAX_CASES];
    int n;
    bool bulk;
} Compare;

static void compare(const char *spec, void *ctx) {
    Compare *c = ctx;
    int i = c->n;
    Grid g;
    ModelShape s;
    Machine m = machine_of(machines[i % 5]);
    shape_of(&s, &g, spec, models[i / 2 % 4], 2 + i % 3);
    s.recompute = (Recompute)(i / 3 % 3), s.bf16 = m.gpu, s.overlap.bulk = c->bulk;
    Price tape = recorded_price(&s, &m), list;
    program_price(&s, &m, m.threads, &list);
    if (list.received != tape.received)
        test_fail(__FILE__, __LINE__, "%s receives other bytes than it did", spec);
    double diff = list.seconds / tape.seconds - 1;
    if (diff < (c->bulk ? -0.2 : -0.05) || diff > (c->bulk ? 0.2 : 0.01))
        test_fail(__FILE__, __LINE__, "%s on %s, %s, recompute %d: %+.2f %% of %.3f ms", spec,
                  m.name, models[i / 2 % 4], (int)s.recompute, 100 * diff, 1e3 * tape.seconds);
    c->diff[c->n++] = diff;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Compare compare_all(bool bulk) {
    Compare c = {.bulk = bulk};
    for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, compare, &c);
    qsort(c.diff, (size_t)c.n, sizeof *c.diff, by_size);
    return c;
}

/* Kernels and collectives are the same, in the same order. The list's panels are copied at the root
 * of a broadcast, so by one rank of several: the tape is that of one rank, which is the root of
 * some. What clears padding is in the tape alone. */
TEST(step_price_without_overlap_is_that_of_the_recorded_step) {
    Compare c = compare_all(false);
    CHECK(c.n > 200 && fabs(c.diff[c.n / 2]) < 0.001);
}

/* The tape's order is found from nominal costs, the list's from those of the machine; and what is
 * under way together shares the network in one and queues in the other. */
TEST(step_price_with_bulk_is_near_that_of_the_recorded_step) {
    Compare c = compare_all(true);
    CHECK(c.n > 200 && fabs(c.diff[c.n / 2]) < 0.01);
}

/* ---- against all layers, and the bound ---- */

typedef struct Deep {
    int n;
    bool bulk;
} Deep;

static void whole_price(const ModelShape *shape, const Machine *m, Price *out) {
    const Kernels *k = machine_kernels(m, shape->bf16);
    Program p = program_passes(shape, PASS_FUSE, k);
    OpCost *costs = program_costs(&p, m, m->threads);
    Schedule s = schedule_make(&p, costs, shape->overlap.bulk ? WINDOW_BULK : WINDOW_NONE);
    Played all = program_played(&p, &s);
    played_price(&all, m, 0, out);
    schedule_free(&s);
    mem_free(costs);
    program_free(&p);
}

static void check_depth(const char *spec, void *ctx) {
    Deep *c = ctx;
    int i = c->n++;
    Grid g;
    ModelShape s;
    Machine m = machine_of(machines[i % 5]);
    shape_of(&s, &g, spec, models[i / 2 % 4], 2 + i % 3);
    s.recompute = (Recompute)(i / 3 % 3), s.bf16 = m.gpu, s.overlap.bulk = c->bulk;
    if (i % 7 == 0) m.crowd = 3;
    Price all, few;
    whole_price(&s, &m, &all);
    program_price(&s, &m, m.threads, &few);
    double bound = program_bound(&s, &m, m.threads), limit = c->bulk ? 0.02 : 1e-9; // sums round
    if (fabs(few.seconds / all.seconds - 1) > limit)
        test_fail(__FILE__, __LINE__, "%s on %s: %.3f ms of few layers, %.3f ms of all", spec,
                  m.name, 1e3 * few.seconds, 1e3 * all.seconds);
    if (few.received != all.received || few.calls != all.calls)
        test_fail(__FILE__, __LINE__, "%s: bytes or calls of few layers", spec);
    if (bound > few.seconds * (1 + 1e-9) || bound < 0.2 * few.seconds)
        test_fail(__FILE__, __LINE__, "%s on %s: a bound of %.3f ms, a price of %.3f", spec, m.name,
                  1e3 * bound, 1e3 * few.seconds);
}

TEST(step_price_of_few_layers_tells_that_of_all) {
    for (int bulk = 0; bulk < 2; bulk++) {
        Deep c = {.bulk = bulk};
        for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, check_depth, &c);
        CHECK(c.n > 300);
    }
}
