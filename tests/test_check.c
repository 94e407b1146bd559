/* parallel/step/check: it passes what is right on every layout, and of each collective that is
 * left out it names the tensor that suffers first and what is missing. */
#include "parallel/step/check.h"

#include "base/debug.h"
#include "parallel/comm/coll_backend.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

/* --- a fault: a collective whose result is thrown away, or a wrong kernel --------------------- */

/* What is wrong in the runs of a test. */
typedef struct How {
    float factor;        // a collective's result is multiplied by this; 0: it is thrown away
    float eps;           // of the norms of rank 1; 0: as on the other ranks
    const char *overlap; // of the step; NULL: none
    bool second;         // those of the second half alone: every other one
    bool one;            // of rank 1 alone
    bool bf16;           // in a run in bf16
} How;

static struct {
    How how;
    const char *what, *label; // of the collective; NULL: none
    CollBackend backend;      // of the threads, with another wait
} fault;

static bool is_fault(const Comm *c, const CollCall *call) {
    return fault.what && strcmp(call->what, fault.what) == 0 && (!fault.how.one || comm_rank(c)) &&
           (!fault.label || strcmp(comm_label(c), fault.label) == 0);
}

/* Of this rank: such calls so far (where halves take turns the first is always ahead); results that
 * nobody gets. */
static _Thread_local int64_t calls;
static _Thread_local void *lost[COLL_IN_FLIGHT];

/* The true call, its result into a buffer that nobody reads. A rank keeps its own part of a sum
 * that it was to have. */
static void faulty_start(Comm *c, uint64_t number, const CollCall *call) {
    CollCall *x = &c->open[number % COLL_IN_FLIGHT].call;
    int64_t n = coll_elements(call) * (call->op == COLL_ALL_GATHER ? comm_size(c) : 1);
    bool bad = is_fault(c, call) && fault.how.factor == 0 && (!fault.how.second || calls++ % 2);
    if (bad && call->op == COLL_ALL_REDUCE && call->src != call->dst)
        memcpy(call->dst, call->src, (size_t)n * (size_t)coll_type_bytes(call->type));
    if (bad)
        x->dst = lost[number % COLL_IN_FLIGHT] =
            mem_calloc((size_t)n, (size_t)coll_type_bytes(call->type));
    coll_threads.start(c, number, x);
}

static void faulty_wait(Comm *c, uint64_t number, const CollCall *call) {
    coll_threads.wait(c, number, call);
    if (!is_fault(c, call)) return;
    for (int64_t i = 0; fault.how.factor > 0 && i < coll_elements(call); i++)
        if (call->type == COLL_F64)
            ((double *)call->dst)[i] *= (double)fault.how.factor;
        else
            ((float *)call->dst)[i] *= fault.how.factor;
    mem_free(lost[number % COLL_IN_FLIGHT]);
    lost[number % COLL_IN_FLIGHT] = NULL;
}

static void make_faulty(World *w) {
    for (Comm *c = w->all; c; c = c->next)
        if (c->size > 1) c->backend = &fault.backend;
}

static _Thread_local bool other_eps; // on rank 1, which runs no reference

static void faulty_norm_merge(Team *t, const Norm *n, float *mean, float *rstd,
                              const float *stats) {
    Norm x = *n;
    if (other_eps) x.eps = fault.how.eps;
    kernels_cpu(NULL)->norm_merge(t, &x, mean, rstd, stats);
}

/* Where rank 0 computes alone, the others wait without a limit; afterwards with that of the job. */
static _Thread_local World *limited; // on rank 0
static double least_limit;           // in its matmuls

static void matmul_within_limits(Team *t, const Matmul *p) {
    if (limited && limited->limit < least_limit) least_limit = limited->limit;
    kernels_cpu(NULL)->matmul(t, p);
}

/* --- a check on threads ----------------------------------------------------------------------- */

typedef struct Job {
    const char *model, *layout;
    int64_t sequences, S, micro, steps;
    Recompute recompute;
    const char *overlap; // NULL: none
    bool bf16;
    Config config;
    Layout l;
    bool ok[16];
    char *text;
    size_t n_text;
} Job;

static void load(UNUSED void *ctx, TensorTable *table, Team *team, UNUSED const Group *g) {
    mesh_weights(table, team, 42);
}

static void batch(void *ctx, int64_t step, int64_t first, int64_t n, int32_t *inputs,
                  int32_t *targets) {
    const Job *j = ctx;
    mesh_tokens((step * j->sequences + first) * j->S, n * j->S, (j->sequences - first) * j->S,
                j->config.vocab, inputs, targets);
}

