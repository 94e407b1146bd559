#include "parallel/price.h"

#include <string.h>

#include "base/mem.h"
#include "parallel/coll_backend.h"
#include "parallel/generate.h"
#include "parallel/outer.h"
#include "parallel/price_kernels.h"

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

static void price_start(Comm *c, uint64_t number, const CollCall *call) {
    PriceComm *p = c->impl;
    Tape *t = c->world->impl;
    Send s = {.op = call->op,
              .group = p->group,
              .bytes = whole_bytes(c, call),
              .received = coll_bytes(call, c->rank, c->size),
              .what = call->what};
    p->event[number % COLL_IN_FLIGHT] = t->n_events;
    tape_event(t, EVENT_START, tape_send(t, &s));
}

static void price_wait(Comm *c, uint64_t number, const CollCall *call) {
    (void)call;
    PriceComm *p = c->impl;
    tape_event(c->world->impl, EVENT_WAIT, p->event[number % COLL_IN_FLIGHT]);
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

static void add_group(Tape *t, Comm *c, Placement place) {
    PriceComm *p = c->impl;
    p->group = t->n_groups;
    TapeGroup *g = &t->group[t->n_groups++];
    *g = (TapeGroup){.place = place, .size = c->size};
    snprintf(g->label, sizeof g->label, "%s", c->label);
}

/* The innermost ranks along the axes that cut heads. */
static Placement kv_placement(const Grid *g) {
    Placement p = placement_of(&g->mesh, grid_middle(g));
    Placement kv = {.n = 1, .size = {comm_size(g->kv)}, .stride = {p.n ? p.stride[p.n - 1] : 1}};
    return kv;
}

static void place_groups(Tape *t, const Grid *g) {
    t->n_groups = 0;
    for (int i = 0; i < g->n_comms; i++)
        add_group(t, g->comms[i].comm, placement_of(&g->mesh, g->comms[i].axes));
    if (g->kv) add_group(t, g->kv, kv_placement(g));
    add_group(t, world_comm(g->world), (Placement){1, {g->mesh.p}, {1}});
}

/* ---- the step */

int64_t price_micro_steps(const PriceShape *s, const Layout *l) {
    int64_t places = (int64_t)l->size[AXIS_D] * l->size[AXIS_Z], round = s->micro * places,
            sequences = s->batch / s->S;
    return (sequences + round - 1) / round;
}

/* What train_gpt.c does in a step. */
static void step(Model *m, Tape *t, TapeRun *r) {
    r->begin[PART_ZERO] = t->n_events;
    model_zero_grads(m);
    model_zero_losses(m);
    for (int i = 0; i < 2; i++) {
        r->begin[PART_MICRO_1 + i] = t->n_events;
        if (i < t->micro_steps) model_step(m, NULL, NULL, 1);
    }
    r->begin[PART_END] = t->n_events;
    model_losses(m);
    model_reduce_grads(m);
    outer_mean(m, model_grad_norm(m));
    AdamW rule = {.step = 1};
    model_update(m, &rule);
    r->begin[N_TAPE_PARTS] = t->n_events;
}

static void record(Tape *t, const PriceShape *s, const Grid *g, int64_t layers, TapeRun *r) {
    Model m;
    ModelShape shape = {.config = s->config,
                        .B = s->micro,
                        .S = s->S,
                        .bf16 = s->bf16,
                        .recompute = s->recompute,
                        .training = true,
                        .outer = s->outer,
                        .grid = g};
    shape.config.layers = layers;
    model_plan(&m, &shape, price_kernels(t), NULL);
    for (int i = 0; i < N_ARENAS; i++) r->memory[i] = (int64_t)m.arena[i].used;
    r->sampling = s->samples ? generator_bytes(&m) : 0;
    model_imagine(&m);
    step(&m, t, r);
    model_free(&m);
}

void price_record(Tape *t, const PriceShape *s, const Layout *l, int rank) {
    Grid g;
    World *w = layout_ranks(l) > 1 ? world_imagine(&coll_price, rank, layout_ranks(l), t) : NULL;
    t->n_events = t->n_works = t->n_sends = 0;
    t->threads = s->threads > 0 ? s->threads : 1;
    t->layers = s->config.layers;
    t->micro_steps = price_micro_steps(s, l);
    // The first and the last block of a step may differ from those between: two layers have one of each.
    t->recorded[0] = (int)(s->all_layers || t->layers < 2 ? t->layers : 2);
    t->recorded[1] = (int)(t->layers > t->recorded[0] ? 3 : t->recorded[0]);
    if (w) {
        grid_make(&g, w, l, &s->config);
        if (s->apart) grid_set_apart(&g);
        place_groups(t, &g);
    } else {
        g = *grid_one();
        t->n_groups = 0;
    }
    for (int i = 0; i < 2; i++)
        if (i == 0 || t->recorded[1] > t->recorded[0]) record(t, s, &g, t->recorded[i], &t->run[i]);
    if (w) world_free(w);
}

/* ---- counters */

/* Adds what `times` the events [begin, end) send to the rows. */
static int count_part(const Tape *t, int begin, int end, int64_t times, CollCount *rows, int n,
                      int max) {
    for (int i = begin; i < end; i++) {
        if (t->event[i].kind != EVENT_START) continue;
        const Send *s = &t->send[t->event[i].index];
        const TapeGroup *g = &t->group[s->group];
        int at = 0;
        while (at < n && !(rows[at].op == s->op && strcmp(rows[at].what, s->what) == 0 &&
                           strcmp(rows[at].label, g->label) == 0))
            at++;
        if (at == max) continue;
        if (at == n)
            rows[n++] =
                (CollCount){.what = s->what, .label = g->label, .op = s->op, .size = g->size};
        rows[at].calls += times, rows[at].bytes += times * s->received;
    }
    return n;
}

static int count_run(const Tape *t, const TapeRun *r, int64_t times, CollCount *rows, int n,
                     int max) {
    const int *at = r->begin;
    int64_t again = t->micro_steps > 1 ? t->micro_steps - 1 : 0;
    n = count_part(t, at[PART_ZERO], at[PART_MICRO_2], times, rows, n, max);
    n = count_part(t, at[PART_MICRO_2], at[PART_END], times * again, rows, n, max);
    return count_part(t, at[PART_END], at[N_TAPE_PARTS], times, rows, n, max);
}

int price_counts(const Tape *t, CollCount *rows, int max) {
    int more = t->recorded[1] - t->recorded[0];
    if (more == 0) return count_run(t, &t->run[0], 1, rows, 0, max);
    // run 0 + (layers - 2) (run 1 - run 0), in order of first use
    int64_t extra = (t->layers - t->recorded[0]) / more;
    int n = count_run(t, &t->run[0], 1 - extra, rows, 0, max);
    return count_run(t, &t->run[1], extra, rows, n, max);
}
