/* Ranks as threads: collectives, groups, counters, failures. */
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/debug.h"
#include "base/die.h"
#include "base/rng.h"
#include "parallel/comm/ranks.h"
#include "tests/coll_call.h"
#include "tests/coll_cases.h"
#include "tests/test.h"

static int all_cases(World *w, void *ctx) {
    int p = *(int *)ctx;
    return case_run_all(world_comm(w), BASE_DEBUG ? 11 : p < 5 || test_long() ? 1 : 5);
}

TEST(coll_threads_every_op_type_dim_and_shape_is_right) {
    for (int p = 1; p <= 8; p++) CHECK(ranks_run(p, all_cases, &p) == 0);
}

/* 6 ranks as 2 rows of 3; keys turn the order of ranks in the columns round. */
static int rows_and_columns(World *w, void *ctx) {
    unsigned seed = *(unsigned *)ctx;
    int rank = world_rank(w);
    Comm *row = world_split(w, rank / 3, rank, "x"), *col = world_split(w, rank % 3, -rank, "y");
    if (comm_size(row) != 3 || comm_rank(row) != rank % 3) return 1;
    if (comm_size(col) != 2 || comm_rank(col) != 1 - rank / 3) return 2;
    if (strcmp(world_backend(w), "threads") != 0) return 3;
    return case_run_in_flight(w, row, col, BASE_DEBUG ? 60 : 300, seed) || case_run_all(col, 11) ||
           case_run_all(row, 11);
}

TEST(coll_threads_many_tickets_on_rows_and_columns_at_once) {
    for (unsigned seed = 1; seed <= 3; seed++) CHECK(ranks_run(6, rows_and_columns, &seed) == 0);
}

static int many_ranks(World *w, UNUSED void *ctx) {
    Comm *all = world_comm(w), *odd = world_split(w, world_rank(w) % 2, 0, "odd");
    return case_run_in_flight(w, all, odd, BASE_DEBUG ? 12 : 40, 9);
}

TEST(coll_threads_of_64_ranks) {
    CHECK(ranks_run(64, many_ranks, NULL) == 0);
}

/* Sizes at which the team takes part, and rows that pieces cut. */
static int with_team(World *w, UNUSED void *ctx) {
    enum { ROWS = 301, COLS = 1009 };
    OWNED(test_team_end) Team *team = team_create(3);
    world_set_team(w, team);
    Comm *c = world_comm(w);
    int64_t n = ROWS * COLS, p = comm_size(c), me = comm_rank(c), wrong = 0;
    float *mine = malloc((size_t)(n * p) * 4), *all = malloc((size_t)(n * p) * 4);
    for (int64_t i = 0; i < n; i++) mine[i] = (float)(i % 1000 + me);
    CollCall call = COLL_CALL(COLL_ALL_GATHER, ROWS, COLS, mine, all, "large");
    call.dim = 1;
    coll_run(c, &call);
    for (int64_t i = 0; i < n * p; i++) {
        int64_t col = i % (COLS * p), in_block = i / (COLS * p) * COLS + col % COLS;
        wrong += all[i] != (float)(in_block % 1000 + col / COLS);
    }
    call.op = COLL_REDUCE_SCATTER, call.src = all, call.dst = mine;
    coll_run(c, &call);
    for (int64_t i = 0; i < n; i++) wrong += mine[i] != (float)(p * (i % 1000 + me));
    coll_sum(c, COLL_F32, mine, n, "large");
    for (int64_t i = 0; i < n; i++)
        wrong += mine[i] != (float)(p * p * (i % 1000) + p * p * (p - 1) / 2);
    free(mine), free(all);
    return wrong != 0;
}

TEST(coll_threads_large_calls_are_shared_with_the_team) {
    CHECK(ranks_run(3, with_team, NULL) == 0);
}

