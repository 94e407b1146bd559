#include "parallel/plan/price.h"

#include <string.h>

#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/count.h"
#include "parallel/plan/price_kernels.h"
#include "parallel/step/generate.h"
#include "parallel/step/outer.h"
#include "parallel/step/run.h"

/* ---- collectives that write themselves down */

typedef struct PriceComm {
    int group;                     // of the tape
    int32_t event[COLL_IN_FLIGHT]; // where call number k was started: [k % COLL_IN_FLIGHT]
} PriceComm;

static void price_open(Comm *c, int color, int key) {
    (void)color, (void)key;
    c->impl = mem_calloc(1, sizeof(PriceComm));
}

static void price_close(Comm *c) {
    mem_free(c->impl);
}

/* Of the whole: all_gather's dst, reduce_scatter's src, else the buffer. */
static int64_t whole_bytes(const Comm *c, const CollCall *call) {
    int64_t n = coll_elements(call) * coll_type_bytes(call->type);
    bool blocks = call->op == COLL_ALL_GATHER || call->op == COLL_REDUCE_SCATTER;
    return blocks ? n * c->size : n;
}

static int slot_of(const PriceComm *p, uint64_t number) {
    return p->group * COLL_IN_FLIGHT + (int)(number % COLL_IN_FLIGHT);
}

static void price_start(Comm *c, uint64_t number, const CollCall *call) {
    PriceComm *p = c->impl;
    Tape *t = c->world->impl;
    Send s = {.op = call->op,
              .group = p->group,
              .bytes = whole_bytes(c, call),
              .type_bytes = (int32_t)coll_type_bytes(call->type),
              .received = coll_bytes(call, c->rank, c->size),
              .what = call->what};
    p->event[number % COLL_IN_FLIGHT] = t->n_events;
    tape_event(t, EVENT_START, tape_send(t, &s), slot_of(p, number));
}

static void price_wait(Comm *c, uint64_t number, const CollCall *call) {
    (void)call;
    PriceComm *p = c->impl;
    tape_event(c->world->impl, EVENT_WAIT, p->event[number % COLL_IN_FLIGHT], slot_of(p, number));
}

static void price_world(World *w) {
    (void)w;
}
static void price_barrier(Comm *c) {
    (void)c;
}

static const CollBackend coll_price = {.name = "price",
                                       .alone = true,
                                       .open = price_open,
                                       .close = price_close,
                                       .start = price_start,
                                       .wait = price_wait,
                                       .progress = price_world,
                                       .barrier = price_barrier,
                                       .leave = price_world};

/* ---- the mesh */

/* n ranks that follow each other along the axes, the last axis first: as many of its innermost
 * factors as it takes. Where n does not divide a factor, all of it: ranks do not fall into such
 * groups, and those that they do fall into can be measured. */
static Placement innermost(const Mesh *m, Axes axes, int n) {
    Placement out = {.n = 0}, reversed = {.n = 0};
    for (int i = axes.n; i-- > 0 && n > 1;) {
        Placement p = placement_of(m, mesh_real(m, (Axes){1, {axes.axis[i]}}));
        for (int k = p.n; k-- > 0 && n > 1;) {
            int size = p.size[k] % n ? p.size[k] : n;
            reversed.size[reversed.n] = size, reversed.stride[reversed.n++] = p.stride[k];
            n = (n + size - 1) / size;
        }
    }
    for (int i = reversed.n; i-- > 0; out.n++)
        out.size[out.n] = reversed.size[i], out.stride[out.n] = reversed.stride[i];
    return out;
}

/* Where the ranks of a group lie; copies of a key head are neighbours along the axes that cut
 * heads. */
static void place_group(TapeGroup *g, const Mesh *mesh, Axes middle) {
    if (strcmp(g->label, "kv") == 0)
        g->place = innermost(mesh, middle, g->size);
    else if (g->axes.n)
        g->place = placement_of(mesh, g->axes);
    else
        g->place = (Placement){1, {mesh->p}, {1}};
    bool along_d = g->axes.n == 0 || axes_has(g->axes, AXIS_D);
    g->replicas = (Placement){0};
    if (!along_d) g->replicas = placement_of(mesh, mesh_real(mesh, axes_of("d")));
}

