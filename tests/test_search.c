/* parallel/plan/search: exhaustive, whatever its bounds leave out; fast, however many ranks and
 * layers. */
#include "parallel/plan/calibrate_parts.h"
#include "parallel/plan/search_parts.h"

#include "base/rng.h"
#include "tests/parsed.h"
#include "tests/test.h"

static Space space_of(const char *model, int p, int64_t sequences) {
    Space s = {.p = p, .free_micro = true, .free_recompute = true, .free_overlap = true};
    s.shape.model.config = config_of(model);
    s.shape.model.S = s.shape.model.config.seq;
    s.shape.batch = sequences * s.shape.model.S;
    s.shape.model.threads = 1;
    return s;
}

static uint64_t drawn;
static double between(double low, double high) { // evenly in logarithms
    double u = (double)(rng_u64(11, 7, drawn++) >> 11) * 0x1p-53;
    return low * pow(high / low, u);
}

/* A cluster of p ranks with one to three levels, of any speeds. */
static Machine random_machine(int p) {
    Machine m = {.ranks = p, .nodes = 1, .ranks_per_node = p, .threads = 1, .slowest = 1};
    m.flops[0] = between(1e10, 1e14), m.flops[1] = 2 * m.flops[0];
    m.flops_half = between(1, 300);
    m.memory_rate = between(1e9, 3e12), m.call = between(1e-8, 1e-5), m.slowdown = 1;
    m.oversubscription = drawn % 3 ? 0 : between(1, 4);
    m.algorithm = drawn % 2 ? ALGORITHM_RING : ALGORITHM_DIRECT;
    for (int inner = 2; inner < p; inner *= 2)
        if (p % inner == 0 && between(1, 4) < 2 && m.n_levels < 2)
            m.level[m.n_levels++] = (Level){.name = "inner", .ranks = inner};
    m.level[m.n_levels++] = (Level){.name = "all", .ranks = p};
    for (int i = 0; i < m.n_levels; i++) {
        m.level[i].latency = between(1e-7, 1e-4);
        m.level[i].rank_rate = between(1e7, 1e11);
        m.level[i].port_rate = i ? between(1e7, 1e11) : 0;
    }
    m.ranks_per_node = m.level[0].ranks, m.nodes = p / m.ranks_per_node;
    return m;
}

/* The ranks are GPUs, whose matmuls in bf16 are waves. */
static void on_a_gpu(Space *s, Machine *m, bool bf16) {
    s->shape.model.bf16 = bf16, s->shape.kernels = kernels_cuda_sizes(bf16);
    m->sms = (int)between(1, 200);
}

static const char *const models[] = {
    "layers=3,heads=4,channels=64,seq=16,vocab=96",
    "layers=2,heads=6,kv_heads=2,channels=30,ffn=22,seq=8,vocab=29,act=swiglu,tied=0",
    "layers=12,heads=12,channels=768,seq=256,vocab=50257"};

static bool same_choice(const Choice *a, const Choice *b) {
    char x[80], y[80];
    return strcmp(layout_print(&a->layout, x), layout_print(&b->layout, y)) == 0 &&
           a->micro == b->micro && overlap_equal(&a->overlap, &b->overlap) &&
           a->recompute == b->recompute && a->price.seconds == b->price.seconds &&
           a->price.memory == b->price.memory;
}

/* ---- without bounds ---- */

typedef struct Brute {
    const Space *s;
    const Machine *m;
    Choice *best; // [max]
    int n, max;
    SearchCount count;
} Brute;

static bool better(const Price *a, const Price *b) {
    return a->seconds != b->seconds ? a->seconds < b->seconds : a->memory < b->memory;
}

static Layout *orders_on(const Machine *m, const Layout *l, int *n) {
    int unit[MAX_LEVELS];
    for (int i = 0; i < m->n_levels; i++) unit[i] = m->level[i].ranks;
    return layout_orders(l, unit, m->n_levels, n);
}

