/* parallel/plan/whatif: what must hold of the best layout when one number varies. */
#include "parallel/plan/whatif_vary.h"

#include "tests/parsed.h"
#include "tests/test.h"

static WhatIf question(const char *cluster, const char *model, int64_t sequences) {
    WhatIf w = {.space = {.free_micro = true, .free_recompute = true}, .layout = "auto"};
    PriceShape *s = &w.space.shape;
    w.machine = machine_of(cluster), s->model.config = config_of(model);
    s->model.S = s->model.config.seq, s->batch = sequences * s->model.S, s->model.bf16 = true;
    s->model.threads = w.machine.threads, s->kernels = machine_kernels(&w.machine, true);
    w.space.p = w.machine.ranks;
    return w;
}

static const char *const small = "layers=4,heads=6,channels=96,seq=64,vocab=257",
                         *const large = "layers=24,heads=32,channels=4096,seq=1024,vocab=50257";

static const struct {
    const char *cluster, *vary;
    double sign; // 1: more of it is never slower
} numbers[] = {
    {"cpu:6", "network=10Mb/s..100Gb/s", 1},
    {"h100:2", "network=10..1600Gb/s", 1},
    {"h100:2", "NVLink=10..500GB/s", 1},
    {"h100:2", "flops=50T..2000T", 1},
    {"h100:2", "memory_rate=100GB/s..10TB/s", 1},
    {"h100:2", "memory=6GiB..400GiB", 1},
    {"h100:2", "latency=1..1000us", -1},
    {"cpu:6", "call=100ns..1ms", -1},
    {"h100:2", "layers=2..96", -1},
    {"h100:2", "channels=512..16384", -1},
};

TEST(whatif_a_better_machine_and_a_smaller_model_are_never_slower) {
    int changes = 0;
    for (EACH(number, numbers)) {
        bool cpu = number->cluster[0] == 'c';
        WhatIf w = question(number->cluster, cpu ? small : large, cpu ? 24 : 32);
        WhatIfPoint at, before = {.found = false};
        CHECK(whatif_vary(&w, number->vary, 9, NULL));
        CHECK(w.n == 9);
        for (int i = 0; i < w.n; i++) {
            CHECK(whatif_at(&w, i, &at, NULL));
            double now = at.best.price.seconds, then = before.best.price.seconds;
            char form[96], last[96];
            // sums round
            if (before.found && at.found && number->sign * (now - then) > 1e-12 * then)
                test_fail("%s on %s: %g s, then %g s", number->vary, number->cluster, then, now);
            if (number->sign > 0 && before.found) CHECK(at.found);
            changes +=
                before.found && at.found &&
                strcmp(whatif_form(&w, &at.best, form), whatif_form(&w, &before.best, last)) != 0;
            before = at;
        }
        CHECK(before.found || number->sign < 0);
    }
    CHECK(changes >= 8); // the numbers matter
}

/* The search's best are slower (test_plan.c). Where one layout is asked for, it is that one. */
TEST(whatif_takes_a_named_scheme_that_is_faster) {
    WhatIf w = question("cpu:8", "layers=24,heads=12,channels=192,seq=256,vocab=50257", 64);
    WhatIfPoint without, with, fixed;
    w.space.free_overlap = true, w.space.shape.model.bf16 = false;
    for (int l = 0; l < w.machine.n_levels; l++) w.machine.level[l].rank_rate *= 2;
    CHECK(whatif_vary(&w, "batch=16384..16384", 0, NULL) && whatif_at(&w, 0, &without, NULL));
    w.scheme[w.n_schemes++] = "dp";
    CHECK(whatif_at(&w, 0, &with, NULL) && with.has[0]);
    CHECK(with.best.price.seconds < without.best.price.seconds);
    CHECK(with.best.price.seconds == with.scheme[0].price.seconds);
    w.layout = "d4.z2";
    CHECK(whatif_at(&w, 0, &fixed, NULL) && fixed.best.layout.size[AXIS_Z] == 2);
}

/* Without latency and slowdown the time of a layout is A + B / rate on a cluster of one level. The
 * least of such lines has a greater B where the rate is higher: who has better links shares
 * more. */
TEST(whatif_a_faster_network_moves_the_best_layout_to_more_traffic) {
    WhatIf w = question("cpu:8", small, 4);
    WhatIfPoint at;
    w.machine.level[0].latency = 0, w.machine.slowdown = 1;
    CHECK(whatif_vary(&w, "network=10Mb/s..1000Gb/s", 24, NULL));
    double least = 0;
    int grown = 0;
    for (int i = 0; i < w.n; i++) {
        CHECK(whatif_at(&w, i, &at, NULL) && at.found);
        double traffic = at.best.price.exposed * w.value[i];
        CHECK(traffic >= least * (1 - 1e-9)); // differences of sums
        grown += i > 0 && traffic > least * (1 + 1e-6);
        least = traffic;
    }
    CHECK(grown >= 2);
}

