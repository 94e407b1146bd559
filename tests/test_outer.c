/* parallel/step/outer: the formula of an outer step, its schedule, and what it does to training. */
#include "parallel/step/outer.h"

#include "base/rng.h"
#include "parallel/plan/price.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

static const char MODEL[] = "layers=2,heads=3,channels=9,seq=4,vocab=11,bias=0,tied=0";
enum { STEPS = 11, MAX_REPLICAS = 3 };

/* ---- outer steps of replicas that walk at random, beside the same in double precision ---- */

typedef struct Walk {
    Outer outer;
    Config config;
    Layout l;
    // results, of the worst rank
    double error;                                   // largest distance from the reference
    int disagree, unmoved, wrong_swap, outer_steps; // elements; tensors that averaged
} Walk;

/* What moves element e of replica d in a step: alike in the program and in the reference. */
static float noise(int step, int d, int64_t e) {
    return 0.1f * (float)(rng_uniform(3, (uint64_t)(100 * step + d), (uint64_t)e) - 0.5);
}

/* The reference knows all replicas of the logical model. */
typedef struct Reference {
    int D;
    int64_t n;
    double *theta[MAX_REPLICAS], *anchor, *velocity;
} Reference;

static Reference reference_make(int D, int64_t n) {
    Reference r = {.D = D, .n = n};
    for (int d = 0; d < D; d++) r.theta[d] = mem_calloc((size_t)n, sizeof(double));
    r.anchor = mem_calloc((size_t)n, sizeof(double));
    r.velocity = mem_calloc((size_t)n, sizeof(double));
    return r;
}

static void reference_free(Reference *r) {
    for (int d = 0; d < r->D; d++) mem_free(r->theta[d]);
    mem_free(r->anchor), mem_free(r->velocity);
}

static void reference_outer_step(Reference *r, int64_t begin, int64_t end, double rate, double mu) {
    for (int64_t e = begin; e < end; e++) {
        double mean = 0;
        for (int d = 0; d < r->D; d++) mean += r->theta[d][e] / r->D;
        double delta = r->anchor[e] - mean;
        r->velocity[e] = mu * r->velocity[e] + delta;
        r->anchor[e] -= rate * (delta + mu * r->velocity[e]);
        for (int d = 0; d < r->D; d++) r->theta[d][e] = r->anchor[e];
    }
}

/* The group of tensor i of n: where its middle lies. */
static int group_of(const TensorTable *t, int i, int n) {
    int64_t before = 0, all = 0;
    for (int k = 0; k < t->n; k++) {
        if (k < i) before += tensor_size(&t->t[k]);
        all += tensor_size(&t->t[k]);
    }
    return (int)((2 * before + tensor_size(&t->t[i])) * n / (2 * all));
}

/* Adds the noise of a step to what this rank holds, and to the reference of all replicas. */
static void move(Model *m, Reference *r, int step) {
    int64_t at = 0;
    TensorRun run;
    int own = m->grid->mesh.coord[AXIS_D];
    for (int i = 0; i < m->tensors.n; at += tensor_size(&m->tensors.t[i++])) {
        Tensor *t = &m->tensors.t[i];
        for (TensorRuns it = tensor_runs(t, PART_PARAM, false); tensor_next(&it, &run);)
            for (int64_t j = 0; j < run.n; j++)
                t->param[run.offset + j] += noise(step, own, at + run.row * t->cols + run.col + j);
    }
    for (int d = 0; d < r->D; d++)
        for (int64_t e = 0; e < r->n; e++) r->theta[d][e] += (double)noise(step, d, e);
}

/* Element by element against the reference; among the replicas to the bit. */
static void compare(Walk *w, Model *m, const Reference *r, int i, int64_t at, bool averaged) {
    const Tensor *t = &m->tensors.t[i];
    const double *want = r->theta[m->grid->mesh.coord[AXIS_D]] + at;
    int64_t n = tensor_part(t, PART_PARAM);
    TensorRun run;
    for (TensorRuns it = tensor_runs(t, PART_PARAM, false); tensor_next(&it, &run);)
        for (int64_t j = 0; j < run.n; j++)
            w->error = fmax(w->error, fabs((double)t->param[run.offset + j] -
                                           want[run.row * t->cols + run.col + j]));
    Comm *d = grid_comm(m->grid, axes_of("d"));
    if (!d) return;
    Group g = comm_group(d);
    OWNED(test_mem_end) float *all = mem_calloc((size_t)(g.size * n), sizeof *all);
    group_all_gather(&g, t->param, (size_t)n * sizeof *all, all);
    for (int k = 1; k < g.size; k++) {
        bool same = memcmp(all, all + k * n, (size_t)n * sizeof *all) == 0;
        if (averaged && !same) w->disagree++;
        if (!averaged && same && t->n_rects) w->unmoved++;
    }
}