/* The best order of a candidate, as any user of the program prices one; memory is that of all. */
static void brute_choice(const Choice *c, void *ctx) {
    Brute *b = ctx;
    Choice best = {.fits = false};
    int n;
    OWNED(test_mem_end) Layout *order = orders_on(b->m, &c->layout, &n);
    for (int k = 0; k < n && (k == 0 || best.fits); k++) {
        Choice one = *c;
        one.layout = order[k];
        search_price(b->s, b->m, &one);
        if (k == 0 || better(&one.price, &best.price)) best = one;
    }
    b->count.candidates++;
    b->count.priced += best.fits, b->count.too_large += !best.fits;
    if (!best.fits || (b->n == b->max && !better(&best.price, &b->best[b->n - 1].price))) return;
    int at = b->n < b->max ? b->n++ : b->n - 1;
    for (; at > 0 && better(&best.price, &b->best[at - 1].price); at--)
        b->best[at] = b->best[at - 1];
    b->best[at] = best;
}

static int brute_force(const Space *s, const Machine *m, Choice *best, int max,
                       SearchCount *count) {
    Brute b = {.s = s, .m = m, .best = best, .max = max};
    search_each(s, brute_choice, &b);
    *count = b.count;
    return b.n;
}

/* Leaves too little memory for most candidates. */
static void tighten(const Space *s, Machine *m) {
    Choice best;
    CHECK(search_best(s, m, &best, 1, NULL) == 1);
    m->memory = best.price.memory * 3 / 4;
}

/* Does the search find what brute force finds? Returns how many candidates it did not price. */
static int64_t compare(const Space *s, const Machine *m) {
    enum { TOP = 5 };
    Choice a[TOP], b[TOP];
    SearchCount bounded, brute;
    int n = search_best(s, m, a, TOP, &bounded), n_b = brute_force(s, m, b, TOP, &brute);
    bool same = n == n_b && bounded.candidates == brute.candidates &&
                brute.priced + brute.too_large == brute.candidates;
    // choices close to the best are the same; others are at most as good
    for (int i = 0; same && i < n; i++) {
        bool close = b[i].price.seconds <= (1 + s->close) * b[0].price.seconds;
        same = close || s->close == 0 ? same_choice(&a[i], &b[i])
                                      : a[i].price.seconds >= b[i].price.seconds;
    }
    if (!same) test_fail("%d ranks: not what brute force finds", s->p);
    return brute.priced - bounded.priced;
}

static void most_micro(const Choice *c, void *ctx) {
    int64_t *most = ctx;
    if (c->micro > *most) *most = c->micro;
}

/* A run refuses a larger micro-batch. */
TEST(search_tries_no_micro_batch_beyond_the_limit_of_a_run) {
    int64_t most = 0;
    Space s = space_of(models[0], 2, 1 << 20);
    search_each(&s, most_micro, &most);
    CHECK(most * s.shape.model.S == 1 << 21);
    s.shape.model.S = 1 << 22, most = 0; // one sequence is tried, however long
    search_each(&s, most_micro, &most);
    CHECK(most == 1);
}

TEST(search_finds_what_brute_force_finds) {
    int64_t left_out = 0;
    for (int p = 1; p <= (test_long() ? 12 : 6); p++) {
        Space s = space_of(models[p % 3], p, 6);
        Machine m = random_machine(p);
        if (p % 3 == 2) on_a_gpu(&s, &m, true);
        s.exact = p % 3 == 1;
        if (p % 4 > 1) s.close = 0.05;
        if (p % 2) tighten(&s, &m);
        left_out += compare(&s, &m);
    }
    CHECK(left_out > 100); // the bounds are good for something
}

/* What --overlap may ask for: some of what the search tries, and what it does not. */
enum { GIVEN = 10, WORDS = 24 };
static const char given[GIVEN][WORDS] = {
    "none",  "bulk",    "bulk+halves", "bulk+ring",  "bulk+chunk=4+halves",
    "fused", "chunk=8", "halves",      "bulk+fused", "bulk+fused+halves"};

/* A space with that schedule alone. */
static Space space_of_given(const char *model, int p, int64_t sequences, const char *words) {
    Space s = space_of(model, p, sequences);
    s.free_overlap = false, s.shape.model.overlap = overlap_of(words);
    return s;
}

