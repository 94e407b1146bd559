/* Calibration: measured on ranks that are threads, kept in a file, read as lines. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/calibrate_parts.h"
#include "parallel/coll_backend.h"
#include "parallel/ranks.h"
#include "tests/test.h"

/* ---- a small list, on ranks that share no cache with anybody */

enum { RANKS = 3, N_SMALL = 3 };
static Work small_works[N_SMALL] = {
    {.kind = WORK_XW, .threads = 1, .rows = 40, .a = 24, .b = 48},
    {.kind = WORK_NORM, .threads = 1, .rows = 40, .a = 24},
    {.kind = WORK_GELU, .threads = 1, .rows = 2000},
};
static TapeGroup all_ranks = {.place = {1, {RANKS}, {1}}, .size = RANKS, .label = "x"};
static int64_t all_ops[1][N_COLL_OPS] = {{9000, 9000, 9000, 9000, 9000, 9000}};

typedef struct Run {
    CalibrateList list;
    const char *key;
    double budget;
    CalibrateTalk talk;
    Calibration *c[RANKS]; // results
    double seconds;
    const CollBackend *backend; // NULL: the true one
    const Kernels *kernels;     // likewise
} Run;

static Run small_run(const char *key) {
    return (Run){.list = {small_works, N_SMALL, &all_ranks, all_ops, 1}, .key = key, .budget = 20};
}

static int rank_main(World *w, void *ctx) {
    Run *r = ctx;
    Team *team = team_create(1);
    if (r->backend) w->backend = r->backend;
    double begin = coll_now();
    r->c[world_rank(w)] =
        calibrate(&(CalibrateWhere){.world = w,
                                    .kernels = r->kernels ? r->kernels : kernels_cpu(NULL),
                                    .team = team,
                                    .key = r->key,
                                    .budget = r->budget,
                                    .talk = r->talk},
                  &r->list);
    if (world_rank(w) == 0) r->seconds = coll_now() - begin;
    team_destroy(team);
    return 0;
}

/* Caches in this folder from now on. */
static void cache_in(const char *folder) {
    setenv("XDG_CACHE_HOME", folder, 1);
}
static void run(Run *r) {
    ranks_run(RANKS, rank_main, r);
}
static void run_free(Run *r) {
    for (int i = 0; i < RANKS; i++) calibration_free(r->c[i]);
}

/* As JSON, in which every number of the table is. */
static bool same_table(const Calibration *a, const Calibration *b) {
    char *x = calibration_print(a, ""), *y = calibration_print(b, "");
    bool same = strcmp(x, y) == 0;
    mem_free(x), mem_free(y);
    return same;
}

TEST(calibration_knows_what_was_listed_alike_on_all_ranks) {
    double s;
    cache_in(test_tmpdir());
    Run r = small_run("a machine");
    run(&r);
    for (int i = 0; i < RANKS; i++) {
        CHECK(same_table(r.c[0], r.c[i]));
        CHECK(calibration_seconds(r.c[i]) > 0);
        for (int k = 0; k < N_SMALL; k++)
            CHECK(calibration_work(r.c[i], &small_works[k], &s) && s > 0 && s < 1);
        for (int op = 0; op < N_COLL_OPS; op++)
            CHECK(calibration_send(r.c[i], &all_ranks, (CollOp)op, 5000, &s) && s > 0 && s < 1);
        // threads move bytes while they wait, and at no other time
        CHECK(calibration_beside(r.c[i], &all_ranks, COLL_ALL_REDUCE, &s) && s == 100);
    }
    CHECK(calibration_slowest(r.c[0]) >= 1);
    run_free(&r);
}

TEST(calibration_is_measured_once_for_each_key) {
    cache_in(test_tmpdir());
    Run first = small_run("a machine"), again = first, other = small_run("another machine");
    run(&first), run(&again), run(&other);
    CHECK(calibration_seconds(again.c[1]) == 0);
    CHECK(same_table(first.c[0], again.c[1]));
    CHECK(calibration_seconds(other.c[0]) > 0);
    Run forced = small_run("a machine");
    forced.talk.again = true;
    run(&forced);
    CHECK(calibration_seconds(forced.c[0]) > 0 && forced.c[0]->n_works == N_SMALL);
    run_free(&first), run_free(&again), run_free(&other), run_free(&forced);
}

