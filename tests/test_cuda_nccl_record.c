/* NCCL's calls in recordings, emulated: what replays compute and count, who does not come to them,
 * and what may not be recorded. */
#include "base/die.h"
#include "layers/cuda/graph.h"
#include "layers/cuda/streams.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/coll_record.h"
#include "parallel/comm/devices.h"
#include "tests/coll_call.h"
#include "tests/emu/runtime.h"
#include "tests/nccl_job.h"

enum { N = 96, ROUNDS = 3 };

/* ---- a pass: kernels of the rank's own between collectives, all of which need what was before
 * them */

typedef struct Pass {
    World *w;
    Comm *pair;
    float *x, *y, *whole, *copy, *place; // [N], [N], [2 N] each
    CollRecording *calls;
    Graph graph;
} Pass;

static Pass pass_make(World *w) {
    Pass p = {.w = w, .pair = world_split(w, world_rank(w) / 2, world_rank(w), "x")};
    p.x = device_alloc(N * sizeof *p.x), p.y = device_alloc(N * sizeof *p.y);
    p.whole = device_alloc(2 * N * sizeof *p.x), p.copy = device_alloc(2 * N * sizeof *p.x);
    p.place = device_alloc(2 * N * sizeof *p.x);
    return p;
}

/* Blocks of two ranks side by side. */
static void gather(const Pass *p) {
    CollCall call = COLL_CALL(COLL_ALL_GATHER, 2, N / 2, p->y, p->whole, "first");
    call.dim = 1, call.staging = (CollStaging){p->place, 2 * N * sizeof *p->place};
    coll_run(p->pair, &call);
}

static void pass(const Pass *p) {
    device_copy(p->y, p->x, N * sizeof *p->x);
    gather(p);
    device_copy(p->copy, p->whole, 2 * N * sizeof *p->x);
    coll_run(p->pair, &COLL_CALL(COLL_REDUCE_SCATTER, 1, N, p->copy, p->x, "between"));
    device_copy(p->y, p->x, N * sizeof *p->x);
    coll_sum(world_comm(p->w), COLL_F32, p->y, N, "second");
    device_copy(p->x, p->y, N * sizeof *p->x);
}

static void record(Pass *p) {
    p->calls = world_record(p->w);
    device_capture();
    pass(p);
    world_recorded(p->calls);
    p->graph = device_captured();
}

static void replay_graph(void *graph) {
    device_replay(graph);
}
static void replay(const Pass *p) {
    world_replay(p->calls, replay_graph, p->graph);
}

static void put(const Pass *p, float x) {
    float all[N];
    for (int i = 0; i < N; i++) all[i] = x * (float)(i + 1);
    device_put(p->x, all, sizeof all);
    device_zero(p->y, N * sizeof *p->y); // what is read too early is not what was there before
    device_zero(p->whole, 2 * N * sizeof *p->y), device_zero(p->copy, 2 * N * sizeof *p->y);
}

static void take_down(Pass *p) {
    if (p->calls) world_record_free(p->calls), device_graph_free(p->graph);
    coll_barrier(world_comm(p->w));
    device_free(p->x), device_free(p->y), device_free(p->whole), device_free(p->copy);
    device_free(p->place);
}

static int64_t calls_of(const World *w, const char *what, int64_t *bytes) {
    CollCount rows[8];
    int n = world_counts(w, rows, 8);
    for (int i = 0; i < n; i++)
        if (strcmp(rows[i].what, what) == 0) return *bytes = rows[i].bytes, rows[i].calls;
    return *bytes = 0;
}

static const char *const whats[] = {"first", "between", "second"};

/* Calls, then replays of which the host puts in all before any has run. Bits and bytes are those of
 * as many calls. */
static int two_ways(World *w, UNUSED void *ctx) {
    float x[2][N];
    int64_t bytes[2][3], calls[2][3];
    Pass p = pass_make(w);
    put(&p, 1);
    pass(&p); // communicators
    for (int way = 0; way < 2; way++) {
        put(&p, (float)world_rank(w) + 0.5f);
        world_count_reset(w);
        if (way) record(&p);
        for (int i = 0; i < ROUNDS; i++) way ? replay(&p) : pass(&p);
        device_get(x[way], p.x, sizeof x[way]);
        device_wait();
        for (int i = 0; i < 3; i++) calls[way][i] = calls_of(w, whats[i], &bytes[way][i]);
    }
    take_down(&p);
    return memcmp(x[0], x[1], sizeof x[0]) != 0 || x[0][1] == 0 ||
           memcmp(bytes[0], bytes[1], sizeof bytes[0]) != 0 || bytes[0][0] == 0 ||
           memcmp(calls[0], calls[1], sizeof calls[0]) != 0 || calls[0][2] != ROUNDS;
}

TEST_EMULATED(cuda_nccl_replays_compute_and_count_what_calls_do) {
    for (int late = 0; late < 3; late++) {
        CHECK(nccl_run((NcclJob){4, two_ways, .late = late > 0, .shuffle = late == 2 ? 7 : 0}) ==
              0);
        EmuNcclCounts n = emu_nccl_counts();
        CHECK(n.calls > 0 && n.urgent == n.calls);
    }
}

enum { CALLS = 3, OF_CALL = 4, WAITS = OF_CALL * CALLS + 1 }; // of a recording

