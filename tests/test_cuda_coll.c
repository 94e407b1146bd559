/* Collectives on memory of devices: right, with the bits of the same call on memory of the host,
 * whatever order streams run in. */
#include "base/debug.h"
#include "base/rng.h"
#include "layers/cuda/device.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/ranks.h"
#include "tests/coll_call.h"
#include "tests/coll_cases.h"
#include "tests/cuda_ranks.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_nccl.h"
#include "tests/emu/runtime.h"
#include "tests/test.h"

/* How streams run: at once, when somebody waits, in some order. */
static const EmuSetup orders[] = {
    {.late = false}, {.late = true}, {.late = true, .shuffle = 1}, {.late = true, .shuffle = 2}};
enum { ORDERS = N_OF(orders) };

/* n ranks on so many devices. */
static int run(int n, int devices, EmuSetup s, int (*rank_main)(World *w, void *ctx), void *ctx) {
    s.devices = devices, s.order = EMU_RANDOM, s.seed = 3;
    return cuda_ranks_run(n, s, rank_main, ctx);
}

/* ---- every call */

/* The case with its buffers on the device: call k of a rank may lie anywhere. */
typedef struct OnDevice {
    Case x;
    char *src, *dst, *place;
    CollCall call;
} OnDevice;

/* As large as a call needs it, of memory that the caller frees. */
static char *place_for(CollCall *call, int size) {
    size_t n_bytes = (size_t)(coll_elements(call) * coll_type_bytes(call->type) * size);
    call->staging = (CollStaging){n_bytes ? device_alloc(n_bytes) : NULL, n_bytes};
    return call->staging.p;
}

static OnDevice move(const Case *x) {
    OnDevice d = {.x = *x, .call = x->call, .src = device_alloc(x->src_bytes)};
    d.dst = x->in_place ? d.src : device_alloc(x->dst_bytes);
    device_put(d.src, x->src, x->src_bytes);
    if (!x->in_place) device_put(d.dst, x->dst, x->dst_bytes);
    d.call.src = d.src + ((const unsigned char *)x->call.src - x->src);
    if (x->call.dst) d.call.dst = d.dst + ((unsigned char *)x->call.dst - x->dst);
    d.place = place_for(&d.call, x->size);
    return d;
}

static bool check(OnDevice *d) {
    device_get(d->x.src, d->src, d->x.src_bytes);
    if (!d->x.in_place) device_get(d->x.dst, d->dst, d->x.dst_bytes);
    device_wait();
    if (!d->x.in_place) device_free(d->dst);
    device_free(d->src), device_free(d->place);
    return case_check(&d->x);
}

static bool on_devices(const CollCall *call) {
    bool sums = call->type == COLL_F32 || call->type == COLL_F64 || call->type == COLL_BF16;
    return !coll_spreads(call->op) || sums;
}

static int all_cases(World *w, void *ctx) {
    Comm *c = world_comm(w);
    int step = *(int *)ctx, wrong = 0;
    for (int i = comm_size(c); i < COLL_CASES; i += step) {
        Case x = case_make(i, c);
        if (!on_devices(&x.call)) {
            free(x.src);
            if (!x.in_place) free(x.dst);
            continue;
        }
        OnDevice d = move(&x);
        coll_run(c, &d.call);
        if (!check(&d) && !wrong) wrong = i + 1;
    }
    return wrong;
}

TEST(cuda_coll_every_op_dim_and_shape_is_right) {
    int step = BASE_DEBUG ? 53 : 13; // prime to the number of cases: every value of every property
    for (int p = 2; p <= 5; p++)
        CHECK(run(p, 1 + p % 2, orders[p % ORDERS], all_cases, &step) == 0);
}

/* ---- the bits of ranks in memory of the host */

enum { MOST = 6000 };

/* Sums of these depend on the order, and on where they are rounded. */
static void fill(CollType type, void *at, int64_t n, int rank, unsigned seed) {
    for (int64_t i = 0; i < n; i++) {
        double u = rng_uniform(seed, (uint64_t)rank, (uint64_t)i) - 0.5,
               d = u * (rank % 2 ? 1 : 300);
        float f = (float)d;
        uint32_t word;
        memcpy(&word, &f, sizeof word);
        uint16_t half = (uint16_t)(word >> 16);
        int32_t whole = (int32_t)(1e6 * d); // sums of some do not overflow
        const void *x = type == COLL_BF16  ? (void *)&half
                        : type == COLL_F64 ? (void *)&d
                        : type == COLL_I32 ? (void *)&whole
                                           : &f;
        memcpy((char *)at + i * coll_type_bytes(type), x, (size_t)coll_type_bytes(type));
    }
}