typedef struct Heard {
    int times;
    bool doubted, ascends;
    double last;
    char path[300];
} Heard;

static void hear(void *ctx, const CalibrateNews *news) {
    Heard *h = ctx;
    h->ascends = (h->times == 0 || h->ascends) && news->seconds >= h->last;
    h->times++, h->last = news->seconds, h->doubted = news->doubted;
    snprintf(h->path, sizeof h->path, "%s", news->path);
}

TEST(calibration_tells_its_caller_how_far_it_is) {
    Heard first = {0}, again = {0};
    const char *folder = test_tmpdir();
    cache_in(folder);
    Run r = small_run("a machine");
    r.talk = (CalibrateTalk){.tell = hear, .ctx = &first};
    run(&r), run_free(&r);
    CHECK(first.times > N_SMALL + N_COLL_OPS); // once before, and after each of them
    CHECK(first.ascends && !first.doubted && first.last <= r.seconds);
    CHECK(strstr(first.path, folder) == first.path && access(first.path, R_OK) == 0);
    r.talk.ctx = &again;
    run(&r), run_free(&r);
    CHECK(again.times == 0); // nothing was measured
}

TEST(calibration_that_foretold_badly_is_forgotten_once) {
    Heard heard = {0};
    cache_in(test_tmpdir());
    Run first = small_run("a machine"), few = first, many = first, after = first;
    run(&first);
    few.talk.doubtful_times = 2, many.talk.doubtful_times = 3;
    strcpy(few.talk.doubtful, calibration_measured(first.c[0]));
    strcpy(many.talk.doubtful, few.talk.doubtful);
    many.talk.tell = hear, many.talk.ctx = &heard;
    many.list.n_works = 1; // others do not stay
    after.talk = many.talk;
    run(&few), run(&many);
    CHECK(calibration_seconds(few.c[0]) == 0 && same_table(first.c[0], few.c[0]));
    CHECK(calibration_seconds(many.c[0]) > 0 && heard.doubted);
    CHECK(many.c[0]->n_works == 1 && many.c[0]->doubts == 1);
    CHECK(same_table(many.c[0], many.c[2]) && *calibration_measured(many.c[2]));
    strcpy(after.talk.doubtful, calibration_measured(many.c[0]));
    run(&after); // three more: were they disturbed as well, or are predictions wrong by themselves?
    CHECK(after.c[0]->n_works == N_SMALL && after.c[0]->doubts == 1); // the other two were added
    run_free(&first), run_free(&few), run_free(&many), run_free(&after);
}

TEST(calibration_is_doubted_half_as_often_each_time) {
    Calibration *c = calibration_new();
    CalibrateTalk talk = {.doubtful = "then"};
    strcpy(c->measured, "then");
    for (int k = 0, times = 3; k < 4; k++, times *= 2) {
        c->doubts = k;
        talk.doubtful_times = times - 1;
        CHECK(!calibration_doubt(c, &talk));
        talk.doubtful_times = times;
        CHECK(calibration_doubt(c, &talk));
    }
    c->doubts = 1000, talk.doubtful_times = 64; // as many lines as are asked for
    CHECK(calibration_doubt(c, &talk));
    strcpy(c->measured, "now");
    CHECK(!calibration_doubt(c, &talk));
    calibration_free(c);
}

TEST(calibration_measures_only_what_is_missing) {
    cache_in(test_tmpdir());
    Run few = small_run("a machine"), all = small_run("a machine");
    int64_t one_op[1][N_COLL_OPS] = {{9000}};
    few.list.n_works = 1, few.list.most = one_op;
    run(&few), run(&all);
    CHECK(few.c[0]->n_works == 1 && few.c[0]->n_sends == 1);
    CHECK(all.c[0]->n_works == N_SMALL && all.c[0]->n_sends == N_COLL_OPS);
    const WorkCost *a = calibration_find_work(few.c[0], &small_works[0]),
                   *b = calibration_find_work(all.c[0], &small_works[0]);
    CHECK(a->fixed == b->fixed && a->per_row == b->per_row);
    run_free(&few), run_free(&all);
}