static void add_group(Tape *t, Comm *c, Axes axes, const Grid *g) {
    PriceComm *p = c->impl;
    TapeGroup *to = &t->group[p->group = t->n_groups++];
    *to = (TapeGroup){.axes = axes, .size = comm_size(c), .rank = comm_rank(c)};
    snprintf(to->label, sizeof to->label, "%s", comm_label(c));
    place_group(to, &g->mesh, grid_hidden_axes(g));
}

static void add_groups(Tape *t, const Grid *g) {
    t->n_groups = 0;
    for (int i = 0; i < g->n_comms; i++) add_group(t, g->comms[i].comm, g->comms[i].axes, g);
    if (g->kv) add_group(t, g->kv, axes_none(), g);
    add_group(t, world_comm(g->world), axes_none(), g);
}

void price_reorder(Tape *t, const Layout *l) {
    Grid g = {.layout = *l, .mesh = mesh_make(&l->factors, 0)};
    for (int i = 0; i < t->n_groups; i++) place_group(&t->group[i], &g.mesh, grid_hidden_axes(&g));
}

/* ---- the step */

int64_t price_micro_steps(const PriceShape *s, const Layout *l) {
    int64_t places = (int64_t)l->size[AXIS_D] * l->size[AXIS_Z], round = s->micro * places,
            sequences = s->batch / s->S;
    return (sequences + round - 1) / round;
}

/* What train_gpt.c does in a step. In the last micro-batch gradients become complete. */
static void step(Model *m, Tape *t, const PriceShape *s, TapeRun *r) {
    int64_t n = t->micro_steps;
    bool last = n > 2;
    int64_t middle = s->whole ? n - 1 - last : n > 1; // of PART_MICRO_2
    t->repeats = n < 2 || s->whole ? 1 : n - 1 - last;
    r->begin[PART_ZERO] = t->n_events;
    model_zero_grads(m, 1 + middle + last);
    r->begin[PART_MICRO_1] = t->n_events;
    model_step(m, NULL, NULL, 1);
    r->begin[PART_MICRO_2] = t->n_events;
    for (int64_t i = 0; i < middle; i++) model_step(m, NULL, NULL, 1);
    r->begin[PART_LAST] = t->n_events;
    if (last) model_step(m, NULL, NULL, 1);
    r->begin[PART_END] = t->n_events;
    model_sums_begin(m);
    outer_mean(m, 1);
    AdamW rule = {.step = 1};
    model_update_clipped(m, &rule, 1);
    r->begin[N_TAPE_PARTS] = r->met = t->n_events;
    if (!m->grid->local_steps || s->every == 0) return;
    outer_sums(&(Outer){.every = s->every, .fragments = s->fragments}, m);
    r->met = t->n_events;
}

/* A model of so many layers, and what it takes. */
static void plan(Model *m, Tape *t, const PriceShape *s, const Grid *g, int64_t layers,
                 bool unplaced, TapeRun *r) {
    ModelShape shape = {.config = s->config,
                        .B = s->micro,
                        .S = s->S,
                        .bf16 = s->bf16,
                        .recompute = s->recompute,
                        .overlap = s->overlap,
                        .training = true,
                        .step_alone = true,
                        .unplaced = unplaced,
                        .outer = s->outer,
                        .grid = g};
    shape.config.layers = layers;
    model_plan(m, &shape, price_kernels(t, s->kernels), NULL);
    for (int i = 0; i < N_ARENAS; i++) r->memory[i] = (int64_t)m->arena[i].used;
    r->kept = step_run_kept(m->program);
    r->sampling = s->samples ? generator_bytes(m) : 0;
    for (int i = 0; i <= N_TAPE_PARTS; i++) r->begin[i] = 0;
    r->met = 0;
}

/* One model or two: the first and the last block of a step may differ from those between, and two
 * layers have one of each; three do where a block is made again in the backward of the one behind
 * it, which the first does not. False, and no step, where the real model takes more than `bytes`
 * (0: any). */