static AdamW rule(UNUSED void *ctx, int64_t step) {
    return mesh_rule(step);
}

static int rank_main(World *w, void *ctx) {
    Job *j = ctx;
    Grid grid;
    OWNED(test_team_end) Team *team = team_create(1);
    grid_make(&grid, w, &j->l, &j->config);
    if (fault.what) make_faulty(w);
    calls = 0;
    int64_t places = mesh_blocks(&grid.mesh, axes_of("d.z"));
    ModelShape s = {.config = j->config,
                    .B = j->micro ? j->micro : (j->sequences + places - 1) / places,
                    .S = j->S,
                    .recompute = j->recompute,
                    .bf16 = j->bf16,
                    .training = true,
                    .grid = &grid};
    if (j->overlap) s.overlap = overlap_of(j->overlap);
    Kernels k = *kernels_cpu(NULL);
    other_eps = fault.how.eps > 0 && world_rank(w) == 1;
    if (fault.how.eps > 0) k.norm_merge = faulty_norm_merge;
    if (world_rank(w) == 0) limited = w, least_limit = 60;
    world_set_limit(w, 60);
    k.matmul = matmul_within_limits;
    OWNED(model_free) Model m;
    model_plan(&m, &s, &k, team);
    model_allocate(&m);
    CheckJob job = {.steps = j->steps,
                    .sequences = j->sequences,
                    .ctx = j,
                    .load = load,
                    .batch = batch,
                    .rule = rule,
                    .clip = 1,
                    .limit = 60};
    FILE *f = world_rank(w) == 0 ? open_memstream(&j->text, &j->n_text) : NULL;
    j->ok[world_rank(w)] = check_run(&m, &job, f);
    if (f) fclose(f);
    if (limited && (least_limit > 0 || w->limit != job.limit))
        test_fail("%s: limits of rank 0: at least %g s, at last %g s", j->layout, least_limit,
                  w->limit);
    limited = NULL;
    for (Comm *c = w->all; c; c = c->next)
        if (c->size > 1) c->backend = w->backend;
    other_eps = false;
    return 0;
}

/* Did all ranks hear the same? The table is in j->text, freed by the caller. */
static bool run(Job *j) {
    j->config = config_of(j->model);
    j->l = layout_of(j->layout);
    int p = layout_ranks(&j->l);
    j->text = NULL;
    mesh_ranks_run(p, rank_main, j);
    for (int i = 1; i < p; i++)
        if (j->ok[i] != j->ok[0]) return false;
    return true;
}

static const char *const models[] = {
    "layers=2,heads=5,channels=20,seq=6,vocab=37",
    "llama,layers=2,heads=6,kv_heads=2,channels=36,ffn=22,seq=5,vocab=29,qk_norm=1",
    "layers=1,heads=3,channels=9,seq=4,vocab=11,bias=0,tied=0",
};

typedef struct Tally {
    bool halves, every_overlap; // every one: one after the other, with each --recompute
    bool bf16;
    int model, n, bad;
} Tally;

static void check_good(const char *spec, Tally *t) {
    Job j = {.model = models[t->model],
             .layout = spec,
             .sequences = 5,
             .S = 4,
             .steps = 2,
             .bf16 = t->bf16};
    if (t->halves) j.overlap = t->model ? "bulk+halves" : "halves";
    if (t->every_overlap) {
        j.overlap = mesh_overlaps[t->n % N_MESH_OVERLAPS];
        j.recompute = (Recompute)(t->n / N_MESH_OVERLAPS % 3);
    }
    if (j.overlap) j.micro = 2; // halves of one sequence
    bool heard = run(&j);
    t->n++;
    if (!heard || !j.ok[0] || !strstr(j.text, " one rank, 2 steps in ")) {
        const char *bad = strstr(j.text, "BAD in step");
        printf("    %s on %s, %s: %s\n", j.model, spec, j.overlap ? j.overlap : "none",
               bad ? bad : "ranks disagree");
        t->bad++;
    }
    free(j.text);
}

/* Each model on a third of the layouts of up to `ranks` ranks, on a sixth of those of more than
 * four. */