TEST(calibration_keeps_its_budget) {
    enum { MANY = 400 };
    Work work[MANY];
    for (int i = 0; i < MANY; i++)
        work[i] = (Work){.kind = WORK_XW, .threads = 1, .rows = 400, .a = 200, .b = 200 + i};
    cache_in(test_tmpdir());
    Run r = small_run("a machine");
    r.list.work = work, r.list.n_works = MANY, r.budget = 1;
    run(&r);
    int n = r.c[0]->n_works;
    CHECK(n > 0 && n < MANY);
    CHECK(calibration_find_work(r.c[0], &work[0])); // the most important one is there
    CHECK(r.c[0]->n_sends > 0);                     // and so are collectives
    CHECK(r.seconds <
          20); // the last work and collective, a sanitizer, other programs; all would take minutes
    run_free(&r);
}

/* ---- kernels whose time is known: they sleep, so that ranks do not wait for cores */

static _Thread_local int n_calls, n_disturbed;

static void sleep_s(double seconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * seconds)}, NULL);
}
static double asleep(int64_t rows) {
    return 1e-3 + 30e-6 * (double)rows;
}
/* Every third call is disturbed; those of 67 columns are at first, for longer than the usual rounds last. */
static void product_asleep(Team *t, const Product *p) {
    (void)t;
    bool third = n_calls++ % 3 == 0, at_first = p->N == 67 && n_disturbed++ < 7;
    sleep_s(asleep(p->M) + (third || at_first ? 30e-3 : 0));
}

/* The largest error of what a calibration of such kernels says. */
static double error_asleep(void) {
    enum { N = 5 };
    Kernels k = *kernels_cpu(NULL);
    Work work[N];
    double s, worst = 0;
    k.product = product_asleep;
    for (int i = 0; i < N; i++)
        work[i] = (Work){.kind = WORK_XW, .threads = 1, .rows = 400, .a = 64, .b = 64 + i};
    cache_in(test_tmpdir());
    Run r = small_run("a disturbed machine");
    r.kernels = &k, r.list.work = work, r.list.n_works = N;
    run(&r);
    for (int i = 0; i < N; i++)
        for (int64_t rows = 28; rows <= 448; rows *= 2) {
            work[i].rows = rows;
            if (!calibration_work(r.c[0], &work[i], &s)) s = INFINITY;
            worst = fmax(worst, fabs(s / asleep(rows) - 1));
        }
    run_free(&r);
    return worst;
}

TEST(calibration_gives_a_kernel_its_time_whatever_disturbs_it) {
    double worst = INFINITY;
    for (int i = 0; i < 3 && worst > 0.25; i++) // on a busy machine a sleeper wakes late
        worst = error_asleep();
    CHECK(worst <= 0.25);
}

/* ---- collectives that take their time */

static atomic_int n_waits;

static void slow_wait(Comm *c, uint64_t number, const CollCall *call) {
    if (c->rank == 0 && strcmp(call->what, "calibration") == 0) n_waits++;
    sleep_s(1e-3);
    coll_threads.wait(c, number, call);
}

/* Calls for each collective that is measured. */
static double waits_within(double budget, const char *key) {
    CollBackend slow = coll_threads;
    slow.wait = slow_wait;
    Run r = small_run(key);
    r.backend = &slow, r.budget = budget, r.list.n_works = 0;
    n_waits = 0;
    run(&r);
    double each = n_waits / (double)r.c[0]->n_sends;
    run_free(&r);
    return each;
}

TEST(calibration_repeats_collectives_less_where_time_is_short) {
    cache_in(test_tmpdir());
    CHECK(waits_within(1000, "much time") > 2 * waits_within(1e-3, "little time"));
}

/* ---- wrong data */

static CollBackend broken;
static CollOp broken_op;

static void broken_wait(Comm *c, uint64_t number, const CollCall *call) {
    coll_threads.wait(c, number, call);
    bool here = c->rank == (call->op == COLL_REDUCE ? 0 : 1); // the root of a reduce has the result
    if (call->op == broken_op && here && coll_elements(call) > 100) ((float *)call->dst)[7] += 1;
}

static void run_broken(void *arg) {
    broken = coll_threads;
    broken_op = *(CollOp *)arg;
    broken.wait = broken_wait;
    Run r = small_run("a broken machine");
    r.backend = &broken;
    run(&r);
}