/* Without the n-th wait of the recording: is what replays compute still what calls do? */
static int forgets(World *w, void *ctx) {
    float x[2][N];
    Pass p = pass_make(w);
    put(&p, 1);
    pass(&p);
    emu_forget_wait(*(int *)ctx);
    record(&p);
    emu_forget_wait(0);
    for (int way = 0; way < 2; way++) {
        put(&p, (float)world_rank(w));
        way ? replay(&p) : pass(&p);
        device_get(x[way], p.x, sizeof x[way]);
        device_wait();
    }
    take_down(&p);
    return memcmp(x[0], x[1], sizeof x[0]) != 0;
}
/* One order shows one lack, another one another: most show in one of two. */
static void forget(void *arg) {
    for (unsigned seed = 1; seed <= (*(int *)arg > WAITS ? 2 : 50); seed++)
        if (nccl_run((NcclJob){4, forgets, arg, true, .shuffle = seed})) die_end(1);
}

/* A wait that lacks is seen: by what is computed, or by CUDA, which refuses the recording. But
 * notes compute nothing. */
TEST_EMULATED(cuda_nccl_recordings_need_each_wait) {
    char text[2048];
    for (int i = 1; i <= WAITS + 1; i++) {
        bool of_note = i < WAITS && (i % OF_CALL == 2 || i % OF_CALL == 3);
        int status = of_note ? 1 : test_in_child(forget, &i, text, sizeof text);
        if ((status == 0) != (i > WAITS)) printf("    wait %d\n", i);
        CHECK((status == 0) == (i > WAITS)); // there are no more
    }
}

/* ---- who does not come */

/* The last rank does not come to the last replay, others have put in all of them. */
static int stays_away(World *w, void *ctx) {
    const NcclJob *job = ctx;
    Pass p = pass_make(w);
    bool last = world_rank(w) == world_size(w) - 1;
    world_set_phase(w, "step 7");
    put(&p, 1);
    pass(&p);
    record(&p);
    replay(&p);
    device_wait();
    coll_barrier(world_comm(w));
    if (job->fault == EMU_NCCL_NO_FAULT) world_set_limit(w, 0.2);
    emu_nccl_fault = job->fault;
    for (int i = 0; i < ROUNDS - last; i++) replay(&p);
    device_wait();
    coll_barrier(world_comm(w));
    return 0;
}

TEST_EMULATED(cuda_nccl_replay_that_stalls_ends_the_job_with_the_call_s_line) {
    for (unsigned order = 0; order < 4; order++) {
        NcclJob job = {4, stays_away, .late = order > 0, .shuffle = order > 1 ? order : 0};
        char text[4096];
        CHECK(test_in_child(nccl_job, &job, text, sizeof text) == COLL_EXPIRED);
        // ranks 0 and 1 wait for all; rank 2 for rank 3, of whose pair it is
        CHECK(strstr(text, " s for all_reduce \"second\" of 384 bytes along all in step 7"));
        CHECK(strstr(text, " s for all_gather \"first\" of 384 bytes along x in step 7"));
        CHECK(strstr(text, "in step 7; not there: rank ") && strstr(text, " or rank 3"));
        CHECK(!strstr(text, "\"between\""));
        CHECK(test_count(text, "abort of rank ") == 8 && test_count(text, " of 2\n") == 4);
    }
}

TEST_EMULATED(cuda_nccl_replay_that_breaks_ends_the_job_with_the_call_s_line) {
    for (int late = 0; late < 2; late++) {
        NcclJob job = {4, stays_away, .late = late, .fault = EMU_NCCL_BROKEN};
        char text[4096];
        CHECK(test_in_child(nccl_job, &job, text, sizeof text) == 1);
        CHECK(strstr(text, "NCCL: all_gather \"first\" of 384 bytes along x in step 7"));
        CHECK(strstr(text, ": remote process exited or there was a network error; no"));
        CHECK(test_count(text, "abort of rank ") == 8 && test_count(text, "NCCL: ") == 1);
    }
}

/* ---- mistakes */

static int records_host_memory(World *w, UNUSED void *ctx) {
    float x[N] = {0};
    world_record(w);
    device_capture();
    coll_sum(world_comm(w), COLL_F32, x, N, "of the host");
    return 0;
}

static int leaves_open(World *w, UNUSED void *ctx) {
    Pass p = pass_make(w);
    pass(&p);
    p.calls = world_record(w);
    device_capture();
    coll_start(p.pair, &COLL_CALL(COLL_ALL_GATHER, 1, N, p.x, p.whole, "open"));
    world_recorded(p.calls);
    return 0;
}

static int records_on_one_rank(World *w, UNUSED void *ctx) {
    Pass p = pass_make(w);
    pass(&p);
    if (world_rank(w) == 0)
        record(&p), replay(&p);
    else
        pass(&p);
    return 0;
}

static int leaves_before_its_graphs(World *w, UNUSED void *ctx) {
    Pass p = pass_make(w);
    pass(&p);
    record(&p);
    world_release_devices(w);
    return 0;
}

/* As events that the watchdog looks at would be. */
static int asks_for_an_event(World *w, UNUSED void *ctx) {
    Pass p = pass_make(w);
    Event e = device_event();
    pass(&p);
    p.calls = world_record(w);
    device_capture();
    pass(&p);
    device_record(e, device_stream());
    world_recorded(p.calls);
    p.graph = device_captured();
    replay(&p);
    device_event_query(e);
    return 0;
}

TEST_EMULATED(cuda_nccl_recordings_refuse_what_cannot_be_replayed) {
    static const NcclJob jobs[] = {
        {2, records_host_memory,
         .says = "\"of the host\" along all: a collective on host memory cannot"},
        {2, leaves_open, .says = "1 collectives are open where a recording begins or ends"},
        {2, records_on_one_rank, .says = "recorded on one of ranks 0 and 1, not on both"},
        {2, leaves_before_its_graphs,
         .says = "a communicator ends before graphs that hold its calls"},
        {2, asks_for_an_event, .says = "invalid argument"}};
    nccl_check_ended(jobs, N_OF(jobs));
}
