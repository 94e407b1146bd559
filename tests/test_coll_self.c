/* What coll.c does for every backend, on one rank: checks, tickets, counters. */
#include <sched.h>
#include <unistd.h>

#include "tests/coll_call.h"
#include "tests/coll_cases.h"
#include "tests/test.h"

static CollCall call_of(CollOp op, const void *src, void *dst, int64_t n) {
    return COLL_CALL(op, 1, n, src, dst, "numbers");
}

TEST(coll_of_one_rank_is_a_copy) {
    World *w = world_self_open();
    CHECK(world_size(w) == 1 && world_rank(w) == 0 && strlen(world_node(w)) > 0);
    CHECK_STR(world_backend(w), "self");
    Comm *c = world_split(w, 7, 3, "x");
    CHECK(comm_size(c) == 1 && comm_rank(c) == 0);
    CHECK_STR(comm_label(c), "x");
    for (int op = 0; op < COLL_SHIFT; op++) { // which is none of a single rank's
        float src[3] = {1, -2, 3}, dst[3] = {0};
        CollCall call = call_of((CollOp)op, src, dst, 3);
        coll_run(c, &call);
        CHECK(memcmp(src, dst, sizeof src) == 0);
        call.src = dst;
        coll_run(c, &call);
        CHECK(memcmp(src, dst, sizeof src) == 0);
    }
    coll_barrier(c);
    coll_wait((Ticket){0});
    world_free(w);
}

/* Nodes are told apart by their names, which Linux lets have 64 letters. */
static void on_a_host_of_64_letters(void *arg) {
    const char *name = arg;
    if (unshare(CLONE_NEWUTS) || sethostname(name, strlen(name))) _exit(77);
    World *w = world_self_open();
    _exit(strcmp(world_node(w), name) != 0);
}
TEST(coll_knows_a_node_whose_name_is_as_long_as_names_can_be) {
    char name[65], text[256];
    memset(name, 'n', 64), name[64] = 0;
    int status = test_in_child(on_a_host_of_64_letters, name, text, sizeof text);
    SKIP_IF(status == 77, "only root may change the name of a host");
    CHECK(status == 0);
}

TEST(coll_of_one_rank_many_tickets_in_any_order) {
    World *w = world_self_open();
    Comm *x = world_split(w, 0, 0, "x"), *y = world_split(w, 0, 0, "y");
    CHECK(case_run_in_flight(w, x, y, 300, 5) == 0);
    world_free(w);
}

TEST(coll_counts_by_what_op_and_group) {
    World *w = world_self_open();
    Comm *x = world_split(w, 0, 0, "x"), *y = world_split(w, 0, 0, "y");
    world_count_reset(w);
    float v[4] = {0};
    char same[] = "numbers"; // the same text at another place
    CollCall call = call_of(COLL_ALL_REDUCE, v, v, 4);
    coll_run(x, &call);
    call.what = same;
    coll_run(x, &call);
    coll_run(y, &call);
    call.what = "others";
    coll_run(x, &call);
    CollCount rows[8];
    CHECK(world_counts(w, rows, 1) == 1);
    CHECK(world_counts(w, rows, 8) == 3);
    CHECK(rows[0].calls == 2 && rows[1].calls == 1 && rows[2].calls == 1 && rows[0].bytes == 0);
    CHECK_STR(rows[1].label, "y");
    CHECK_STR(rows[2].what, "others");
    world_count_reset(w);
    CHECK(world_counts(w, rows, 8) == 0);
    world_free(w);
}

/* Those that divide: coll_threads_counts_ring_volumes. */
TEST(coll_bytes_that_do_not_divide_are_together_what_a_ring_moves) {
    CollCall c = call_of(COLL_ALL_REDUCE, NULL, NULL, 7);
    CHECK(coll_bytes(&c, 0, 3) + coll_bytes(&c, 1, 3) + coll_bytes(&c, 2, 3) == 4 * 2 * 7 * 2);
}

static void open_too_many(UNUSED void *arg) {
    Comm *c = world_comm(world_self_open());
    float v[1] = {0};
    CollCall call = call_of(COLL_ALL_REDUCE, v, v, 1);
    for (int i = 0; i <= COLL_IN_FLIGHT; i++) coll_start(c, &call);
}

static void wait_twice(UNUSED void *arg) {
    Comm *c = world_comm(world_self_open());
    float v[1] = {0};
    CollCall call = call_of(COLL_ALL_REDUCE, v, v, 1);
    coll_start(c, &call);
    Ticket second = coll_start(c, &call);
    coll_wait(second);
    coll_wait(second);
}

static void start_wrong(void *arg) {
    Comm *c = world_comm(world_self_open());
    float v[1] = {0};
    CollCall call = call_of(COLL_BROADCAST, v, v, 1);
    int field = *(int *)arg;
    if (field == 0) call.root = 1;
    if (field == 1) call.rows = -1;
    if (field == 2) call.dim = 2;
    if (field == 3) call.dst = NULL;
    if (field == 4) call.op = COLL_SHIFT;
    if (field == 5) call.op = COLL_ALL_GATHER, call.cols = 2, call.stride = 1;
    if (field == 6) call.op = COLL_ALL_GATHER, call.dim = 1, call.stride = 1;
    coll_start(c, &call);
}

TEST(coll_wrong_calls_die) {
    static const char *const word[] = {"wrong root",       "wrong rows or cols", "wrong dim",
                                       "wrong src or dst", "wrong root",         "wrong stride",
                                       "wrong stride"};
    for (int i = 0; i < 7; i++) CHECK_CHILD(1, start_wrong, &i, word[i], "\"numbers\" along all");
    CHECK_CHILD(1, open_too_many, NULL, "the one 32 before it is still in flight");
    CHECK_CHILD(1, wait_twice, NULL, "ticket 2 along all is waited for twice");
}
