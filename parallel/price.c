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
              .type_bytes = (int32_t)coll_type_bytes(call->type),
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

/* n ranks that follow each other along the axes, the last axis first: as many of its innermost factors as it takes. */
static Placement innermost(const Mesh *m, Axes axes, int n) {
    Placement out = {.n = 0}, reversed = {.n = 0};
    for (int i = axes.n; i-- > 0 && n > 1;) {
        Placement p = placement_of(m, mesh_real(m, (Axes){1, {axes.axis[i]}}));
        for (int k = p.n; k-- > 0 && n > 1;) {
            int size = p.size[k] < n ? p.size[k] : n;
            reversed.size[reversed.n] = size, reversed.stride[reversed.n++] = p.stride[k];
            n = (n + size - 1) / size;
        }
    }
    for (int i = reversed.n; i-- > 0; out.n++)
        out.size[out.n] = reversed.size[i], out.stride[out.n] = reversed.stride[i];
    return out;
}

/* Where the ranks of a group lie; copies of a key head are neighbours along the axes that cut heads. */
static void place_group(TapeGroup *g, const Mesh *mesh, Axes middle) {
    if (strcmp(g->label, "kv") == 0)
        g->place = innermost(mesh, middle, g->size);
    else if (g->axes.n)
        g->place = placement_of(mesh, g->axes);
    else
        g->place = (Placement){1, {mesh->p}, {1}};
}

static void add_group(Tape *t, Comm *c, Axes axes, const Grid *g) {
    PriceComm *p = c->impl;
    TapeGroup *to = &t->group[p->group = t->n_groups++];
    *to = (TapeGroup){.axes = axes, .size = comm_size(c), .rank = comm_rank(c)};
    snprintf(to->label, sizeof to->label, "%s", comm_label(c));
    place_group(to, &g->mesh, grid_middle(g));
}

static void add_groups(Tape *t, const Grid *g) {
    t->n_groups = 0;
    for (int i = 0; i < g->n_comms; i++) add_group(t, g->comms[i].comm, g->comms[i].axes, g);
    if (g->kv) add_group(t, g->kv, axes_none(), g);
    add_group(t, world_comm(g->world), axes_none(), g);
}

void price_reorder(Tape *t, const Layout *l) {
    Grid g = {.layout = *l, .mesh = mesh_make(&l->factors, 0)};
    for (int i = 0; i < t->n_groups; i++) place_group(&t->group[i], &g.mesh, grid_middle(&g));
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

void price_record(Tape *t, const PriceShape *s, const Layout *layout, int rank) {
    Grid g;
    Layout plain = *layout, *l = &plain;
    plain.exact = false; // sums of integers follow pointers
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
        add_groups(t, &g);
    } else {
        g = *grid_one();
        t->n_groups = 0;
    }
    for (int i = 0; i < 2; i++)
        if (i == 0 || t->recorded[1] > t->recorded[0]) record(t, s, &g, t->recorded[i], &t->run[i]);
    if (w) world_free(w);
}

/* ---- counters */

typedef struct Rows {
    const Tape *t;
    CollCount *row;
    int n, max;
} Rows;

static void count_send(Rows *r, const Send *s, int64_t calls, int64_t bytes) {
    const TapeGroup *g = &r->t->group[s->group];
    int at = 0;
    while (at < r->n && !(r->row[at].op == s->op && strcmp(r->row[at].what, s->what) == 0 &&
                          strcmp(r->row[at].label, g->label) == 0))
        at++;
    if (at == r->max) return;
    if (at == r->n)
        r->row[r->n++] =
            (CollCount){.what = s->what, .label = g->label, .op = s->op, .size = g->size};
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
    int64_t again = r->t->micro_steps > 1 ? r->t->micro_steps - 1 : 0;
    count_part(r, at[PART_ZERO], at[PART_MICRO_2], times);
    count_part(r, at[PART_MICRO_2], at[PART_END], times * again);
    count_part(r, at[PART_END], at[N_TAPE_PARTS], times);
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
