/* parallel/plan/price: the lists that are priced are those that run. What it sends is held against
 * tests/theory.h and, as what it allocates, against every layout that runs (test_mesh_model.c);
 * what it computes against the closed form. */
#include "parallel/plan/price.h"

#include "parallel/plan/count.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"
#include "tests/theory.h"

static const char divides[] = "layers=5,heads=8,channels=48,ffn=96,seq=8,vocab=96";
static const char awkward[] =
    "layers=4,heads=6,kv_heads=2,channels=30,ffn=22,seq=8,vocab=29,act=swiglu,tied=0";

static const char llama[] = "llama,layers=4,heads=5,channels=30,ffn=50,seq=8,vocab=70";

typedef struct Case {
    PriceShape shape;
    const char *model;
    int bad, n;
} Case;

static Case case_of(const char *model, int64_t batch, int64_t micro, Recompute recompute) {
    PriceShape shape = {
        .model.config = config_of(model), .model.S = 8, .batch = batch, .model.B = micro};
    shape.model.recompute = recompute, shape.model.threads = 3;
    return (Case){.model = model, .shape = shape};
}

/* Those of rank 0 on a layout, for price_free. */
static void lists_on(StepLists *t, const PriceShape *shape, const char *layout) {
    Layout l = layout_of(layout);
    price_lists(t, shape, &l, 0, 0);
}

static void predict(Theory *c, const PriceShape *s, const Grid *g) {
    ModelShape m = s->model;
    m.training = true, m.grid = g;
    int64_t micro_batches = price_micro_batches(s, &g->layout);
    c->n = 0, c->elem_bytes = s->kernels ? (int)s->kernels->elem_bytes : 0;
    theory_micro_batch(c, &m);
    for (int i = 0; i < c->n; i++)
        c->row[i].calls *= micro_batches, c->row[i].bytes *= micro_batches;
    theory_update(c, &m);
}

static void same_rows(Case *k, const char *spec, int rank, const CollCount *a, int n,
                      const CollCount *b, int n_b) {
    for (int i = 0; i < n; i++) {
        int j = 0;
        while (j < n_b && !(a[i].op == b[j].op && strcmp(a[i].what, b[j].what) == 0 &&
                            strcmp(a[i].label, b[j].label) == 0))
            j++;
        if (j < n_b && a[i].calls == b[j].calls && a[i].bytes == b[j].bytes) continue;
        k->bad++;
        printf("    %s on %s, rank %d: %s along %s: %lld calls, %lld bytes, not %lld, %lld\n",
               k->model, spec, rank, a[i].what, a[i].label, (long long)a[i].calls,
               (long long)a[i].bytes, j < n_b ? (long long)b[j].calls : -1,
               j < n_b ? (long long)b[j].bytes : -1);
    }
}

static void check_counts(const char *spec, Case *k) {
    Layout l = layout_of(spec);
    PriceShape all = k->shape;
    int p = layout_ranks(&l);
    all.whole = true;
    if (k->shape.local_steps && l.zero) return;            // which shards the state of one model
    for (int rank = 0; rank<p; rank += p> 4 ? p - 1 : 1) { // the last one has the padding
        OWNED(price_free) StepLists t;
        Theory predicted;
        CollCount rows[COUNT_ROWS];
        Grid g = grid_described(&l, k->shape.local_steps);
        g.mesh = mesh_make(&l.factors, rank);
        price_lists(&t, &all, &l, rank, 0);
        int n = price_counts(&t, rows, COUNT_ROWS);
        predict(&predicted, &k->shape, &g);
        same_rows(k, spec, rank, rows, n, predicted.row, predicted.n);
        same_rows(k, spec, rank, predicted.row, predicted.n, rows, n);
        k->n++;
    }
}

TEST(price_sends_what_theory_predicts_on_every_layout) {
    Case cases[] = {
        case_of(divides, 8 * 24, 4, RECOMPUTE_NONE), case_of(llama, 8 * 7, 1, RECOMPUTE_SELECTIVE),
        case_of(divides, 8 * 12, 3, RECOMPUTE_FULL), case_of(awkward, 8 * 12, 2, RECOMPUTE_FULL),
        case_of(awkward, 8 * 12, 2, RECOMPUTE_NONE)};
    cases[3].shape.kernels = kernels_cuda_sizes(true);
    cases[4].shape.local_steps = true; // replicas along d
    for (int i = 0; i < 5; i++) {
        for (EACH_LAYOUT(l, 1, 8)) check_counts(l.spec, &cases[i]);
        CHECK(cases[i].bad == 0);
        CHECK(cases[i].n > (i < 4 ? 600 : 200));
    }
}

