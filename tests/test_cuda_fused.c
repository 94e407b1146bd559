/* Matmuls that are fused with collectives, of ranks as threads on emulated GPUs: the bits of the
 * matmul and then the collective, whatever order threads and streams run in. */
#include <unistd.h>

#include "base/debug.h"
#include "layers/cuda/matmuls.h"
#include "layers/cuda/sizes.h"
#include "layers/matmul_sm90.h"
#include "parallel/comm/coll_device.h"
#include "parallel/comm/ranks.h"
#include "tests/coll_call.h"
#include "tests/cuda_ranks.h"
#include "tests/cuda_test.h"

/* So many devices, whose streams run late, in an order of `shuffle`. */
static EmuSetup on(int devices, unsigned shuffle) {
    return (EmuSetup){.order = shuffle ? EMU_RANDOM : EMU_FORWARD,
                      .seed = shuffle,
                      .late = true,
                      .shuffle = shuffle,
                      .devices = devices};
}

/* Each rank has a part of k: y = the sum of all a b, a block of `rows` rows for each. */
typedef struct Sizes {
    int64_t rows, N, K;
    bool bf16;
    MatmulBackend backend;
} Sizes;

/* Of sums of as many tiles as the emulated device has multiprocessors. */
#define WORKSPACE (test_on_device ? MATMUL_WORKSPACE : 1 << 20)

typedef struct Operands {
    Matmul p;
    char *slots, *sum, *want;
    size_t elem_bytes;
} Operands;

static char *poisoned(int64_t n, size_t elem_bytes) {
    char *p = device_alloc((size_t)n * elem_bytes);
    device_poison(p, (size_t)n * elem_bytes);
    return p;
}

/* Of numbers whose sums are rounded. */
static void *random_words(int64_t n, unsigned seed, bool bf16) {
    OWNED(test_mem_end) uint32_t *x = mem_alloc((size_t)n * sizeof *x);
    test_fill((float *)(void *)x, (size_t)n, 1, seed);
    uint16_t *half = (uint16_t *)(void *)x;
    for (int64_t i = 0; bf16 && i < n; i++) half[i] = (uint16_t)(x[i] >> 16);
    void *p = device_alloc((size_t)n * (bf16 ? 2 : 4));
    device_put(p, x, (size_t)n * (bf16 ? 2 : 4));
    device_wait();
    return p;
}

static Operands operands(const Sizes *s, int rank, int n) {
    Operands o = {matmul_sized(n * s->rows, s->N, s->K), .elem_bytes = s->bf16 ? 2 : 4};
    Matmul *p = &o.p;
    p->a = random_words(p->M * p->K, 2 * (unsigned)rank + 1, s->bf16), p->a_row = p->K;
    p->b = random_words(p->K * p->N, 2 * (unsigned)rank + 2, s->bf16), p->b_row = p->N;
    p->a_col = p->b_col = 1;
    p->addend = random_words(p->M * p->N, 2 * (unsigned)rank + 99, s->bf16);
    o.slots = poisoned(p->M * p->N, o.elem_bytes);
    o.sum = poisoned(s->rows * s->N, o.elem_bytes), o.want = poisoned(s->rows * s->N, o.elem_bytes);
    p->workspace = device_alloc(s->backend == BACKEND_SM90 ? WORKSPACE : 16);
    return o;
}

static void operands_free(const Operands *o) {
    device_wait();
    device_free((void *)(uintptr_t)o->p.a), device_free((void *)(uintptr_t)o->p.b);
    device_free((void *)(uintptr_t)o->p.addend);
    device_free(o->slots), device_free(o->sum), device_free(o->want);
    device_free(o->p.workspace);
}

static CollCall scatter_of(const Operands *o, int64_t rows, void *dst, bool by_blocks) {
    CollCall call = COLL_CALL(COLL_REDUCE_SCATTER, rows, o->p.N, o->slots, dst, "y of down");
    call.type = o->elem_bytes == 2 ? COLL_BF16 : COLL_F32, call.by_blocks = by_blocks;
    return call;
}

/* As parallel/step/run.c does it. */
static void fused(World *w, const Operands *o, const Sizes *s, void *dst) {
    CollCall call = scatter_of(o, s->rows, dst, true);
    Ticket t = coll_start(world_comm(w), &call);
    RowBlocks blocks = coll_row_blocks(&t, s->rows);
    Matmul p = o->p;
    blocks.matrix = BLOCKS_OF_Y;
    p.y = o->slots, p.blocks = &blocks;
    matmul_set_backend(s->backend);
    kernels_cuda(s->bf16)->matmul(NULL, &p);
    coll_wait(t);
}