static void check_passes(Tally how, int ranks) {
    for (int i = 0; i < N_OF(models); i++) {
        Tally t = how;
        t.model = i;
        for (EACH_LAYOUT(l, 1, ranks))
            if (mesh_sampled(l.number, i) &&
                (BASE_DEBUG || test_long() || l.ranks < 5 || l.number / 3 % 2 == 0))
                check_good(l.spec, &t);
        CHECK(t.n > (BASE_DEBUG ? 0 : ranks > 4 ? 40 : 15));
        CHECK(t.bad == 0);
    }
}

TEST(check_passes_what_is_right_on_every_layout) {
    check_passes((Tally){0}, 6);
}

TEST(check_passes_halves_on_every_layout) {
    check_passes((Tally){.halves = true}, 4);
}

TEST(check_passes_overlaps_on_every_layout) {
    check_passes((Tally){.every_overlap = true}, 4);
}

/* The result of an all_gather that runs in the kernel of a matmul is in no memory to compare. */
TEST(check_passes_gathers_in_kernels_of_matmuls) {
    static const char *const overlaps[] = {"fused", "bulk+fused", "bulk+fused+halves"};
    for (int i = 0; i < 9; i++) {
        Job j = {.model = models[i % 2], .layout = "x2+sp", .sequences = 5, .S = 4, .steps = 1};
        j.micro = 2, j.recompute = (Recompute)(i / 3), j.overlap = overlaps[i % 3];
        bool heard = run(&j);
        free(j.text);
        CHECK(heard && j.ok[0]);
    }
}

/* The last rank has no query head, and its gradients are compared like those of the others. */
TEST(check_passes_more_ranks_than_heads_with_copies_of_a_key_head) {
    Job j = {.model = "layers=1,heads=2,kv_heads=1,channels=8,seq=4,vocab=11", .layout = "x3"};
    j.sequences = 2, j.S = 4, j.steps = 1;
    bool heard = run(&j);
    free(j.text);
    CHECK(heard && j.ok[0]);
}

TEST(check_passes_bf16_on_every_layout) {
    check_passes((Tally){.bf16 = true}, 4);
}

/* MiB that are printed for a check on so many ranks of one node. */
static double printed_memory(const Model *m, int ranks) {
    double mib = -1;
    OWNED(test_mem_end) char *text = PRINTED(check_memory(m, ranks, f));
    sscanf(text, "check MiB reference %lf", &mib);
    return mib;
}

/* Every rank gets a copy of the reference's tensor, and has a buffer for a sum. */
TEST(check_memory_counts_the_buffers_of_every_rank) {
    ModelShape s = {.config = config_of("layers=1,heads=1,channels=64,seq=4,vocab=16384"),
                    .B = 1,
                    .S = 4,
                    .training = true};
    OWNED(test_team_end) Team *team = team_create(1);
    OWNED(model_free) Model m;
    model_plan(&m, &s, kernels_cpu(NULL), team);
    double wte = 16384 * 64 * sizeof(float) / 1048576.0;
    CHECK_NEAR(printed_memory(&m, 3) - printed_memory(&m, 1), 2 * 2 * wte, 0.2);
}

/* --- faults ----------------------------------------------------------------------------------- */

/* run() with one fault. */
static bool run_faulty(Job *j, const char *what, const char *label, How how) {
    fault.how = how, fault.what = what, fault.label = label;
    fault.backend = coll_threads;
    fault.backend.start = faulty_start, fault.backend.wait = faulty_wait;
    bool heard = run(j);
    fault.how = (How){0}, fault.what = fault.label = NULL;
    return heard;
}

/* The verdict on a mesh without one collective; NULL when it passed. Freed by the caller. */
static char *verdict(const char *model, const char *layout, const char *what, const char *label,
                     How how) {
    Job j = {.model = model, .layout = layout, .sequences = 5, .S = 4, .steps = 2};
    j.overlap = how.overlap, j.bf16 = how.bf16, j.micro = how.second ? 4 : 0;
    bool heard = run_faulty(&j, what, label, how);
    const char *bad = heard && !j.ok[0] ? strstr(j.text, "BAD in step") : NULL;
    char *said = bad ? mem_strdup(bad) : NULL;
    free(j.text);
    return said;
}

/* One row: what is left out along which group, and what is to be said. */
typedef struct Fault {
    const char *layout, *what, *label, *tensor, *op;
    bool partial; // it is known for a partial sum
} Fault;

static bool named(const char *model, const Fault *f, How how) {
    const char *first = test_path("BAD in step 1: %s", f->tensor);
    const char *missing = test_path("%s \"%s\"", f->op, f->what);
    OWNED(test_mem_end) char *said = verdict(model, f->layout, f->what, f->label, how);
    bool ok = said && strncmp(said, first, strlen(first)) == 0 && strstr(said, missing) &&
              f->partial == !!strstr(said, "partial sums look unreduced: expected");
    if (!ok)
        printf("    %s without %s over %s: %s\n", f->layout, f->what, f->label,
               said ? said : "passed");
    return ok;
}