static void check_memory(const char *spec, Case *k) {
    OWNED(price_free) StepLists t, whole;
    PriceShape all = k->shape;
    all.whole = true;
    lists_on(&t, &k->shape, spec), lists_on(&whole, &all, spec);
    CHECK(whole.n == 1 && t.n == 2 && t.model[0].shape.config.layers == 2);
    CHECK_NEAR((double)price_memory(&t), (double)price_memory(&whole),
               0.01 * (double)price_memory(&whole));
    for (int i = 0; i < N_ARENAS; i++) {
        const Model *m = t.model;
        int64_t more = (int64_t)(m[1].arena[i].used - m[0].arena[i].used);
        int64_t few = k->shape.model.config.layers - 3;
        if (i == ARENA_ACTS) // placed with three layers alone
            more =
                step_run_micro_batch(m[1].program)->kept - step_run_micro_batch(m[0].program)->kept;
        int64_t want = (int64_t)whole.model[0].arena[i].used;
        int64_t got = (int64_t)m[1].arena[i].used + few * more;
        if (want != got)
            k->bad++, printf("    %s on %s: arena %d: %lld, not %lld\n", k->model, spec, i,
                             (long long)got, (long long)want);
    }
}

TEST(price_of_two_and_three_layers_tells_the_memory_of_all) {
    Case k = case_of("layers=9,heads=6,kv_heads=2,channels=30,ffn=22,seq=8,vocab=29", 8 * 12, 3,
                     RECOMPUTE_SELECTIVE);
    k.shape.model.samples = true;
    for (EACH_LAYOUT(l, 1, 6)) check_memory(l.spec, &k);
    CHECK(k.bad == 0);
}

static const char *const deep_models[] = {
    "layers=6,heads=8,channels=256,vocab=1000,seq=128",
    "layers=12,heads=12,channels=768,vocab=50257,seq=1024",
    "llama,layers=5,heads=16,channels=1024,vocab=32000,seq=512,ffn=2816",
    "layers=24,heads=32,channels=4096,vocab=50257,seq=2048"};
static const char *const machines[] = {"cpu:8", "h100:1", "v100:2", "consumer:1", "h100:8"};

/* most: a relative error that may be. Returns the error. */
static double check_depth(const char *spec, int i, const char *overlap, double most) {
    Machine m = machine_of(machines[i % 5]);
    Layout l = layout_of(spec);
    int64_t places = (int64_t)l.size[AXIS_D] * l.size[AXIS_Z];
    PriceShape s = {.model.config = config_of(deep_models[i / 2 % 4]),
                    .model.B = 2 + i % 3,
                    .model.recompute = (Recompute)(i / 3 % 3),
                    .model.bf16 = m.gpu,
                    .model.overlap = overlap_of(overlap),
                    .model.threads = m.threads};
    s.model.S = s.model.config.seq < 2048 ? s.model.config.seq : 512;
    s.batch = (1 + i % 4) * s.model.B * places * s.model.S;
    s.kernels = machine_kernels(&m, s.model.bf16);
    if (i % 7 == 0) m.oversubscription = 3;
    Price all, few, unplaced;
    price_step(&s, &l, &m, &few);
    s.model.unplaced = true;
    price_step(&s, &l, &m, &unplaced);
    s.model.unplaced = false, s.whole = true;
    price_step(&s, &l, &m, &all);
    double off = fabs(few.seconds / all.seconds - 1);
    if (off > most)
        test_fail("%s, %s on %s: %.3f ms of few layers, %.3f ms of all", spec, overlap, m.name,
                  1e3 * few.seconds, 1e3 * all.seconds);
    // gaps between temporaries are those of the layers that were recorded
    bool alike = unplaced.seconds == few.seconds && unplaced.memory <= few.memory &&
                 fabs((double)few.memory / (double)all.memory - 1) <= 0.05 &&
                 few.calls == all.calls && few.exposed >= 0;
    // a sum over the vectors of all layers is cut into parts that are not all alike
    if (!alike || llabs(few.received - all.received) > 64 * layout_ranks(&l))
        test_fail("%s, %s on %s: memory, bytes or calls of few layers", spec, overlap, m.name);
    return off;
}

