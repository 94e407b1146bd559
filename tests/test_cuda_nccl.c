/* NCCL beside its calls, emulated: memory that is registered, by libraries of several ages; ranks
 * that do not come, and links that break. */
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/die.h"
#include "layers/cuda/device.h"
#include "layers/kernels.h"
#include "parallel/comm/coll.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/coll_device.h"
#include "parallel/comm/devices.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/ranks.h"
#include "tests/emu/runtime.h"
#include "tests/nccl_job.h"

/* ---- registered memory */

enum { N = 96 };

static Arena arena_of(World *w, int64_t first, float **x) {
    Arena a = arena_measure("test");
    a.memory = world_memory(w, kernels_cuda(false)->memory);
    arena_take(&a, (size_t)first * sizeof(float)), arena_take(&a, N * sizeof(float));
    arena_commit(&a);
    world_register(w, &a);
    arena_take(&a, (size_t)first * sizeof(float));
    *x = arena_take(&a, N * sizeof(float));
    return a;
}

/* Is a sum over all ranks right? */
static bool sums(World *w, float *x) {
    float ones[N], sum[N];
    for (int i = 0; i < N; i++) ones[i] = 1;
    device_put(x, ones, sizeof ones);
    coll_sum(world_comm(w), COLL_F32, x, N, "ones");
    device_get(sum, x, sizeof sum);
    device_wait();
    for (int i = 0; i < N; i++)
        if (sum[i] != (float)world_size(w)) return false;
    return true;
}

/* An arena before the first call opens the communicator, and one after it; when a call is under
 * way. */
static int two_arenas(World *w, void *ctx) {
    float *x, *y;
    int64_t want = *(int64_t *)ctx;
    Arena a = arena_of(w, 32, &x);
    bool good = sums(w, x);
    coll_sum(world_comm(w), COLL_F32, x, N, "under way");
    Arena b = arena_of(w, 64, &y);
    good &= sums(w, y);
    coll_barrier(world_comm(w));
    good &= emu_nccl_counts().registered == want * world_size(w);
    coll_sum(world_comm(w), COLL_F32, x, N, "under way");
    coll_barrier(world_comm(w));
    world_unregister(w, &a), arena_free(&a);
    coll_barrier(world_comm(w));
    good &= emu_nccl_counts().registered == want / 2 * world_size(w) && sums(w, y);
    world_unregister(w, &b), arena_free(&b);
    return !good;
}

TEST_EMULATED(cuda_nccl_registers_what_the_library_can) {
    static const int versions[] = {NCCL_NEWEST, NCCL_WITHOUT_WINDOWS, NCCL_OLDEST};
    for (EACH(v, versions)) {
        int64_t pieces = *v == NCCL_OLDEST ? 0 : 2;
        CHECK(nccl_run((NcclJob){3, two_arenas, &pieces, .late = true, .version = *v}) == 0);
        CHECK(emu_nccl_open() == 0 && emu_nccl_counts().registered == 0);
    }
}

TEST_EMULATED(cuda_nccl_registers_buffers_where_it_gives_no_window) {
    int64_t pieces = 2;
    emu_nccl_fault = EMU_NCCL_NO_WINDOW;
    CHECK(nccl_run((NcclJob){3, two_arenas, .ctx = &pieces}) == 0);
    emu_nccl_fault = EMU_NCCL_NO_FAULT;
}

/* Collectives go before matmuls where both wait for multiprocessors, and leave most of them to
 * those. */
TEST_EMULATED(cuda_nccl_is_urgent_and_takes_few_multiprocessors) {
    enum { SMS = 132 }; // of a H100
    int64_t pieces = 2;
    CHECK(nccl_run((NcclJob){2, two_arenas, .ctx = &pieces}) == 0);
    EmuNcclCounts n = emu_nccl_counts();
    CHECK(n.calls > 0 && n.urgent == n.calls);
    CHECK(n.most_ctas > 0 && n.most_ctas <= SMS / 8);
}