/* A matmul whose k is not divided. */
static void whole_sums(const Matmul *p, const Sizes *s) {
    int configs[MATMUL_CONFIGS], n = 0;
    if (s->backend != BACKEND_SM90) {
        kernels_cuda(s->bf16)->matmul(NULL, p);
        return;
    }
    matmul_sm90_configs(p, configs);
    while (matmul_config(configs[n]).kind != MATMUL_DATA_PARALLEL) n++;
    matmul_sm90(p, configs[n]);
}

static void unfused(World *w, const Operands *o, const Sizes *s, void *dst) {
    CollCall call = scatter_of(o, s->rows, dst, false);
    Matmul p = o->p;
    p.y = o->slots;
    matmul_set_backend(s->backend);
    whole_sums(&p, s);
    coll_run(world_comm(w), &call);
}

/* How many bytes differ. */
static int different(const Operands *o, int64_t n) {
    size_t bytes = (size_t)n * o->elem_bytes;
    OWNED(test_mem_end) char *got = mem_alloc(2 * bytes);
    char *want = got + bytes;
    int wrong = 0;
    device_get(got, o->sum, bytes), device_get(want, o->want, bytes);
    device_wait();
    for (size_t i = 0; i < bytes; i++) wrong += got[i] != want[i];
    return wrong;
}

static int scatters(World *w, void *ctx) {
    const Sizes *s = ctx;
    int n = world_size(w);
    Operands o = operands(s, world_rank(w), n);
    int64_t before = matmul_counts().sm90;
    int wrong = 0;
    unfused(w, &o, s, o.want);
    for (int round = 0; round < 2; round++) {
        device_poison(o.slots, (size_t)(o.p.M * o.p.N) * o.elem_bytes);
        device_poison(o.sum, (size_t)(s->rows * s->N) * o.elem_bytes);
        fused(w, &o, s, o.sum);
        wrong += different(&o, s->rows * s->N);
    }
    bool one_kernel = s->bf16 && s->rows % 128 == 0;
    if (s->backend == BACKEND_SM90)
        wrong += matmul_counts().sm90 - before != (one_kernel ? 2 : 2 * n);
    matmul_set_backend(BACKEND_LIBRARY);
    operands_free(&o);
    return wrong;
}

static const Sizes sizes[] = {{128, 200, 136, true, BACKEND_SM90},
                              {256, 264, 72, true, BACKEND_SM90},
                              {128, 72, 1104, true, BACKEND_SM90},
                              // a kernel for each block; blocks that end within tiles
                              {40, 72, 80, true, BACKEND_SM90},
                              {48, 40, 33, false, BACKEND_TILED},
                              {5, 7, 9, false, BACKEND_PLAIN}};

TEST(cuda_fused_reduce_scatter_has_the_bits_of_matmul_and_reduce_scatter) {
    for (int i = 0; i < 6; i++)
        for (int k = i % 2; k < (BASE_DEBUG ? i % 2 + 1 : 3); k += 2) {
            int n = (i + k) % 3 + 2;
            CHECK(cuda_ranks_run(n, on(k + 1, (unsigned)k), scatters,
                                 (void *)(uintptr_t)&sizes[i]) == 0);
        }
}

/* ---- all_gather */

/* h = the rows of x of all ranks; y = h w, and the gradient of a w: dw = h' y. */
typedef struct Gathered {
    Matmul y, dw;
    char *x, *h;
    size_t elem_bytes;
} Gathered;

static Gathered gathered(const Sizes *s, int rank, int n) {
    size_t elem_bytes = s->bf16 ? 2 : 4;
    int64_t M = n * s->rows;
    Gathered g = {.elem_bytes = elem_bytes,
                  .x = random_words(s->rows * s->K, (unsigned)rank + 1, s->bf16)};
    g.h = poisoned(M * s->K, elem_bytes);
    g.y = matmul_forward(M, s->K, s->N, g.h, s->K, random_words(s->K * s->N, 90, s->bf16));
    g.y.bias = random_words(s->N, 91, s->bf16);
    g.y.epilogue = EPI_ACT, g.y.act = ACT_RELU2;
    g.y.aux = poisoned(M * s->N, elem_bytes), g.y.y = poisoned(M * s->N, elem_bytes);
    g.dw = matmul_wgrad(M, s->K, s->N, g.h, s->K, random_words(M * s->N, 92, s->bf16));
    g.dw.y = poisoned(s->K * s->N, sizeof(float));
    g.y.workspace = g.dw.workspace = device_alloc(s->backend == BACKEND_SM90 ? WORKSPACE : 16);
    return g;
}

