/* parallel/step/end and sums: the list of the end of a step, and the sums that complete gradients
 * in the last micro-batch. What they send is held against tests/theory.c in test_price.c. */
#include "base/clock.h"
#include "parallel/plan/cost.h"
#include "parallel/step/listing.h"
#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

static Grid grid_at(const char *spec, int rank) {
    Grid g = mesh_grid(spec, 0);
    return mesh_grid(spec, rank % g.mesh.p);
}

/* ---- sizes ---- */

/* Elements of the results of a kind. */
static int64_t elements(const Program *p, OpKind kind) {
    int64_t n = 0;
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].kind == kind) n += step_tensor_elements(p, &p->tensor[p->op[i].out]);
    return n;
}
static int64_t moments(const ModelShape *s) {
    OWNED(tensors_free) TensorTable t = tensors_describe(&s->config);
    int64_t n = 0;
    shard_tensors(&t, s->grid, false);
    for (int i = 0; i < t.n; i++) n += tensor_part(&t.t[i], PART_MOMENTS);
    return n;
}

/* Work of a kind. */
static int64_t work_rows(const Program *p, WorkKind kind) {
    int64_t n = 0;
    Work w;
    for (int i = 0; i < p->n_ops; i++)
        if (op_work(p, i, false, &w) && w.kind == kind) n += w.rows;
    return n;
}

static void compare(const char *spec, int n) {
    Grid g = grid_at(spec, n);
    g.local_steps = n / 6 % 2 && g.layout.size[AXIS_D] > 1 && g.layout.zero == 0;
    ModelShape s = mesh_shape(mesh_models[n % 3], &g);
    bool words = n / 3 % 2;
    Kernels k = {.elem_bytes = words ? 2 : 4};
    OWNED(program_free) Program p = program_end_passes(&s, PASS_HALVES, &k, false);
    int64_t all = moments(&s);
    CHECK(elements(&p, OP_ADAMW) == all);
    CHECK(work_rows(&p, WORK_ADAMW) == all && work_rows(&p, WORK_SQUARES) == all);
    CHECK((elements(&p, OP_CAST) > 0) == words);
    for (int i = 0; i < p.n_ops; i++) {
        CHECK(!op_info(p.op[i].kind)->collective || mesh_blocks(&g.mesh, p.op[i].axes) > 1);
        CHECK(step_tensor_elements(&p, &p.tensor[p.op[i].out]) > 0);
    }
}

TEST(step_end_updates_every_moment) {
    for (EACH_LAYOUT(l, 1, 8)) compare(l.spec, l.number);
}

/* ---- the order ---- */

/* A step may be skipped between its sums and its update: whatever the order is, all that makes the
 * sums stands in front of the clip, with its end, and what updates behind it. */
static void check_order(const char *spec, int n) {
    int clip = 0, under_way = 0, gathers = 0;
    Grid g = grid_at(spec, 0);
    ModelShape s = mesh_shape(mesh_models[n % 3], &g);
    s.overlap.bulk = true;
    Kernels k = {.elem_bytes = 2};
    OWNED(program_free) Program p = program_end_passes(&s, PASS_SCHEDULE, &k, false);
    while (p.op[clip].kind != OP_CLIP) clip++;
    for (int i = 0; i < p.n_ops; i++) {
        OpKind kind = p.op[i].kind;
        if (kind == OP_ADAMW || kind == OP_CAST || kind == OP_ALL_GATHER) CHECK(i > clip);
        if (kind == OP_LOSS_TOTAL || kind == OP_SQUARES || kind == OP_ALL_REDUCE) CHECK(i < clip);
        under_way += op_info(kind)->collective, under_way -= kind == OP_WAIT;
        if (i == clip) CHECK(under_way == 0);
        gathers += kind == OP_ALL_GATHER;
    }
    CHECK(under_way == 0);
    CHECK((gathers > 0) == (g.layout.zero == 1 || g.layout.zero == 2));
}

TEST(step_end_has_its_sums_in_front_of_the_clip_in_every_order) {
    for (int ranks = 2; ranks <= 8; ranks += 2)
        for (EACH_LAYOUT(l, ranks, ranks)) check_order(l.spec, l.number);
}

/* On a device squares of all gradients are one kernel. */
TEST(step_end_adds_squares_in_one_kernel_where_launches_are_slow) {
    Grid g = grid_at("d2+zero1", 0);
    ModelShape s = mesh_shape(mesh_models[0], &g);
    for (int device = 0; device < 2; device++) {
        const Kernels *k = device ? kernels_cuda_sizes(true) : NULL;
        OWNED(program_free) Program p = program_end_passes(&s, PASS_HALVES, k, false);
        int kernels = 0, gradients = 0;
        for (int i = 0; i < p.n_ops; i++)
            if (p.op[i].kind == OP_SQUARES) gradients++, kernels += !p.op[i].fused;
        CHECK(gradients == 40 && kernels == (device ? 1 : gradients));
    }
}