/* Rank 1 has something else before it: its place is another one. */
static int unlike(World *w, UNUSED void *ctx) {
    float *x;
    Arena a = arena_of(w, world_rank(w) == 1 ? 64 : 32, &x);
    bool good = sums(w, x) && emu_nccl_counts().registered == 0;
    world_unregister(w, &a), arena_free(&a);
    return !good;
}

TEST_EMULATED(cuda_nccl_registers_nothing_that_lies_apart) {
    CHECK(nccl_run((NcclJob){3, .main = unlike}) == 0);
}

/* Work in a stream that takes until something is registered, or long enough for that. */
typedef struct Long {
    int registered, *polls;
} Long;
static bool is_over(const void *ctx) {
    const Long *l = ctx;
    return emu_nccl_counts().registered != l->registered || ++*l->polls > 400;
}
static void nothing(UNUSED void *ctx) {}

/* An arena comes when a call is under way that rank 0 has no part in: it waits for those that
 * have. */
static int beside_others(World *w, UNUSED void *ctx) {
    float *x, *y;
    Comm *pair = world_split(w, world_rank(w) > 0, world_rank(w), "x");
    int polls = 0;
    Long work = {.polls = &polls};
    Arena a = arena_of(w, 32, &x);
    bool good = sums(w, x);
    coll_sum(pair, COLL_F32, x, N, "first");
    device_wait();
    coll_barrier(world_comm(w));
    work.registered = emu_nccl_counts().registered;
    if (world_rank(w) > 0) {
        emu_enqueue_when(device_stream(), "long", is_over, nothing, NULL, &work);
        coll_sum(pair, COLL_F32, x, N, "under way");
    }
    Arena b = arena_of(w, 64, &y);
    good &= sums(w, y);
    world_unregister(w, &a), arena_free(&a);
    world_unregister(w, &b), arena_free(&b);
    return !good;
}

TEST_EMULATED(cuda_nccl_registers_when_no_rank_has_a_call_under_way) {
    CHECK(nccl_run((NcclJob){3, beside_others, .late = true}) == 0);
    CHECK(nccl_run((NcclJob){3, beside_others, .late = true, .version = NCCL_WITHOUT_WINDOWS}) ==
          0);
}

/* The communicator goes first: it lets go of the memory itself. */
static int leaves_first(World *w, UNUSED void *ctx) {
    float *x;
    Arena a = arena_of(w, 32, &x);
    bool good = sums(w, x);
    world_release_devices(w);
    coll_barrier(world_comm(w));
    good &= emu_nccl_open() == 0 && emu_nccl_counts().registered == 0;
    arena_free(&a);
    return !good;
}

TEST_EMULATED(cuda_nccl_lets_go_of_memory_before_communicators_end) {
    CHECK(nccl_run((NcclJob){2, .main = leaves_first}) == 0);
    CHECK(nccl_run((NcclJob){2, leaves_first, .version = NCCL_WITHOUT_WINDOWS}) == 0);
}

/* ---- mistakes that the emulator sees */

static int frees_too_early(World *w, UNUSED void *ctx) {
    float *x;
    Arena a = arena_of(w, 32, &x);
    sums(w, x);
    arena_free(&a);
    world_unregister(w, &(Arena){.base = (char *)(x - 32)});
    return 0;
}

/* Others' memory in the place of what was registered. */
static int moves(World *w, UNUSED void *ctx) {
    float *x;
    Arena a = arena_of(w, 32, &x);
    sums(w, x);
    if (world_rank(w) > 0) coll_barrier(world_comm(w)); // until the end
    arena_free(&a);
    for (int i = 0; i < 64; i++) { // the system may give the same addresses again
        Arena b = arena_measure("other");
        b.memory = world_memory(w, kernels_cuda(false)->memory);
        arena_take(&b, 64 * sizeof *x), arena_take(&b, 2 * N * sizeof *x);
        arena_commit(&b);
        if (b.base == (char *)(x - 32)) sums(w, x);
    }
    return 0;
}