static void gathered_free(const Gathered *g) {
    const void *all[] = {g->x,   g->h,    g->y.b,  g->y.bias,     g->y.aux,
                         g->y.y, g->dw.b, g->dw.y, g->y.workspace};
    device_wait();
    for (EACH(p, all)) device_free((void *)(uintptr_t)*p);
}

static CollCall gather_of(const Gathered *g, const Sizes *s, bool by_blocks) {
    CollCall call = COLL_CALL(COLL_ALL_GATHER, s->rows, s->K, g->x, g->h, "x of up");
    call.type = g->elem_bytes == 2 ? COLL_BF16 : COLL_F32, call.by_blocks = by_blocks;
    return call;
}

static void unfused_gather(World *w, const Gathered *g, const Sizes *s) {
    CollCall call = gather_of(g, s, false);
    coll_run(world_comm(w), &call);
    whole_sums(&g->y, s);
    kernels_cuda(s->bf16)->matmul(NULL, &g->dw);
}

/* As parallel/step/run.c does it. What was gathered may be overwritten as soon as it is over. */
static void fused_gather(World *w, const Gathered *g, const Sizes *s, bool dw) {
    CollCall call = gather_of(g, s, true);
    Ticket t = coll_start(world_comm(w), &call);
    RowBlocks all = coll_row_blocks(&t, s->rows), blocks = all;
    Matmul y = g->y, of_w = g->dw;
    y.blocks = of_w.blocks = &blocks;
    blocks.matrix = BLOCKS_OF_A;
    if (dw) blocks.done = NULL;
    matmul_set_backend(s->backend);
    kernels_cuda(s->bf16)->matmul(NULL, &y);
    blocks.matrix = BLOCKS_OF_AT, blocks.done = all.done;
    if (dw) kernels_cuda(s->bf16)->matmul(NULL, &of_w);
    coll_wait(t);
}

/* y, aux and dw, one behind the other. */
static char *results(const Gathered *g) {
    size_t y = (size_t)(g->y.M * g->y.N) * g->elem_bytes, dw = (size_t)(g->dw.M * g->dw.N) * 4;
    char *all = mem_alloc(2 * y + dw);
    device_get(all, g->y.y, y), device_get(all + y, g->y.aux, y);
    device_get(all + 2 * y, g->dw.y, dw);
    device_wait();
    return all;
}
static int results_differ(const Gathered *g, const char *want) {
    size_t bytes = (size_t)(2 * g->y.M * g->y.N) * g->elem_bytes + (size_t)(g->dw.M * g->dw.N) * 4;
    OWNED(test_mem_end) char *got = results(g);
    int wrong = 0;
    for (size_t i = 0; i < bytes; i++) wrong += got[i] != want[i];
    return wrong;
}
static void poison_results(const Gathered *g) {
    device_poison(g->h, (size_t)(g->y.M * g->y.K) * g->elem_bytes);
    device_poison(g->y.y, (size_t)(g->y.M * g->y.N) * g->elem_bytes);
    device_poison(g->y.aux, (size_t)(g->y.M * g->y.N) * g->elem_bytes);
    device_poison(g->dw.y, (size_t)(g->dw.M * g->dw.N) * 4);
}

static int gathers(World *w, void *ctx) {
    const Sizes *s = ctx;
    int wrong = 0;
    Gathered g = gathered(s, world_rank(w), world_size(w));
    matmul_set_backend(s->backend);
    unfused_gather(w, &g, s);
    OWNED(test_mem_end) char *want = results(&g);
    for (int round = 0; round < 2; round++) {
        poison_results(&g);
        fused_gather(w, &g, s, true);
        wrong += results_differ(&g, want);
    }
    matmul_set_backend(BACKEND_LIBRARY);
    gathered_free(&g);
    return wrong;
}

/* With a device for each rank kernels wait for flags, else streams do. */
TEST(cuda_fused_all_gather_has_the_bits_of_all_gather_and_matmul) {
    for (int i = 0; i < 6; i++)
        for (int k = i % 2; k < (BASE_DEBUG ? i % 2 + 1 : 4); k += 2) {
            int n = (i + k) % 3 + 2;
            CHECK(cuda_ranks_run(n, on(k == 3 ? 1 : n, (unsigned)k), gathers,
                                 (void *)(uintptr_t)&sizes[i]) == 0);
        }
}

