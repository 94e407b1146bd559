/* parallel/price: the recorded step is the step that runs. What it sends is held against
 * tests/theory.h, which other tests hold against runs; what it allocates against the model itself;
 * what it computes against the closed form. */
#include "parallel/plan/price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/calibrate_parts.h"
#include "parallel/plan/count.h"
#include "parallel/plan/machine.h"
#include "parallel/plan/price_kernels.h"
#include "tests/mesh_run.h"
#include "tests/test.h"
#include "tests/theory.h"

static const char divides[] = "layers=5,heads=8,channels=48,ffn=96,seq=8,vocab=96";
static const char awkward[] =
    "layers=4,heads=6,kv_heads=2,channels=30,ffn=22,seq=8,vocab=29,act=swiglu,tied=0";

typedef struct Case {
    PriceShape shape;
    const char *model;
    int bad, n;
} Case;

static Case case_of(const char *model, int64_t batch, int64_t micro, Recompute recompute) {
    Case c = {.model = model,
              .shape = {.S = 8, .batch = batch, .micro = micro, .recompute = recompute}};
    Err e;
    c.shape.threads = 3;
    if (!config_parse(&c.shape.config, model, &e)) die("%s", e.text);
    return c;
}

static void predict(Theory *c, const PriceShape *s, const Grid *g) {
    ModelShape m = {.config = s->config,
                    .B = s->micro,
                    .S = s->S,
                    .recompute = s->recompute,
                    .training = true,
                    .grid = g};
    int64_t micro_steps = price_micro_steps(s, &g->layout);
    c->n = 0, c->word = s->kernels ? (int)s->kernels->word : 0;
    theory_micro_step(c, &m);
    for (int i = 0; i < c->n; i++) c->row[i].calls *= micro_steps, c->row[i].bytes *= micro_steps;
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

static void check_counts(const char *spec, void *ctx) {
    Case *k = ctx;
    Tape t = {0};
    Layout l;
    Err e;
    if (!layout_parse(&l, spec, 0, &e)) die("%s", e.text);
    int p = layout_ranks(&l);
    for (int rank = 0; rank<p; rank += p> 4 ? p - 1 : 1) { // the last one has the padding
        Theory told;
        CollCount rows[COUNT_ROWS];
        Grid g = {.layout = l};
        g.mesh = mesh_make(&l.factors, rank);
        price_record(&t, &k->shape, &l, rank);
        int n = price_counts(&t, rows, COUNT_ROWS);
        predict(&told, &k->shape, &g);
        same_rows(k, spec, rank, rows, n, told.row, told.n);
        same_rows(k, spec, rank, told.row, told.n, rows, n);
        k->n++;
    }
    tape_free(&t);
}

TEST(price_sends_what_theory_predicts_on_every_layout) {
    Case cases[] = {case_of(divides, 8 * 24, 4, RECOMPUTE_NONE),
                    case_of(awkward, 8 * 7, 1, RECOMPUTE_SELECTIVE),
                    case_of(divides, 8 * 12, 3, RECOMPUTE_FULL),
                    case_of(awkward, 8 * 12, 2, RECOMPUTE_FULL)};
    cases[3].shape.kernels = kernels_cuda_sizes(true);
    for (int i = 0; i < 4; i++) {
        for (int p = 1; p <= 8; p++) mesh_every_layout(p, check_counts, &cases[i]);
        CHECK(cases[i].bad == 0);
        CHECK(cases[i].n > 600);
    }
}

static void check_memory(const char *spec, void *ctx) {
    Case *k = ctx;
    Tape t = {0}, whole = {0};
    Layout l;
    Err e;
    if (!layout_parse(&l, spec, 0, &e)) die("%s", e.text);
    PriceShape all = k->shape;
    all.whole = true;
    price_record(&t, &k->shape, &l, 0);
    price_record(&whole, &all, &l, 0);
    CHECK(whole.recorded[0] == k->shape.config.layers && t.recorded[0] == 2);
    CHECK_NEAR((double)tape_memory(&t), (double)tape_memory(&whole),
               0.01 * (double)tape_memory(&whole));
    for (int i = 0; i < N_ARENAS; i++) {
        int64_t more = t.run[1].memory[i] - t.run[0].memory[i], few = k->shape.config.layers - 3;
        if (i == ARENA_ACTS) more = t.run[1].kept - t.run[0].kept; // placed with three layers alone
        int64_t want = whole.run[0].memory[i], got = t.run[1].memory[i] + few * more;
        if (want != got)
            k->bad++, printf("    %s on %s: arena %d: %lld, not %lld\n", k->model, spec, i,
                             (long long)got, (long long)want);
    }
    k->n++;
    tape_free(&t);
    tape_free(&whole);
}

TEST(price_of_two_and_three_layers_tells_the_memory_of_all) {
    Case k = case_of("layers=9,heads=6,kv_heads=2,channels=30,ffn=22,seq=8,vocab=29", 8 * 12, 3,
                     RECOMPUTE_SELECTIVE);
    k.shape.samples = true;
    for (int p = 1; p <= 6; p++) mesh_every_layout(p, check_memory, &k);
    CHECK(k.bad == 0 && k.n > 100);
}

/* Bytes of a work in bf16 words by those in floats, where all of it are activations, part of it, or
 * nothing. */
static bool halved(const Work *w, double bytes, double floats) {
    switch (w->kind) {
    case WORK_SQUARES:
    case WORK_ZERO:
    case WORK_NORM_MERGE:
    case WORK_CLASSIFIER_MERGE:
        return bytes == floats;
    case WORK_ADAMW: // and a copy in words of what products read
        return bytes == floats * (w->flags & WORK_WORDS ? 30 / 28.0 : 1);
    case WORK_XW:
    case WORK_DX:
    case WORK_ACT:
    case WORK_ACT_BACKWARD:
    case WORK_BIAS_BACKWARD:
    case WORK_EMBEDDING:
        return bytes == floats / 2;
    default: // gradients of weights and tables, statistics
        return bytes > floats / 2 && bytes < floats;
    }
}

TEST(price_of_works_in_bf16_words_is_that_of_their_bytes) {
    Case k = case_of(divides, 8 * 12, 3, RECOMPUTE_SELECTIVE);
    Tape t = {0};
    Layout l;
    CHECK(layout_parse(&l, "d2.x2.y2+sp+heads", 0, NULL));
    k.shape.kernels = kernels_cuda_sizes(true);
    price_record(&t, &k.shape, &l, 0);
    int seen[N_WORKS] = {0}, words = 0;
    for (int i = 0; i < t.n_works; i++) {
        Work w = t.work[i], floats = w;
        floats.flags &= ~(uint32_t)WORK_WORDS;
        seen[w.kind]++, words += (w.flags & WORK_WORDS) > 0;
        bool either = w.kind == WORK_COPY || w.kind == WORK_BIAS_RESIDUAL; // gradients, too
        CHECK(either || halved(&w, work_bytes(&w), work_bytes(&floats)));
    }
    CHECK(seen[WORK_XW] && seen[WORK_DW] && seen[WORK_ADAMW] && seen[WORK_NORM_APPLY] &&
          words > 20);
    tape_free(&t);
}

/* Works of a kind in a part of a step, or in all parts from there to another one. */
static int works_of(const Tape *t, const TapeRun *r, WorkKind kind, int from, int to) {
    int n = 0;
    for (int i = r->begin[from]; i < r->begin[to]; i++)
        n += t->event[i].kind == EVENT_WORK && t->work[t->event[i].index].kind == kind;
    return n;
}

TEST(price_of_the_head_is_that_of_larger_chunks_on_a_device) {
    Case k = case_of("layers=2,heads=2,channels=16,seq=8,vocab=50257", 8192, 1024, RECOMPUTE_NONE);
    Layout one = layout_one();
    for (int device = 0; device < 2; device++) {
        Tape t = {0};
        k.shape.kernels = device ? kernels_cuda_sizes(true) : NULL;
        price_record(&t, &k.shape, &one, 0);
        int n = works_of(&t, &t.run[0], WORK_CLASSIFIER, PART_MICRO_1, PART_MICRO_2);
        CHECK(n == (device ? 2 : 7)); // of 8192 tokens; 1334 in 256 MiB, 5336 in 1 GiB
        tape_free(&t);
    }
}

TEST(price_of_the_norm_is_a_sum_of_what_lies_side_by_side_on_a_device) {
    static const struct {
        const char *layout;
        bool device;
        int calls[2];                         // of two layers, of three
    } rows[] = {{"d1", false, {28, 40}},      // one for each tensor
                {"d1", true, {2, 2}},         // matrices, vectors
                {"d2+zero2", true, {2, 2}},   // parts that follow each other
                {"d2+zero1", true, {10, 14}}, // parts with those of others between
                {"x2+sp", true, {3, 3}}};     // vectors that are summed over x, too, lie apart
    Case k = case_of(divides, 8 * 12, 3, RECOMPUTE_NONE);
    Tape t = {0};
    for (int i = 0; i < 5; i++) {
        Layout l;
        CHECK(layout_parse(&l, rows[i].layout, 0, NULL));
        k.shape.kernels = rows[i].device ? kernels_cuda_sizes(true) : NULL;
        price_record(&t, &k.shape, &l, 0);
        for (int run = 0; run < 2; run++)
            CHECK(works_of(&t, &t.run[run], WORK_SQUARES, PART_END, N_TAPE_PARTS) ==
                  rows[i].calls[run]);
    }
    tape_free(&t);
}

/* Every place is one of groups that the ranks fall into, whatever the copies of key heads are: else
 * nobody could measure it. */
static void check_places(const char *spec, void *ctx) {
    Case *k = ctx;
    Tape t = {0};
    Layout l;
    CHECK(layout_parse(&l, spec, 0, NULL));
    int p = layout_ranks(&l);
    price_record(&t, &k->shape, &l, 0);
    for (int i = 0; i < t.n_groups; i++) {
        const Placement *at = &t.group[i].place;
        int members[8] = {0}, size = placement_ranks(at);
        for (int rank = 0; rank < p; rank++) {
            int base = rank;
            for (int j = 0; j < at->n; j++)
                base -= rank / at->stride[j] % at->size[j] * at->stride[j];
            members[base]++;
        }
        for (int rank = 0; rank < p; rank++) k->bad += members[rank] && members[rank] != size;
        k->bad += size < t.group[i].size;
        k->n += size > t.group[i].size;
    }
    tape_free(&t);
}

TEST(price_has_groups_at_places_that_all_ranks_fall_into) {
    Case cases[] = {case_of("layers=2,heads=6,kv_heads=2,channels=24,seq=8,vocab=32", 8 * 16, 1,
                            RECOMPUTE_NONE),
                    case_of("layers=2,heads=5,kv_heads=1,channels=20,seq=8,vocab=32", 8 * 16, 1,
                            RECOMPUTE_NONE)};
    for (int i = 0; i < 2; i++) {
        for (int p = 2; p <= 8; p++) mesh_every_layout(p, check_places, &cases[i]);
        CHECK(cases[i].bad == 0);
        CHECK(cases[i].n > 0); // copies that do not divide
    }
}

/* Rows of a matrix of which a rank has copies, or is not the first to have them, are one call. */
TEST(price_of_copied_heads_is_as_many_calls_for_any_width) {
    static const char *const layouts[] = {"x4",    "x8",          "d2.x4+zero1",
                                          "z2.x4", "d2.x4+zero2", "y2.x4"};
    for (int i = 0; i < 6; i++) {
        int calls[2][3] = {{0}};
        for (int wide = 0; wide < 2; wide++)
            for (int rank = 0; rank < 3; rank++) {
                char model[96];
                Tape t = {0};
                Layout l;
                snprintf(model, sizeof model,
                         "layers=3,heads=8,kv_heads=2,channels=%d,seq=8,vocab=96", wide ? 512 : 64);
                Case k = case_of(model, 8 * 16, 1, RECOMPUTE_NONE);
                k.shape.kernels = kernels_cuda_sizes(true);
                CHECK(layout_parse(&l, layouts[i], 0, NULL));
                price_record(&t, &k.shape, &l, rank);
                calls[wide][rank] = works_of(&t, &t.run[0], WORK_COPY, PART_LAST, N_TAPE_PARTS) +
                                    works_of(&t, &t.run[0], WORK_SQUARES, PART_END, N_TAPE_PARTS);
                tape_free(&t);
            }
        for (int rank = 0; rank < 3; rank++) {
            CHECK(calls[0][rank] > 4); // there are copies
            CHECK(calls[0][rank] == calls[1][rank]);
        }
    }
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
    Tape t = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int cuda = 0; cuda < 2; cuda++) {
            Layout l;
            int with = 0, alone = 0;
            CHECK(layout_parse(&l, cases[i].layout, 0, NULL));
            k.shape.kernels = cuda ? kernels_cuda_sizes(true) : NULL;
            price_record(&t, &k.shape, &l, 0);
            for (int j = 0; j < t.n_events; j++) {
                const Work *w = &t.work[t.event[j].index];
                if (t.event[j].kind != EVENT_WORK) continue;
                with += w->kind == WORK_DW && w->flags & WORK_BIAS;
                alone += w->kind == WORK_BIAS_BACKWARD;
            }
            int n = cuda ? cases[i].with_dw : 0;
            CHECK(4 * with == n * (with + alone) && with + alone >= 4);
        }
    tape_free(&t);
}