TEST(whatif_values_double_or_are_as_many_as_asked) {
    WhatIf w = question("h100:2", large, 32);
    char text[64];
    CHECK(whatif_vary(&w, "nodes=1..24", 0, NULL));
    CHECK(w.n == 6 && w.value[0] == 1 && w.value[4] == 16 && w.value[5] == 24);
    CHECK(whatif_vary(&w, "network=10G..1600G", 9, NULL)); // as networks are sold: bits
    CHECK(w.n == 9 && w.value[0] == 10e9 / 8 && fabs(w.value[8] - 200e9) < 1);
    CHECK(strcmp(whatif_value(&w, 0, text), "10 Gb/s") == 0);
    CHECK(whatif_vary(&w, "nvlink=50..450GB/s", 0, NULL));
    CHECK(strcmp(whatif_value(&w, w.n - 1, text), "450 GB/s") == 0);
    CHECK(whatif_vary(&w, "memory=16..80GiB", 0, NULL));
    CHECK(strcmp(whatif_value(&w, 1, text), "32 GiB") == 0);
    CHECK(whatif_vary(&w, "batch=5000..64Ki", 0, NULL)); // whole sequences
    for (int i = 0; i < w.n; i++) CHECK(fmod(w.value[i], 1024) == 0);
    CHECK(w.value[0] == 5120 && w.value[w.n - 1] == 65536);
    CHECK(whatif_vary(&w, "channels=1000..4000", 40, NULL)); // whole heads of 128
    for (int i = 0; i < w.n; i++) CHECK(fmod(w.value[i], 128) == 0);
    CHECK(w.n == 24 && w.value[0] == 1024 && w.value[23] == 3968);
    CHECK(whatif_vary(&w, "layers=7..7", 0, NULL) && w.n == 1);
    CHECK(whatif_vary(&w, "slowdown=1..1e3", 4, NULL)); // an exponent is no unit
    CHECK(w.n == 4 && w.value[0] == 1 && w.value[3] == 1000);
    for (int n = 3; n <= WHATIF_POINTS; n += WHATIF_POINTS - 3) { // in doubles 7 (61 / 7) < 61
        CHECK(whatif_vary(&w, "latency=7..61us", n, NULL));
        CHECK(w.n == n && w.value[n - 1] == 61e-6);
    }
    CHECK(whatif_vary(&w, "nvlink=1e2..4e2GB/s", 0, NULL) && w.n == 3 && w.value[0] == 100e9);
}

TEST(whatif_says_that_the_name_of_a_level_is_its_rate) {
    WhatIf w = {.machine = machine_of("cpu:4")};
    Err e;
    CHECK(!whatif_vary(&w, "network.rate=1..10Gb/s", 3, &e));
    CHECK_STR(e.text, "unknown number \"network.rate\": network alone is its rate");
}

TEST(whatif_a_value_changes_what_it_names) {
    WhatIf w = question("h100:4", large, 32);
    WhatIfPoint at;
    CHECK(whatif_vary(&w, "nodes=1..2", 0, NULL) && whatif_at(&w, 0, &at, NULL));
    CHECK(at.machine.ranks == 8 && at.space.p == 8 && layout_ranks(&at.best.layout) == 8);
    CHECK(at.machine.level[1].ranks == 8 && at.space.shape.batch == 32 * 1024);
    CHECK(whatif_vary(&w, "network=736Gb/s..736Gb/s", 0, NULL) && whatif_at(&w, 0, &at, NULL));
    CHECK(at.machine.level[1].rank_rate == 92e9 && at.machine.level[1].port_rate == 736e9);
    CHECK(whatif_vary(&w, "seq=512..512", 0, NULL) && whatif_at(&w, 0, &at, NULL));
    CHECK(at.space.shape.model.S == 512 && at.space.shape.batch == 32 * 1024);
    CHECK(whatif_vary(&w, "channels=1024..1024", 0, NULL) && whatif_at(&w, 0, &at, NULL));
    CHECK(at.space.shape.model.config.heads == 8 && at.space.shape.model.config.ffn == 4096);
    const Config *c = &at.space.shape.model.config; // of four heads to a key head as far as it goes
    w.space.shape.model.config.kv_heads = 8;
    CHECK(whatif_at(&w, 0, &at, NULL) && c->heads == 8 && c->kv_heads == 2);
    CHECK(whatif_vary(&w, "channels=384..384", 0, NULL) && whatif_at(&w, 0, &at, NULL));
    CHECK(c->heads == 3 && c->kv_heads == 3);
}