/* Without overlap but for an all_reduce over vectors of all layers, whose algorithm may change with
 * its size. With overlap what is not waited for at once goes on under other blocks than those that
 * were recorded: where layers queue for links, sums of gradients among them, or halves fall out of
 * step, a further layer may wait for more or less than the last one of the lists does. */
TEST(price_of_few_layers_tells_that_of_all) {
    static const struct {
        const char *overlap;
        double most, mean;
    } rows[] = {{"none", 2e-4, 1e-5},          {"bulk", 0.07, 0.005},
                {"bulk+chunk=2", 0.07, 0.005}, {"bulk+chunk=4", 0.07, 0.005},
                {"bulk+ring", 0.07, 0.005},    {"bulk+halves", 0.1, 0.005}};
    for (int i = 0; i < N_OF(rows); i++) {
        int n = 0;
        double off = 0;
        for (EACH_LAYOUT(l, 1, 8))
            // each layout with every other row
            if (mesh_sampled_thinly(l.number) && (test_long() || (l.number / 7 + (int)i) % 2 == 0))
                n++, off += check_depth(l.spec, l.number, rows[i].overlap, rows[i].most);
        CHECK(n > 0 && off / n < rows[i].mean);
    }
}

/* Works of a kind in one list of the shorter model, or of the longer. */
static int works_of(const Program *p, WorkKind kind) {
    int n = 0;
    Work w;
    for (int i = 0; i < p->n_ops; i++) n += op_work(p, i, false, &w) && w.kind == kind;
    return n;
}

TEST(price_of_the_head_is_that_of_larger_chunks_on_a_device) {
    Case k = case_of("layers=2,heads=2,channels=16,seq=8,vocab=50257", 8192, 1024, RECOMPUTE_NONE);
    for (int device = 0; device < 2; device++) {
        OWNED(price_free) StepLists t;
        k.shape.kernels = device ? kernels_cuda_sizes(true) : NULL;
        lists_on(&t, &k.shape, "d1");
        int n = works_of(step_run_micro_batch(t.model[0].program), WORK_LOSS);
        CHECK(n == (device ? 1 : 7)); // of 8192 tokens; 1334 in 256 MiB, 42,690 in 8 GiB
    }
}

TEST(price_of_the_norm_is_one_kernel_on_a_device) {
    static const struct {
        const char *layout;
        bool device;
        int calls[2];                    // of two layers, of three
    } rows[] = {{"d1", false, {28, 40}}, // one for each tensor
                {"d1", true, {1, 1}},    // one of all
                {"d2+zero2", true, {1, 1}},
                {"x2+sp", true, {1, 1}}};
    Case k = case_of(divides, 8 * 12, 3, RECOMPUTE_NONE);
    for (EACH(r, rows)) {
        OWNED(price_free) StepLists t;
        k.shape.kernels = r->device ? kernels_cuda_sizes(true) : NULL;
        lists_on(&t, &k.shape, r->layout);
        for (int more = 0; more < 2; more++)
            CHECK(works_of(step_run_end(t.model[more].program), WORK_SQUARES) == r->calls[more]);
    }
}

typedef struct Places {
    Case *k;
    int ranks;
} Places;

static void check_place(void *ctx, const StepCollective *sent) {
    Places *of = ctx;
    const CollGroup *g = &sent->group;
    const Placement *at = &g->place;
    int members[8] = {0}, size = placement_ranks(at);
    for (int rank = 0; rank < of->ranks; rank++) {
        int base = rank;
        for (int j = 0; j < at->n; j++) base -= rank / at->stride[j] % at->size[j] * at->stride[j];
        members[base]++;
    }
    for (int rank = 0; rank < of->ranks; rank++)
        of->k->bad += members[rank] && members[rank] != size;
    of->k->bad += size < g->size;
    of->k->n += size > g->size;
}

/* Every place is one of groups that the ranks fall into, whatever the copies of key heads are: else
 * nobody could measure it. */
static void check_places(const char *spec, Case *k) {
    OWNED(price_free) StepLists t;
    lists_on(&t, &k->shape, spec);
    price_each_collective(&t, check_place, &(Places){k, t.grid.mesh.p});
}