/* Multiplications and additions of all products of a step. */
static double products(const Tape *t) {
    double sum = 0;
    for (int i = 0; i < t->n_events; i++) {
        if (t->event[i].kind != EVENT_WORK) continue;
        const Work *w = &t->work[t->event[i].index];
        if (w->kind <= WORK_DW) sum += 2 * (double)w->rows * (double)w->a * (double)w->b;
    }
    return sum;
}

TEST(price_computes_what_the_model_computes) {
    Case k = case_of("layers=3,heads=4,channels=64,seq=8,vocab=128", 8 * 4, 4, RECOMPUTE_NONE);
    Tape t = {0};
    Layout one = layout_one(), four;
    Err e;
    k.shape.whole = true;
    price_record(&t, &k.shape, &one, 0);
    const double T = 32, C = 64, V = 128,
                 L = 3; // y, dx and dw of 12 C^2 weights a layer, and of the head
    double want = 3 * 2 * T * (12 * C * C * L + C * V);
    CHECK(products(&t) == want);
    CHECK(layout_parse(&four, "x2.y2", 0, &e));
    price_record(&t, &k.shape, &four, 0);
    CHECK(products(&t) == want / 4);
    k.shape.recompute = RECOMPUTE_FULL;
    price_record(&t, &k.shape, &one, 0);
    CHECK(products(&t) == want + 2 * T * 8 * C * C * L); // all of a block but its last product
    tape_free(&t);
}