TEST(search_finds_what_brute_force_finds_with_a_given_schedule) {
    int64_t left_out = 0;
    for (int i = 0; i < GIVEN; i++)
        for (int p = 4 + 2 * (i % 2); p <= (test_long() ? 12 : 6); p += 4) {
            Space s = space_of_given(models[(p / 2 + i) % 3], p, 6, given[i]);
            Machine m = random_machine(p);
            if ((p / 2 + i) % 3 == 2) on_a_gpu(&s, &m, true);
            if (i % 3) m.slowdown = between(1, 1.5);
            if (p == 6) tighten(&s, &m);
            left_out += compare(&s, &m);
        }
    CHECK(left_out > 100);
}

/* Units in units: a mesh has hundreds of orders, and the fastest links are for the axes that come
 * last in it. */
TEST(search_looks_at_every_order_of_three_levels) {
    Space s = space_of("layers=48,heads=64,channels=8192,seq=2048,vocab=50257", 2048, 64);
    Machine m = machine_of("h100:256");
    m.n_levels = 3;
    m.level[1] = (Level){
        .name = "rack", .ranks = 64, .latency = 8e-6, .rank_rate = 23e9, .port_rate = 184e9};
    m.level[2] = (Level){
        .name = "trunk", .ranks = 2048, .latency = 12e-6, .rank_rate = 23e9, .port_rate = 400e9};
    s.shape.model.bf16 = true, s.shape.kernels = machine_kernels(&m, true);
    s.free_recompute = s.free_overlap = false, s.shape.model.overlap = (Overlap){.bulk = true};
    Choice best;
    CHECK(search_best(&s, &m, &best, 1, NULL) == 1);
    int n, at = -1;
    OWNED(test_mem_end) Layout *order = orders_on(&m, &best.layout, &n);
    for (int k = 0; k < n; k++) {
        Choice in = best;
        in.layout = order[k];
        search_price(&s, &m, &in);
        CHECK(in.price.seconds >= best.price.seconds);
        if (memcmp(&order[k], &best.layout, sizeof(Layout)) == 0) at = k;
    }
    CHECK(at > 128); // one of the last
}

/* ---- bounds ---- */

/* Seconds that no price of a choice undercuts, in any order of its axes (or in that of s->only);
 * bytes of memory likewise. any: with any schedule that s has for it. */
static double bound_of(const Space *s, const Machine *m, const Choice *c, bool any,
                       int64_t *memory) {
    Bound b;
    OWNED(orders_free) Orders o = orders_of(s, m, c->layout.size);
    ListTable totals = {.s = s, .m = m};
    candidate_bound(&b, &totals, c, any);
    *memory = candidate_memory(&totals, c, any);
    mem_free(totals.at);
    return bound_least(&b, &o);
}

typedef struct Bounds {
    const Space *s;
    const Machine *m;
    int seen, n, bad;
    double least; // price of a choice in any order
} Bounds;

static void check_below(Bounds *b, const Choice *c, const char *of, double bound, int64_t memory) {
    // the same costs, added in another order
    if (bound <= c->price.seconds * (1 + 1e-12) && memory <= c->price.memory) return;
    char spec[80], words[OVERLAP_TEXT];
    b->bad++;
    printf("    %s, %s, micro %lld, recompute %d, %s: %g > %g s or %lld > %lld bytes\n",
           layout_print(&c->layout, spec), overlap_print(&c->overlap, words), (long long)c->micro,
           c->recompute, of, bound, c->price.seconds, (long long)memory,
           (long long)c->price.memory);
}

static void check_order(Bounds *b, const Choice *c) {
    Space one = *b->s;
    Choice priced = *c;
    int64_t memory;
    one.only = &c->layout;
    search_price(&one, b->m, &priced);
    b->n++;
    b->least = fmin(b->least, priced.price.seconds);
    double bound = bound_of(&one, b->m, c, false, &memory);
    check_below(b, &priced, "its schedule", bound, memory);
    bound = bound_of(&one, b->m, c, true, &memory);
    check_below(b, &priced, "any schedule", bound, memory);
    if (!one.free_overlap) return;
    one.free_overlap = false, one.shape.model.overlap = c->overlap;
    bound = bound_of(&one, b->m, c, true, &memory);
    check_below(b, &priced, "any, its own alone", bound, memory);
}

