/* parallel/comm: collectives of which a kernel reads and writes the blocks itself (coll_block). */
#include <unistd.h>

#include "base/rng.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"
#include "tests/coll_call.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

enum { ROWS = 3, COLS = 7, BLOCK = ROWS * COLS, CALLS = 3 * COLL_IN_FLIGHT };

/* Element i of what rank `from` has of block `of` in a call. */
static float value(int call, int from, int of, int i) {
    return (float)(call % 89 * 7 + from * 13 + of * 5 + i);
}

/* Sleeps at random, so that flags come in any order. */
static void delay(int call, int rank, int place) {
    uint64_t dice = rng_u64(3, (uint64_t)(call * 64 + rank), (uint64_t)place);
    if (dice % 4 == 0) usleep((useconds_t)(dice / 4 % 300));
}

static CollCall call_of(CollOp op, const float *src, float *dst) {
    CollCall call = COLL_CALL(op, ROWS, COLS, src, dst, "y of down");
    call.by_blocks = true;
    return call;
}

/* What a matmul with a reduce_scatter does, its own block last. Returns how many elements of the
 * sum are wrong. */
static int scatter(Comm *c, int call, float *slots, bool own_last) {
    int me = comm_rank(c), n = comm_size(c), bad = 0;
    float sum[BLOCK];
    for (int i = 0; i < n * BLOCK; i++) slots[i] = NAN;
    CollCall args = call_of(COLL_REDUCE_SCATTER, slots, sum);
    delay(call, me, 99);
    Ticket t = coll_start(c, &args);
    for (int k = 0; k < n; k++) {
        int o = (me + k + own_last) % n;
        float *slot = coll_block(t, o);
        for (int i = 0; i < BLOCK; i++) slot[i] = value(call, me, o, i);
        delay(call, me, o);
        coll_block_done(t, o);
    }
    coll_wait(t);
    for (int i = 0; i < BLOCK; i++) {
        float right = 0; // of whole numbers: any order
        for (int r = 0; r < n; r++) right += value(call, r, me, i);
        bad += !(sum[i] == right);
    }
    return bad;
}

/* What a matmul with an all_gather does: reads the blocks where they are. They are overwritten as
 * soon as the wait is over. */
static int gather(Comm *c, int call, float *mine) {
    int me = comm_rank(c), n = comm_size(c), bad = 0;
    for (int i = 0; i < BLOCK; i++) mine[i] = value(call, me, me, i);
    CollCall args = call_of(COLL_ALL_GATHER, mine, NULL);
    Ticket t = coll_start(c, &args);
    for (int k = 0; k < n; k++) {
        int o = (me + k) % n;
        const float *block = coll_block(t, o);
        delay(call, me, o);
        for (int i = 0; i < BLOCK; i++) bad += !(block[i] == value(call, o, o, i));
        coll_block_done(t, o);
    }
    coll_wait(t);
    for (int i = 0; i < BLOCK; i++) mine[i] = NAN;
    return bad;
}

/* Calls by blocks and others in turn, over more calls than a group has in flight. */
static int blocks_rank(World *w, UNUSED void *ctx) {
    Comm *all = world_comm(w),
         *c = world_split(w, world_size(w) > 2 && world_rank(w) % 2, 0, "x"); // of 2 and of 3
    OWNED(test_mem_end)
    float *memory = mem_alloc((size_t)(comm_size(all) + 1) * BLOCK * sizeof *memory);
    int bad = 0;
    for (int call = 0; call < CALLS; call++) {
        Comm *group = call % 3 ? c : all;
        if (call % 5 == 4) coll_barrier(group);
        if (call % 7 == 6) {
            float one = 1;
            coll_sum(group, COLL_F32, &one, 1, "ones");
            bad += one != (float)comm_size(group);
        }
        bad += call % 2 ? gather(group, call, memory) : scatter(group, call, memory, call % 4);
    }
    coll_barrier(all);
    return bad;
}

TEST(coll_blocks_are_read_and_written_in_any_order_of_flags) {
    CHECK(mesh_ranks_run(5, blocks_rank, NULL) == 0); // more than cores
    CHECK(ranks_run(2, blocks_rank, NULL) == 0);
    CHECK(ranks_run(5, blocks_rank, NULL) == 0);
}

/* Rank 1 starts, and never says that it is done. */
static int one_stops(World *w, void *ctx) {
    int me = world_rank(w), gathers = *(int *)ctx;
    float memory[3 * BLOCK] = {0}, sum[BLOCK];
    Comm *c = world_comm(w);
    CollCall args = call_of(gathers ? COLL_ALL_GATHER : COLL_REDUCE_SCATTER, memory, sum);
    world_set_phase(w, "step 12");
    world_set_limit(w, me == 0 ? 0.3 : 60);
    Ticket t = coll_start(c, &args);
    for (int o = 0; o < comm_size(c) && me != 1; o++) coll_block(t, o), coll_block_done(t, o);
    if (me == 1) pause();
    coll_wait(t);
    return 0;
}

/* Rank 1 does not start: others wait in their kernel. */
static int one_is_late(World *w, UNUSED void *ctx) {
    float memory[3 * BLOCK] = {0}, sum[BLOCK];
    CollCall args = call_of(COLL_REDUCE_SCATTER, memory, sum);
    world_set_limit(w, world_rank(w) == 0 ? 0.3 : 60);
    if (world_rank(w) == 1) pause();
    coll_block(coll_start(world_comm(w), &args), 1);
    return 0;
}

typedef struct Stopped {
    int (*f)(World *w, void *ctx);
    int gathers;
} Stopped;
static void run_three(void *ctx) {
    Stopped *s = ctx;
    _exit(ranks_run(3, s->f, &s->gathers));
}

TEST(coll_limit_names_the_fused_matmul_whose_block_never_comes) {
    static const char *const line[] = {
        "s for matmul with reduce_scatter \"y of down\" of 84 bytes along all in step "
        "12; not there: rank 1\n",
        "s for matmul with all_gather \"y of down\" of 84 bytes along all in step 12; "
        "not there: rank 1\n",
        "s for matmul with reduce_scatter \"y of down\" of 84 bytes along all; not "
        "there: rank 1\n"};
    Stopped stopped[] = {{one_stops, 0}, {one_stops, 1}, {one_is_late, 0}};
    for (int i = 0; i < 3; i++) CHECK_CHILD(COLL_EXPIRED, run_three, &stopped[i], line[i]);
}