/* Any number that a description may have; those of ranks must fit each other. */
TEST(whatif_varies_every_number_of_a_description) {
    WhatIf w = question("h100:4", large, 32);
    WhatIfPoint at;
    MachineNumber number;
    int n = 0;
    w.machine.level[0].port_rate = 100e9;
    for (int i = 0; machine_number(&w.machine, i, &number); i++, n++) {
        if (strstr(number.name, ".ranks")) continue;
        double x = number.as == AS_COUNT || number.as == AS_FACTOR ? 4 : 4e10;
        if (number.as == AS_SECONDS) x = 4e-6;
        const char *unit = number.as == AS_SECONDS ? "s" : number.as == AS_LINK ? "B/s" : "";
        const char *text = test_path("%s=%g%s..%g%s", number.name, x, unit, x, unit);
        CHECK(whatif_vary(&w, text, 0, NULL) && w.n == 1 && w.value[0] == x);
        CHECK_STR(w.name, number.name);
        CHECK(whatif_at(&w, 0, &at, NULL));
        bool same = memcmp(&at.machine, &w.machine, sizeof at.machine) == 0;
        bool was = strcmp(number.name, "nodes") == 0;
        CHECK(same == was);
    }
    CHECK(n == 11 + 2 * 4);
    CHECK(whatif_vary(&w, "port_rate=80..80GB/s", 0, NULL) && whatif_at(&w, 0, &at, NULL));
    CHECK(at.machine.level[1].port_rate == 80e9 && at.machine.level[1].rank_rate == 46e9);
    CHECK(whatif_vary(&w, "ranks_per_node=2..4", 0, NULL) && whatif_at(&w, 0, &at, NULL));
    CHECK(at.machine.ranks == 8 && at.machine.level[0].ranks == 2 && at.space.p == 8);
    CHECK(at.machine.level[1].ranks == 8 && layout_ranks(&at.best.layout) == 8);
    char words[96];
    CHECK(*whatif_form(&w, &at.best, words) && words[1] != '8');
    CHECK(whatif_vary(&w, "batch=1024..4096", 0, NULL) && w.n == 3 && w.merged == 0);
    CHECK(whatif_vary(&w, "batch=1..4096", 0, NULL) && w.n == 3 && w.merged == 10);
}

TEST(whatif_schemes_are_named_or_spelled) {
    WhatIf w = question("h100:2", large, 32);
    WhatIfPoint at;
    Err e;
    char spec[64];
    CHECK(whatif_vary(&w, "memory=12GiB..200GiB", 2, &e));
    w.scheme[0] = "dp", w.scheme[1] = "d2.x8+sp", w.scheme[2] = "fsdp", w.n_schemes = 3;
    CHECK(whatif_at(&w, 0, &at, &e) && at.found);
    CHECK(!at.has[0] && at.has[2]); // all of the weights do not fit, parts of them do
    CHECK(whatif_at(&w, 1, &at, &e) && at.has[0] && at.has[1]);
    CHECK(strcmp(layout_print(&at.scheme[1].layout, spec), "d2.x8+sp") == 0);
    for (int i = 0; i < 3; i++) CHECK(at.scheme[i].price.seconds >= at.best.price.seconds);
    w.scheme[0] = "cube"; // 16 ranks are none
    CHECK(whatif_at(&w, 1, &at, &e) && !at.has[0] && at.has[1]);
    w.layout = "fsdp";
    CHECK(whatif_at(&w, 1, &at, &e) && strcmp(layout_print(&at.best.layout, spec), "z16") == 0);
    w.layout = "x3";
    CHECK(!whatif_at(&w, 1, &at, &e));
}

static bool refused(const char *text, const char *words) {
    WhatIf w = question("h100:2", large, 32);
    Err e;
    return !whatif_vary(&w, text, 0, &e) && strstr(e.text, words);
}

TEST(whatif_refuses_what_cannot_vary_and_bad_ranges) {
    CHECK(refused("netwrok=1..2Gb/s", "did you mean network?"));
    CHECK(refused("lat=1..2us", "did you mean latency?"));
    CHECK(refused("zzzzzzzz=1..2", "one of batch seq"));
    CHECK(refused("batch=1..64", "all of it is 1024, as sequences of 1024 are whole"));
    CHECK(refused("ranks=8..16", "did you mean ranks_per_node?"));
    CHECK(refused("NVLink.ranks=3..6", "neither is a multiple"));
    CHECK(refused("slowdown=0.5..2", "factors of time"));
    CHECK(refused("network", "NAME=LOW..HIGH"));
    CHECK(refused("network=10Gb/s", "LOW..HIGH"));
    CHECK(refused("network=20..10Gb/s", "the higher end comes last"));
    CHECK(refused("network=0..10Gb/s", "should be a rate like"));
    CHECK(refused("nodes=1..2.5", "\"2.5\" should be a whole number"));
    CHECK(refused("nodes=0..4", "should be a whole number"));
    CHECK(refused("latency=1..5", "should be a time like"));
    CHECK(refused("latency=1e-200..1s", "doubles more than 256 times"));
    CHECK(refused("memory=1..5furlongs", "should be a size like"));
    CHECK(refused("nodes=1..999999", "more than 1048576 ranks"));
    CHECK(refused("seq=1024..65536", "less than one sequence"));
    WhatIf w = question("h100:2", large, 32);
    Err e;
    CHECK(!whatif_vary(&w, "nodes=1..8", 1, &e) && strstr(e.text, "--points 1 is a single value"));
    CHECK(whatif_vary(&w, "nodes=8..8", 1, &e) && w.n == 1);
}