/* Works of the stream in a step of 3 layers: norms by themselves; residuals by themselves; both in
 * one. */
static void stream_works(const char *spec, Recompute recompute, int n[3]) {
    Case k = case_of("layers=3,heads=4,channels=64,seq=8,vocab=128", 8 * 4, 4, recompute);
    Tape t = {0};
    Layout l;
    CHECK(layout_parse(&l, spec, 0, NULL));
    k.shape.whole = true;
    price_record(&t, &k.shape, &l, 0);
    n[0] = n[1] = n[2] = 0;
    for (int i = 0; i < t.n_events; i++) {
        if (t.event[i].kind != EVENT_WORK) continue;
        const Work *w = &t.work[t.event[i].index];
        n[0] += w->kind == WORK_NORM || w->kind == WORK_NORM_STATISTICS;
        n[1] += w->kind == WORK_BIAS_RESIDUAL && w->flags & WORK_ADDEND && w->rows > 1;
        n[2] += w->kind == WORK_RESIDUAL_NORM && w->flags == WORK_BIAS;
    }
    tape_free(&t);
}

TEST(price_has_residuals_and_norms_in_one_where_a_sum_of_whole_rows_is_owed) {
    static const struct {
        const char *spec;
        Recompute recompute;
        int n[3];
    } cases[] = {
        {"x1", RECOMPUTE_NONE, {7, 0, 0}}, // the product's epilogue adds
        {"d2.x2", RECOMPUTE_NONE, {1, 0, 6}},     {"x2+sp", RECOMPUTE_SELECTIVE, {1, 0, 6}},
        {"x2+sp", RECOMPUTE_FULL, {1 + 6, 0, 6}}, // what is there is not added again
        {"x2+stay=y", RECOMPUTE_NONE, {1, 0, 6}}, {"y2", RECOMPUTE_NONE, {7, 0, 0}},
        {"x2.y2", RECOMPUTE_NONE, {7, 6, 0}}, // rows are cut
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n[3];
        stream_works(cases[i].spec, cases[i].recompute, n);
        for (int j = 0; j < 3; j++)
            if (n[j] != cases[i].n[j])
                test_fail(__FILE__, __LINE__, "%s: %d %d %d", cases[i].spec, n[0], n[1], n[2]);
    }
}

