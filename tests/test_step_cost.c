/* parallel/plan/cost and parallel/step/fuse: the kernels of a program, and what they cost,
 * against the kernels that training calls (tests/recording.h): the same kernels of the same sizes,
 * as often. */
#include "parallel/plan/cost.h"

#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/recording.h"
#include "tests/test.h"

static const char gpt[] = "layers=2,heads=120,channels=240,vocab=240,seq=30,tied=0";
static const char llama[] = "llama,layers=2,heads=120,channels=240,ffn=480,vocab=240,seq=30,"
                            "qk_norm=1";

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

typedef struct Case {
    const char *model;
    const Kernels *kernels;
    Recompute recompute;
    int chunks, n, bad;
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
    OWNED(grid_free) Grid g;
    grid_make(&g, w, mine.layout, &shape.config);
    shape.grid = &g;
    OWNED(model_free) Model m;
    model_plan(&m, &shape, recording_kernels(&to, mine.c->kernels), team);
    model_allocate(&m);
    model_zero_grads(&m, 3);
    for (int i = 0; i < 3; i++) {
        mine.on = i == 1 && world_rank(w) == 0;
        model_step(&m, NULL, NULL, 1);
    }
    mine.on = false;
    return 0;
}

/* What the program does not have: padding of gradients, sums of the two gradients of a tied
 * weight, copies of rows in which gradients begin, and the sum of a device's losses. */
static bool left_out(const Work *w) {
    return w->kind == WORK_ZERO || w->kind == WORK_COPY || w->kind == WORK_SQUARES ||
           (w->kind == WORK_BIAS_RESIDUAL && w->rows == 1);
}

static void compare_works(const char *spec, Case *c) {
    Grid g = mesh_grid(spec, 0);
    if (g.layout.stay || g.layout.size[AXIS_X] == 7 || g.layout.size[AXIS_Y] == 7) return;
    ModelShape m = mesh_shape(c->model, &g);
    m.S = 30, m.recompute = c->recompute;
    m.bf16 = c->kernels != NULL;
    m.overlap.chunks = c->chunks;
    Works w = {.n = 0};
    OWNED(program_free) Program p = program_passes(&m, PASS_SPLIT, c->kernels);
    for (int i = 0; i < p.n_ops; i++) {
        Work work;
        if (op_work(&p, i, false, &work)) count_work(&w, &work, (int)op_calls(&p, i));
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
    Case cases[] = {{.model = gpt},
                    {gpt, kernels_cuda_sizes(true), RECOMPUTE_SELECTIVE, 0, 0, 0},
                    {llama, NULL, RECOMPUTE_SELECTIVE, 0, 0, 0},
                    {llama, kernels_cuda_sizes(true), RECOMPUTE_NONE, 0, 0, 0},
                    {.model = gpt, .recompute = RECOMPUTE_FULL},
                    {.model = gpt, .chunks = 2}};
    for (EACH(one, cases)) {
        Case *c = one;
        for (EACH_LAYOUT(l, 1, 8)) // a sample
            if (test_long() || (l.number + (int)c->recompute + c->chunks) % 9 == 0)
                compare_works(l.spec, c);
        CHECK(c->bad == 0);
        CHECK(c->n > 20);
    }
}

/* Collectives in kernels of matmuls: the others are as they were, and operands come first. */
static void check_fused(const char *spec) {
    Grid g = mesh_grid(spec, 0);
    ModelShape m = mesh_shape("layers=3,heads=4,channels=24,vocab=70", &g);
    OWNED(program_free) Program p = program_passes(&m, PASS_FUSE, NULL);
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
}

TEST(step_fuse_collectives_joins_what_matmuls_send_along_tokens) {
    for (EACH_LAYOUT(l, 1, 8)) check_fused(l.spec);
}

/* Without its row in cost.c a kernel would cost nothing. Samples have no price. */
TEST(step_cost_every_kind_has_its_rows) {
    Grid g = mesh_grid("d1", 0);
    ModelShape s = mesh_shape(gpt, &g);
    OWNED(program_free) Program p = program_make(&s);
    Dist d = dist_make("x", "T", axes_none(), "C", axes_none());
    int x = program_tensor(&p, d, (int64_t[]){6, 240}, COLL_F32);
    EMIT(&p, OP_ADD, x, x, x, x);
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        const OpInfo *info = op_info((OpKind)kind);
        bool samples = kind == OP_CACHE || kind == OP_ATTENTION_CACHE;
        Work w;
        p.op[0].kind = (OpKind)kind;
        if (!info->name)
            test_fail("kind %d of ops.h has no row in ops.c", kind);
        else if (info->run && !samples && !op_work(&p, 0, false, &w))
            test_fail("\"%s\" of ops.c has no row in cost.c", info->name);
    }
}

TEST(step_cost_every_kernel_has_a_price) {
    static const char *const layouts[] = {"d1", "x2.y2+sp", "z4"};
    for (int i = 0; i < 12; i++) {
        Grid g = mesh_grid(layouts[i / 4], 0);
        ModelShape s = mesh_shape(i % 2 ? gpt : llama, &g);
        g.layout.exact = i / 2 % 2;
        OWNED(program_free) Program p = program_passes(&s, PASS_FUSE, NULL);
        for (int k = 0; k < p.n_ops; k++) {
            Work w = {.rows = -1};
            bool kernel = !p.op[k].fused && !op_info(p.op[k].kind)->collective;
            CHECK(op_work(&p, k, false, &w) == kernel);
            CHECK(!kernel || (w.rows > 0 && work_bytes(&w) > 0));
        }
    }
}