static void check_bound(const Choice *c, void *ctx) {
    Bounds *b = ctx;
    int n;
    int64_t memory;
    char spec[80];
    Layout again;
    CHECK(layout_ranks(&c->layout) == b->s->p); // never fewer
    const int *size = c->layout.size; // flags without effect would make a candidate of another name
    CHECK(c->layout.zero == 0 || size[AXIS_D] > 1);
    CHECK((!c->layout.sp || size[AXIS_X] > 1) && (!c->layout.heads || size[AXIS_Y] > 1));
    int64_t sequences = b->s->shape.batch / b->s->shape.model.S;
    CHECK((c->micro - 1) * size[AXIS_D] * size[AXIS_Z] < sequences); // no larger one is filled
    CHECK(layout_parse(&again, layout_print(&c->layout, spec), b->s->p, NULL));
    if (b->seen++ % (test_long() ? 1 : 37)) return; // a sample
    OWNED(test_mem_end) Layout *order = orders_on(b->m, &c->layout, &n);
    b->least = INFINITY;
    for (int k = 0; k < n; k++) {
        Choice ordered = *c;
        ordered.layout = order[k];
        check_order(b, &ordered);
    }
    if (bound_of(b->s, b->m, c, false, &memory) > b->least * (1 + 1e-12)) b->bad++;
}

/* Those of all choices of a space, or of a sample. */
static bool bounds_undercut(const Space *s, const Machine *m) {
    Bounds b = {.s = s, .m = m};
    search_each(s, check_bound, &b);
    return b.bad == 0 && b.n > 0;
}

TEST(search_bounds_undercut_every_price) {
    for (int p = 1; p <= 12; p++)
        for (int k = 0; k < 3; k++) {
            if (p > 6 && k != p % 3 && !test_long()) continue; // one model each
            Space s = space_of(models[k], p, 5);
            Machine m = random_machine(p);
            if (p % 3) m.slowdown = between(1, 1.5); // beside a collective
            if (p % 2) m.slowest = between(1, 1.1);
            if (p % 4 == 1) m.call = 1; // calls are all that counts
            for (int i = 0; i < m.n_levels && p % 5 == 2; i++)
                m.level[i].latency *= 100; // high latency
            s.shape.model.bf16 = (p + k) % 4 > 1 && p % 5;
            if ((p + k) % 2) on_a_gpu(&s, &m, s.shape.model.bf16);
            s.exact = !s.shape.model.bf16 && !s.shape.kernels;
            CHECK(bounds_undercut(&s, &m));
        }
}

TEST(search_bounds_undercut_prices_of_a_given_schedule) {
    for (int i = 0; i < GIVEN; i++)
        for (int p = 4; p <= (test_long() ? 12 : 8); p += 4) {
            Space s = space_of_given(models[(p / 4 + i) % 3], p, 5, given[i]);
            Machine m = random_machine(p);
            m.slowdown = between(1, 1.5);
            s.shape.model.bf16 = i % 3 == 0;
            if (p == 8) on_a_gpu(&s, &m, s.shape.model.bf16);
            CHECK(bounds_undercut(&s, &m));
        }
}

/* Where collectives take about as long as kernels, chunks, rings, halves and fused matmuls hide
 * most of them: the bound of a schedule without them is above the price. */
TEST(search_bound_of_any_schedule_knows_the_one_that_is_given) {
    static const char *const layouts[] = {"x4", "x4+sp", "x2.y2", "d2.x2+sp+zero1"};
    for (int i = 0; i < 4 * GIVEN; i++) {
        Space s = space_of_given("layers=12,heads=32,channels=4096,seq=1024,vocab=1000", 4, 32,
                                 given[i / 4]);
        Machine m = machine_of("a100:1");
        Choice c = {
            .layout = layout_of(layouts[i % 4]), .micro = 8, .overlap = s.shape.model.overlap};
        m.slowest = m.slowdown = 1, m.level[0].rank_rate /= 2;
        s.shape.model.bf16 = true, s.shape.kernels = machine_kernels(&m, true);
        Bounds b = {.s = &s, .m = &m, .least = INFINITY};
        check_order(&b, &c);
        CHECK(b.bad == 0);
    }
}

static void check_some(const Choice *c, void *ctx) {
    Bounds *b = ctx;
    if (b->seen++ % (test_long() ? 53 : 3989) == 0) check_order(b, c);
}