/* ---- what waits for what */

enum { ROUNDS = 3 };

/* The wait of each round that one of the ranks forgets; -1: none does. */
typedef struct Forgotten {
    Sizes s;
    int wait;
    char *memory[2]; // of each rank: given back when nothing is under way, whatever was forgotten
    _Atomic int wrong;
} Forgotten;

static int rounds(World *w, void *ctx) {
    Forgotten *f = ctx;
    int rank = world_rank(w), n = world_size(w);
    int64_t some = f->s.rows * f->s.N;
    size_t bytes = (size_t)some * sizeof(float);
    Operands o = operands(&f->s, rank, n);
    char *own = o.slots;
    char *kept = f->memory[rank] + 3 * bytes;
    unfused(w, &o, &f->s, o.want);
    device_wait();
    o.slots = f->memory[rank];
    for (int r = 0; r < ROUNDS; r++) {
        device_poison(o.slots, 3 * bytes);
        if (f->wait >= 0 && rank == f->wait % n) emu_forget_wait(f->wait / n + 1);
        fused(w, &o, &f->s, o.slots + 2 * bytes);
        device_copy(kept + (size_t)r * bytes, o.slots + 2 * bytes, bytes);
    }
    emu_forget_wait(0);
    device_wait();
    o.slots = own;
    for (int r = 0; r < ROUNDS; r++) {
        device_copy(o.sum, kept + (size_t)r * bytes, bytes);
        f->wrong += different(&o, some);
    }
    matmul_set_backend(BACKEND_LIBRARY);
    operands_free(&o);
    return 0;
}

static int run_rounds(int forget, unsigned seed) {
    Forgotten f = {.s = {3, 5, 4, false, BACKEND_PLAIN}, .wait = forget};
    size_t bytes = (size_t)(f.s.rows * f.s.N) * sizeof(float);
    for (int r = 0; r < 2; r++) f.memory[r] = device_alloc((3 + ROUNDS) * bytes);
    cuda_ranks_run(2, on(1, seed), rounds, &f);
    for (int r = 0; r < 2; r++) device_free(f.memory[r]);
    return f.wrong;
}

/* Of two ranks: before it stores at the other one, before it sums, for both parts, and after it. */
TEST_EMULATED(cuda_fused_reduce_scatter_needs_each_wait_that_it_has) {
    CHECK(cuda_needs_waits(2 * 4, run_rounds));
}

/* ---- the same of an all_gather, by streams or by a kernel's flags */

typedef struct Rounds {
    Sizes s;
    int forget;   // the wait that one of the ranks forgets; -1: none
    double limit; // of a wait; 0: none
    bool handles; // NCCL, and x and h are opened by handles, as between processes
    _Atomic int wrong;
} Rounds;

/* Nothing of any rank is under way. */
static void settle(World *w) {
    float *x = device_alloc(sizeof *x);
    coll_sum(world_comm(w), COLL_F32, x, 1, "all");
    device_wait();
    coll_barrier(world_comm(w));
    device_free(x);
}

/* x is there late, and overwritten as soon as it may be. */
static int gather_rounds(World *w, void *ctx) {
    Rounds *r = ctx;
    int rank = world_rank(w), n = world_size(w);
    Gathered g = gathered(&r->s, rank, n);
    size_t bytes = (size_t)(r->s.rows * r->s.K) * g.elem_bytes,
           y = (size_t)(g.y.M * g.y.N) * g.elem_bytes;
    char *x = random_words(r->s.rows * r->s.K, (unsigned)rank + 1, r->s.bf16);
    Arena shared[] = {{.name = "x", .base = g.x, .cap = bytes},
                      {.name = "h", .base = g.h, .cap = (size_t)n * bytes}};
    for (int i = 0; i < 2 && r->handles; i++) world_register(w, &shared[i]);
    world_set_limit(w, r->limit);
    matmul_set_backend(r->s.backend);
    unfused_gather(w, &g, &r->s);
    char *want = results(&g);
    for (int i = 0; i < ROUNDS; i++) {
        poison_results(&g);
        device_poison(g.x, bytes), device_copy(g.x, x, bytes);
        if (r->forget >= 0 && rank == r->forget % n) emu_forget_wait(r->forget / n + 1);
        fused_gather(w, &g, &r->s, false);
        emu_forget_wait(0);
        device_poison(g.x, bytes);
        OWNED(test_mem_end) char *got = results(&g);
        for (size_t k = 0; k < y; k++) r->wrong += got[k] != want[k];
    }
    settle(w);
    for (int i = 0; i < 2 && r->handles; i++) world_unregister(w, &shared[i]);
    mem_free(want), device_free(x);
    matmul_set_backend(BACKEND_LIBRARY);
    gathered_free(&g);
    return 0;
}