/* Rank 1 hands over memory that it did not register. */
static int other_memory(World *w, UNUSED void *ctx) {
    float *x;
    arena_of(w, 32, &x);
    sums(w, world_rank(w) == 1 ? device_alloc(N * sizeof *x) : x);
    return 0;
}

static int other_place(World *w, UNUSED void *ctx) {
    float *x;
    arena_of(w, 32, &x);
    sums(w, world_rank(w) == 1 ? x - 16 : x);
    return 0;
}

TEST_EMULATED(cuda_nccl_sees_mistakes_with_registered_memory) {
    static const NcclJob jobs[] = {
        {2, frees_too_early, .says = "registered memory was freed before it was deregistered"},
        {2, frees_too_early, .version = NCCL_WITHOUT_WINDOWS,
         .says = "registered memory was freed before it was"},
        {2, moves, .says = "a call on memory that was freed or moved since it was registered"},
        {2, other_memory, .says = "all_reduce: memory that rank 1 registered or rank 0, not both"},
        {2, other_place, .says = "all_reduce: places in registered memory differ"}};
    nccl_check_ended(jobs, N_OF(jobs));
}

/* ---- who does not come */

/* The last rank does not come to the second sum. Ranks of one process, each with two
 * communicators. */
static int stay_away(World *w, void *ctx) {
    const NcclJob *job = ctx;
    float *x = device_alloc(N * sizeof *x);
    Comm *pair = world_split(w, world_rank(w) / 2, world_rank(w), "x");
    world_set_phase(w, "step 7");
    coll_sum(pair, COLL_F32, x, N, "first");
    coll_sum(world_comm(w), COLL_F32, x, N, "dx of up");
    device_wait();
    coll_barrier(world_comm(w)); // all is done but for what comes now
    emu_nccl_fault = job->fault;
    // the others end when one has reached its limit
    if (job->fault == EMU_NCCL_NO_FAULT) world_set_limit(w, world_rank(w) ? 60 : 0.2);
    if (world_rank(w) < world_size(w) - 1) coll_sum(world_comm(w), COLL_F32, x, N, "dx of up");
    device_wait();
    coll_barrier(world_comm(w));
    return 0;
}

TEST_EMULATED(cuda_nccl_that_stalls_ends_the_job_with_a_line_and_aborts) {
    for (int late = 0; late < 2; late++) {
        NcclJob job = {4, stay_away, .late = late};
        char text[4096];
        CHECK(test_in_child(nccl_job, &job, text, sizeof text) == COLL_EXPIRED);
        CHECK(strstr(text, "rank 0: waited "));
        CHECK(strstr(text, "in step 7; not there: rank 1 or rank 2 or rank 3\n"));
        CHECK(test_count(text, " s for all_reduce \"dx of up\" of 384 bytes along all in step 7;") >
              1);
        CHECK(test_count(text, "abort of rank ") == 8 && test_count(text, " of 2\n") == 4);
    }
}

/* All hosts are stopped before the last rank comes to a sum. */
static int all_are_stopped(World *w, UNUSED void *ctx) {
    float *x = device_alloc(N * sizeof *x);
    coll_sum(world_comm(w), COLL_F32, x, N, "first");
    device_wait();
    coll_barrier(world_comm(w));
    world_set_limit(w, 4); // of the five seconds; a busy machine takes some itself
    if (world_rank(w) == 1) usleep(100 * 1000), test_stop();
    coll_sum(world_comm(w), COLL_F32, x, N, "dx of up");
    device_wait();
    coll_barrier(world_comm(w));
    device_free(x);
    return 0;
}

TEST_EMULATED(cuda_nccl_limit_leaves_out_the_time_in_which_all_are_stopped) {
    NcclJob job = {.n = 2, .main = all_are_stopped};
    CHECK_CHILD(0, nccl_job, &job, "");
}

