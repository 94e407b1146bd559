/* parallel/search: exhaustive, whatever its bounds leave out; fast, however many ranks and layers. */
#include "parallel/search.h"

#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/coll_backend.h"
#include "tests/test.h"

static Space space_of(const char *model, int p, int64_t sequences) {
    Space s = {.p = p, .free_micro = true, .free_recompute = true};
    Err e;
    if (!config_parse(&s.shape.config, model, &e)) die("%s", e.text);
    s.shape.S = s.shape.config.seq;
    s.shape.batch = sequences * s.shape.S;
    s.shape.threads = 1;
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
    m.crowd = drawn % 3 ? 0 : between(1, 4);
    m.travel = drawn % 2 ? TRAVEL_RING : TRAVEL_DIRECT;
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

static const char *const models[] = {
    "layers=3,heads=4,channels=64,seq=16,vocab=96",
    "layers=2,heads=6,kv_heads=2,channels=30,ffn=22,seq=8,vocab=29,act=swiglu,tied=0",
    "layers=12,heads=12,channels=768,seq=256,vocab=50257"};

static bool same_choice(const Choice *a, const Choice *b) {
    char x[80], y[80];
    return strcmp(layout_print(&a->layout, x), layout_print(&b->layout, y)) == 0 &&
           a->micro == b->micro && a->recompute == b->recompute && a->threads == b->threads &&
           a->price.seconds == b->price.seconds && a->price.memory == b->price.memory;
}

TEST(search_finds_what_brute_force_finds) {
    enum { TOP = 5 };
    int64_t left_out = 0;
    for (int p = 1; p <= 12; p++) {
        Space s = space_of(models[p % 3], p, 6);
        Machine m = random_machine(p);
        Choice a[TOP], b[TOP];
        SearchCount bounded, brute;
        if (p % 2) { // half of the cases have too little memory for most candidates
            search_brute(&s, &m, a, 1, NULL);
            m.memory = a[0].price.memory * 3 / 4;
        }
        int n = search_best(&s, &m, a, TOP, &bounded), n_b = search_brute(&s, &m, b, TOP, &brute);
        CHECK(n == n_b);
        CHECK(bounded.candidates == brute.candidates && brute.priced == brute.candidates);
        for (int i = 0; i < n; i++) CHECK(same_choice(&a[i], &b[i]));
        left_out += brute.priced - bounded.priced;
    }
    CHECK(left_out > 100); // the bounds are good for something
}

typedef struct Bounds {
    const Space *s;
    const Machine *m;
    int n, bad;
} Bounds;

static void check_bound(const Choice *c, void *ctx) {
    Bounds *b = ctx;
    Choice priced = *c;
    int64_t memory;
    double bound = search_bound(b->s, b->m, c, &memory);
    search_price(b->s, b->m, &priced);
    b->n++;
    // the same costs, added in another order
    if (bound > priced.price.seconds * (1 + 1e-12) || memory > priced.price.memory) {
        char spec[80];
        b->bad++;
        printf("    %s, micro %lld, recompute %d: %g > %g s or %lld > %lld bytes\n",
               layout_print(&c->layout, spec), (long long)c->micro, c->recompute, bound,
               priced.price.seconds, (long long)memory, (long long)priced.price.memory);
    }
}

TEST(search_bounds_undercut_every_price) {
    for (int p = 1; p <= 12; p++)
        for (int k = 0; k < 3; k++) {
            Space s = space_of(models[k], p, 5);
            Machine m = random_machine(p);
            Bounds b = {.s = &s, .m = &m};
            search_each(&s, check_bound, &b);
            CHECK(b.bad == 0 && b.n > 0);
        }
}

static void check_ranks(const Choice *c, void *ctx) {
    const Space *s = ctx;
    CHECK(layout_ranks(&c->layout) == s->p);
    Layout again;
    char spec[80];
    Err e;
    CHECK(layout_parse(&again, layout_print(&c->layout, spec), s->p, &e));
}

TEST(search_never_uses_fewer_ranks) {
    static const int sizes[] = {1, 5, 7, 8, 13, 24};
    for (int i = 0; i < 6; i++) {
        Space s = space_of(models[0], sizes[i], 6);
        search_each(&s, check_ranks, &s);
    }
}

TEST(search_obeys_what_is_fixed) {
    Space s = space_of(models[0], 8, 16);
    Machine m = random_machine(8);
    Choice best[4];
    Layout only;
    Err e;
    CHECK(layout_parse(&only, "y2.x4+sp", 8, &e));
    s.only = &only, s.free_micro = false, s.shape.micro = 2, s.shape.recompute = RECOMPUTE_FULL;
    s.free_recompute = false;
    CHECK(search_best(&s, &m, best, 4, NULL) == 1);
    char spec[80];
    CHECK(strcmp(layout_print(&best[0].layout, spec), "y2.x4+sp") == 0);
    CHECK(best[0].micro == 2 && best[0].recompute == RECOMPUTE_FULL);
}

/* The price of a layout grows with the layers, the time to find it does not. */
TEST(search_of_more_layers_prices_as_many_tapes) {
    SearchCount count[3];
    for (int i = 0; i < 3; i++) {
        char model[80];
        static const int layers[] = {12, 96, 960};
        snprintf(model, sizeof model, "layers=%d,heads=8,channels=512,seq=128,vocab=1000",
                 layers[i]);
        Space s = space_of(model, 16, 32);
        drawn = 5;
        Machine m = random_machine(16);
        Tape t = {0};
        Choice best;
        CHECK(search_best(&s, &m, &best, 1, &count[i]) == 1);
        PriceShape shape = s.shape;
        shape.micro = best.micro;
        price_record(&t, &shape, &best.layout, 0);
        CHECK(t.n_events < 2500);
        tape_free(&t);
    }
    CHECK(count[0].candidates == count[2].candidates);
}

static void check_shares(const Choice *c, void *ctx) {
    const Space *s = ctx;
    int64_t places = (int64_t)c->layout.size[AXIS_D] * c->layout.size[AXIS_Z];
    CHECK(c->layout.size[AXIS_D] > 1 && 6 % (c->micro * places) == 0);
    CHECK(c->layout.zero == 0 && layout_ranks(&c->layout) == s->p);
}

TEST(search_gives_replicas_apart_equal_shares) {
    Space s = space_of(models[0], 6, 6);
    s.shape.apart = s.no_zero = true;
    search_each(&s, check_shares, &s);
}