static void check_swap(Walk *w, Model *m) {
    size_t n = m->arena[ARENA_PARAMS].used;
    float *param = m->tensors.t[0].param;
    OWNED(test_mem_end) float *before = mem_alloc(n);
    memcpy(before, param, n);
    outer_swap(m);
    w->wrong_swap += memcmp(m->anchor, before, n) != 0;
    outer_swap(m);
    w->wrong_swap += memcmp(param, before, n) != 0;
}

/* Moments that differ by replica become their mean: those that lie first and last in memory, of wte
 * and of the head, which have one size. */
static void check_moments(Walk *w, Model *m, int step) {
    const Tensor *wte = m->tensors.t, *head = wte + m->tensors.n - 1;
    int D = grid_replicas(m->grid);
    outer_mean_moments(m);
    for (int64_t e = 0; e < tensor_part(wte, PART_MOMENTS); e++) {
        double mean = 0;
        for (int d = 0; d < D; d++) mean += (double)noise(-1, d, e) / D;
        w->error = fmax(w->error, fabs((double)wte->m[e] - mean));
        w->error = fmax(w->error, fabs((double)head->v[e] - mean));
    }
    float first = m->tensors.t[0].param[0];
    outer_average(&w->outer, m, step); // once a step
    outer_begin(&w->outer, m, step + 1);
    outer_average(&w->outer, m, step + 1); // nor before the first one of a run
    w->wrong_swap += m->tensors.t[0].param[0] != first;
}

static int walk_main(World *world, void *ctx) {
    Walk *all = ctx, w = *all;
    Grid grid;
    grid_make(&grid, world, &w.l, &w.config);
    grid_set_local_steps(&grid);
    ModelShape shape = {.config = w.config, .B = 1, .S = 4, .training = true, .grid = &grid};
    shape.outer = outer_copies(&w.outer);
    OWNED(test_team_end) Team *team = team_create(2);
    OWNED(model_free) Model m;
    model_plan(&m, &shape, kernels_cpu(NULL), team);
    model_allocate(&m);
    Reference r = reference_make(grid_replicas(&grid), config_parameters(&w.config));
    outer_begin(&w.outer, &m, 0);
    Tensor *wte = m.tensors.t, *head = wte + m.tensors.n - 1;
    for (int64_t e = 0; e < tensor_part(wte, PART_MOMENTS); e++)
        wte->m[e] = head->v[e] = noise(-1, grid.mesh.coord[AXIS_D], e);
    for (int step = 1; step <= STEPS; step++) {
        move(&m, &r, step);
        outer_step(&w.outer, &m, step);
        if (step == STEPS) outer_average(&w.outer, &m, step);
        int64_t at = 0;
        for (int i = 0; i < m.tensors.n; at += tensor_size(&m.tensors.t[i++])) {
            int64_t turn = (group_of(&m.tensors, i, w.outer.fragments) + 1) * w.outer.every /
                           w.outer.fragments;
            bool averaged = step == STEPS || step % w.outer.every == turn % w.outer.every;
            if (averaged)
                reference_outer_step(&r, at, at + tensor_size(&m.tensors.t[i]),
                                     (double)w.outer.rate, (double)w.outer.momentum);
            compare(&w, &m, &r, i, at, averaged);
            w.outer_steps += averaged;
        }
        check_swap(&w, &m);
    }
    check_moments(&w, &m, STEPS);
    reference_free(&r);
    Group g = comm_group(world_comm(world));
    OWNED(test_mem_end) Walk *of = mem_calloc((size_t)g.size, sizeof *of);
    group_all_gather(&g, &w, sizeof w, of);
    for (int i = 0; g.rank == 0 && i < g.size; i++) {
        all->error = fmax(all->error, of[i].error), all->disagree += of[i].disagree;
        all->unmoved += of[i].unmoved, all->wrong_swap += of[i].wrong_swap;
        all->outer_steps += of[i].outer_steps;
    }
    return 0;
}

TEST(outer_steps_follow_the_formula_on_every_kind_of_mesh) {
    static const char *const layouts[] = {"d1",    "d2",          "d3",   "d2.z2",
                                          "d2.x2", "d2.y2+heads", "x2.d2"};
    static const Outer settings[] = {
        {2, 1, 1, 0, 0}, {4, 1, 0.7f, 0.9f, 0}, {4, 4, 0.7f, 0.9f, 0}, {8, 8, 0.5f, 0, 0}};
    CHECK(outer_copies(&settings[0]) == 1 && outer_copies(&settings[1]) == 2);
    for (EACH(layout, layouts))
        for (EACH(setting, settings)) {
            Walk w = {.config = config_of(MODEL), .l = layout_of(*layout), .outer = *setting};
            mesh_ranks_run(layout_ranks(&w.l), walk_main, &w);
            // walks of 0.05 a step: values below 2, a few roundings of 2^-24 each, which momentum
            // adds up tenfold
            CHECK_NEAR(w.error, 0, 1e-5);
            CHECK(w.outer_steps > 0 && w.disagree == 0 && w.unmoved == 0 && w.wrong_swap == 0);
        }
}