static const Sizes by_streams = {3, 5, 4, false, BACKEND_PLAIN},
                   by_flags = {128, 72, 64, true, BACKEND_SM90};

static int run_gathers(int forget, unsigned seed) {
    Rounds r = {.s = by_streams, .forget = forget};
    cuda_ranks_run(2, on(1, seed), gather_rounds, &r);
    return r.wrong;
}

/* Of two ranks on one device: before the copies, for both of x; before each block is read; and
 * before x is written again. */
TEST_EMULATED(cuda_fused_all_gather_needs_each_wait_that_it_has) {
    CHECK(cuda_needs_waits(2 * 5, run_gathers));
}

/* A rank that opens the other's memory by a handle of it. */
static int handles_rank(World *w, void *ctx) {
    Err e;
    device_open(world_rank(w), 4096);
    world_use_nccl(w);
    if (!world_share_memory(w, &e)) die("%s", e.text);
    int result = gather_rounds(w, ctx);
    world_release_devices(w);
    device_close();
    return result;
}

/* The third wait and the fourth are for the same: this rank's own block. */
static int run_handles(int forget, unsigned seed) {
    Rounds r = {.s = by_streams, .forget = forget, .handles = true};
    EmuSetup s = on(2, seed);
    if (forget / 2 == 2 || forget / 2 == 3) return 1;
    s.ipc_within = true;
    emu_set(s);
    ranks_run(2, handles_rank, &r);
    emu_set((EmuSetup){0});
    return r.wrong;
}

/* Before the copies, for both of x; before each block is read; and before x is written again. */
TEST_EMULATED(cuda_fused_all_gather_between_processes_needs_each_wait_that_it_has) {
    CHECK(cuda_needs_waits(2 * 6, run_handles));
}

TEST_EMULATED(cuda_fused_all_gather_needs_its_flags) {
    Rounds with = {.s = by_flags, .forget = -1}, without = with;
    for (unsigned seed = 0; seed < 3; seed++) cuda_ranks_run(2, on(2, seed), gather_rounds, &with);
    for (unsigned seed = 0; seed < 9 && !without.wrong; seed++) { // late blocks, in some order
        EmuSetup s = on(2, seed);
        s.forget_flags = true;
        cuda_ranks_run(2, s, gather_rounds, &without);
    }
    CHECK(with.wrong == 0 && without.wrong > 0);
}

/* The third wait of a rank is the one for what its matmul may begin behind. Without it a matmul may
 * have all multiprocessors while x is still to be made. */
static void begin_too_early(UNUSED void *ctx) {
    for (unsigned seed = 1; seed < 100; seed++) {
        Rounds r = {.s = by_flags, .forget = 2 * 2};
        cuda_ranks_run(2, on(2, seed), gather_rounds, &r);
    }
}

static void lose_flags(UNUSED void *ctx) {
    Rounds r = {.s = by_flags, .forget = -1, .limit = 0.3};
    cuda_ranks_run(2, (EmuSetup){.late = true, .devices = 2, .lose_flags = true}, gather_rounds,
                   &r);
}

TEST_EMULATED(cuda_fused_all_gather_ends_where_a_flag_never_comes) {
    CHECK_CHILD(1, begin_too_early, NULL, "wait for ever", "a flag of a copy");
    CHECK_CHILD(75, lose_flags, NULL, "matmul with all_gather \"x of up\"", "not there: ");
}

/* ---- blocks that come from the host while a kernel waits for them. One rank: on a single device
 * ranks share it, and then streams wait instead of kernels */

enum { COME_ROWS = 128, COME_N = 72, COME_K = 136, COME_BLOCKS = 4 };
typedef struct Coming {
    Matmul p; // of h
    Array h, y;
    uint16_t *x; // pinned: what h will be
    uint32_t *flags;
    Stream copies;
    Event poisoned, copied;
} Coming;

