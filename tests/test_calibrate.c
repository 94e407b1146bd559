/* Calibration: measured on ranks that are threads, and kept. */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/calibrate_parts.h"
#include "tests/test.h"

/* ---- a small list, on ranks that share no cache with anybody */

enum { RANKS = 3, N_SMALL = 3 };
static Work small_works[N_SMALL] = {
    {.kind = WORK_MATMUL, .rows = 40, .K = 24, .N = 48},
    {.kind = WORK_NORM, .rows = 40, .size = {24}},
    {.kind = WORK_ACT, .rows = 2000},
};
#define ALL_RANKS                                                                                  \
    { .place = {1, {RANKS}, {1}}, .size = RANKS, .label = "x" }
static CollGroup all_ranks = ALL_RANKS;
static ListedCollective all_ops[N_COLL_OPS] = {
    {ALL_RANKS, COLL_ALL_GATHER, 9000}, {ALL_RANKS, COLL_REDUCE_SCATTER, 9000},
    {ALL_RANKS, COLL_ALL_REDUCE, 9000}, {ALL_RANKS, COLL_BROADCAST, 9000},
    {ALL_RANKS, COLL_REDUCE, 9000},     {ALL_RANKS, COLL_SHIFT, 9000}};

typedef struct Heard {
    int times;
    bool ascends, works, collectives;
    double last;
    char path[300];
} Heard;

static void note_progress(void *ctx, const char *path, const char *what, double seconds) {
    Heard *h = ctx;
    h->ascends = (h->times == 0 || h->ascends) && seconds >= h->last;
    h->works |= strncmp(what, "matmul", 6) == 0;
    h->collectives |= strcmp(what, "all_gather of 3 ranks, 8.79 KiB") == 0;
    h->times++, h->last = seconds;
    snprintf(h->path, sizeof h->path, "%s", path);
}

typedef struct Run {
    CalibrateList list;
    const char *key;
    double budget;
    bool again;
    Heard *heard;          // or NULL
    Calibration *c[RANKS]; // results
    double seconds;
    double oversubscription;    // 0: not known
    const CollBackend *backend; // NULL: the true one
    const Kernels *kernels;     // likewise
    const Machine *machine;     // NULL: flat
} Run;

/* Ranks that are all alike, as threads are. */
static const Machine flat = {
    .ranks = RANKS,
    .nodes = 1,
    .ranks_per_node = RANKS,
    .n_levels = 1,
    .level = {{.name = "node", .ranks = RANKS, .latency = 1e-6, .rank_rate = 10e9}}};

static Run small_run(const char *key) {
    return (Run){.list = {.work = small_works,
                          .n_works = N_SMALL,
                          .collective = all_ops,
                          .n_collectives = N_COLL_OPS},
                 .key = key,
                 .budget = 20};
}

/* Lists one collective of all ranks. */
static void list_one(Run *r, ListedCollective *c, CollOp op, int64_t most) {
    *c = (ListedCollective){all_ranks, op, most};
    r->list.collective = c, r->list.n_collectives = 1;
}