/* ---- outer steps predicted ---- */

enum { MAX_PREDICTED = 8 };
typedef struct Predicted {
    PriceShape shape;
    Outer outer;
    Layout l;
    int64_t extra[MAX_PREDICTED]; // by rank: bytes that were counted and not predicted
    int64_t bytes[MAX_PREDICTED];
    int extra_calls[MAX_PREDICTED];
} Predicted;

static int predicted_main(World *w, void *ctx) {
    Predicted *f = ctx;
    Outer outer = f->outer; // a rank's own
    int rank = world_rank(w), calls = 0;
    OWNED(test_team_end) Team *team = team_create(1);
    Grid grid;
    StepCollective sent;
    CollCount row[8];
    grid_make(&grid, w, &f->l, &f->shape.model.config);
    grid_set_local_steps(&grid);
    ModelShape shape = {.B = 1, .S = 4, .training = true, .grid = &grid, .outer = 1};
    shape.config = f->shape.model.config;
    OWNED(model_free) Model m;
    model_plan(&m, &shape, kernels_cpu(NULL), team);
    model_allocate(&m);
    outer_begin(&outer, &m, 0);
    world_count_reset(w);
    for (int step = 1; step <= outer.every; step++) outer_step(&outer, &m, step);
    int n = world_counts(w, row, 8);
    OWNED(price_free) StepLists t;
    price_lists(&t, &f->shape, &f->l, rank, 0);
    if (n != 1 || !price_outer(&t, &sent, &calls))
        die("%d kinds of collectives in an outer step", n);
    f->bytes[rank] = row[0].bytes, f->extra[rank] = row[0].bytes - sent.received;
    f->extra_calls[rank] = (int)row[0].calls - calls;
    return 0;
}

static Predicted predicted_of(const char *layout, int64_t every, int fragments) {
    const char *model = "layers=5,heads=6,kv_heads=2,channels=30,ffn=22,seq=4,vocab=29,act=swiglu";
    Predicted f = {.outer = {every, fragments, 1, 0, 0},
                   .l = layout_of(layout),
                   .shape = {.model.config = config_of(model),
                             .model.S = 4,
                             .batch = 48,
                             .model.B = 1,
                             .model.outer = 1,
                             .local_steps = true,
                             .every = every,
                             .fragments = fragments}};
    return f;
}

TEST(outer_steps_receive_what_is_predicted) {
    static const char *const layouts[] = {"d2", "d3.z2", "d2.x2+sp", "d2.z2.y2+heads",
                                          "x2.d2+stay=y"};
    for (int i = 0; i < 5; i++)
        for (int fragments = 1; fragments <= 3; fragments += 2) {
            Predicted f = predicted_of(layouts[i], 4, fragments);
            // fragments are no equal parts: each is cut into blocks for itself, sent and received
            int64_t rounding = fragments == 1 ? 0 : 2 * fragments * (int64_t)sizeof(float);
            mesh_ranks_run(layout_ranks(&f.l), predicted_main, &f);
            int64_t least = config_parameters(&f.shape.model.config) * (int64_t)sizeof(float);
            if (i == 0) // of d2: 2 (D-1)/D = 1
                CHECK(f.bytes[0] >= least && f.bytes[0] < least + 64 * ARENA_ALIGN);
            for (int r = 0; r < layout_ranks(&f.l); r++) {
                CHECK(f.bytes[r] > 0 && llabs(f.extra[r]) <= rounding);
                CHECK(f.extra_calls[r] == 0);
            }
        }
}

/* What a step sends along d: the largest, how often; calls in all. */
typedef struct AlongD {
    int64_t bytes, times, calls;
} AlongD;
static void note_along_d(void *ctx, const StepCollective *sent) {
    AlongD *a = ctx;
    if (strcmp(sent->group.label, "d") != 0) return;
    a->calls += sent->times;
    if (sent->collective.bytes > a->bytes)
        a->bytes = sent->collective.bytes, a->times = sent->times;
}