typedef struct Buffers {
    char *host, *device;
} Buffers;

static Buffers buffers(CollType type, int rank, unsigned seed) {
    size_t n = MOST * sizeof(double);
    Buffers b = {mem_calloc(1, n), device_alloc(n)};
    fill(type, b.host, MOST * (int64_t)sizeof(double) / coll_type_bytes(type), rank, seed);
    device_put(b.device, b.host, n);
    return b;
}

static bool same(const Buffers *b) {
    OWNED(test_mem_end) char *copy = mem_alloc(MOST * sizeof(double));
    device_get(copy, b->device, MOST * sizeof(double));
    device_wait();
    bool equal = memcmp(copy, b->host, MOST * sizeof(double)) == 0;
    return equal;
}

/* Blocks of whole words of 16 bytes and others, rows apart, in place or not, aligned or not. */
static const struct {
    CollOp op;
    int dim;
    int64_t rows, cols, stride, skew;
    bool in_place;
} shapes[] = {{COLL_ALL_REDUCE, 0, 1, 1000, 0, 0, true},
              {COLL_ALL_REDUCE, 0, 3, 333, 0, 0, false},
              {COLL_ALL_REDUCE, 0, 1, 1001, 0, 1, true},
              {COLL_ALL_REDUCE, 0, 1, 2, 0, 0, true},
              {COLL_REDUCE, 0, 7, 99, 0, 0, false},
              {COLL_REDUCE_SCATTER, 0, 5, 40, 0, 0, false},
              {COLL_REDUCE_SCATTER, 0, 5, 40, 208, 0, false},
              {COLL_REDUCE_SCATTER, 0, 1, 133, 0, 1, false},
              {COLL_REDUCE_SCATTER, 1, 6, 24, 0, 0, false},
              {COLL_REDUCE_SCATTER, 1, 6, 13, 0, 0, false},
              {COLL_ALL_GATHER, 1, 6, 24, 0, 0, false},
              {COLL_ALL_GATHER, 1, 6, 11, 0, 1, false},
              {COLL_ALL_GATHER, 0, 9, 21, 0, 0, false},
              {COLL_BROADCAST, 0, 9, 77, 0, 0, true},
              {COLL_SHIFT, 0, 2, 250, 0, 0, false}};

static int same_bits_as_host(World *w, UNUSED void *ctx) {
    Comm *c = world_split(w, 0, -world_rank(w), "x");
    static const CollType types[] = {COLL_F32, COLL_BF16, COLL_F64, COLL_I32};
    for (int i = 0; i < 4 * N_OF(shapes); i++) {
        CollType type = types[i % 4];
        Buffers a = buffers(type, comm_rank(c), 1), b = buffers(type, comm_rank(c), 2);
        CollCall call =
            COLL_CALL(shapes[i / 4].op, shapes[i / 4].rows, shapes[i / 4].cols, NULL, NULL, "bits");
        call.type = type, call.root = 1;
        call.dim = shapes[i / 4].dim, call.stride = shapes[i / 4].stride;
        char *place = place_for(&call, comm_size(c));
        int64_t at = shapes[i / 4].skew * coll_type_bytes(type);
        bool in_place = shapes[i / 4].in_place,
             no_dst = call.op == COLL_REDUCE && comm_rank(c) != 1;
        for (int device = 0; device < 2; device++) {
            call.src = (device ? a.device : a.host) + at;
            call.dst = in_place ? (void *)(uintptr_t)call.src : (device ? b.device : b.host) + at;
            if (no_dst) call.dst = NULL;
            coll_run(c, &call);
        }
        bool good = same(&a) && same(&b);
        mem_free(a.host), mem_free(b.host);
        device_free(a.device), device_free(b.device), device_free(place);
        if (!good) return i + 1;
    }
    return 0;
}

TEST(cuda_coll_gives_the_bits_of_ranks_on_the_host) {
    static const int ranks[] = {2, 3, 4, 5, 7, 11};
    for (int i = 0; i < 6; i += BASE_DEBUG ? 3 : 1)
        CHECK(run(ranks[i], i % 2 + 1, orders[i % ORDERS], same_bits_as_host, NULL) == 0);
}