TEST(price_has_groups_at_places_that_all_ranks_fall_into) {
    Case cases[] = {case_of("layers=2,heads=6,kv_heads=2,channels=24,seq=8,vocab=32", 8 * 16, 1,
                            RECOMPUTE_NONE),
                    case_of("layers=2,heads=5,kv_heads=1,channels=20,seq=8,vocab=32", 8 * 16, 1,
                            RECOMPUTE_NONE)};
    for (EACH(c, cases)) {
        for (EACH_LAYOUT(l, 2, 8)) check_places(l.spec, c);
        CHECK(c->bad == 0);
        CHECK(c->n > 0); // copies that do not divide
    }
}

/* Rows of a matrix of which a rank has copies, or is not the first to have them, are one call. */
TEST(price_of_copied_heads_is_as_many_calls_for_any_width) {
    static const char *const layouts[] = {"x4",    "x8",          "d2.x4+zero1",
                                          "z2.x4", "d2.x4+zero2", "y2.x4"};
    for (EACH(layout, layouts)) {
        int calls[2][3] = {{0}};
        for (int wide = 0; wide < 2; wide++)
            for (int rank = 0; rank < 3; rank++) {
                const char *model = test_path(
                    "layers=3,heads=8,kv_heads=2,channels=%d,seq=8,vocab=96", wide ? 512 : 64);
                OWNED(price_free) StepLists t;
                Case k = case_of(model, 8 * 16, 1, RECOMPUTE_NONE);
                k.shape.kernels = kernels_cuda_sizes(true);
                Layout l = layout_of(*layout);
                price_lists(&t, &k.shape, &l, rank, 0);
                const StepRun *r = t.model[0].program;
                calls[wide][rank] = works_of(step_run_micro_batch(r), WORK_COPY) +
                                    works_of(step_run_end(r), WORK_SQUARES);
            }
        for (int rank = 0; rank < 3; rank++) {
            CHECK(calls[0][rank] > 4); // there are copies
            CHECK(calls[0][rank] == calls[1][rank]);
        }
    }
}

/* Sums of biases: with dw, by themselves. */
static void count_bias_sums(void *ctx, const Work *w) {
    int *sums = ctx;
    sums[0] += w->kind == WORK_WGRAD && w->flags & WORK_BIAS;
    sums[1] += w->kind == WORK_BIAS_BACKWARD;
}

/* Of a layer's 4 biases on a device those whose dy is gathered, or comes in panels, are read once
 * more; on the CPU all. */
TEST(price_of_biases_is_in_dw_where_their_gradients_are) {
    static const struct {
        const char *layout;
        int with_dw;
    } cases[] = {{"d1", 4},          {"z2", 4},          {"x2", 4},
                 {"x2+sp", 2},       {"x2.y2+heads", 2}, {"x2.y2+sp+heads", 0},
                 {"x2.y2+stay=y", 0}};
    Case k = case_of(divides, 8 * 12, 3, RECOMPUTE_NONE);
    for (EACH(c, cases))
        for (int cuda = 0; cuda < 2; cuda++) {
            OWNED(price_free) StepLists t;
            int sums[2] = {0};
            k.shape.kernels = cuda ? kernels_cuda_sizes(true) : NULL;
            lists_on(&t, &k.shape, c->layout);
            price_each_work(&t, count_bias_sums, sums);
            int n = cuda ? c->with_dw : 0, all = sums[0] + sums[1];
            CHECK(4 * sums[0] == n * all && all >= 4);
        }
}

static void count_copies(void *ctx, const Work *w) {
    *(int *)ctx += w->kind == WORK_COPY;
}
static void count_panels(void *ctx, const StepCollective *sent) {
    *(int *)ctx += sent->collective.op == COLL_BROADCAST;
}

TEST(price_has_copies_of_the_panels_that_a_root_packs) {
    Case k = case_of(divides, 8 * 4, 4, RECOMPUTE_NONE);
    OWNED(price_free) StepLists t;
    int copies = 0, panels = 0;
    lists_on(&t, &k.shape, "x2.y2+stay=y");
    price_each_work(&t, count_copies, &copies);
    price_each_collective(&t, count_panels, &panels);
    CHECK(panels > 0 && copies >= panels);
}

static void add_flops(void *ctx, const Work *w) {
    if (w->kind <= WORK_WGRAD) *(double *)ctx += work_flops(w);
}

