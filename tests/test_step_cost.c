/* parallel/plan/cost and parallel/step/fuse: the kernels of a program, and what they cost,
 * against the kernels that training calls (tests/recording.h): the same kernels of the same sizes,
 * as often. */
#include "parallel/plan/cost.h"

#include <string.h>

#include "base/mem.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/recording.h"
#include "tests/test.h"

enum { MAX_WORKS = 512 };

typedef struct Works {
    Work work[MAX_WORKS];
    int count[MAX_WORKS], n;
} Works;

static void count_work(Works *w, const Work *one, int times) {
    int i = 0;
    while (i < w->n && (!work_alike(&w->work[i], one) || w->work[i].rows != one->rows)) i++;
    if (i == w->n) w->work[w->n] = *one, w->count[w->n++] = 0;
    w->count[i] += times;
}

static Program step_of(const ModelShape *s, bool bias_with_dw) {
    Program p = program_make(s);
    program_forward(&p);
    program_differentiate(&p);
    program_recompute(&p);
    program_panels(&p);
    program_fuse(&p, bias_with_dw);
    return p;
}

typedef struct Case {
    const char *model;
    const Kernels *kernels;
    Recompute recompute;
    int n, bad;
    int chunks, seen;
} Case;

/* A step whose second micro-batch of three is recorded, on rank 0. */
typedef struct Recorded {
    const Case *c;
    const Layout *layout;
    const ModelShape *shape;
    Works *works;
    bool on;
} Recorded;

static void recorded_work(void *ctx, const Work *w) {
    Recorded *r = ctx;
    if (r->on) count_work(r->works, w, -1);
}

static int recorded_main(World *w, void *ctx) {
    Recorded mine = *(Recorded *)ctx;
    Recording to = {recorded_work, &mine, 1};
    OWNED(test_team_end) Team *team = team_create(1);
    ModelShape shape = *mine.shape;
    Grid g;
    Model m;
    grid_make(&g, w, mine.layout, &shape.config);
    shape.grid = &g;
    model_plan(&m, &shape, recording_kernels(&to, mine.c->kernels), team);
    model_allocate(&m);
    model_zero_grads(&m, 3);
    for (int i = 0; i < 3; i++) {
        mine.on = i == 1 && world_rank(w) == 0;
        model_step(&m, NULL, NULL, 1);
    }
    mine.on = false;
    model_free(&m);
    grid_free(&g);
    return 0;
}

/* What the program does not have: padding of gradients, sums of the two gradients of a tied
 * weight, copies of rows in which gradients begin, and the sum of a device's losses. */
static bool left_out(const Work *w) {
    return w->kind == WORK_ZERO || w->kind == WORK_COPY || w->kind == WORK_SQUARES ||
           (w->kind == WORK_BIAS_RESIDUAL && w->rows == 1);
}

static void compare_works(const char *spec, void *ctx) {
    Case *c = ctx;
    Grid g = mesh_grid(spec, 0);
    if (!test_long() && (c->seen++ + (int)c->recompute + c->chunks) % 9 != 0) return; // a sample
    if (g.layout.stay || g.layout.size[AXIS_X] == 7 || g.layout.size[AXIS_Y] == 7) return;
    ModelShape m = mesh_shape(c->model, &g);
    m.S = 30, m.recompute = c->recompute;
    m.bf16 = c->kernels != NULL;
    m.overlap.chunks = c->chunks;
    Widths widths = widths_of(&m.config, &g);
    Works w = {.n = 0};
    OWNED(program_free) Program p = step_of(&m, c->kernels && c->kernels->bias_with_dw);
    if (c->chunks) program_split(&p, c->chunks, false);
    for (int i = 0; i < p.n_ops; i++) {
        Work work;
        if (op_work(&p, i, &widths, false, &work)) count_work(&w, &work, (int)op_calls(&p, i));
    }
    Recorded r = {.c = c, .layout = &g.layout, .shape = &m, .works = &w};
    mesh_ranks_run(layout_ranks(&g.layout), recorded_main, &r);
    for (int i = 0; i < w.n; i++) {
        char name[64];
        if (w.count[i] == 0 || left_out(&w.work[i])) continue;
        c->bad++;
        if (c->bad < 20)
            printf("    %s, %s, recompute %d: %+d of %s, %lld rows, flags %x\n", spec, c->model,
                   (int)c->recompute, w.count[i], work_name(&w.work[i], name),
                   (long long)w.work[i].rows, w.work[i].flags);
    }
    c->n++;
}

TEST(step_cost_is_of_the_kernels_that_training_runs) {
    const char *const gpt = "layers=2,heads=120,channels=240,vocab=240,seq=30,tied=0";
    const char *const llama = "llama,layers=2,heads=120,channels=240,ffn=480,vocab=240,seq=30";
    Case cases[] = {{gpt, NULL, RECOMPUTE_NONE, 0, 0, 0, 0},
                    {gpt, kernels_cuda_sizes(true), RECOMPUTE_SELECTIVE, 0, 0, 0, 0},
                    {llama, NULL, RECOMPUTE_SELECTIVE, 0, 0, 0, 0},
                    {llama, kernels_cuda_sizes(true), RECOMPUTE_NONE, 0, 0, 0, 0},
                    {gpt, NULL, RECOMPUTE_FULL, 0, 0, 0, 0},
                    {gpt, NULL, RECOMPUTE_NONE, 0, 0, 2, 0}};
    for (int i = 0; i < 6; i++) {
        for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, compare_works, &cases[i]);
        CHECK(cases[i].bad == 0);
        CHECK(cases[i].n > 20);
    }
}