/* Blocks of a deep model find links busy that a block alone does not. */
TEST(search_bounds_undercut_prices_of_a_deep_mesh) {
    static const char *const shape[] = {"layers=96,heads=96,channels=12288,seq=2048,vocab=50257",
                                        "layers=13,heads=96,channels=12288,seq=2048,vocab=50257"};
    for (EACH(one, shape)) {
        Machine m = machine_of("h100:128");
        Space s = {.p = 1024, .free_micro = true, .free_recompute = true, .free_overlap = true};
        s.shape.model.config = config_of(*one);
        m.slowest = 1; // which would hide a bound that is not much too high
        s.shape.model.S = 2048, s.shape.batch = 3145728, s.shape.model.bf16 = true,
        s.shape.model.threads = 1;
        s.shape.kernels = machine_kernels(&m, true);
        Bounds b = {.s = &s, .m = &m};
        search_each(&s, check_some, &b);
        CHECK(b.bad == 0 && b.n > 50);
    }
}

/* With links that cost nothing a step is its kernels: those of chunks, rings and panels, which fill
 * fewer multiprocessors than whole matmuls. */
TEST(search_bounds_have_the_waves_of_chunks_and_panels) {
    static const char *const cases[] = {"x8+sp bulk+chunk=4", "x8+sp bulk+ring",
                                        "x4.y2+stay=y bulk", "x4.y2+stay=y bulk+halves"};
    for (EACH(one, cases)) {
        Choice c = {.micro = 4};
        Space s = space_of("layers=4,heads=96,channels=12288,seq=2048,vocab=50257", 8, 8);
        int64_t memory;
        Machine m = machine_of("h100:1");
        m.level[0].latency = 0, m.level[0].rank_rate = 1e18, m.slowdown = m.slowest = 1;
        s.shape.model.bf16 = true, s.shape.kernels = machine_kernels(&m, true);
        char layout[32], words[32];
        CHECK(sscanf(*one, "%31s %31s", layout, words) == 2);
        c.layout = layout_of(layout), c.overlap = overlap_of(words);
        search_price(&s, &m, &c);
        double bound = bound_of(&s, &m, &c, false, &memory);
        CHECK(bound > 0.95 * c.price.seconds && bound <= c.price.seconds * (1 + 1e-12));
    }
}

/* Of high latency, measured: collectives that are under way together share the time that was
 * measured beyond that of no bytes, though the rate of the links was measured far too low. */
TEST(search_lines_of_high_latency_are_those_that_were_measured) {
    static const CollOp ops[] = {COLL_ALL_GATHER, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE};
    Space s = space_of(models[0], 4, 4);
    Machine m = machine_of("cpu:4");
    m.n_levels = 1, m.nodes = 4, m.ranks = 4, m.ranks_per_node = 1;
    m.level[0] = (Level){.name = "network", .ranks = 4, .latency = 5e-3, .rank_rate = 1e7};
    OWNED(test_calibration_end) Calibration *c = calibration_new();
    CollGroup g = {.place = {1, {4}, {1}}, .size = 4};
    for (EACH(one, ops))
        calibration_add_collective(c, &(CollCost){.place = g.place,
                                                  .op = *one,
                                                  .n = 3,
                                                  .measured = 1 << 20,
                                                  .bytes = {256, 1 << 18, 1 << 20},
                                                  .seconds = {5e-3, 9e-3, 15e-3}});
    m.measured = c;
    CHECK(machine_high_latency(&m, &g));
    Machine low = machine_low_latency(&m);
    Collective large = {.op = COLL_ALL_GATHER, .bytes = 1 << 20};
    double wire = machine_collective(&low, &g, &large);
    CHECK(wire > 10e-3 && wire < 10.2e-3); // by the rate of the links it would be 79 ms
    OWNED(orders_free) Orders o = orders_of(&s, &m, (int[N_AXES]){4, 1, 1, 1});
    const AlongCost *l = &o.along[0][ALONG_D];
    for (EACH(one, ops))
        for (int64_t bytes = 0; bytes < 1 << 24; bytes = bytes ? 2 * bytes : 4) {
            Collective call = {.op = *one, .bytes = bytes};
            double halves = *one == COLL_ALL_REDUCE ? 2 : 1;
            double line = halves * (l->wire.start + l->wire.rate * (double)bytes);
            CHECK(line <= machine_collective(&low, &g, &call));
        }
    CHECK(l->wire.rate > 2e-9);
}