static int rank_main(World *w, void *ctx) {
    Run *r = ctx;
    NodeShare node = ranks_on_node(w);
    OWNED(test_team_end) Team *team = team_create(1);
    if (r->backend) w->backend = r->backend;
    double begin = now_s();
    CalibrateWhere where = {.world = w,
                            .kernels = r->kernels ? r->kernels : kernels_cpu(NULL),
                            .team = team,
                            .node = node,
                            .machine = r->machine ? r->machine : &flat,
                            .key = r->key,
                            .budget = r->budget,
                            .again = r->again,
                            .progress = r->heard ? note_progress : NULL,
                            .ctx = r->heard};
    Calibration *c = r->c[world_rank(w)] = calibrate_open(w, r->key, r->again);
    if (r->oversubscription > 0) c->oversubscription = r->oversubscription;
    calibrate(c, &where, &r->list);
    if (world_rank(w) == 0) r->seconds = now_s() - begin;
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

TEST(calibration_knows_what_was_listed_alike_on_all_ranks) {
    double s;
    cache_in(test_tmpdir());
    OWNED(run_free) Run r = small_run("a machine");
    run(&r);
    for (int i = 0; i < RANKS; i++) {
        CHECK(test_same_calibration(r.c[0], r.c[i]));
        CHECK(r.c[i]->seconds > 0);
        for (int k = 0; k < N_SMALL; k++)
            CHECK(calibration_work(r.c[i], &small_works[k], &s) && s > 0 && s < 1);
        for (int op = 0; op < N_COLL_OPS; op++)
            CHECK(calibration_collective(r.c[i], &all_ranks, (CollOp)op, 5000, &s) && s > 0 &&
                  s < 1);
        // threads move bytes while they wait, and at no other time
        CHECK(r.c[i]->slowdown[0] == 100);
    }
    CHECK(r.c[0]->slowest >= 1);
}

TEST(calibration_is_measured_once_for_each_key) {
    cache_in(test_tmpdir());
    OWNED(run_free)
    Run first = small_run("a machine"), again = first, other = small_run("another machine"),
        forced = first;
    run(&first), run(&again), run(&other);
    CHECK(again.c[1]->seconds == 0);
    CHECK(test_same_calibration(first.c[0], again.c[1]));
    CHECK(other.c[0]->seconds > 0);
    forced.again = true;
    run(&forced);
    CHECK(forced.c[0]->seconds > 0 && forced.c[0]->n_works == N_SMALL);
}

TEST(calibration_reports_its_progress) {
    Heard first = {0}, again = {0};
    const char *folder = test_tmpdir();
    cache_in(folder);
    Run r = small_run("a machine");
    r.heard = &first;
    run(&r), run_free(&r);
    CHECK(first.times >= N_SMALL + 2 * N_COLL_OPS); // before each of them, small and large
    CHECK(first.works && first.collectives);
    CHECK(first.ascends && first.last <= r.seconds);
    CHECK(strstr(first.path, folder) == first.path && access(first.path, R_OK) == 0);
    r.heard = &again;
    run(&r), run_free(&r);
    CHECK(again.times == 0); // nothing was measured
}

TEST(calibration_measures_only_what_is_missing) {
    cache_in(test_tmpdir());
    OWNED(run_free) Run few = small_run("a machine"), all = few;
    few.list.n_works = few.list.n_collectives = 1;
    run(&few), run(&all);
    CHECK(few.c[0]->n_works == 1 && few.c[0]->n_collectives == 1);
    CHECK(all.c[0]->n_works == N_SMALL && all.c[0]->n_collectives == N_COLL_OPS);
    const WorkCost *a = calibration_find_work(few.c[0], &small_works[0]),
                   *b = calibration_find_work(all.c[0], &small_works[0]);
    CHECK(a->fixed == b->fixed && a->per_row == b->per_row);
}

TEST_ALONE(calibration_keeps_its_budget_of_works) {
    enum { MANY = 400 };
    Work work[MANY];
    for (int i = 0; i < MANY; i++)
        work[i] = (Work){.kind = WORK_MATMUL, .rows = 400, .K = 200, .N = 200 + i};
    Run r;
    for (double budget = 1; budget <= 4; budget *= 2) { // a busy machine does less in a second
        cache_in(test_tmpdir());
        r = small_run("a machine");
        r.list.work = work, r.list.n_works = MANY, r.budget = budget;
        run(&r);
        if (r.c[0]->n_collectives > 0 || budget == 4) break;
        run_free(&r);
    }
    int n = r.c[0]->n_works;
    int measured = 0;
    for (int i = 0; i < n; i++) measured += !r.c[0]->work[i].derived;
    CHECK(n == MANY && measured > 0 && measured < MANY);
    CHECK(!calibration_find_work(r.c[0], &work[0])->derived); // the most important one
    CHECK(r.c[0]->n_collectives > 0);                         // and so are collectives
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
/* Every third call is disturbed; those of 67 columns are at first, for longer than the usual
 * rounds last. */
static void matmul_asleep(UNUSED Team *t, const Matmul *p) {
    bool third = n_calls++ % 3 == 0, at_first = p->N == 67 && n_disturbed++ < 7;
    sleep_s(asleep(p->M) + (third || at_first ? 30e-3 : 0));
}

/* The largest error of what a calibration of such kernels says. */
static double error_asleep(void) {
    enum { N = 5 };
    Kernels k = *kernels_cpu(NULL);
    Work work[N];
    double s, worst = 0;
    k.matmul = matmul_asleep;
    for (int i = 0; i < N; i++)
        work[i] = (Work){.kind = WORK_MATMUL, .rows = 400, .K = 64, .N = 64 + i};
    cache_in(test_tmpdir());
    OWNED(run_free) Run r = small_run("a disturbed machine");
    r.kernels = &k, r.list.work = work, r.list.n_works = N;
    run(&r);
    for (int i = 0; i < N; i++)
        for (int64_t rows = 28; rows <= 448; rows *= 2) {
            work[i].rows = rows;
            if (!calibration_work(r.c[0], &work[i], &s)) s = INFINITY;
            worst = fmax(worst, fabs(s / asleep(rows) - 1));
        }
    return worst;
}

TEST(calibration_gives_a_kernel_its_time_whatever_disturbs_it) {
    double worst = INFINITY;
    for (int i = 0; i < 3 && worst > 0.25; i++) // on a busy machine a sleeper wakes late
        worst = error_asleep();
    CHECK(worst <= 0.25);
}

static _Thread_local int n_short_calls;
static void short_call(UNUSED void *ctx) {
    n_short_calls++;
    sleep_s(3e-3);
}

static int measure_short_calls(World *w, void *ctx) {
    Meter m;
    meter_start(&m, &(CalibrateWhere){.world = w, .key = "a busy machine"}, true);
    m.barrier = 10e-3;
    double about = meter_once(&m, short_call, NULL, true).mean;
    meter_run(&m, short_call, NULL, about, 1, true);
    if (m.all.rank == 0) *(int *)ctx = n_short_calls;
    meter_end(&m);
    return 0;
}

/* A call shorter than the barrier must not be estimated as taking no time: a thousand of them would
 * be made. */
TEST(calibration_makes_no_more_calls_than_the_clock_needs) {
    int calls = 0;
    ranks_run(RANKS, measure_short_calls, &calls);
    CHECK(calls > 1 && calls < 500);
}

/* Calls, and how often the meter tidied up after them. */
typedef struct Counted {
    int calls, tidied;
} Counted;
static void count(void *ctx) {
    ((Counted *)ctx)->calls++;
}
static void tidy(void *ctx) {
    ((Counted *)ctx)->tidied++;
}

static int count_calls(World *w, UNUSED void *ctx) {
    static const struct {
        double about, barrier;
        int repeats, calls;
    } cases[] = {{1e-9, 0, 1, 1000}, {0, 0, 1, 1000},    {1e-9, 0, 50, 20 * 1000}, // limits
                 {1, 0, 20, 1},      {9e-6, 0, 1, 112},    // 15 ms in all; 1 ms of a batch
                 {5e-4, 0, 2, 2},    {3e-3, 10e-3, 1, 7}}; // twice the barrier
    CalibrateWhere where = {.world = w, .key = "a busy machine"};
    Meter m;
    Counted n = {0};
    meter_start(&m, &where, false);
    CallTime t = meter_agree(&m, world_rank(w)); // 0, 1 and 2 s
    bool good = m.barrier == 0 && fabs(t.mean - 1) < 1e-9 && t.slowest == 2;
    meter_end(&m);
    meter_start(&m, &where, true);
    good &= m.barrier > 0 && meter_agree(&m, world_rank(w)).mean == 2;
    m.barrier = 1e3, m.tidy = tidy;
    good &= meter_once(&m, count, &n, true).mean == 0 && n.calls == 1111 && n.tidied == 4;
    good &= meter_once(&m, count, &n, false).mean > 0;
    for (EACH(c, cases)) {
        m.barrier = c->barrier, n.calls = 0;
        meter_run(&m, count, &n, c->about, c->repeats, true);
        good &= n.calls == c->calls;
    }
    meter_end(&m);
    return !good;
}

/* From the barrier and an estimate. */
TEST(calibration_makes_as_many_calls_as_a_time_needs) {
    CHECK(ranks_run(RANKS, count_calls, NULL) == 0);
}

static void matmul_of_any_rows(UNUSED Team *t, UNUSED const Matmul *p) {
    sleep_s(4e-3);
}

/* Noise may make both measured numbers of rows take equally long. Even then more rows cost more:
 * 4096 rows are priced at least 4 times a call of at most 84. */
TEST(calibration_extends_a_kernel_whose_measurements_do_not_differ) {
    double s = 0;
    Kernels k = *kernels_cpu(NULL);
    Work work = {.kind = WORK_MATMUL, .rows = 4096, .K = 64, .N = 64};
    k.matmul = matmul_of_any_rows;
    cache_in(test_tmpdir());
    OWNED(run_free) Run r = small_run("a machine");
    r.kernels = &k, r.list.work = &work, r.list.n_works = 1, r.list.n_collectives = 0;
    run(&r);
    CHECK(calibration_work(r.c[0], &work, &s) && s > 4e-3 * 4);
}

static double of_weights(int64_t K, int64_t N) {
    return 2e-9 * (double)(K * N);
}
static atomic_long most_weights;
static void matmul_of_weights(UNUSED Team *t, const Matmul *p) {
    if (p->K * p->N > most_weights) most_weights = p->K * p->N;
    sleep_s(of_weights(p->K, p->N));
}

/* So that a call takes no longer than a turn on a core; what it costs is that of all. */
TEST(calibration_measures_large_matmuls_by_a_part_of_their_weights) {
    double s = 0;
    bool near = false;
    Kernels k = *kernels_cpu(NULL);
    Work work = {.kind = WORK_MATMUL, .rows = 8, .K = 2048, .N = 2056};
    k.matmul = matmul_of_weights;
    for (int tries = 0; tries < 10 && !near; tries++) { // on a busy machine a sleeper wakes late
        cache_in(test_tmpdir());
        OWNED(run_free) Run r = small_run("a machine");
        r.kernels = &k, r.list.work = &work, r.list.n_works = 1, r.list.n_collectives = 0;
        run(&r);
        CHECK(calibration_work(r.c[0], &work, &s));
        near = fabs(s / of_weights(work.K, work.N) - 1) < 0.2;
    }
    CHECK(near && most_weights == 1024 * 1028);
}

TEST(calibration_has_room_for_the_rows_that_it_tries_first) {
    OWNED(test_team_end) Team *team = team_create(1);
    CalibrateWhere where = {.kernels = kernels_cpu(NULL), .team = team};
    Work w = {.kind = WORK_LOSS, .rows = 4096, .size = {100000}}, first = w;
    first.rows = 84;
    CHECK(calibrate_work_memory(&where, &w).operands >=
          work_memory(&first, where.kernels, 1).operands);
}

/* ---- collectives that take their time: those of threads, on links whose latency and rate are
 * known */

static double link_latency, link_rate; // s, bytes/s
static int64_t link_eager;             // eager limit, bytes of the whole; 0: none
static atomic_int n_waits;

static double on_link(int64_t bytes) {
    bool rendezvous = link_eager > 0 && bytes > link_eager;
    return (rendezvous ? 3 : 1) * link_latency + (double)bytes / link_rate;
}

static void slow_wait(Comm *c, uint64_t number, const CollCall *call) {
    int64_t blocks = call->op == COLL_ALL_GATHER || call->op == COLL_REDUCE_SCATTER ? c->size : 1;
    if (strcmp(call->what, "calibration") == 0) {
        n_waits += c->rank == 0;
        sleep_s(on_link(blocks * coll_elements(call) * (int64_t)sizeof(float)));
    }
    coll_threads.wait(c, number, call);
}

/* Calibrates on such links. `label`: what a description says of their rate, which may be wrong. */
static void run_on_link(Run *r, double latency, double rate, double label) {
    static CollBackend slow;
    static Machine machine;
    slow = coll_threads, slow.wait = slow_wait, slow.eager_limit = link_eager / RANKS;
    machine = flat;
    machine.level[0].latency = latency, machine.level[0].rank_rate = label;
    link_latency = latency, link_rate = rate;
    r->backend = &slow, r->machine = &machine, r->list.n_works = 0;
    n_waits = 0;
    cache_in(test_tmpdir());
    run(r);
}

/* How many times too long the worst price of a link is, with 1 ms for the processor; INFINITY: one
 * is too short, or bandwidth was not measured. */
static double worst_price(double latency, double rate) {
    ListedCollective most[] = {{all_ranks, COLL_ALL_GATHER, 1 << 20},
                               {all_ranks, COLL_REDUCE_SCATTER, 1 << 20}};
    double worst = 0, s = 0;
    OWNED(run_free) Run r = small_run("a slow link");
    r.list.collective = most, r.list.n_collectives = N_OF(most), r.budget = 2;
    run_on_link(&r, latency, rate, rate);
    for (int64_t bytes = 256; bytes <= 1 << 20; bytes *= 16)
        for (CollOp op = 0; op <= COLL_REDUCE_SCATTER; op++) {
            bool priced = calibration_collective(r.c[0], &all_ranks, op, bytes, &s);
            if (!priced || s <= 0.8 * on_link(bytes)) s = INFINITY; // a sleeper never wakes early
            worst = fmax(worst, s / (on_link(bytes) + 1e-3));
        }
    const CollCost *cost = calibration_find_collective(r.c[0], &all_ranks.place, COLL_ALL_GATHER);
    if (!cost || cost->measured <= 10000) worst = INFINITY;
    return worst;
}

/* An all_gather of 3 ms, and more on links of 5 ms: a table that ended where a call takes so long
 * knew no bandwidth. On a busy machine sleepers wake late, but not in every measurement. */
TEST(calibration_knows_latency_and_bandwidth_however_slow_links_are) {
    static const double links[][2] = {{5e-3, 100e6}, {1e-3, 24e6}, {20e-6, 6e6}};
    for (int i = 0; i < 3; i++) {
        double worst = INFINITY;
        for (int tries = 0; tries < 8 && worst >= 1.5; tries++)
            worst = worst_price(links[i][0], links[i][1]);
        CHECK(worst < 1.5);
    }
}

/* Two latencies more above a size: what lies between two points on its sides was in between. */
TEST(calibration_knows_the_size_above_which_a_rendezvous_is_needed) {
    ListedCollective gather;
    double below = INFINITY, above;
    link_eager = RANKS * (64 << 10);
    // sleepers never wake early; on a busy machine they wake late, but not in every measurement
    for (int tries = 0; tries < 8 && below >= on_link(170 << 10) + 4e-3; tries++) {
        OWNED(run_free) Run r = small_run("a slow link");
        list_one(&r, &gather, COLL_ALL_GATHER, 1 << 20), r.budget = 2;
        run_on_link(&r, 5e-3, 100e6, 100e6);
        CHECK(calibration_collective(r.c[0], &all_ranks, COLL_ALL_GATHER, 170 << 10, &below));
        CHECK(calibration_collective(r.c[0], &all_ranks, COLL_ALL_GATHER, 240 << 10, &above));
        CHECK(below > 0.9 * on_link(170 << 10) && above > 0.9 * on_link(240 << 10));
    }
    CHECK(below < on_link(170 << 10) + 4e-3);
    link_eager = 0;
}

/* ---- kernels beside collectives: of 8 ms of a collective some pass beside kernels of 3 ms */

static const double beside_s = 8e-3;
static double hidden_share;
static _Thread_local double started_at;

static void beside_start(Comm *c, uint64_t number, const CollCall *call) {
    started_at = now_s();
    coll_threads.start(c, number, call);
}
static void beside_wait(Comm *c, uint64_t number, const CollCall *call) {
    if (strcmp(call->what, "calibration") == 0) {
        double hidden = fmin(now_s() - started_at, hidden_share * beside_s);
        sleep_s(beside_s - hidden);
    }
    coll_threads.wait(c, number, call);
}
static void matmul_of_3_ms(UNUSED Team *t, UNUSED const Matmul *p) {
    sleep_s(3e-3);
}

static double slowdown_of(double share, double oversubscription) {
    static CollBackend backend;
    ListedCollective reduce;
    Kernels k = *kernels_cpu(NULL);
    k.matmul = matmul_of_3_ms;
    backend = coll_threads, backend.polled = true;
    backend.start = beside_start, backend.wait = beside_wait;
    hidden_share = share;
    OWNED(run_free) Run r = small_run("a polled machine");
    r.backend = &backend, r.kernels = &k, r.list.n_works = 0;
    list_one(&r, &reduce, COLL_ALL_REDUCE, 9000);
    r.oversubscription = oversubscription;
    cache_in(test_tmpdir());
    run(&r);
    return r.c[0]->slowdown[0];
}

TEST(calibration_knows_how_much_kernels_lose_beside_collectives) {
    static const double share[] = {1, 0.5, 0};
    for (EACH(s, share)) {
        bool near = false;
        for (int tries = 0; tries < 10 && !near; tries++) { // on a busy machine sleepers wake late
            double hidden = 1 / slowdown_of(*s, 0);
            near = fabs(hidden - *s) < 0.2;
        }
        CHECK(near);
    }
    CHECK(slowdown_of(1, 2) == 100); // ranks that share cores: who waits lends its own
}

/* 10 s for each collective that was asked for, and half a second for all: as much as fits is
 * measured, the rest derived from it. */
static bool derived_in_time(double budget) {
    ListedCollective most[N_COLL_OPS];
    double s;
    bool ok = true, some = false;
    for (CollOp op = 0; op < N_COLL_OPS; op++)
        most[op] = (ListedCollective){all_ranks, op, 64 << 20};
    OWNED(run_free) Run r = small_run("a slow link");
    r.list.collective = most, r.budget = budget;
    run_on_link(&r, 2e-3, 6e6, 6e6);
    for (CollOp op = 0; op < N_COLL_OPS; op++) {
        int64_t reach = calibration_find_collective(r.c[0], &all_ranks.place, op)->measured;
        ok &= reach<64 << 20, some |= reach> 0;
        ok &= calibration_collective(r.c[0], &all_ranks, op, 64 << 20, &s) && s > 5 && s < 30; // 11
    }
    int64_t waits = n_waits;
    OWNED(run_free) Run again = r;
    run(&again); // what was derived is not missing
    ok &= n_waits == waits && again.c[0]->seconds == 0 && some;
    ok &= r.seconds < budget + 0.3 && r.c[0]->n_collectives == N_COLL_OPS;
    return ok;
}

TEST(calibration_keeps_its_budget_on_slow_links_and_derives_the_rest) {
    bool ok = false;
    for (double budget = 0.5; budget < 5 && !ok;
         budget *= 2) // on a busy machine sleepers wake late
        ok = derived_in_time(budget);
    CHECK(ok);
}

/* Groups of 2 with strides 1 and 2 on hosts of one rank each: one is measured for both. */
TEST(calibration_measures_one_of_all_groups_that_lie_alike) {
    Machine m = flat;
    m.nodes = m.ranks = m.level[0].ranks = 4, m.ranks_per_node = 1;
    ListedCollective listed[] = {
        {{.place = {1, {2}, {1}}, .size = 2, .label = "x"}, COLL_ALL_REDUCE, 1000},
        {{.place = {1, {2}, {2}}, .size = 2, .label = "y"}, COLL_ALL_REDUCE, 9000},
        {{.place = {1, {4}, {1}}, .size = 4, .label = "d"}, COLL_ALL_GATHER, 1000}};
    CalibrateList list = {.collective = listed, .n_collectives = 3};
    OWNED(test_calibration_end) Calibration *c = calibration_new();
    int n;
    CollJob *job = calibrate_jobs(c, &m, &list, &n);
    CHECK(n == 2 && job[0].group.size == 2 && job[0].cost.most == 9000 && job[1].group.size == 4);
    mem_free(job);
    m.n_levels = 2, m.level[1] = m.level[0], m.level[0].ranks = 2, m.ranks_per_node = 2;
    job = calibrate_jobs(c, &m, &list, &n); // inside a node and between two
    CHECK(n == 3);
    mem_free(job);
    double one, other; // the same ranks once more, as if along two axes
    CollGroup other_axes = {.place = {2, {3, 1}, {1, 3}}, .size = RANKS, .label = "y"};
    ListedCollective both[] = {{all_ranks, COLL_ALL_REDUCE, 9000},
                               {other_axes, COLL_ALL_REDUCE, 9000}};
    cache_in(test_tmpdir());
    OWNED(run_free) Run r = small_run("a machine");
    r.list.n_works = 0, r.list.collective = both, r.list.n_collectives = 2;
    run(&r);
    CHECK(calibration_collective(r.c[0], &all_ranks, COLL_ALL_REDUCE, 5000, &one));
    CHECK(calibration_collective(r.c[0], &other_axes, COLL_ALL_REDUCE, 5000, &other));
    CHECK(one == other);
}

static double formula(const Machine *m, const CollGroup *g, CollOp op, int64_t bytes) {
    return machine_collective(m, g, &(Collective){.op = op, .bytes = bytes});
}

/* By the formula twice as fast as it is, latency and bytes: so is what is derived, whatever the
 * rate of the description. Where large messages cost one more latency, that of a rendezvous, so do
 * derived ones. */
TEST(calibration_derives_from_what_was_measured_on_the_same_links) {
    Machine m = flat;
    CollGroup g = all_ranks, pair = {.place = {1, {2}, {1}}, .size = 2, .label = "y"};
    ListedCollective listed[] = {{g, COLL_ALL_REDUCE, 1 << 20}, {pair, COLL_ALL_GATHER, 4 << 20}};
    CalibrateList list = {.collective = listed, .n_collectives = 2};
    static const int64_t measured[] = {COLL_SMALL, 1 << 16, 1 << 18};
    m.level[0].latency = 1e-3, m.level[0].rank_rate = 5e6;
    double s, first = formula(&m, &pair, COLL_ALL_GATHER, COLL_SMALL);
    for (int more = 0; more < 2; more++) {
        OWNED(test_calibration_end) Calibration *c = calibration_new();
        CollCost cost = {
            .place = g.place, .op = COLL_ALL_REDUCE, .most = 1 << 20, .measured = 1 << 18, .n = 3};
        for (int i = 0; i < 3; i++) {
            cost.bytes[i] = (double)measured[i];
            cost.seconds[i] = 2 * formula(&m, &g, COLL_ALL_REDUCE, measured[i]);
            if (i > 0 && more) cost.seconds[i] += cost.seconds[0];
        }
        calibrate_extend(&cost, &m);
        calibration_add_collective(c, &cost);
        calibrate_fill(c, &m, &list);
        for (int64_t bytes = 256; bytes <= 4 << 20; bytes *= 128) {
            // the second one lies half way to the first large size
            double extra = more * (bytes == 256 ? 0 : bytes == 256 * 128 ? first : 2 * first);
            CHECK(calibration_collective(c, &pair, COLL_ALL_GATHER, bytes, &s));
            CHECK_NEAR(s, 2 * formula(&m, &pair, COLL_ALL_GATHER, bytes) + extra, 1e-5);
        }
        CHECK(calibration_find_collective(c, &pair.place, COLL_ALL_GATHER)->measured == 0);
        CHECK(calibration_find_collective(c, &g.place, COLL_ALL_REDUCE)->measured == 1 << 18);
    }
}

/* From ranks as far from each other first, then from an op of the kind; with the links' bandwidth
 * where no large size was measured. */
TEST(calibration_derives_from_the_nearest_kind) {
    Machine m = flat;
    CollGroup near = {.place = {1, {2}, {1}}, .size = 2}, far = {.place = {1, {2}, {2}}, .size = 2};
    ListedCollective listed[] = {{near, COLL_ALL_GATHER, 1 << 20}, {near, COLL_BROADCAST, 1 << 20}};
    CalibrateList list = {.collective = listed, .n_collectives = 2};
    static const CollOp op[] = {COLL_ALL_GATHER, COLL_ALL_REDUCE, COLL_REDUCE_SCATTER, COLL_REDUCE};
    OWNED(test_calibration_end) Calibration *c = calibration_new();
    double s;
    m.n_levels = 2, m.level[1] = m.level[0], m.level[0].ranks = 2, m.level[1].ranks = 4;
    m.ranks = 4, m.nodes = m.ranks_per_node = 2;
    for (int i = 0; i < 4; i++) {
        CollCost cost = {.place = i ? near.place : far.place, .op = op[i], .n = 1};
        cost.measured = COLL_SMALL, cost.bytes[0] = COLL_SMALL;
        cost.seconds[0] = (i + 2) * formula(&m, i ? &near : &far, op[i], COLL_SMALL);
        calibration_add_collective(c, &cost);
    }
    calibrate_fill(c, &m, &list);
    for (int i = 2; i < 4; i++) {
        CollOp derived = i == 2 ? COLL_ALL_GATHER : COLL_BROADCAST;
        CHECK(calibration_collective(c, &near, derived, 1 << 20, &s));
        CHECK_NEAR(s,
                   (i + 1) * formula(&m, &near, derived, COLL_SMALL) +
                       formula(&m, &near, derived, 1 << 20),
                   1e-12);
    }
}

TEST(calibration_says_what_it_cannot_derive) {
    Work work = {.kind = WORK_NORM, .rows = 40, .size = {24}};
    ListedCollective listed = {all_ranks, COLL_BROADCAST, 100};
    CalibrateList list = {.work = &work, .n_works = 1, .collective = &listed, .n_collectives = 1};
    OWNED(test_calibration_end) Calibration *c = calibration_new(), *read = calibration_new();
    calibration_add_work(read, &(WorkCost){.work = work, .per_row = 1e-6});
    CHECK(!calibrate_derived(read, &flat, &list) && read->n_collectives == 0);
    calibration_add_collective(c, &(CollCost){.place = all_ranks.place,
                                              .op = COLL_ALL_REDUCE,
                                              .n = 1,
                                              .most = 100,
                                              .measured = COLL_SMALL,
                                              .bytes = {COLL_SMALL},
                                              .seconds = {1e-6}});
    CHECK(!calibrate_derived(c, &flat, &list)); // nothing of the kind
    calibration_add_work(c, &(WorkCost){.work = work, .per_row = 1e-6});
    CHECK(calibrate_derived(c, &flat, &list) && c->n_collectives == 2);
    OWNED(test_mem_end) char *text = calibration_print(c, "key");
    CHECK(calibration_parse(read, text, strlen(text), "key", NULL)); // however small it is
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
    cache_in(test_tmpdir());
    for (CollOp op = 0; op < N_COLL_OPS; op++) {
        const char *words = test_path("brings wrong data to rank %d:", op == COLL_REDUCE ? 0 : 1);
        CHECK_CHILD(1, run_broken, &op, coll_op_name(op), words);
    }
}

/* ---- the file */

/* Whoever could have written the table could make every plan a bad one; and what is no file is not
 * waited for. */
static void change_and_run(void *arg) {
    char out[256];
    Run r = small_run("a machine"), again = r, third = r;
    run(&r);
    test_shell(".", out, sizeof out, "f=$(ls -d %s/train_gpt/calibration-*.json); %s",
               getenv("XDG_CACHE_HOME"), (const char *)arg);
    run(&again);
    if (again.c[0]->seconds > 0) warn("measured");
    run(&third); // what is kept in its place is the user's own
    if (third.c[0]->seconds == 0) warn("found again");
}

TEST(calibration_is_measured_again_where_the_file_is_not_as_it_was) {
    static const struct {
        char *change;
        const char *says, *then;
    } rows[] = {{"echo '{' >$f", "measuring again", "found again"},
                {"chmod 646 $f", "other users can write the file (mode 646)", "found again"},
                {"chmod 664 $f", "other users can write the file (mode 664)", "found again"},
                {"rm $f; mkfifo $f", "", ""},
                {"rm $f; mkdir $f", "", ""},
                {"chown 65534 $f", "belongs to another user (65534)", "found again"}};
    for (int i = 0; i < (geteuid() == 0 ? 6 : 5); i++) {
        cache_in(test_tmpdir());
        CHECK_CHILD(0, change_and_run, rows[i].change, rows[i].says, "warning: measured",
                    rows[i].then);
    }
}

static _Thread_local bool touched;
static void copy_touches(Team *t, void *out, int64_t out_ld, const void *in, int64_t in_ld,
                         int64_t rows, int64_t cols, size_t elem) {
    if (!touched) sleep_s(0.9);
    touched = true;
    kernels_cpu(NULL)->copy(t, out, out_ld, in, in_ld, rows, cols, elem);
}

/* On a busy machine the first touch of the memory of works takes seconds: what is left is shared
 * between works and collectives. */
TEST(calibration_measures_works_after_a_slow_first_touch_of_memory) {
    Kernels k = *kernels_cpu(NULL);
    int measured = 0;
    k.copy = copy_touches;
    for (int tries = 0; tries < 5 && measured < N_SMALL; tries++) { // this machine may be busy, too
        cache_in(test_tmpdir());
        OWNED(run_free) Run r = small_run("a busy machine");
        r.kernels = &k, r.budget = 2, measured = 0;
        run(&r);
        for (int i = 0; i < r.c[0]->n_works; i++) measured += !r.c[0]->work[i].derived;
    }
    CHECK(measured == N_SMALL);
}

static void run_busy(UNUSED void *arg) {
    Run r = small_run("a busy machine"), again = r, third = r;
    r.budget = again.budget = 1e-9; // the first kernel takes all of it
    run(&r), run(&again), run(&third);
    if (again.c[0]->seconds > 0) warn("measured");
    if (third.c[0]->n_works == N_SMALL) warn("all of it");
}

/* Where other programs take the time the first kernel may be all that was measured. */
TEST(calibration_that_was_cut_short_is_not_kept) {
    cache_in(test_tmpdir());
    CHECK_CHILD(0, run_busy, NULL, "1 of 3 kernels and no collective's bandwidth",
                "the next run measures again", "warning: measured", "warning: all of it");
}

static void run_small(UNUSED void *arg) {
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

/* What kernels lose beside a collective is measured by one that takes time: not by the statistics
 * of a loss, which come first in a list. */
TEST(calibration_looks_for_the_largest_collective_inside_and_across_nodes) {
    ListedCollective listed[] = {
        {{.place = {1, {8}, {1}}, .size = 8}, COLL_ALL_GATHER, 6144}, // all ranks of two nodes
        {{.place = {1, {4}, {1}}, .size = 4}, COLL_ALL_GATHER, 100},  // those of a node
        {{.place = {1, {4}, {1}}, .size = 4}, COLL_ALL_REDUCE, 1 << 20},
        {{.place = {1, {2}, {4}}, .size = 2}, COLL_REDUCE_SCATTER, 1 << 22}}; // one of each
    CalibrateList list = {.collective = listed, .n_collectives = 4}, near = list;
    Machine nodes_of_4 = {.ranks_per_node = 4};
    near.n_collectives = 3;
    CHECK(calibrate_largest(&list, &nodes_of_4, true) == &listed[3]);
    CHECK(calibrate_largest(&near, &nodes_of_4, true) == &listed[0]);
    CHECK(calibrate_largest(&list, &nodes_of_4, false) == &listed[2]);
    near.n_collectives = 1;
    CHECK(!calibrate_largest(&near, &nodes_of_4, false));
}