/* Floats whose sum depends on the order. */
static int in_pairs(World *w, void *ctx) {
    enum { N = 4001 };
    float *x = malloc(N * 4), *right = calloc(N, 4), b[8];
    int me = world_rank(w), wrong = 0;
    for (int round = 0; round < *(int *)ctx; round++) {
        for (uint64_t i = 0; i < N; i++) {
            for (int r = 0; r < 8; r++)
                b[r] = (float)((rng_uniform(1, (uint64_t)r, i) - 0.5) * (r % 3 ? 1 : 1e5));
            x[i] = b[me];
            for (int r = world_size(w); r < 8; r++) b[r] = -0.f; // changes no sum
            right[i] = ((b[0] + b[1]) + (b[2] + b[3])) + ((b[4] + b[5]) + (b[6] + b[7]));
        }
        usleep((unsigned)(rng_u64(7, (uint64_t)me, (uint64_t)round) % 3000));
        coll_sum(world_comm(w), COLL_F32, x, N, "floats");
        wrong |= memcmp(x, right, N * 4) != 0;
    }
    free(x), free(right);
    return wrong;
}

TEST(coll_threads_sums_in_pairs_whoever_comes_first) {
    int rounds = 10;
    for (int p = 4; p <= 7; p++) CHECK(ranks_run(p, in_pairs, &rounds) == 0);
}

static int counted(World *w, UNUSED void *ctx) {
    char buffer[2][960] = {{0}};
    int64_t p = world_size(w);
    Comm *c = world_split(w, 0, world_rank(w), "x");
    world_count_reset(w);
    for (int op = 0; op < N_COLL_OPS; op++) {
        bool blocks = op == COLL_ALL_GATHER || op == COLL_REDUCE_SCATTER;
        CollCall call = COLL_CALL((CollOp)op, 1, 240 / (blocks ? p : 1), buffer[0], buffer[1],
                                  coll_op_name((CollOp)op));
        call.root = 1;
        coll_run(c, &call);
        coll_run(c, &call);
    }
    CollCount row[N_COLL_OPS + 1];
    if (world_counts(w, row, N_COLL_OPS + 1) != N_COLL_OPS) return 1;
    int64_t whole = 2 * 960, root = world_rank(w) == 1; // two calls of 240 floats
    int64_t right[] = {whole / p * (p - 1), whole / p * (p - 1),        2 * whole / p * (p - 1),
                       root ? 0 : whole,    root ? whole * (p - 1) : 0, whole};
    for (int op = 0; op < N_COLL_OPS; op++) {
        if (row[op].calls != 2 || row[op].bytes != right[op] || row[op].size != p) return 2 + op;
        if (strcmp(row[op].label, "x") != 0 || !(row[op].seconds > 0)) return 10 + op;
    }
    return 0;
}

TEST(coll_threads_counts_ring_volumes) {
    for (int p = 2; p <= 6; p++) CHECK(ranks_run(p, counted, NULL) == 0);
}

/* Groups that come and go leave nothing: neither counters nor, as leak checkers see, memory. */
static int come_and_go(World *w, void *ctx) {
    bool ok = true;
    CollCount rows[8];
    for (int i = 0; i < 100 && ok; i++) {
        Comm *kept = world_split(w, world_rank(w) / 3, 0, "kept"),
             *gone = world_split(w, world_rank(w) % 2, 0, "gone");
        int32_t x[2] = {1, 1}, *size = ctx;
        world_count_reset(w);
        coll_sum(gone, COLL_I32, &x[0], 1, "count");
        comm_free(gone);
        for (int j = 0; j < 2; j++) coll_sum(kept, COLL_I32, &x[1], 1, "count");
        int n = world_counts(w, rows, 8);
        for (int j = 0; j < n && j < 8; j++) ok = ok && strcmp(rows[j].label, "gone") != 0;
        for (int j = 0; j < n && j < 8; j++)
            if (strcmp(rows[j].label, "kept") == 0) ok = ok && rows[j].calls == 2;
        ok = ok && x[0] == 3 && x[1] == 9 && comm_size(kept) == *size;
        comm_free(kept);
    }
    return !ok;
}

TEST(coll_groups_come_and_go) {
    CHECK(ranks_run(6, come_and_go, &(int){3}) == 0);
}