/* Whose chunks are most of what a step holds, and of its calls. */
TEST(search_bounds_undercut_prices_of_a_head) {
    for (int device = 0; device < 2; device++) {
        Space s = space_of("layers=1,heads=2,channels=256,seq=1024,vocab=50257", 8, 512);
        Machine m = machine_of("h100:1");
        m.slowest = 1, m.call = 1e-3, s.shape.model.bf16 = device;
        if (device) s.shape.kernels = machine_kernels(&m, true);
        CHECK(bounds_undercut(&s, &m));
    }
}

static void check_own_order(const Choice *c, void *ctx) {
    check_order(ctx, c);
}

/* Weights that no end of a step gathers, and gradients that none sums, on slow links. */
TEST(search_bounds_undercut_prices_of_zero3_and_of_replicas_apart) {
    static const char *const layouts[] = {"d4+zero3", "d2.z2+zero3", "d2.x2+zero3"};
    Machine m = random_machine(4);
    for (int i = 0; i < m.n_levels; i++) m.level[i].rank_rate = m.level[i].port_rate = 1e6;
    for (int i = 0; i < 4; i++) {
        Space s = space_of(models[0], 4, 8);
        Layout only = layout_of(layouts[i % 3]);
        s.shape.local_steps = i == 3;
        if (i < 3) s.only = &only;
        Bounds b = {.s = &s, .m = &m};
        search_each(&s, check_own_order, &b);
        CHECK(b.bad == 0 && b.n > 0);
    }
}

TEST(search_obeys_what_is_fixed) {
    Space s = space_of(models[0], 8, 16);
    Machine m = random_machine(8);
    Choice best[4];
    Layout only = layout_of("y2.x4+sp");
    s.only = &only, s.free_micro = false, s.shape.model.B = 2,
    s.shape.model.recompute = RECOMPUTE_FULL;
    s.free_recompute = s.free_overlap = false;
    CHECK(search_best(&s, &m, best, 4, NULL) == 1);
    char spec[80];
    CHECK(strcmp(layout_print(&best[0].layout, spec), "y2.x4+sp") == 0);
    CHECK(best[0].micro == 2 && best[0].recompute == RECOMPUTE_FULL);
    // named schemes are what they are, whatever layout is asked for
    Choice fixed[N_SCHEMES], any[N_SCHEMES];
    const char *name[N_SCHEMES];
    int n = search_presets(&s, &m, best, 1, fixed, name);
    s.only = NULL;
    CHECK(n > 5 && search_presets(&s, &m, NULL, 0, any, name) == n);
    for (int i = 0; i < n; i++) CHECK_NEAR(fixed[i].price.seconds, any[i].price.seconds, 0);
    CHECK_STR(name[0], "dp");
    CHECK(fixed[0].layout.size[AXIS_D] == 8);
}

/* Which follows from what links are busy with: without it 1,322. */
TEST(search_prices_few_candidates) {
    Machine m = machine_of("cpu:16");
    Space s = space_of("layers=12,heads=12,channels=768,seq=1024,vocab=50257", 16, 64);
    SearchCount n;
    Choice c;
    s.close = 0.02, s.shape.model.threads = m.threads;
    CHECK(search_best(&s, &m, &c, 1, &n) == 1);
    CHECK(n.candidates > 10000 && n.priced < 100);
}

/* Between temporaries there are gaps, which are known when these are placed. */
TEST(search_chooses_nothing_that_fits_but_for_gaps) {
    Space s = space_of(models[0], 4, 8);
    Machine m = random_machine(4);
    Choice c;
    Layout only = layout_of("y4");
    s.only = &only, s.free_micro = s.free_recompute = s.free_overlap = false;
    s.shape.model.B = 1, s.shape.model.recompute = RECOMPUTE_FULL,
    s.shape.model.overlap.bulk = true;
    CHECK(search_best(&s, &m, &c, 1, NULL) == 1);
    search_price(&s, &m, &c);
    m.memory = c.price.memory;
    CHECK(search_best(&s, &m, &c, 1, NULL) == 1 && c.price.memory == m.memory);
    m.memory--;
    CHECK(search_best(&s, &m, &c, 1, NULL) == 0);
}