static bool record(Tape *t, const PriceShape *s, const Grid *g, int64_t bytes) {
    Model m[2];
    bool early = s->overlap.bulk && s->recompute == RECOMPUTE_FULL;
    int alike = early ? 3 : 2;
    t->recorded[0] = (int)(s->whole || t->layers < alike ? t->layers : alike);
    t->recorded[1] = t->recorded[0] + (t->layers > t->recorded[0]);
    int n = t->recorded[1] > t->recorded[0] ? 2 : 1;
    for (int i = 0; i < n; i++) // the memory of temporaries is that of the longer one
        plan(&m[i], t, s, g, t->recorded[i], s->unplaced || i < n - 1, &t->run[i]);
    bool fits = bytes == 0 || tape_memory(t) <= bytes;
    for (int i = 0; i < n; i++) {
        if (fits) model_imagine(&m[i]), step(&m[i], t, s, &t->run[i]);
        model_free(&m[i]);
    }
    return fits;
}

static bool record_rank(Tape *t, const PriceShape *s, const Layout *layout, int rank,
                        int64_t bytes) {
    Grid g;
    Layout plain = *layout, *l = &plain;
    plain.exact = false; // sums of integers follow pointers
    World *w = layout_ranks(l) > 1 ? world_imagine(&coll_price, rank, layout_ranks(l), t) : NULL;
    t->n_events = t->n_works = t->n_sends = t->n_groups = 0;
    t->every = s->every;
    t->threads = s->threads > 0 ? s->threads : 1;
    t->overlap = !overlap_equal(&s->overlap, &(Overlap){0});
    t->layers = s->config.layers;
    t->micro_steps = price_micro_steps(s, l);
    if (w) {
        grid_make(&g, w, l, &s->config);
        if (s->apart) grid_set_local_steps(&g);
        add_groups(t, &g);
    } else {
        g = *grid_one();
    }
    bool fits = record(t, s, &g, bytes);
    if (w) world_free(w);
    return fits;
}

void price_record(Tape *t, const PriceShape *s, const Layout *l, int rank) {
    record_rank(t, s, l, rank, 0);
}

bool price_record_within(Tape *t, const PriceShape *s, const Layout *l, int64_t bytes) {
    return record_rank(t, s, l, 0, bytes);
}

/* ---- counters */

typedef struct Rows {
    const Tape *t;
    CollCount *row;
    int n, max;
} Rows;

static void count_send(Rows *r, const Send *s, int64_t calls, int64_t bytes) {
    const TapeGroup *g = &r->t->group[s->group];
    CollCount row = {.what = s->what, .label = g->label, .op = s->op, .size = g->size};
    int at = 0;
    while (at < r->n && !count_same(&r->row[at], &row)) at++;
    if (at == r->max) return;
    if (at == r->n) r->row[r->n++] = row;
    r->row[at].calls += calls, r->row[at].bytes += bytes;
}

/* What the events [begin, end) send, so many times. */
static void count_part(Rows *r, int begin, int end, int64_t times) {
    for (int i = begin; i < end; i++) {
        if (r->t->event[i].kind != EVENT_START) continue;
        const Send *s = &r->t->send[r->t->event[i].index];
        count_send(r, s, times, times * s->received);
    }
}

static void count_run(Rows *r, const TapeRun *run, int64_t times) {
    const int *at = run->begin;
    count_part(r, at[PART_ZERO], at[PART_MICRO_2], times);
    count_part(r, at[PART_MICRO_2], at[PART_LAST], times * r->t->repeats);
    count_part(r, at[PART_LAST], at[N_TAPE_PARTS], times);
}

int price_counts(const Tape *t, CollCount *rows, int max) {
    Rows r = {.t = t, .row = rows, .max = max};
    int more = t->recorded[1] - t->recorded[0];
    // run 0 + (layers - 2) (run 1 - run 0), in order of first use
    int64_t extra = more ? (t->layers - t->recorded[0]) / more : 0, bytes;
    count_run(&r, &t->run[0], 1 - extra);
    if (extra) count_run(&r, &t->run[1], extra);
    for (int i = 0, k; (k = tape_uneven(t, i, &bytes)) >= 0; i++)
        count_send(&r, &t->send[k], 0, bytes);
    return r.n;
}