TEST(calibration_finds_collectives_that_bring_wrong_data) {
    char text[1024], words[64];
    cache_in(test_tmpdir());
    for (CollOp op = 0; op < N_COLL_OPS; op++) {
        CHECK(test_in_child(run_broken, &op, text, sizeof text) == 1);
        snprintf(words, sizeof words, "brings wrong data to rank %d:", op == COLL_REDUCE ? 0 : 1);
        CHECK(strstr(text, coll_op_word(op)) && strstr(text, words));
    }
}

/* ---- the file */

static Calibration *some_table(void) {
    Calibration *c = calibration_new();
    for (int i = 0; i < 9; i++) {
        WorkCost w = {.work = {.kind = (WorkKind)(i % 4), .threads = 2, .rows = 40, .a = 90 - i},
                      .fixed = 1e-6 / 3,
                      .per_row = 1e-7 / (i + 1)};
        calibration_add_work(c, &w);
    }
    for (int i = 0; i < 3; i++) {
        SendCost s = {.place = {2, {2, 3}, {12, i + 1}},
                      .op = (CollOp)i,
                      .n = 3,
                      .most = 5000,
                      .beside = 1.25,
                      .bytes = {256, 1000, 5000},
                      .seconds = {1e-6, 1e-6, 1e-5 / 3}};
        calibration_add_send(c, &s);
    }
    c->slowest = 1.5, c->doubts = 3;
    strcpy(c->measured, "2026-01-31T12:00:00Z");
    return c;
}

TEST(calibration_is_read_back_as_it_was_written) {
    Err e;
    Calibration *a = some_table(), *b = calibration_new();
    char *text = calibration_print(a, "key");
    CHECK(calibration_parse(b, text, strlen(text), "key", &e));
    CHECK(same_table(a, b) && b->n_works == 9 && b->n_sends == 3);
    CHECK(b->send[0].beside == 1.25 && b->slowest == 1.5);
    CHECK(!calibration_parse(b, text, strlen(text), "other key", &e));
    CHECK_STR(e.text, "a calibration of \"key\"");
    CHECK(same_table(a, b)); // left as it was
    mem_free(text);
    calibration_free(a), calibration_free(b);
}

/* Costs that a search would believe: whatever a file says, they are finite and not negative. */
static bool sane(const Calibration *c) {
    bool ok = c->slowest >= 1;
    for (int i = 0; i < c->n_works; i++) {
        double s;
        ok &= calibration_work(c, &c->work[i].work, &s) && isfinite(s) && s >= 0;
    }
    for (int i = 0; i < c->n_sends; i++) {
        TapeGroup g = {.place = c->send[i].place};
        for (int64_t bytes = 1; bytes < 1 << 20; bytes *= 7) {
            double s;
            ok &= calibration_send(c, &g, c->send[i].op, bytes, &s) && isfinite(s) && s >= 0;
        }
    }
    return ok;
}

TEST(calibration_of_a_damaged_file_is_refused_or_sane) {
    Err e;
    Calibration *c = some_table();
    char *text = calibration_print(c, "key");
    size_t n = strlen(text), read = 0;
    for (size_t i = 0; i < n; i++) CHECK(!calibration_parse(c, text, i, "key", &e));
    for (uint64_t i = 0; i < 20000; i++) {
        char *bad = mem_strdup(text);
        bad[rng_u64(1, 1, i) % n] = (char)("0123456789-e.,[]{}\"x"[rng_u64(1, 2, i) % 20]);
        Calibration *b = calibration_new();
        read += calibration_parse(b, bad, n, "key", &e);
        CHECK(sane(b));
        calibration_free(b), mem_free(bad);
    }
    CHECK(read > 0 && read < 20000); // another digit is no damage that can be seen
    mem_free(text);
    calibration_free(c);
}