TEST(outer_steps_are_shared_among_the_steps_between_them) {
    Predicted f = predicted_of("d3.x2", 5, 1);
    Machine m;
    StepLists t;
    StepCollective outer;
    Price alone, apart;
    int calls;
    machine_open(&m, "cpu:3", NULL);
    price_lists(&t, &f.shape, &f.l, 1, 0);
    price_of(&t, &m, &apart);
    CHECK(price_outer(&t, &outer, &calls) && calls == 1);
    double seconds = machine_collective(&m, &outer.group, &outer.collective);
    int64_t bytes = outer.received;
    AlongD sent = {0};
    price_each_collective(&t, note_along_d, &sent); // so that it is measured
    CHECK(sent.bytes == outer.collective.bytes && sent.times == 0);
    CHECK(sent.calls == 2); // the loss, and a mean of replicas
    price_free(&t);
    f.shape.every = 0;
    price_lists(&t, &f.shape, &f.l, 1, 0);
    CHECK(!price_outer(&t, &outer, &calls));
    price_of(&t, &m, &alone);
    CHECK(seconds > 0 && alone.outer == 0);
    CHECK_NEAR(apart.outer, seconds / 5, 1e-15);
    CHECK_NEAR(apart.seconds - alone.seconds, seconds / 5, 1e-12); // of milliseconds, a rounding
    CHECK(apart.received - alone.received == bytes / 5);
    price_free(&t);
}

/* ---- training ---- */

static MeshRun train(const char *layout, int64_t every, int fragments, bool alike) {
    MeshRun r = {.model = MODEL,
                 .layout = layout,
                 .sequences = 4,
                 .S = 4,
                 .alike = alike,
                 .outer = {every, fragments, 1, 0, 0}};
    mesh_run(&r);
    return r;
}

/* Between two outer steps. */
TEST(outer_replicas_send_and_hold_what_is_predicted) {
    static const char *const layouts[] = {"d2", "d3.z2", "d2.x2+sp", "d2.z2.y2+heads",
                                          "x2.d2+stay=y"};
    for (EACH(l, layouts)) {
        OWNED(mesh_run_free)
        MeshRun r = {.model = MODEL, .layout = *l, .sequences = 12, .S = 4};
        r.micro = 1, r.outer = (Outer){MESH_STEPS + 1, 1, 1, 0, 0}, r.priced = true;
        mesh_run(&r);
        CHECK(r.unpredicted == 0);
    }
}

static bool same_weights(const MeshRun *a, const MeshRun *b) {
    return memcmp(a->weights, b->weights, (size_t)a->n_params * sizeof *a->weights) == 0;
}

TEST(outer_loop_of_one_replica_is_plain_training) {
    static const char *const layouts[] = {"d1", "z2", "x2+sp", "x2.y2+heads", "x2.y2+stay=y"};
    for (EACH(layout, layouts)) {
        OWNED(mesh_run_free)
        MeshRun a = train(*layout, 1, 1, false), b = train(*layout, 2, 2, false);
        CHECK(mesh_same_bits(&a, &b));
    }
}

TEST(outer_loop_of_replicas_with_the_same_data_trains_what_one_does) {
    static const char *const layouts[][2] = {
        {"d2", "d1"},          {"d2.z2", "z2"},
        {"d2.x2+sp", "x2+sp"}, {"d2.y2+heads", "y2+heads"},
        {"x2.d2", "x2"},       {"d2.x2.y2+stay=y", "x2.y2+stay=y"}};
    for (int i = 0; i < 6; i++) {
        OWNED(mesh_run_free)
        MeshRun one = train(layouts[i][1], 1, 1, false), apart = train(layouts[i][0], 2, 2, true),
                together = train(layouts[i][0], 1, 1, true);
        // the mean of two equal numbers is that number
        CHECK(apart.agreed && same_weights(&apart, &one));
        // with H = 1 the sums over d and z are one sum, in another order
        MeshDiff d = mesh_diff(&apart, &together);
        CHECK_NEAR(d.loss, 0, 1e-6);
        CHECK_NEAR(d.norm, 0, 1e-6);
        CHECK_NEAR(d.weights, 0, 2e-5);
    }
}

TEST(outer_loop_makes_the_mean_of_runs_on_shares_of_the_data) {
    MeshRun apart = train("d2", MESH_STEPS, 1, false), half[2];
    for (int d = 0; d < 2; d++) {
        half[d] = (MeshRun){
            .model = MODEL, .layout = "d1", .sequences = 2, .S = 4, .skip = 2 * d, .stream = 4};
        mesh_run(&half[d]);
    }
    for (int step = 0; step < MESH_STEPS; step++) { // sums in double, in another order
        CHECK_NEAR(apart.loss[step], (half[0].loss[step] + half[1].loss[step]) / 2, 1e-12);
        CHECK_NEAR(apart.norm[step], (half[0].norm[step] + half[1].norm[step]) / 2, 1e-12);
    }
    for (int64_t e = 0; e < apart.n_params; e++)
        CHECK(apart.weights[e] == (half[0].weights[e] + half[1].weights[e]) / 2);
    CHECK(!same_weights(&apart, &half[0]));
    mesh_run_free(&apart), mesh_run_free(&half[0]), mesh_run_free(&half[1]);
}