static bool all_named(const Fault *faults, size_t n, How how) {
    int bad = 0;
    for (size_t i = 0; i < n; i++) bad += !named(models[0], &faults[i], how);
    return bad == 0;
}
#define ALL_NAMED(faults, ...)                                                                     \
    CHECK(all_named(faults, sizeof(faults) / sizeof *(faults), (How){__VA_ARGS__}))

TEST(check_names_the_sum_that_is_missing) {
    static const Fault faults[] = {
        {"x2", "y of attn_out", "x", "o of layer 0 (all_reduce over x): ", "all_reduce", true},
        {"x2.y2", "y of attn_out", "x", "o of layer 0 (all_reduce over x): ", "all_reduce", true},
        {"x2.y2", "y of qkv", "y", "qkv of layer 0 (all_reduce over y): ", "all_reduce", true},
        {"x2", "dx of qkv", "x", "dh1 of layer 1 (all_reduce over x): ", "all_reduce", true},
        {"x2", "dx of up", "x", "dh2 of layer 1 (all_reduce over x): ", "all_reduce", true},
        {"y2", "dx of down", "y", "dact of layer 1 (all_reduce over y): ", "all_reduce", true},
        {"x2.y2", "dx of head", "x", "dh (all_reduce over x): ", "all_reduce", true},
        {"d2", "gradients of vectors", "d", "gradient of lnf.bias: ", "all_reduce", true},
        {"d2.z2.x2+sp", "gradients of vectors", "d.z.x", "gradient of lnf.bias: ", "all_reduce",
         true},
        {"d2.z2.x2+sp", "gradients of vectors", "d.z", "gradient of h.1.up.bias: ", "all_reduce",
         true},
        {"d3", "gradients of matrices", "d", "gradient of h.1.down.weight: ", "all_reduce", true},
        {"x2", "x of embedding", "x", "x (all_reduce over x): ", "all_reduce", true},
        // the sum was to go elsewhere
        {"x2+sp", "y of down", "x", "down of layer 0 (reduce_scatter over x): ", "reduce_scatter",
         false},
        {"y2+heads", "y of up", "y", "up of layer 0 (reduce_scatter over y): ", "reduce_scatter",
         false},
        {"z2", "dw of up", "z", "gradient of h.1.up.weight: ", "reduce_scatter", false},
        {"z2", "dw of head", "z", "gradient of wte: ", "reduce_scatter", false},
        {"d2+zero1", "gradients of matrices", "d",
         "gradient of h.1.down.weight: ", "reduce_scatter", false},
        {"x2.y2+stay=y", "dx of down", "y",
         "dup of layer 1 (activation_backward dact, up): ", "reduce", false},
        {"x2.y2+stay=y", "dw of up", "x", "gradient of h.1.up.weight: ", "reduce", false},
    };
    static const Fault copied = {
        "x6", "gradients of copied heads", "kv", "gradient of h.1.qkv.weight: ", "all_reduce",
        false};
    ALL_NAMED(faults, 0);
    CHECK(named(models[1], &copied, (How){0}));
}

/* Each half of a batch is looked at, and what the second one alone lacks is named for it. */
TEST(check_names_the_half_that_lacks_a_sum) {
    static const Fault faults[] = {
        {"x2", "y of attn_out", "x",
         "o of layer 0 (all_reduce over x), second half: ", "all_reduce", true},
        {"d2.x2+sp", "x of up", "x",
         "h2 of layer 0 (all_gather over x), second half: ", "all_gather", false},
        {"x2.y2+heads", "dx of up", "x",
         "dh2 of layer 1 (all_reduce over x), second half: ", "all_reduce", true},
        {"y2", "statistics of norm", "y",
         "h1 of layer 0 (norm x, ln1.mean_rstd, ln1.weight, ln1.bias), second half: ", "all_gather",
         false},
    };
    ALL_NAMED(faults, .second = true, .overlap = "bulk+halves");
}

TEST(check_says_on_how_many_ranks_a_tensor_is_wrong) {
    static const Fault faults[] = {
        {"x2", "y of attn_out", "x",
         "o of layer 0 (all_reduce over x) (on 1 of 2 ranks): all that it is made of agrees, look "
         "at ",
         "all_reduce", false}};
    ALL_NAMED(faults, .one = true);
}