TEST(calibration_refuses_numbers_that_no_measurement_gives) {
    static const char *const bad[][2] = {{"\"kind\": 0", "\"kind\": 99"},
                                         {"\"threads\": 2", "\"threads\": 0"},
                                         {"\"rows\": 40", "\"rows\": -1"},
                                         {"\"beside\": 1.25", "\"beside\": 0.5"},
                                         {"\"slowest\": 1.5", "\"slowest\": 0.5"},
                                         {"256.0", "1000.0"},
                                         {"all_gather", "all_scatter"},
                                         {"\"calibration\": 4", "\"calibration\": 1"},
                                         {"\"doubts\": 3", "\"doubts\": -3"},
                                         {"12:00:00Z", "12:00:00.000000Z"},
                                         {"1e-6", "-1e-6"},
                                         {"\"most\": 5000", "\"most\": \"5000\""}};
    Calibration *c = some_table();
    Err e;
    char *text = calibration_print(c, "key");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *at = strstr(text, bad[i][0]);
        if (!at && strcmp(bad[i][0], "1e-6") == 0) continue; // printed in another way
        CHECK(at);
        char *damaged =
            mem_printf("%.*s%s%s", (int)(at - text), text, bad[i][1], at + strlen(bad[i][0]));
        CHECK(!calibration_parse(c, damaged, strlen(damaged), "key", &e));
        mem_free(damaged);
    }
    mem_free(text);
    calibration_free(c);
}

static void damage_and_run(void *arg) {
    (void)arg;
    char out[256];
    Run r = small_run("a machine"), again = r;
    run(&r);
    test_shell(".", out, sizeof out, "echo '{' >$(ls %s/train_gpt/calibration-*.json)",
               getenv("XDG_CACHE_HOME"));
    run(&again);
    if (calibration_seconds(again.c[0]) > 0) warn("measured");
}

TEST(calibration_measures_again_where_the_file_is_damaged) {
    char text[1024];
    cache_in(test_tmpdir());
    CHECK(test_in_child(damage_and_run, NULL, text, sizeof text) == 0);
    CHECK(strstr(text, "measuring again") && strstr(text, "warning: measured"));
}

static void run_small(void *arg) {
    (void)arg;
    Run r = small_run("a machine");
    run(&r);
    if (r.c[0]->n_works == N_SMALL) warn("measured");
}

TEST(calibration_works_where_nothing_can_be_kept) {
    char text[1024];
    cache_in("/dev/null");
    int status = test_in_child(run_small, NULL, text, sizeof text);
    cache_in(test_tmpdir());
    CHECK(status == 0);
    CHECK(strstr(text, "the calibration is not kept") && strstr(text, "warning: measured"));
    const char *first = strstr(text, "not kept");
    CHECK(first && !strstr(first + 1, "not kept")); // one line, of rank 0
}

/* What kernels lose beside a collective is measured by one that takes time: not by the statistics of a loss, which come first in
 * a list. */
TEST(calibration_looks_for_the_largest_collective_inside_and_across_nodes) {
    TapeGroup g[] = {{.place = {1, {8}, {1}}, .size = 8},  // all ranks of two nodes
                     {.place = {1, {4}, {1}}, .size = 4},  // those of a node
                     {.place = {1, {2}, {4}}, .size = 2},  // one of each
                     {.place = {1, {1}, {1}}, .size = 1}}; // nobody else
    int64_t most[4][N_COLL_OPS] = {[0][COLL_ALL_GATHER] = 6144,
                                   [1][COLL_ALL_GATHER] = 100,
                                   [1][COLL_ALL_REDUCE] = 1 << 20,
                                   [2][COLL_REDUCE_SCATTER] = 1 << 22,
                                   [3][COLL_ALL_REDUCE] = 1 << 24};
    CalibrateList list = {.group = g, .most = most, .n_groups = 4};
    int at;
    CollOp op;
    CHECK(calibrate_largest(&list, 4, true, &at, &op) == 1 << 22);
    CHECK(at == 2 && op == COLL_REDUCE_SCATTER);
    CHECK(calibrate_largest(&list, 4, false, &at, &op) == 1 << 20);
    CHECK(at == 1 && op == COLL_ALL_REDUCE);
}

/* ---- reading */

TEST(calibration_of_collectives_is_monotone_and_meets_its_points) {
    Calibration *c = some_table();
    TapeGroup g = {.place = c->send[0].place};
    double s, last = 0;
    for (int64_t bytes = 1; bytes < 20000; bytes += 7) {
        CHECK(calibration_send(c, &g, COLL_ALL_GATHER, bytes, &s) && s >= last);
        last = s;
    }
    CHECK(calibration_send(c, &g, COLL_ALL_GATHER, 5000, &s));
    CHECK_NEAR(s, 1e-5 / 3, 1e-18); // rounding
    CHECK(calibration_send(c, &g, COLL_ALL_GATHER, 9000, &s));
    CHECK_NEAR(s, 1e-5 / 3 + (1e-5 / 3 - 1e-6), 1e-18); // the last slope goes on
    g.place.stride[1] = 7;
    CHECK(!calibration_send(c, &g, COLL_ALL_GATHER, 5000, &s));
    calibration_free(c);
}