/* Every ticket is waited for, after it was started. */
/* Of one rank, under schedules without and with bulk. */
static void play_one_rank(const Machine *m, double seconds[2]) {
    Case k = case_of("layers=3,heads=4,channels=64,seq=8,vocab=128", 8 * 4, 4, RECOMPUTE_NONE);
    Layout one = layout_one();
    for (int i = 0; i < 2; i++) {
        Tape t = {0};
        Price price;
        k.shape.overlap.bulk = i == 1;
        price_record(&t, &k.shape, &one, 0);
        tape_play(&t, m, &price);
        seconds[i] = price.seconds;
        tape_free(&t);
    }
}

TEST(price_of_a_schedule_that_hides_nothing_is_more_than_that_of_none) {
    Machine m;
    Err e;
    double seconds[2];
    CHECK(machine_open(&m, "cpu:1", &e));
    play_one_rank(&m, seconds);
    CHECK(seconds[0] == seconds[1]); // described: nothing is known of it
    Calibration *c = calibration_new();
    m.measured = c;
    play_one_rank(&m, seconds);
    CHECK(seconds[1] > 1.001 * seconds[0] && seconds[1] < 1.005 * seconds[0]);
    calibration_free(c);
}

TEST(price_counts_the_events_of_all_layers_and_micro_steps) {
    static const char *const layouts[] = {"d2", "x2+sp", "z2"};
    for (int i = 0; i < 3 * 3 * 3; i++) {
        Case c = case_of(divides, 8 * (2 + i % 3 * 4), 1, (Recompute)(i / 3 % 3));
        Layout l;
        Tape part = {0}, whole = {0};
        c.shape.overlap.bulk = i % 2;
        CHECK(layout_parse(&l, layouts[i / 9], 2, NULL));
        price_record(&part, &c.shape, &l, 1);
        c.shape.whole = true;
        price_record(&whole, &c.shape, &l, 1);
        CHECK(tape_events(&whole) == whole.run[0].begin[N_TAPE_PARTS]);
        CHECK(tape_events(&part) == tape_events(&whole) && part.n_events != whole.n_events);
        tape_free(&part), tape_free(&whole);
    }
}