/* Copies from pinned memory are copy engines' work, for which no kernel is in the way. */
static void come(const Coming *c, int first, uint32_t ready_value) {
    const int64_t some = COME_ROWS * COME_K;
    for (int i = 0; i < COME_BLOCKS; i++) {
        int at = (first + i) % COME_BLOCKS;
        if (test_on_device) usleep(300 * (ready_value + (unsigned)i) % 700);
        device_check((int)cudaMemcpyAsync((char *)c->h.device + at * some * 2, c->x + at * some,
                                          (size_t)some * 2, cudaMemcpyHostToDevice, c->copies));
        device_write_value(c->copies, c->flags + at, ready_value);
    }
    device_record(c->copied, c->copies);
}

/* y, of an h that is not there when the kernel begins. early: flags say that it is. */
static void run_coming(Coming *c, int config, uint32_t ready_value, bool early) {
    RowBlocks blocks = {.rows = COME_ROWS, .n = COME_BLOCKS, .matrix = BLOCKS_OF_A};
    Matmul p = c->p;
    blocks.first = (int)ready_value % COME_BLOCKS, blocks.flags = c->flags,
    blocks.ready_value = ready_value;
    p.blocks = &blocks;
    device_poison(c->h.device, (size_t)c->h.n * 2), device_poison(c->y.device, (size_t)c->y.n * 2);
    for (int i = 0; i < COME_BLOCKS && early; i++)
        device_write_value(device_stream(), c->flags + i, ready_value);
    device_record(c->poisoned, device_stream());
    device_stream_wait(c->copies, c->poisoned);
    CHECK(!matmul_sm90_refuses(&p, 2));
    matmul_sm90(&p, config);
    if (early) device_wait();
    come(c, blocks.first, ready_value);
    device_event_synchronize(c->copied);
    array_get(&c->y);
}

static void takes_blocks(unsigned seed) {
    const int64_t rows = COME_BLOCKS * COME_ROWS;
    Coming c = {.h = array_empty(rows * COME_K, true, 0), .y = array_empty(rows * COME_N, true, 0)};
    Array x = array_random(rows * COME_K, 1, seed + 1, true, 0),
          w = array_random(COME_K * COME_N, 1, 9, true, 0);
    int config[MATMUL_CONFIGS];
    c.x = device_pin((size_t)x.n * 2);
    for (int64_t i = 0; i < x.n; i++) {
        uint32_t u;
        memcpy(&u, &x.host[i], sizeof u);
        c.x[i] = (uint16_t)(u >> 16);
    }
    c.flags = device_alloc(COME_BLOCKS * sizeof *c.flags);
    device_zero(c.flags, COME_BLOCKS * sizeof *c.flags);
    c.copies = device_comm_stream(), c.poisoned = device_event(), c.copied = device_event();
    c.p = matmul_forward(rows, COME_K, COME_N, x.device, COME_K, w.device);
    c.p.y = c.y.device, c.p.workspace = cuda_take(WORKSPACE, 1, 0);
    whole_sums(&c.p, &(Sizes){.backend = BACKEND_SM90});
    array_get(&c.y);
    size_t bytes = (size_t)c.y.n * sizeof *c.y.host;
    float *want = memcpy(mem_alloc(bytes), c.y.host, bytes);
    c.p.a = c.h.device;
    RowBlocks some = {.rows = COME_ROWS, .n = COME_BLOCKS, .matrix = BLOCKS_OF_A, .flags = c.flags};
    c.p.blocks = &some;
    int n = matmul_sm90_configs(&c.p, config);
    uint32_t ready_value = 0;
    CHECK(n == 6); // each width, alone and in clusters
    for (int i = 0; i < n && !test_failed(); i++) {
        run_coming(&c, config[i], ++ready_value, false);
        CHECK(memcmp(c.y.host, want, bytes) == 0);
    }
    run_coming(&c, config[0], ++ready_value, true);
    CHECK(memcmp(c.y.host, want, bytes) != 0);
    mem_free(want), device_unpin(c.x), device_free(c.flags);
    device_event_free(c.poisoned), device_event_free(c.copied), device_stream_free(c.copies);
}

TEST(cuda_fused_kernel_takes_blocks_as_they_come) {
    for (unsigned seed = 1; seed < (BASE_DEBUG ? 2 : 4); seed++) {
        cuda_begin(on(1, seed));
        if (!device_is_sm90()) test_skip("the device is not of capability 9.0");
        if (device_is_sm90()) takes_blocks(seed);
        CHECK(cuda_end());
    }
}