/* A turn to another way between the last two points, or one of them disturbed. */
TEST(calibration_goes_on_no_steeper_than_from_nothing) {
    SendCost cost = {.place = {1, {4}, {1}}, .op = COLL_ALL_GATHER, .n = 2};
    TapeGroup g = {.place = cost.place, .size = 4};
    Calibration *c = calibration_new();
    double s, start, rate;
    cost.bytes[0] = 10000, cost.seconds[0] = 1e-3, cost.bytes[1] = 11000, cost.seconds[1] = 3.3e-3;
    calibration_add_send(c, &cost);
    CHECK(calibration_send(c, &g, COLL_ALL_GATHER, 110000, &s));
    CHECK_NEAR(s, 3.3e-2, 1e-12);
    CHECK(calibration_line(c, &g, COLL_ALL_GATHER, &start, &rate));
    for (int64_t bytes = 100; bytes < 1000000; bytes += 99) {
        CHECK(calibration_send(c, &g, COLL_ALL_GATHER, bytes, &s));
        CHECK(start + rate * (double)bytes <= s * (1 + 1e-12));
    }
    calibration_free(c);
}

TEST(calibration_measures_on_both_sides_of_a_turn) {
    for (int64_t most = 4; most < (int64_t)1 << 33; most += most / 3 + 1) {
        for (int64_t turn = 0; turn < 1 << 20; turn += 1 << 17) {
            int64_t size[SEND_POINTS];
            int n = calibrate_sizes(most, turn, size), at = 0;
            bool behind = false;
            CHECK(n >= 1 && n <= SEND_POINTS && size[n - 1] == most);
            CHECK(most < 256 * 128 || n >= 6);
            for (int i = 1; i < n; i++) CHECK(size[i] > size[i - 1]);
            while (at < n && size[at] != turn) at++;
            if (at < n) behind = size[at + 1] <= turn + turn / 8;
            CHECK(behind == (turn > 0 && turn + turn / 8 < most));
        }
    }
}

TEST(calibration_ends_with_a_collective_of_many_milliseconds) {
    CHECK(calibrate_next(4096, 0, 0) == 4096);       // the first
    CHECK(calibrate_next(4096, 1024, 1e-4) == 4096); // quick
    CHECK(calibrate_next(131072, 65536, 7e-3) == 131072);
    int64_t next = calibrate_next(131072, 31616, 4.4e-3); // 18 ms
    CHECK(next > 100000 && next < 107782 && next % 64 == 0);
    CHECK(calibrate_next(131072, 65536, 13e-3) == 0); // 75,000 bytes would tell nothing new
    CHECK(calibrate_next(131072, 65536, 1) == 0);
}

TEST(calibration_of_works_is_a_line_and_near_ones_are_scaled) {
    Calibration *c = calibration_new();
    Work w = {.kind = WORK_XW, .threads = 2, .rows = 100, .a = 64, .b = 32}, x = w;
    double s;
    calibration_add_work(c, &(WorkCost){.work = w, .fixed = 1e-3, .per_row = 1e-5});
    w.b = 3200;
    calibration_add_work(c, &(WorkCost){.work = w, .fixed = 1, .per_row = 1});
    x.rows = 500;
    CHECK(calibration_work(c, &x, &s));
    CHECK_NEAR(s, 1e-3 + 500e-5, 1e-15);
    x.b = 64, x.flags = WORK_BIAS; // twice the FLOPs of the nearer one
    CHECK(calibration_work(c, &x, &s));
    CHECK_NEAR(s, 2 * (1e-3 + 500e-5), 1e-15);
    x.flags = WORK_BF16;
    CHECK(!calibration_work(c, &x, &s));
    x.flags = 0, x.threads = 1;
    CHECK(!calibration_work(c, &x, &s));
    calibration_free(c);
}