/* Rank 1 has what it waited for, in another order than it was started, and ends; rank 0 waits for
 * rank 2. */
static int second_before_first(World *w, UNUSED void *ctx) {
    float x[2] = {1, 2};
    CollCall call = {.op = COLL_BROADCAST, .rows = 1, .cols = 1, .what = "x"};
    Ticket t[2];
    for (int i = 0; i < 2; i++) {
        call.src = call.dst = &x[i];
        t[i] = coll_start(world_comm(w), &call);
    }
    if (world_rank(w) == 2) usleep(200 * 1000);
    coll_wait(t[1]), coll_wait(t[0]);
    return 0;
}

TEST(coll_threads_who_waits_in_another_order_may_end_first) {
    CHECK(ranks_run(3, second_before_first, NULL) == 0);
}

static int as_group(World *w, UNUSED void *ctx) {
    Group g = comm_group(world_comm(w));
    int mine = 10 * g.rank, all[4] = {0};
    group_barrier(&g);
    group_all_gather(&g, &mine, sizeof mine, all);
    bool ok = g.size == 4 && all[0] == 0 && all[1] == 10 && all[2] == 20 && all[3] == 30;
    return !ok || group_all(&g, g.rank != 2) || !group_all(&g, true);
}

TEST(coll_threads_is_a_group_for_other_rooms) {
    CHECK(ranks_run(4, as_group, NULL) == 0);
}

/* Nobody leaves a barrier before the last one has entered it. */
static int through_barriers(World *w, void *ctx) {
    _Atomic int *entered = ctx;
    for (int i = 1; i <= 200; i++) {
        if (i % 5 == world_rank(w)) usleep(200);
        (*entered)++;
        coll_barrier(world_comm(w));
        if (*entered < i * world_size(w)) return 1;
        coll_barrier(world_comm(w));
    }
    return 0;
}

TEST(coll_threads_barrier_waits_for_all) {
    _Atomic int entered = 0;
    CHECK(ranks_run(5, through_barriers, &entered) == 0);
}

/* ---- how jobs end */

static CollCall step_call(float *x) {
    CollCall call = COLL_CALL(COLL_ALL_REDUCE, 1, 4, x, x, "dx of qkv");
    return call;
}

typedef int RankMain(World *w, void *ctx);
static void run_four(void *rank_main) {
    _exit(ranks_run(4, *(RankMain **)rank_main, NULL));
}
static int in_child(RankMain *f, char text[4096]) {
    return test_in_child(run_four, &f, text, 4096);
}

static int lines(const char *text) {
    return test_count(text, "\n");
}

/* Ranks 0 and 1 wait for a sum, 2 at a barrier, 3 computes for ever. */
static int one_stalls(World *w, UNUSED void *ctx) {
    float x[4] = {0};
    CollCall call = step_call(x);
    world_set_phase(w, "step 12");
    world_set_limit(w, world_rank(w) == 0 ? 0.3 : 60); // the first one to give up ends it for all
    if (world_rank(w) < 2) coll_run(world_comm(w), &call);
    if (world_rank(w) == 2) coll_barrier(world_comm(w));
    pause();
    return 0;
}

TEST(coll_limit_ends_the_job_with_a_line_per_waiting_rank) {
    char text[4096];
    CHECK(in_child(one_stalls, text) == COLL_EXPIRED);
    CHECK(lines(text) == 3);
    const char *sum = "s for all_reduce \"dx of qkv\" of 16 bytes along all in step 12; not there: "
                      "rank 2, rank 3\n";
    CHECK(strstr(text, "rank 0: waited ") && strstr(text, "rank 1: waited "));
    CHECK(strstr(text, sum) && strstr(strstr(text, sum) + 1, sum));
    CHECK(strstr(text, "rank 2: waited ") && !strstr(text, "waited 60."));
    CHECK(strstr(text, "s for barrier along all in step 12; not there: rank 0, rank 1, rank 3\n"));
}