/* Multiplications and additions of all matmuls of a step. */
static double matmuls(const PriceShape *shape, const char *layout) {
    OWNED(price_free) StepLists t;
    double sum = 0;
    lists_on(&t, shape, layout);
    price_each_work(&t, add_flops, &sum);
    return sum;
}

TEST(price_computes_what_the_model_computes) {
    Case k = case_of("layers=3,heads=4,channels=64,seq=8,vocab=128", 8 * 4, 4, RECOMPUTE_NONE);
    k.shape.whole = true;
    const double T = 32, C = 64, V = 128,
                 L = 3; // y, dx and dw of 12 C^2 weights a layer, and of the head
    double want = 3 * 2 * T * (12 * C * C * L + C * V);
    CHECK(matmuls(&k.shape, "d1") == want);
    CHECK(matmuls(&k.shape, "x2.y2") == want / 4);
    k.shape.model.recompute = RECOMPUTE_FULL; // all of a block but its last matmul
    CHECK(matmuls(&k.shape, "d1") == want + 2 * T * 8 * C * C * L);
}

static void count_stream(void *ctx, const Work *w) {
    int *n = ctx;
    n[0] += w->kind == WORK_NORM || w->kind == WORK_NORM_STATISTICS;
    n[1] += w->kind == WORK_BIAS_RESIDUAL && w->flags & WORK_ADDEND && w->rows > 1;
    n[2] += w->kind == WORK_RESIDUAL_NORM && w->flags == WORK_BIAS;
}

/* Works of the stream in a step of 3 layers: norms by themselves; residuals by themselves; both in
 * one. */
static void stream_works(const char *spec, Recompute recompute, int n[3]) {
    Case k = case_of("layers=3,heads=4,channels=64,seq=8,vocab=128", 8 * 4, 4, recompute);
    OWNED(price_free) StepLists t;
    k.shape.whole = true;
    n[0] = n[1] = n[2] = 0;
    lists_on(&t, &k.shape, spec);
    price_each_work(&t, count_stream, n);
}

TEST(price_has_residuals_and_norms_in_one_where_a_sum_of_whole_rows_is_pending) {
    static const struct {
        const char *spec;
        Recompute recompute;
        int n[3];
    } cases[] = {
        {"x1", RECOMPUTE_NONE, {7, 0, 0}}, // the matmul's epilogue adds
        {"d2.x2", RECOMPUTE_NONE, {1, 0, 6}},     {"x2+sp", RECOMPUTE_SELECTIVE, {1, 0, 6}},
        {"x2+sp", RECOMPUTE_FULL, {1 + 6, 0, 6}}, // what is there is not added again
        {"x2+stay=y", RECOMPUTE_NONE, {1, 0, 6}}, {"y2", RECOMPUTE_NONE, {7, 0, 0}},
        {"x2.y2", RECOMPUTE_NONE, {7, 6, 0}}, // rows are cut
    };
    for (EACH(c, cases)) {
        int n[3];
        stream_works(c->spec, c->recompute, n);
        for (int j = 0; j < 3; j++)
            if (n[j] != c->n[j]) test_fail("%s: %d %d %d", c->spec, n[0], n[1], n[2]);
    }
}

/* The second half's starts when that of the first is there, and is complete behind matmuls of the
 * first. */
TEST(price_two_halves_sum_what_they_look_up_one_under_the_other) {
    Case k = case_of(divides, 8 * 12, 4, RECOMPUTE_NONE);
    OWNED(price_free) StepLists t;
    k.shape.model.overlap = overlap_of("bulk+halves");
    lists_on(&t, &k.shape, "x2");
    const Program *p = step_run_micro_batch(t.model[0].program);
    int waits = 0, starts = 0, matmuls = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        bool wait = op->kind == OP_WAIT;
        const char *what = p->tensor[wait ? op->in[0] : op->out].what;
        matmuls += op->kind == OP_MATMUL;
        if (!what || strcmp(what, "x of embedding") != 0) continue;
        if (op_info(op->kind)->collective) starts++, matmuls = 0;
        if (!wait) continue;
        CHECK(waits++ == 0 ? matmuls == 0 : matmuls > 0);
        CHECK(starts == waits);
    }
    CHECK(waits == 2 && starts == 2);
}