TEST(price_records_starts_and_waits_in_pairs) {
    Case k = case_of(awkward, 8 * 12, 2, RECOMPUTE_NONE);
    Tape t = {0};
    Layout l;
    Err e;
    CHECK(layout_parse(&l, "d2.z2.x3.y2+sp+heads+zero1", 0, &e));
    price_record(&t, &k.shape, &l, 5);
    int starts = 0, waits = 0;
    for (int i = 0; i < t.n_events; i++) {
        if (t.event[i].kind == EVENT_START) starts++;
        if (t.event[i].kind != EVENT_WAIT) continue;
        waits++;
        CHECK(t.event[i].index < i && t.event[t.event[i].index].kind == EVENT_START);
    }
    CHECK(starts == waits && starts > 50);
    tape_free(&t);
}

static bool is_looked_up(const Tape *t, const Event *e) {
    if (e->kind == EVENT_WAIT) e = &t->event[e->index];
    return e->kind == EVENT_START && strcmp(t->send[e->index].what, "x of embedding") == 0;
}

/* The second half's is complete behind matmuls of the first. */
TEST(price_two_halves_sum_what_they_look_up_one_under_the_other) {
    Case k = case_of(divides, 8 * 12, 4, RECOMPUTE_NONE);
    Tape t = {0};
    Layout l;
    CHECK(layout_parse(&l, "x2", 0, NULL) && overlap_parse(&k.shape.overlap, "bulk+halves", NULL));
    price_record(&t, &k.shape, &l, 0);
    int open = 0, starts = 0, products = 0;
    for (int i = 0; i < t.n_events; i++) {
        const Event *e = &t.event[i];
        products += e->kind == EVENT_WORK && t.work[e->index].kind == WORK_XW;
        if (!is_looked_up(&t, e)) continue;
        open += e->kind == EVENT_START ? 1 : -1;
        if (e->kind == EVENT_WAIT) CHECK(open == 1 ? products == 0 : products > 0);
        if (e->kind == EVENT_START) starts++, products = 0;
    }
    CHECK(open == 0 && starts >= 4 && starts % 2 == 0);
    tape_free(&t);
}