/* Ctrl-Z, or a batch system that suspends a job, stops all ranks while some of them wait. */
static int all_are_stopped(World *w, UNUSED void *ctx) {
    coll_barrier(world_comm(w)); // all have started
    world_set_limit(w, 4);       // of the five seconds; a busy machine takes some itself
    if (world_rank(w) == 2) usleep(100 * 1000), test_stop();
    coll_barrier(world_comm(w));
    return 0;
}

TEST(coll_limit_leaves_out_the_time_in_which_all_are_stopped) {
    char text[4096];
    CHECK_SAYS(in_child(all_are_stopped, text) == 0, "%s", text);
}

static int one_leaves(World *w, UNUSED void *ctx) {
    coll_barrier(world_comm(w)); // all have started
    if (world_rank(w) == 2) {
        usleep(100 * 1000); // and wait for it
        return 9;
    }
    coll_barrier(world_comm(w));
    return 0;
}

TEST(coll_wait_for_a_rank_that_has_ended_ends_the_job) {
    char text[4096];
    CHECK(in_child(one_leaves, text) == COLL_EXPIRED);
    // sanitizers may have lines of their own there
    CHECK(test_count(text, "barrier along all; not there: rank 2 (has ended)\n") == 3);
}

static int all_die(World *w, UNUSED void *ctx) {
    if (world_rank(w) == 3) coll_barrier(world_comm(w));
    die("rank failure");
}

TEST(die_of_rank_threads_is_one_line_and_ends_all) {
    char text[4096];
    for (int i = 0; i < (BASE_DEBUG ? 3 : 20); i++) {
        CHECK(in_child(all_die, text) == 1);
        CHECK(lines(text) == 1 && strstr(text, ": rank failure (tests/test_coll.c:"));
        CHECK(strstr(text, "rank 0: ") || strstr(text, "rank 1: ") || strstr(text, "rank 2: "));
    }
}

static void member_dies(UNUSED void *ctx, int member, UNUSED int size) {
    if (member == 1) die("member failure");
}
static int team_member_dies(World *w, UNUSED void *ctx) {
    if (world_rank(w) == 1) team_run(team_create(2), member_dies, NULL);
    coll_barrier(world_comm(w));
    return 0;
}

TEST(die_of_a_team_member_names_its_rank) {
    char text[4096];
    CHECK(in_child(team_member_dies, text) == 1);
    CHECK(lines(text) == 1 && strstr(text, "rank 1: member failure"));
}

static int one_differs(World *w, UNUSED void *ctx) {
    float x[8] = {0};
    CollCall call = step_call(x);
    if (world_rank(w) == 2) call.cols = 3;
    coll_run(world_comm(w), &call);
    return 0;
}

TEST(coll_mismatch_ends_debug_builds_with_both_calls) {
    SKIP_IF(!BASE_DEBUG, "checked in builds with CONFIG=debug, asan, tsan");
    char text[4096];
    CHECK(in_child(one_differs, text) == 1);
    CHECK(lines(text) == 1 && strstr(text, "collective 1 along all differs: rank "));
    CHECK(strstr(text, "all_reduce \"dx of qkv\" of 1 x 4 f32, dim 0, root 0"));
    CHECK(strstr(text, "all_reduce \"dx of qkv\" of 1 x 3 f32, dim 0, root 0"));
    CHECK(strstr(text, "rank 2 "));
}

TEST(coll_agree_sees_what_matters_to_an_op) {
    const CollCall a = step_call(NULL);
    CollCall b = a;
    CHECK((b.src = "", b.root = 1, b.dim = 1, coll_agree(&a, &b)));
    CHECK((b = a, b.cols = 5, !coll_agree(&a, &b)) && (b = a, b.rows = 5, !coll_agree(&a, &b)));
    CHECK((b = a, b.type = COLL_I32, !coll_agree(&a, &b)));
    CHECK((b = a, b.what = "dw", !coll_agree(&a, &b)));
    CHECK((b = a, b.op = COLL_BROADCAST, !coll_agree(&a, &b)));
    CollCall c = a;
    c.op = b.op = COLL_REDUCE_SCATTER;
    CHECK((b.dim = 1, !coll_agree(&c, &b)));
    CHECK((b = c, b.op = c.op = COLL_BROADCAST, b.root = 1, !coll_agree(&c, &b)));
}

