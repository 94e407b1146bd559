/* The table of a calibration: kept in a file, read as lines. */
#include <jansson.h>

#include "base/rng.h"
#include "parallel/plan/calibrate_parts.h"
#include "tests/test.h"

/* ---- the file */

static Calibration *some_table(void) {
    Calibration *c = calibration_new();
    for (int i = 0; i < 9; i++) {
        WorkCost w = {
            .work = {.kind = i == 8 ? N_WORKS - 1 : (WorkKind)(i % 4), .rows = 40, .K = 90 - i},
            .fixed = 1e-6 / 3,
            .per_row = 1e-7 / (i + 1)};
        calibration_add_work(c, &w);
    }
    for (int i = 0; i < 3; i++) {
        CollCost s = {.place = {2, {2, 3}, {12, i + 1}},
                      .op = i == 2 ? N_COLL_OPS - 1 : (CollOp)i,
                      .n = 3,
                      .most = 5000,
                      .measured = i == 2 ? 0 : 5000,
                      .bytes = {256, 1000, 5000},
                      .seconds = {1e-6, 1e-6, 1e-5 / 3}};
        calibration_add_collective(c, &s);
    }
    c->slowest = 1.5, c->oversubscription = 1.25, c->slowdown[1] = 1.75;
    c->links = (Links){2, {1e-6, 4e9}, {2e-5, 1e8}, {5e-3, 2e7}};
    strcpy(c->measured, "2026-01-31T12:00:00Z");
    return c;
}

TEST(calibration_is_read_back_as_it_was_written) {
    Err e;
    OWNED(test_calibration_end) Calibration *a = some_table(), *b = calibration_new();
    OWNED(test_mem_end) char *text = calibration_print(a, "key");
    CHECK(calibration_parse(b, text, strlen(text), "key", &e));
    CHECK(test_same_calibration(a, b) && b->n_works == 9 && b->n_collectives == 3);
    CHECK(b->slowdown[1] == 1.75 && b->slowest == 1.5 && b->oversubscription == 1.25);
    for (int i = 0; i < 9; i++) CHECK(calibration_find_work(b, &a->work[i].work) == &b->work[i]);
    CHECK(memcmp(&a->links, &b->links, sizeof(Links)) == 0); // racks among them
    CHECK(!calibration_parse(b, text, strlen(text), "other key", &e));
    CHECK_STR(e.text, "a calibration of \"key\"");
    CHECK(test_same_calibration(a, b)); // left as it was
}

/* Costs that a search would believe: whatever a file says, they are finite and not negative. */
static bool sane(const Calibration *c) {
    bool ok = c->slowest >= 1;
    for (int i = 0; i < c->n_works; i++) {
        double s;
        ok &= calibration_work(c, &c->work[i].work, &s) && isfinite(s) && s >= 0;
    }
    for (int i = 0; i < c->n_collectives; i++) {
        CollGroup g = {.place = c->collective[i].place};
        for (int64_t bytes = 1; bytes < 1 << 20; bytes *= 7) {
            double s;
            ok &= calibration_collective(c, &g, c->collective[i].op, bytes, &s) && isfinite(s) &&
                  s >= 0;
        }
    }
    return ok;
}

TEST(calibration_of_a_damaged_file_is_refused_or_sane) {
    Err e;
    OWNED(test_calibration_end) Calibration *c = some_table();
    OWNED(test_mem_end) char *text = calibration_print(c, "key");
    size_t n = strlen(text), read = 0, tries = test_long() ? 20000 : 6000;
    for (size_t i = 0; i < n; i++) CHECK(!calibration_parse(c, text, i, "key", &e));
    for (uint64_t i = 0; i < tries; i++) {
        OWNED(test_mem_end) char *bad = mem_strdup(text);
        bad[rng_u64(1, 1, i) % n] = (char)("0123456789-e.,[]{}\"x"[rng_u64(1, 2, i) % 20]);
        OWNED(test_calibration_end) Calibration *b = calibration_new();
        read += calibration_parse(b, bad, n, "key", &e);
        CHECK(sane(b));
    }
    CHECK(read > 0 && read < tries); // another digit is no damage that can be seen
}

/* Each entry is looked for among those before it: a file of hundreds of thousands would hold up the
 * start. */
TEST(calibration_refuses_more_entries_than_are_measured) {
    OWNED(test_calibration_end) Calibration *c = some_table(), *read = calibration_new();
    Err e;
    OWNED(test_mem_end) char *text = calibration_print(c, "key");
    json_t *o = json_loads(text, 0, NULL), *works = json_object_get(o, "works");
    while (json_array_size(works) <= 1 << 16) json_array_append(works, json_array_get(works, 0));
    OWNED(test_mem_end) char *many = json_dumps(o, 0);
    json_decref(o);
    CHECK(!calibration_parse(read, many, strlen(many), "key", &e));
}