TEST(price_of_a_thousand_ranks_needs_one) {
    Case k = case_of("layers=96,heads=96,channels=12288,seq=2048,vocab=50257", 2048 * 1536, 1,
                     RECOMPUTE_FULL);
    k.shape.S = 2048;
    Tape t = {0};
    Layout l;
    Err e;
    CHECK(layout_parse(&l, "d16.z8.x8.y16+sp+heads", 0, &e));
    price_record(&t, &k.shape, &l, 16383);
    CHECK(layout_ranks(&l) == 16384 && t.n_events > 200 && t.n_events < 4000);
    tape_free(&t);
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
    Tape t = {0};
    Layout l;
    Err e;
    Price p;
    if (!layout_parse(&l, layout, 0, &e)) die("%s", e.text);
    price_record(&t, &k.shape, &l, 0);
    tape_play(&t, &m, &p);
    tape_free(&t);
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

/* A tape of n collectives of so many bytes, all started, then all waited for. */
static Price together(int n, int64_t bytes, double latency) {
    const double rate = 100e6;
    Machine m = {.ranks = 2,
                 .n_levels = 1,
                 .level = {{"network", 2, latency, rate, 0}},
                 .flops = {1e18, 1e18},
                 .memory_rate = 1e18,
                 .slowdown = 1,
                 .slowest = 1,
                 .threads = 1};
    Tape t = {.layers = 1, .micro_steps = 1, .repeats = 1, .recorded = {1, 1}, .n_groups = 1};
    t.group[0] = (TapeGroup){.place = {1, {2}, {1}}, .size = 2};
    Send s = {.op = COLL_ALL_GATHER, .bytes = bytes, .type_bytes = 4, .what = "test"};
    int send = tape_send(&t, &s);
    for (int i = 0; i < n; i++) tape_event(&t, EVENT_START, send, i);
    for (int i = 0; i < n; i++) tape_event(&t, EVENT_WAIT, i, i);
    for (int i = PART_MICRO_2; i <= N_TAPE_PARTS; i++) t.run[0].begin[i] = t.n_events;
    Price p;
    tape_play(&t, &m, &p);
    tape_free(&t);
    return p;
}

/* Each of two ranks sends a half of 1 MB, 5 ms, after a latency of 5 ms. */
TEST(price_of_collectives_under_way_together_has_one_latency_and_all_bytes) {
    CHECK_NEAR(together(1, 1000000, 5e-3).seconds, 10e-3, 1e-6);
    Price four = together(4, 1000000, 5e-3);
    CHECK_NEAR(four.seconds, 25e-3, 200e-6); // processors handle each message, one after the other
    CHECK_NEAR(four.hidden, 40e-3 - four.seconds, 1e-6);
    // little of a short latency is anything but their work
    CHECK_NEAR(together(4, 1000000, 20e-6).seconds, 20e-3 + 4 * 20e-6, 1e-6);
}