/* ---- what waits for what */

enum { N = 64, ROUNDS = 4 };

/* Rounds of a sum whose src is written just before, and both buffers just after it. `forget`: the
 * wait of each round that one of the ranks forgets; -1: none does. */
typedef struct Rounds {
    int forget;
    _Atomic int wrong; // elements
    float *memory[2];  // of each rank: given back when nothing is under way, whatever was forgotten
} Rounds;

static float number(int round, int rank, int i) {
    return (float)(round * 100 + rank * 10 + i);
}

static int rounds(World *w, void *ctx) {
    Rounds *job = ctx;
    int rank = world_rank(w), p = world_size(w);
    float x[N], sums[ROUNDS][N];
    float *src = job->memory[rank], *dst = src + N, *kept = dst + N;
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < N; i++) x[i] = number(r, rank, i);
        device_put(src, x, sizeof x);
        if (job->forget >= 0 && rank == job->forget % p) emu_forget_wait(job->forget / p + 1);
        coll_run(world_comm(w), &COLL_CALL(COLL_ALL_REDUCE, 1, N, src, dst, "rounds"));
        device_copy(kept + (ptrdiff_t)r * N, dst, sizeof x);
        device_zero(src, sizeof x), device_zero(dst, sizeof x);
    }
    emu_forget_wait(0);
    device_get(sums, kept, sizeof sums);
    device_wait();
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < N; i++) {
            float want = 0;
            for (int k = 0; k < p; k++) want += number(r, k, i);
            job->wrong += sums[r][i] != want;
        }
    return 0;
}

static int run_rounds(int forget, unsigned seed) {
    Rounds job = {.forget = forget};
    for (int r = 0; r < 2; r++)
        job.memory[r] = device_alloc((2 + ROUNDS) * N * sizeof *job.memory[r]);
    run(2, 1, (EmuSetup){.late = true, .shuffle = seed}, rounds, &job);
    for (int r = 0; r < 2; r++) device_free(job.memory[r]);
    return job.wrong;
}

/* Each of two ranks waits before it sums for both to be ready, and after it for both to be done. */
TEST_EMULATED(cuda_coll_needs_each_wait_on_the_device_that_it_has) {
    CHECK(cuda_needs_waits(2 * 4, run_rounds));
}

/* ---- many at once */

/* A case of this number whose sums are of fp32. */
static Case sum_case(uint64_t dice, const Comm *c) {
    enum { OPS = N_COLL_OPS, STEP = OPS * CASE_TYPES * 2 };
    return case_make((int)(dice % OPS + dice / OPS % (COLL_CASES / STEP) * STEP), c);
}

static int in_flight(World *w, void *ctx) {
    enum { CALLS = 60, OPEN = 7 };
    Comm *row = world_split(w, world_rank(w) / 2, world_rank(w), "x"), *all = world_comm(w);
    OnDevice open[OPEN];
    Ticket ticket[OPEN] = {{0}};
    bool good = true;
    unsigned seed = *(unsigned *)ctx;
    for (int i = 0; i < CALLS + OPEN; i++) {
        uint64_t dice = rng_u64(seed, 5, (uint64_t)i); // the same on all ranks
        int at = i < CALLS ? (int)(dice % OPEN) : i - CALLS;
        if (ticket[at].number) {
            coll_wait(ticket[at]);
            good &= check(&open[at]);
        }
        ticket[at] = (Ticket){0};
        if (i >= CALLS) continue;
        Comm *c = dice / OPEN % 2 ? row : all;
        Case x = sum_case(dice / OPEN / 2, c);
        open[at] = move(&x);
        ticket[at] = coll_start(c, &open[at].call);
    }
    return !good;
}

TEST(cuda_coll_many_tickets_on_two_groups) {
    for (unsigned seed = 1; seed <= ORDERS; seed++)
        CHECK(run(4, 2, orders[seed % ORDERS], in_flight, &seed) == 0);
}

/* ---- NCCL, where devices do not reach each other */

static int run_apart(int n, EmuSetup s, int (*rank_main)(World *w, void *ctx), void *ctx) {
    s.apart = true;
    return run(n, n, s, rank_main, ctx);
}

TEST_EMULATED(cuda_coll_of_nccl_every_op_dim_and_shape_is_right) {
    int step = BASE_DEBUG ? 59 : 17;
    for (int p = 2; p <= 5; p++) CHECK(run_apart(p, orders[p % ORDERS], all_cases, &step) == 0);
    CHECK(emu_nccl_open() == 0);
}