TEST(step_end_is_listed_with_the_types_of_its_shards) {
    Grid g = grid_at("d2.x2+zero1", 0);
    ModelShape s = mesh_shape("layers=4,heads=4,channels=32,vocab=64", &g);
    OWNED(program_free)
    Program p = program_end_passes(&s, PASS_HALVES, &(Kernels){.elem_bytes = 2}, false);
    OWNED(test_mem_end) char *text = PRINTED(listing_print(f, &(Listed){.p = p}));
    CHECK(strstr(text, "end    squares[1] +d.z.x.y"));
    CHECK(strstr(text, "end  ~ squares[1]") && strstr(text, "= all_reduce d.z.x.y "));
    CHECK(strstr(text, "end    wte[V/x.d, C] f32                  = adamw                dwte, "));
    CHECK(strstr(text, "end  + wte[V/x.d, C]                      = cast "));
    CHECK(strstr(text, "end  ~ wte[V/x, C]                        = all_gather d "));
    CHECK(strstr(text, "end  + qkv.bias[N/x]                      = cast ")); // added by matmuls
    CHECK(!strstr(text, "end  + ln1.weight[C] ") && !strstr(text, "end  + wpe[S, C] "));
    CHECK(test_count(text, " operations of layers 1-3\n") == 2);
    CHECK(strncmp(text, "the end of a step on rank 0 of 4, ", 34) == 0);
}

/* Where matmuls read fp32, no weight is cast. */
TEST(step_end_orders_a_list_of_nothing) {
    Grid g = mesh_grid("d2.x2", 0);
    ModelShape s = mesh_shape(mesh_models[0], &g);
    s.overlap.bulk = true;
    for (int i = 0; i < 10; i++) {
        OWNED(program_free) Program p = program_end_passes(&s, PASS_SCHEDULE, NULL, true);
        CHECK(p.n_ops == 0 && p.n_tensors == 0);
    }
}

/* ---- sums of gradients ---- */

/* The order of collectives, by name and axes. */
static void order_of(const char *spec, int rank, const char *model, char *text, size_t size) {
    Grid g = grid_at(spec, rank);
    ModelShape s = mesh_shape(model, &g);
    s.overlap.bulk = true;
    OWNED(program_free) Program p = program_passes(&s, PASS_SCHEDULE, NULL);
    size_t at = 0;
    for (int i = 0; i < p.n_ops && at < size; i++) {
        char axes[2 * N_AXES + 1];
        if (!op_info(p.op[i].kind)->collective) continue;
        at += (size_t)snprintf(text + at, size - at, "%s %s;", p.tensor[p.op[i].out].what,
                               axes_print(p.op[i].axes, axes));
    }
}

/* No rank waits for one that waits for it, though ranks hold different parts of copied heads. */
TEST(step_sums_are_in_the_same_order_on_all_ranks) {
    static char one[65536], other[65536];
    for (EACH_LAYOUT(l, 2, 6)) {
        Grid g = grid_at(l.spec, 0);
        for (int rank = 0; rank < g.mesh.p; rank++) {
            order_of(l.spec, rank, mesh_models[l.number % 3], rank ? other : one, sizeof one);
            CHECK_SAYS(!rank || strcmp(one, other) == 0, "%s: rank %d has another order", l.spec,
                       rank);
        }
    }
}

/* With one micro-batch or several, with bulk: the sum of a layer is under way while layers before
 * it go backward. */
TEST(step_sums_of_a_layer_run_under_the_backward_of_the_layers_before) {
    Grid g = grid_at("d2", 0);
    ModelShape s = mesh_shape("layers=3,heads=4,channels=32,vocab=64", &g);
    s.overlap.bulk = true;
    OWNED(program_free) Program p = program_passes(&s, PASS_SCHEDULE, NULL);
    int started = -1, ended = -1, backward = 0;
    for (int i = 0; i < p.n_ops; i++) {
        bool of_layer = p.tensor[p.op[i].kind == OP_WAIT ? p.op[i].in[0] : p.op[i].out].layer == 2;
        bool sum = strcmp(p.tensor[p.op[i].out].what, "gradients of matrices") == 0 && of_layer;
        if (sum && p.op[i].kind == OP_ALL_REDUCE) started = i;
        if (sum && p.op[i].kind == OP_WAIT) ended = i;
    }
    for (int i = started; i < ended; i++)
        backward += p.op[i].kind == OP_MATMUL_AT && p.op[i].layer < 2;
    CHECK(started >= 0 && ended > started && backward >= 4);
}

/* ---- time ---- */

/* Of this thread, to make the lists of a step, or `least`, if that is less. */
static double seconds_of(ModelShape s, int layers, double least) {
    s.config.layers = layers;
    double begin = clock_s(CLOCK_THREAD_CPUTIME_ID);
    OWNED(program_free) Program p = program_passes(&s, PASS_SCHEDULE, NULL);
    OWNED(program_free) Program end = program_end_passes(&s, PASS_SCHEDULE, NULL, false);
    return fmin(least, clock_s(CLOCK_THREAD_CPUTIME_ID) - begin);
}

/* What is quadratic in layers takes 64 times as long for 8 times the layers; what is linear, 10
 * to 20 times, as the lists of few are in the caches, and more beside other processes: the least of
 * three times counts, or of up to thirty where that is too much. */
TEST(step_end_and_micro_batch_are_made_in_time_linear_in_layers) {
    static const char *const overlaps[] = {"none", "bulk", "chunk=2", "ring", "halves"};
    static const char *const specs[] = {"x1", "x2", "d2.x2+sp+zero1", "x2.y2+stay=y"};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 5; k++) {
            Grid g = mesh_grid(specs[i], 0);
            ModelShape s = mesh_shape(mesh_models[(i + k) % 3], &g);
            s.overlap = overlap_of(overlaps[k]), s.recompute = (Recompute)(k % 3);
            double few = INFINITY, many = INFINITY;
            for (int t = 0; t < 3 || (t < 30 && many > 4 * 8 * few); t++)
                few = seconds_of(s, 32, few), many = seconds_of(s, 256, many);
            if (many > 4 * 8 * few)
                test_fail("%s, overlap %d: 32 layers %.4f s, 256 layers %.4f s", specs[i], k, few,
                          many);
        }
}