TEST(price_of_a_thousand_ranks_needs_one) {
    Case k = case_of("layers=96,heads=96,channels=12288,seq=2048,vocab=50257", 2048 * 1536, 1,
                     RECOMPUTE_FULL);
    k.shape.model.S = 2048;
    OWNED(price_free) StepLists t;
    Layout l = layout_of("d16.z8.x8.y16+sp+heads");
    price_lists(&t, &k.shape, &l, 16383, 0);
    int n = step_run_micro_batch(t.model[0].program)->n_ops;
    CHECK(layout_ranks(&l) == 16384 && n > 50 && n < 1000);
}

/* Nodes of two ranks with a port of 1 MB/s between them; inside, and all else, takes no time. */
static Price in_turns(const char *layout, double memory_rate) {
    Machine m = {.ranks = 4,
                 .n_levels = 2,
                 .level = {{"node", 2, 0, 1e18, 0}, {"network", 4, 0, 1e6, 1e6}},
                 .flops = {1e18, 1e18},
                 .memory_rate = memory_rate,
                 .slowdown = 1,
                 .slowest = 1,
                 .threads = 3};
    Case k = case_of(divides, 8 * 8, 2, RECOMPUTE_NONE);
    Price p;
    Layout l = layout_of(layout);
    price_step(&k.shape, &l, &m, &p);
    return p;
}

TEST(price_of_replicas_that_share_a_port_is_that_of_sending_in_turns) {
    Price all = in_turns("x2.d2", 1e18), both = in_turns("x2.d2", 2e7);
    double busy = all.seconds, own = busy / 2, S = own + both.compute;
    CHECK(busy > 0.1 && all.compute < 1e-6 * busy && both.compute > 0.1 * busy);
    // nothing but collectives: the port is busy all the time; kernels of one replica hide what
    // another sends, in part
    CHECK_NEAR(both.seconds, (S + sqrt(S * S + 4 * busy * (busy - own))) / 2, 1e-4 * busy);
    CHECK(both.seconds > busy && both.seconds < 0.99 * (busy + both.compute));
}

/* n collectives along x of so many bytes, all started, then all waited for: seconds, and all that
 * they take one by one. */
static double together(int n, int64_t bytes, double latency, double *sent) {
    const double rate = 100e6;
    Machine m = {.ranks = 2,
                 .n_levels = 1,
                 .level = {{"network", 2, latency, rate, 0}},
                 .flops = {1e18, 1e18},
                 .memory_rate = 1e18,
                 .slowdown = 1,
                 .slowest = 1,
                 .threads = 1};
    Grid g = mesh_grid("x2", 0);
    ModelShape shape = {.config = config_of(divides), .grid = &g, .B = 1, .S = 1};
    OWNED(program_free) Program p = program_make(&shape);
    Dist d = {.n_dims = 1, .name = "t", .dim = {"T"}}, part = d;
    part.shard[0] = axes_of("x");
    int whole[8];
    for (int i = 0; i < n; i++) {
        int64_t size[DIST_DIMS] = {bytes / 4, 1};
        int t = program_tensor(&p, part, size, COLL_F32);
        whole[i] = program_redistribute(&p, t, &d, "test");
    }
    OWNED(test_mem_end) OpCost *cost = program_costs(&p, &m, false);
    Clocks c = {.now = 0};
    double end[8];
    for (int i = 0; i < n; i++) end[i] = clocks_start(&c, &cost[i]);
    for (int i = 0; i < n; i++) clocks_wait(&c, end[i]);
    if (p.n_ops != n || whole[n - 1] != p.op[n - 1].out || c.spent.exposed != c.now)
        test_fail("%d collectives of %d", p.n_ops, n);
    *sent = c.spent.sent;
    return c.now;
}

/* Each of two ranks sends a half of 1 MB, 5 ms, after a latency of 5 ms. */
TEST(price_of_collectives_under_way_together_has_one_latency_and_all_bytes) {
    double sent;
    CHECK_NEAR(together(1, 1000000, 5e-3, &sent), 10e-3, 1e-6);
    double four = together(4, 1000000, 5e-3, &sent);
    CHECK_NEAR(four, 25e-3, 200e-6); // processors handle each message, one after the other
    CHECK_NEAR(sent, 40e-3, 1e-6);
    // little of a short latency is anything but their work
    CHECK_NEAR(together(4, 1000000, 20e-6, &sent), 20e-3 + 4 * 20e-6, 1e-6);
}