/* A result that is 1 % too large, and the wrong epsilon in the norms of one rank. */
TEST(check_names_small_mistakes) {
    static const Fault faults[] = {
        {"x2", "y of attn_out", "x", "o of layer 0 (all_reduce over x): ", "all_reduce", false},
        {"x2", "dx of up", "x", "dh2 of layer 1 (all_reduce over x): ", "all_reduce", false},
        {"d2", "gradients of vectors", "d", "gradient of lnf.bias: ", "all_reduce", false},
        {"d2", "sum of losses", "d", "loss: ", "all_reduce", false},
        {"x2", "gradient norm", "all", "gradient norm: ", "all_reduce", false},
    };
    ALL_NAMED(faults, .factor = 1.01f);
    How wrong_eps = {.eps = 1e-3f}; // of the others: 1e-5
    OWNED(test_mem_end) char *said = verdict(models[0], "y2", NULL, NULL, wrong_eps);
    CHECK(said && strstr(said, "BAD in step 1: h1 of layer 0 (norm x, ln1.mean_rstd, ln1.weight, "
                               "ln1.bias) (on 1 of 2 ranks): all that it is made of agrees"));
}

/* Relative to the reference's elements, of which each rank has half. */
TEST(check_prints_by_how_much_a_gradient_differs) {
    Job j = {.model = models[0], .layout = "d2+zero1", .sequences = 5, .S = 4, .steps = 2};
    bool heard = run_faulty(&j, "gradients of matrices", "d", (How){.factor = 1.01f});
    OWNED(test_mem_end) char *text = j.text;
    CHECK(heard);
    double difference = 0;
    const char *row = strstr(text, "h.1.up.weight");
    CHECK(row && sscanf(row, "%*s %lf", &difference) == 1);
    CHECK(strstr(text, " one rank, 1 step in fp32: "));
    CHECK_NEAR(difference, 0.01, 0.002);
}

TEST(check_names_sums_that_are_missing_under_others) {
    static const Fault faults[] = {
        {"x2", "dx of qkv", "x", "dh1 of layer 1 (all_reduce over x): ", "all_reduce", true},
        {"d3", "gradients of matrices", "d", "gradient of h.1.down.weight: ", "all_reduce", true},
        {"z2", "dw of up", "z", "gradient of h.1.up.weight: ", "reduce_scatter", false},
        {"z2", "w of up", "z", "up of layer 0 (bias up, up.bias): ", "all_gather", false},
    };
    ALL_NAMED(faults, .overlap = "bulk");
}

TEST(check_names_statistics_and_gathers_that_are_missing) {
    static const Fault faults[] = {
        {"y2", "statistics of norm", "y",
         "h1 of layer 0 (norm x, ln1.mean_rstd, ln1.weight, ln1.bias): ", "all_gather", false},
        {"y2", "sums of dnorm", "y",
         "dx3 (norm_backward dh, x3, lnf.mean_rstd, lnf.weight, lnf.sums): ", "all_reduce", false},
        {"x2.y2", "statistics of loss", "x.y",
         "losses (loss exps, loss.stats, loss.stats): ", "all_gather", false},
        {"d2", "sum of losses", "d", "loss: ", "all_reduce", false},
        {"x2", "gradient norm", "all", "gradient norm: ", "all_reduce", false},
        {"z2", "w of up", "z", "up of layer 0 (bias up, up.bias): ", "all_gather", false},
        {"z2", "w of embedding", "z", "x (position x, wpe): ", "all_gather", false},
        {"d2+zero1", "new weights", "d", "parameter wte after the update: ", "all_gather", false},
        {"x2+sp", "x of qkv", "x", "h1 of layer 0 (all_gather over x): ", "all_gather", false},
        {"x2+sp", "dy of down", "x", "dx3 of layer 1 (all_gather over x): ", "all_gather", false},
        {"x2.y2", "x of head", "y", "h (all_gather over y): ", "all_gather", false},
        {"y2", "dx of embedding", "y", "dx (all_gather over y): ", "all_gather", false},
        {"x2.y2+stay=y", "x of up", "y", "up of layer 0 (bias up, up.bias): ", "broadcast", false},
        {"x2.y2+stay=y", "w of down", "x", "down of layer 0 (add down, down): ", "broadcast",
         false},
    };
    ALL_NAMED(faults, 0);
    ALL_NAMED(faults, .bf16 = true);
}