TEST_EMULATED(cuda_nccl_that_breaks_ends_the_job_with_a_line_and_aborts) {
    for (int i = 0; i < 2; i++) {
        NcclJob job = {4, stay_away, .late = i, .fault = i ? EMU_NCCL_HUNG : EMU_NCCL_BROKEN};
        char text[4096];
        CHECK(test_in_child(nccl_job, &job, text, sizeof text) == 1);
        CHECK(strstr(text, "NCCL: all_reduce \"dx of up\" of 384 bytes along all in step 7: "));
        CHECK(strstr(text, ": remote process exited or there was a network error; no"));
        CHECK(test_count(text, "abort of rank ") == 8 && test_count(text, "NCCL: ") == 1);
    }
}

/* The last rank does not come to make a communicator: here, it would not answer. */
static int never_opens(World *w, UNUSED void *ctx) {
    world_set_limit(w, 1); // a busy machine opens nothing within less
    if (world_rank(w) == 1) emu_nccl_stuck();
    float *x = device_alloc(N * sizeof *x);
    coll_sum(world_comm(w), COLL_F32, x, N, "first");
    return 0;
}

TEST_EMULATED(cuda_nccl_that_never_opens_ends_the_job_with_a_line) {
    double begin = now_s();
    CHECK_CHILD(COLL_EXPIRED, nccl_job, (&(NcclJob){2, .main = never_opens}),
                " s for a communicator along all; not there: rank ");
    CHECK(now_s() - begin >= 1);
}

/* Whatever ends a process: kernels that wait for others must not keep it. */
static int gives_up(World *w, UNUSED void *ctx) {
    float *x = device_alloc(N * sizeof *x);
    coll_sum(world_comm(w), COLL_F32, x, N, "first");
    if (world_rank(w) == 0) die("something else");
    coll_barrier(world_comm(w));
    return 0;
}

TEST_EMULATED(cuda_nccl_is_aborted_when_a_rank_dies) {
    char text[1024];
    CHECK(test_in_child(nccl_job, &(NcclJob){3, .main = gives_up}, text, sizeof text) == 1);
    CHECK(strstr(text, "something else") && test_count(text, "abort of rank ") == 3);
}

/* When the thread saw the entry begin; 0: not yet. */
static double since(CallQueue *q, const Queued *t) {
    pthread_mutex_lock(&q->lock);
    double s = t->since;
    pthread_mutex_unlock(&q->lock);
    return s;
}
enum { LOOK = 60000 }; // us in which the thread looks at the queue

/* Is a call behind a kernel of the rank's own under way? */
static bool is_set(const void *set) {
    return __atomic_load_n((const int *)set, __ATOMIC_RELAXED) != 0;
}
static int behind_a_kernel(World *w, UNUSED void *ctx) {
    int set = 0;
    float *x = device_alloc(N * sizeof *x);
    emu_enqueue_when(device_stream(), "long", is_set, nothing, NULL, &set);
    coll_sum(world_comm(w), COLL_F32, x, N, "behind it");
    CallQueue *q = device_world(world_comm(w))->queue;
    usleep(LOOK);
    bool good = since(q, &q->at[0]) == 0;
    __atomic_store_n(&set, 1, __ATOMIC_RELAXED);
    device_wait();
    device_free(x);
    return !good;
}

TEST_EMULATED(cuda_nccl_counts_the_time_of_a_call_from_its_begin) {
    CHECK(nccl_run((NcclJob){2, behind_a_kernel, .late = true}) == 0);
}

/* Blocks of ranks 1 and 2 have not come. */
static int misses_two(World *w, UNUSED void *ctx) {
    static const char *const missing[] = {"rank 1, rank 2", "rank 2", "rank 1", "rank 1, rank 2"};
    char text[QUEUE_TEXT];
    Event part[4];
    Stream s = device_comm_stream();
    for (int o = 0; o < 4; o++) {
        part[o] = device_event();
        if (o == 1 || o == 2) device_record(part[o], s);
    }
    queue_missing(world_comm(w), part, text);
    for (int o = 0; o < 4; o++) device_event_free(part[o]);
    device_stream_free(s);
    return strcmp(text, missing[world_rank(w)]) != 0;
}