TEST(search_of_named_schemes_takes_what_is_among_the_best_already) {
    enum { BEST = 40 };
    int64_t found = 0, alike = 0, all = 0;
    for (int i = 0; i < (test_long() ? 8 : 4); i++) {
        static const int ranks[] = {4, 6, 8, 16};
        int p = ranks[i % 4];
        Space s = space_of(models[i % 2], p, 4 * p);
        if (i % 2) s.close = 0.05;
        drawn = (unsigned)i + 1;
        Machine m = random_machine(p);
        Choice best[BEST], apart[N_SCHEMES], some[N_SCHEMES];
        const char *name[N_SCHEMES], *other[N_SCHEMES];
        int n_best = search_best(&s, &m, best, BEST, NULL);
        int n = search_presets(&s, &m, NULL, 0, apart, name);
        CHECK(search_presets(&s, &m, best, n_best, some, other) == n);
        for (int k = 0; k < n; k++) {
            CHECK(name[k] == other[k] && apart[k].fits == some[k].fits);
            // of a scheme with many candidates not all are priced
            CHECK(some[k].price.seconds <= apart[k].price.seconds);
            CHECK(some[k].price.seconds < apart[k].price.seconds ||
                  same_choice(&apart[k], &some[k]));
            alike += same_choice(&apart[k], &some[k]), all++;
            for (int j = 0; j < n_best; j++)
                found += memcmp(&best[j].layout, &some[k].layout, sizeof(Layout)) == 0;
        }
    }
    CHECK(found > 8); // or nothing is tested
    CHECK(10 * alike >= 9 * all);
}

static int kernels_of(const StepLists *s) {
    StepPart part[STEP_PARTS];
    int n = 0;
    for (int parts = price_parts(s, 0, part), k = 0; k < parts; k++)
        for (int i = 0; i < part[k].p->n_ops; i++) n += (int)op_calls(part[k].p, i);
    return n;
}

/* A kernel for each of a thousand ranks would make lists of millions. */
TEST(search_lists_do_not_grow_with_the_ranks_that_tokens_are_cut_over) {
    int kernels[2][3];
    static const int ranks[] = {MAX_STRIPES, MAX_STRIPES + 1, 4 * MAX_STRIPES};
    for (int chunks = 0; chunks < 2; chunks++)
        for (int i = 0; i < 3; i++) {
            Space s = space_of(models[0], ranks[i], 4);
            s.shape.model.overlap = (Overlap){.bulk = true, .chunks = chunks ? 2 : 0};
            s.shape.model.B = 4 * ranks[i], s.shape.batch = s.shape.model.B * s.shape.model.S;
            Layout l = layout_of(test_path("x%d+sp", ranks[i]));
            OWNED(price_free) StepLists t;
            price_lists(&t, &s.shape, &l, 0, 0);
            kernels[chunks][i] = kernels_of(&t);
        }
    CHECK(kernels[1][0] > 4 * MAX_STRIPES + kernels[0][0]);
    CHECK(kernels[1][1] == kernels[0][1] && kernels[1][2] == kernels[0][2]);
}

TEST(search_of_more_sequences_than_a_number_holds_ends) {
    Space s = space_of(models[0], 2, 2);
    drawn = 5;
    Machine m = random_machine(2);
    Choice best;
    s.shape.batch = (int64_t)1e12;
    CHECK(s.free_micro && search_best(&s, &m, &best, 1, NULL) == 1);
    CHECK(best.micro > 0 && best.price.seconds > 0);
}

/* The price of a layout grows with the layers, the time to find it does not: as many candidates. Of
 * each there are lists of two and three layers, whatever the model (test_price.c). */
TEST(search_of_more_layers_prices_as_many_candidates) {
    static const int layers[] = {12, 96, 960};
    int64_t candidates = 0;
    for (int i = 0; i < 3; i++) {
        const char *model =
            test_path("layers=%d,heads=16,channels=512,seq=128,vocab=1000", layers[i]);
        Space s = space_of(model, 16, 32);
        drawn = 5;
        Machine m = random_machine(16);
        Choice best;
        SearchCount count;
        CHECK(search_best(&s, &m, &best, 1, &count) == 1);
        CHECK(i == 0 || count.candidates == candidates);
        candidates = count.candidates;
    }
}