TEST(calibration_refuses_numbers_that_no_measurement_gives) {
    static const char *const bad[][2] = {{"\"kind\": 0", "\"kind\": 99"},
                                         {"\"rows\": 40", "\"rows\": -1"},
                                         {"1.75", "-1.75"},
                                         {"\"slowest\": 1.5", "\"slowest\": 0.5"},
                                         {"256.0", "1000.0"},
                                         {"\"op\": 0", "\"op\": 99"},
                                         {"\"calibration\": ", "\"table\": "},
                                         {"12:00:00Z", "12:00:00.000000Z"},
                                         {"\"fixed\": ", "\"fixed\": -"},
                                         {"\"most\": 5000", "\"most\": \"5000\""}};
    OWNED(test_calibration_end) Calibration *c = some_table();
    Err e;
    OWNED(test_mem_end) char *text = calibration_print(c, "key");
    for (int i = 0; i < N_OF(bad); i++) {
        OWNED(test_mem_end) char *damaged = test_changed(text, bad[i][0], bad[i][1]);
        CHECK(!calibration_parse(c, damaged, strlen(damaged), "key", &e));
    }
}

/* ---- reading */

TEST(calibration_of_collectives_is_monotone_and_meets_its_points) {
    OWNED(test_calibration_end) Calibration *c = some_table();
    CollGroup g = {.place = c->collective[0].place};
    double s, last = 0;
    for (int64_t bytes = 1; bytes < 20000; bytes += 7) {
        CHECK(calibration_collective(c, &g, COLL_ALL_GATHER, bytes, &s) && s >= last);
        last = s;
    }
    CHECK(calibration_collective(c, &g, COLL_ALL_GATHER, 5000, &s));
    CHECK_NEAR(s, 1e-5 / 3, 1e-18); // rounding
    CHECK(calibration_collective(c, &g, COLL_ALL_GATHER, 9000, &s));
    CHECK_NEAR(s, 1e-5 / 3 + (1e-5 / 3 - 1e-6), 1e-18); // the last slope goes on
    g.place.stride[1] = 7;
    CHECK(!calibration_collective(c, &g, COLL_ALL_GATHER, 5000, &s));
}

/* A turn to another way between the last two points, or one of them disturbed. */
TEST(calibration_goes_on_no_steeper_than_from_nothing) {
    CollCost cost = {.place = {1, {4}, {1}}, .op = COLL_ALL_GATHER, .n = 2};
    CollGroup g = {.place = cost.place, .size = 4};
    OWNED(test_calibration_end) Calibration *c = calibration_new();
    CostLine line;
    double s;
    cost.bytes[0] = 10000, cost.seconds[0] = 1e-3, cost.bytes[1] = 11000, cost.seconds[1] = 3.3e-3;
    calibration_add_collective(c, &cost);
    CHECK(calibration_collective(c, &g, COLL_ALL_GATHER, 110000, &s));
    CHECK_NEAR(s, 3.3e-2, 1e-12);
    cost.n = 3, cost.op = COLL_SHIFT; // the limit holds beyond the last point only
    cost.bytes[2] = 12000, cost.seconds[2] = 5.6e-3;
    calibration_add_collective(c, &cost);
    CHECK(calibration_collective(c, &g, COLL_SHIFT, 12000, &s));
    CHECK_NEAR(s, 5.6e-3, 1e-15); // rounding
    cost.n = 2, cost.op = COLL_ALL_GATHER;
    for (; cost.n <= 3; cost.n++) { // and where the end is flat
        calibration_add_collective(c, &cost);
        CHECK(calibration_line(c, &g, COLL_ALL_GATHER, &line));
        for (int64_t bytes = 100; bytes < 1000000; bytes += 99) {
            CHECK(calibration_collective(c, &g, COLL_ALL_GATHER, bytes, &s));
            CHECK(line.start + line.rate * (double)bytes <= s * (1 + 1e-12));
        }
        cost.bytes[2] = 50000, cost.seconds[2] = 3.4e-3;
    }
}

TEST(calibration_of_works_is_a_line_and_near_ones_are_scaled) {
    OWNED(test_calibration_end) Calibration *c = calibration_new();
    Work w = {.kind = WORK_MATMUL, .rows = 100, .K = 64, .N = 32}, x = w;
    double s;
    calibration_add_work(c, &(WorkCost){.work = w, .fixed = 1e-3, .per_row = 1e-5});
    w.N = 3200;
    calibration_add_work(c, &(WorkCost){.work = w, .fixed = 1, .per_row = 1});
    x.rows = 500;
    CHECK(calibration_work(c, &x, &s));
    CHECK_NEAR(s, 1e-3 + 500e-5, 1e-15);
    x.N = 64, x.flags = WORK_BIAS; // twice the FLOPs of the nearer one
    CHECK(calibration_work(c, &x, &s));
    CHECK_NEAR(s, 2 * (1e-3 + 500e-5), 1e-15);
    x.flags = WORK_BF16;
    CHECK(!calibration_work(c, &x, &s));
}