TEST_EMULATED(cuda_queue_names_the_ranks_whose_blocks_have_not_come) {
    CHECK(nccl_run((NcclJob){4, misses_two, .late = true}) == 0);
}

/* The thread looks before the host records the begin, behind other work. */
TEST_EMULATED(cuda_queue_counts_the_time_of_an_entry_from_its_begin) {
    emu_set((EmuSetup){.late = true});
    Stream s = device_comm_stream();
    CallQueue *q = queue_open(NULL, NULL);
    Queued *t = queue_take(q, &(Queued){.limit = 0});
    while (since(q, t) == 0) usleep(1000);
    device_record(t->begun, s), device_record(t->done, s);
    queue_enqueued(q, t);
    usleep(LOOK);
    CHECK(since(q, t) == 0);
    queue_close(q), device_stream_free(s);
    emu_set((EmuSetup){0});
}

TEST_EMULATED(cuda_queue_stops_a_host_that_is_too_far_ahead) {
    emu_set((EmuSetup){.late = true});
    Stream s = device_comm_stream();
    CallQueue *q = queue_open(NULL, NULL);
    for (int i = 0; i <= MAX_QUEUED; i++) {
        Queued *t = queue_take(q, &(Queued){.limit = 0});
        CHECK(device_event_query(t->done)); // of its first use
        pthread_mutex_lock(&q->lock);
        CHECK(q->end - q->first <= MAX_QUEUED);
        pthread_mutex_unlock(&q->lock);
        device_record(t->done, s);
        queue_enqueued(q, t);
    }
    queue_drain(q);
    CHECK(device_event_query(q->at[0].done));
    queue_close(q), device_stream_free(s);
    emu_set((EmuSetup){0});
}

/* An entry of the queue that is used again begins anew: its first use was longer ago than the
 * limit. */
TEST_EMULATED(cuda_queue_counts_the_time_of_an_entry_anew) {
    enum { MS = 1000 };
    CallQueue *q = queue_open(NULL, NULL);
    for (int i = 0; i <= MAX_QUEUED; i++) {
        Queued *t = queue_take(q, &(Queued){.limit = 3});
        if (i == MAX_QUEUED) usleep(LOOK);
        while (i % MAX_QUEUED == 0 && since(q, t) == 0) usleep(5 * MS);
        device_record(t->done, device_stream());
        queue_enqueued(q, t);
        if (i == 0) usleep(3000 * MS);
    }
    queue_close(q);
}

/* A replay may take longer than the limit if each of its calls takes less. */
TEST_EMULATED(cuda_queue_counts_the_time_of_a_replay_from_its_last_progress) {
    emu_set((EmuSetup){.late = true});
    Called called[6] = {0};
    Stream s = device_comm_stream();
    uint32_t *progress = device_pin(sizeof *progress);
    Recorded r = {.called = called, .n = 6, .progress = progress};
    *progress = 0;
    CallQueue *q = queue_open(NULL, NULL);
    Queued *t = queue_take(q, &(Queued){.replay = &r, .limit = 3});
    while (since(q, t) == 0) usleep(1000); // the host has not returned from the launch
    for (uint32_t i = 0; i < 6; i++) {
        __atomic_store_n(progress, 2 * i + 1, __ATOMIC_RELAXED);
        usleep(600000);
    }
    device_record(t->done, s);
    queue_enqueued(q, t);
    __atomic_store_n(progress, 12, __ATOMIC_RELAXED);
    usleep(LOOK);
    CHECK(since(q, t) == 0); // no call waits where the rank's own kernels run
    queue_close(q), device_stream_free(s);
    device_unpin(progress);
    emu_set((EmuSetup){0});
}