static void check_shares(const Choice *c, void *ctx) {
    const Space *s = ctx;
    int64_t places = (int64_t)c->layout.size[AXIS_D] * c->layout.size[AXIS_Z];
    CHECK(c->layout.size[AXIS_D] > 1 && 6 % (c->micro * places) == 0);
    CHECK(c->layout.zero == 0 && layout_ranks(&c->layout) == s->p);
}

TEST(search_gives_replicas_apart_equal_shares) {
    Space s = space_of(models[0], 6, 6);
    s.shape.local_steps = true;
    search_each(&s, check_shares, &s);
}

/* ---- schedules */

static void list_words(const Choice *c, void *ctx) {
    char *text = ctx, words[OVERLAP_TEXT];
    size_t at = strlen(text);
    snprintf(text + at, 128 - at, " %s", overlap_print(&c->overlap, words));
}

TEST(search_leaves_out_schedules_that_have_nothing_to_hide) {
    static const struct {
        const char *layout;
        int64_t micro;
        const char *words; // tried
    } rows[] = {{"x1", 2, "none"},
                {"d4", 2, "none bulk"},
                {"x4", 2, "none bulk bulk+chunk=2 bulk+chunk=4 bulk+halves"},
                {"x4", 1, "none bulk bulk+chunk=2 bulk+chunk=4"},
                {"x4+sp", 1, "none bulk bulk+chunk=2 bulk+chunk=4 bulk+ring"},
                {"x2.y2+stay=y", 2, "none bulk bulk+halves"},
                {"x16+sp", 1, "none bulk bulk+chunk=2 bulk+chunk=4"}};
    for (EACH(r, rows)) {
        Space s = space_of(models[0], 1, 64);
        char text[128] = "", words[OVERLAP_TEXT];
        Layout only = layout_of(r->layout);
        s.p = layout_ranks(&only);
        s.only = &only, s.free_micro = s.free_recompute = false, s.shape.model.B = r->micro;
        search_each(&s, list_words, text);
        CHECK_STR(text + 1, r->words);
        s.free_overlap = false;
        s.shape.model.overlap = overlap_of("bulk+halves");
        *text = 0;
        search_each(&s, list_words, text); // asked for: wherever it can be
        CHECK_STR(text, r->micro % 2 ? "" : " bulk+halves");
        CHECK_STR(overlap_print(&s.shape.model.overlap, words), "bulk+halves");
    }
}

static void check_pairs(const Choice *c, void *ctx) {
    const Space *s = ctx;
    PriceShape shape = candidate_shape(s, c);
    OWNED(price_free) StepLists t;
    StepPart part[STEP_PARTS];
    shape.whole = true;
    price_lists(&t, &shape, &c->layout, 0, 0);
    for (int parts = price_parts(&t, 0, part), k = 0; k < parts; k++) {
        const Program *p = part[k].p;
        OWNED(test_mem_end) bool *waited = mem_calloc((size_t)p->n_tensors, sizeof *waited);
        int open = 0;
        for (int i = 0; i < p->n_ops; i++)
            if (p->op[i].kind == OP_WAIT) waited[p->op[i].in[0]] = true;
        for (int i = 0; i < p->n_ops; i++) {
            bool sends = op_info(p->op[i].kind)->collective;
            CHECK(!sends || waited[p->op[i].out] || !c->overlap.bulk);
            open += sends && waited[p->op[i].out];
            open -= p->op[i].kind == OP_WAIT;
            CHECK(open <= COLL_IN_FLIGHT); // of all groups together
        }
        CHECK(open == 0);
    }
}

/* Most is under way in halves whose blocks are made again, of more layers than are priced
 * otherwise. */
TEST(search_prices_every_schedule_of_deep_models_to_its_end) {
    static const int ranks[] = {4, 8};
    for (EACH(rank, ranks)) {
        Space s = space_of("layers=6,heads=4,channels=32,seq=8,vocab=61", *rank, 4 * *rank);
        s.free_micro = s.free_recompute = false, s.shape.model.B = 2;
        s.shape.model.recompute = RECOMPUTE_FULL;
        search_each(&s, check_pairs, &s);
    }
}