/* ---- ranks.h */

static int result_of(World *w, void *ctx) {
    return ((int *)ctx)[world_rank(w)];
}

TEST(ranks_run_returns_the_first_result_that_is_not_zero) {
    CHECK(ranks_run(4, result_of, (int[]){0, 0, 0, 0}) == 0);
    CHECK(ranks_run(4, result_of, (int[]){0, 5, 0, 7}) == 5);
    CHECK(ranks_run(1, result_of, (int[]){3}) == 3);
    CHECK(ranks_run(0, result_of, (int[]){4}) == 4);
}

static int cores_of(World *w, void *ctx) {
    cpu_set_t *set = ctx;
    NodeShare node = ranks_on_node(w);
    return sched_getaffinity(0, sizeof *set, &set[world_rank(w)]) || ranks_threads(&node, 0) < 1;
}

static int threads_of(World *w, void *quota) {
    NodeShare node = ranks_on_node(w);
    return ranks_threads(&node, *(const int *)quota);
}

TEST(ranks_have_no_more_threads_than_cores_and_quota) {
    int cores = team_cores();
    CHECK(ranks_run(1, threads_of, (int[]){0}) == cores);
    CHECK(ranks_run(1, threads_of, (int[]){cores + 1}) == cores);
    CHECK(ranks_run(1, threads_of, (int[]){1}) == 1);
    CHECK(ranks_run(2, threads_of, (int[]){1}) == 1); // less than a core for each
}

TEST(ranks_are_tied_to_equal_shares_of_the_cores) {
    int cores = team_cores();
    cpu_set_t set[4], both, before, after;
    sched_getaffinity(0, sizeof before, &before);
    SKIP_IF(cores % 2, "needs an even number of cores");
    CHECK(ranks_run(2, cores_of, set) == 0);
    CPU_AND(&both, &set[0], &set[1]);
    CHECK(CPU_COUNT(&set[0]) == cores / 2 && CPU_COUNT(&set[1]) == cores / 2);
    CHECK(CPU_COUNT(&both) == 0);
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&before, &after));
}

TEST(ranks_of_a_process_start_fast) {
    double best = 1; // of several: other programs run here, too
    for (int i = 0; i < 5; i++) {
        double t0 = now_s();
        CHECK(ranks_run(8, result_of, (int[8]){0}) == 0);
        double s = now_s() - t0;
        best = s < best ? s : best;
    }
    CHECK(best < 0.05);
}

static void launched_by(void *arg) {
    char *const *variable = arg;
    setenv(variable[0], "2", 1);
    if (ranks_launched() != 0) _exit(8); // an allocation, but no process of it
    setenv(variable[1], "0", 1);
    if (ranks_launched() != 2) _exit(9);
    _exit(ranks_run(1, result_of, (int[]){0}));
}

TEST(ranks_other_than_the_launcher_says_are_refused) {
    char *const variables[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                  {"PMI_SIZE", "PMI_RANK"},
                                  {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    CHECK(ranks_launched() == 0);
    for (int i = 0; i < 3; i++)
        CHECK_CHILD(2, launched_by, (void *)variables[i], "--ranks 1, but the launcher started 2");
}

static void alone(void *arg) {
    (void)arg;
    setenv("SLURM_STEP_NUM_TASKS", "1", 1), setenv("SLURM_PROCID", "0", 1);
    _exit(ranks_run(3, result_of, (int[]){0, 4, 0}));
}

TEST(ranks_of_a_launchers_only_process_are_threads) {
    CHECK_CHILD(4, alone, NULL, "");
}

static void too_many(void *arg) {
    ranks_run(65, result_of, arg);
}

TEST(ranks_beyond_64_threads_are_refused) {
    CHECK_CHILD(2, too_many, NULL, "at most 64");
}