/* All operations stay, operands come before their readers, and what is fused has no collective in
 * between. */
static void check_groups(const char *spec, void *ctx) {
    int *n = ctx;
    Grid g = mesh_grid(spec, 0);
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
        ModelShape m = mesh_shape("layers=3,heads=4,channels=24,vocab=70", &g);
        m.recompute = (Recompute)r;
        OWNED(program_free) Program plain = program_make(&m), p = step_of(&m, *n % 2);
        program_forward(&plain);
        program_differentiate(&plain);
        program_recompute(&plain);
        program_panels(&plain);
        CHECK(p.n_ops == plain.n_ops && !p.op[0].fused);
        OWNED(test_mem_end) bool *made = mem_calloc((size_t)p.n_tensors, sizeof *made);
        for (int i = 0; i < p.n_ops; i++) {
            made[p.op[i].out] = true;
            if (p.op[i].also >= 0) made[p.op[i].also] = true;
        }
        for (int t = 0; t < p.n_tensors; t++) made[t] = !made[t]; // parameters are there
        for (int i = 0; i < p.n_ops; i++) {
            for (int k = 0; k < p.op[i].n_in; k++) CHECK(made[p.op[i].in[k]]);
            CHECK(!made[p.op[i].out]);
            made[p.op[i].out] = true;
            if (p.op[i].also >= 0) made[p.op[i].also] = true;
            CHECK(!p.op[i].fused || !op_info(p.op[i].kind)->collective);
            CHECK(!p.op[i].fused || !op_info(p.op[i - 1].kind)->collective);
        }
        ++*n;
    }
}

TEST(step_fuse_keeps_operands_before_their_readers) {
    int n = 0;
    for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, check_groups, &n);
    CHECK(n > 600);
}

/* Collectives in kernels of matmuls: the others are as they were, and operands come first. */
static void check_fused(const char *spec, void *ctx) {
    int *n = ctx;
    Grid g = mesh_grid(spec, 0);
    ModelShape m = mesh_shape("layers=3,heads=4,channels=24,vocab=70", &g);
    OWNED(program_free) Program p = step_of(&m, false);
    int before = p.n_ops, found = 0;
    program_fuse_collectives(&p, false);
    CHECK(p.n_ops == before);
    OWNED(test_mem_end)
    int *made = mem_calloc((size_t)p.n_tensors, sizeof *made); // by which operation, from 1 on
    for (int i = 0; i < p.n_ops; i++) made[p.op[i].out] = i + 1;
    for (int i = 0; i < p.n_ops; i++) {
        const Op *op = &p.op[i], *next = i + 1 < p.n_ops ? op + 1 : op;
        for (int k = 0; k < op->n_in; k++) CHECK(made[op->in[k]] <= i);
        if (!op_in_kernel(&p, i)) continue;
        found++;
        bool reads = next->in[0] == op->out || next->in[1] == op->out;
        CHECK(op->fused ? op->kind == OP_REDUCE_SCATTER && op[-1].out == op->in[0] && !op[-1].fused
                        : op->kind == OP_ALL_GATHER && reads && next->fused);
        CHECK(op_begins_kernel(&p, op->fused ? i - 1 : i + 1) && !op_begins_kernel(&p, i));
    }
    // of each of three layers: four gathers and four sums, and two gathers of what was not kept
    bool sp = g.layout.sp && g.layout.size[AXIS_X] > 1 && !g.layout.stay;
    // with heads two of the matmuls' operands are gathered by features as well, or scattered
    bool heads = g.layout.heads && g.layout.size[AXIS_Y] > 1;
    CHECK(found == (!sp ? 0 : heads ? 24 : 30));
    *n += found;
}

TEST(step_fuse_collectives_joins_what_matmuls_send_along_tokens) {
    int n = 0;
    for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, check_fused, &n);
    CHECK(n > 100);
}

static double seconds_of(const char *model, const char *machine, bool collectives) {
    Grid g = mesh_grid("x4+sp", 0);
    Machine m = machine_of(machine);
    double sum = 0;
    ModelShape s = {.config = config_of(model), .B = 2, .S = 64, .training = true, .grid = &g};
    OWNED(program_free) Program p = step_of(&s, false);
    OWNED(test_mem_end) OpCost *cost = program_costs(&p, &m, false);
    for (int i = 0; i < p.n_ops; i++) {
        bool sends = p.op[i].axes.n > 0, right = (cost[i].level >= 0) == sends;
        if (!right || (cost[i].seconds > 0) == p.op[i].fused)
            test_fail(__FILE__, __LINE__, "%s: cost of operation %d", machine, i);
        if ((cost[i].level >= 0) == collectives) sum += cost[i].seconds;
    }
    return sum;
}

/* Two layers more cost what two layers do, and a slower machine costs more. */
TEST(step_costs_are_those_of_the_machine) {
    const char *two = "layers=2,heads=4,channels=64,vocab=96",
               *four = "layers=4,heads=4,channels=64,vocab=96",
               *six = "layers=6,heads=4,channels=64,vocab=96";
    for (int collectives = 0; collectives < 2; collectives++) {
        double a = seconds_of(two, "cpu:4", collectives),
               b = seconds_of(four, "cpu:4", collectives);
        CHECK_NEAR(seconds_of(six, "cpu:4", collectives), 2 * b - a,
                   1e-9 * b); // sums of rounded terms
        CHECK(seconds_of(two, "h100:1", collectives) < a);
    }
}