TEST_EMULATED(cuda_coll_of_nccl_many_tickets_on_two_groups) {
    for (unsigned seed = 1; seed <= ORDERS; seed++)
        CHECK(run_apart(4, orders[seed % ORDERS], in_flight, &seed) == 0);
    CHECK(emu_nccl_open() == 0);
}

/* More calls than the host may be ahead of the device. */
static int long_line(World *w, UNUSED void *ctx) {
    enum { CALLS = 600 };
    float x, *at = device_alloc(2 * sizeof x);
    for (int i = 0; i < CALLS; i++) {
        x = number(i, world_rank(w), 0);
        device_put(at, &x, sizeof x);
        coll_run(world_comm(w), &COLL_CALL(COLL_ALL_REDUCE, 1, 1, at, at + 1, "line"));
    }
    device_get(&x, at + 1, sizeof x);
    device_wait();
    device_free(at);
    return x != number(CALLS - 1, 0, 0) + number(CALLS - 1, 1, 0);
}

TEST_EMULATED(cuda_coll_of_nccl_the_host_may_be_far_ahead) {
    for (EACH(o, orders)) CHECK(run_apart(2, *o, long_line, NULL) == 0);
}

static int one_sum(World *w, void *ctx) {
    float x = 1, *at = device_alloc(sizeof x);
    device_put(at, &x, sizeof x);
    coll_sum(world_comm(w), COLL_F32, at, 1, "one");
    if (world_rank(w) == 0) *(int *)ctx = emu_nccl_open();
    device_get(&x, at, sizeof x);
    device_wait();
    device_free(at);
    return x != (float)world_size(w);
}

TEST_EMULATED(cuda_coll_of_more_than_eight_peers_is_that_of_nccl) {
    int communicators;
    CHECK(run(9, 9, orders[0], one_sum, &communicators) == 0 && communicators == 0);
    CHECK(run(10, 10, orders[0], one_sum, &communicators) == 0 && communicators == 10);
}

TEST(cuda_coll_of_nccl_refuses_another_library) {
    Nccl n;
    Err e;
    CHECK_REFUSED(nccl_load("libm.so.6", &n, &e), e, "libm.so.6 has no ");
    CHECK_REFUSED(nccl_load("libno-such-thing.so", &n, &e), e, "libno-such-thing.so");
}

/* ---- refusals */

static int nothing(UNUSED World *w, UNUSED void *ctx) {
    return 0;
}

static void three_ranks_two_devices_apart(UNUSED void *arg) {
    run(3, 2, (EmuSetup){.apart = true}, nothing, NULL);
}

static int whole_numbers(World *w, UNUSED void *ctx) {
    int64_t *x = device_alloc(sizeof *x);
    CollCall call = COLL_CALL(COLL_ALL_REDUCE, 1, 1, x, x, "whole numbers");
    call.type = COLL_I64;
    coll_run(world_comm(w), &call);
    return 0;
}
static void ask_for_whole_numbers(UNUSED void *arg) {
    run(2, 1, orders[0], whole_numbers, NULL);
}

static int side_by_side(World *w, UNUSED void *ctx) {
    float *x = device_alloc(6 * sizeof *x);
    CollCall call = COLL_CALL(COLL_ALL_GATHER, 2, 1, x, x + 2, "side by side");
    call.dim = 1, call.staging = (CollStaging){x, 3 * sizeof *x};
    coll_run(world_comm(w), &call);
    return 0;
}
static void give_too_small_a_place(UNUSED void *arg) {
    run_apart(2, orders[0], side_by_side, NULL);
}

TEST_EMULATED(cuda_coll_says_what_it_cannot_do) {
    char text[1024];
    CHECK(test_in_child(three_ranks_two_devices_apart, NULL, text, sizeof text) == 1);
    CHECK(strstr(text, "this rank and rank 0 have the same GPU, and not all GPUs share memory: ") &&
          strchr(text, '\n')[1] == 0);
    CHECK_CHILD(1, give_too_small_a_place, NULL,
                "\"side by side\": strided blocks need a staging buffer; it has 12 of 16");
    CHECK_CHILD(1, ask_for_whole_numbers, NULL,
                "\"whole numbers\": on devices only sums of fp32, bf16, fp64 and int32");
}
