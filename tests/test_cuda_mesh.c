/* Tensor parallelism on emulated GPUs, ranks as threads: every layout trains what one rank trains,
 * and what the CPU trains on the same layout, whatever order streams run in. */
#include "tests/test.h"

#include <stdatomic.h>

#include "base/debug.h"
#include "layers/cuda/matmuls.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/step/mirror.h"
#include "tests/cuda_test.h"
#include "tests/emu/calls.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_nccl.h"
#include "tests/mesh_run.h"

static const char model[] = "layers=2,heads=4,channels=16,seq=4,vocab=13";
static const char small[] = "layers=1,heads=2,channels=10,seq=4,vocab=13";
static const char llama[] = "llama,layers=1,heads=4,kv_heads=2,channels=16,ffn=20,seq=4,vocab=13,"
                            "head_dim=8,qk_norm=1";

static MeshRun run_on(MeshRun r, EmuSetup s) {
    s.order = s.late ? EMU_RANDOM : EMU_FORWARD, s.seed = 3;
    r.emu = s;
    r.sequences = 4;
    if (!r.S) r.S = 4;
    if (r.after) r.ctx = &r;
    mesh_run(&r);
    return r;
}

/* A layout with flags of --overlap, on so many GPUs. */
typedef struct Case {
    const char *layout, *overlap;
    int devices;
    const char *next; // the layout of the last steps; NULL: the same
} Case;

/* As other orders of sums in fp32 are. */
static const MeshDiff near = {.loss = 2e-6, .norm = 1e-5, .weights = 2e-4};

/* apart: by NCCL. */
static int wrong_of(const char *config, const Case *cases, int n, bool apart) {
    OWNED(mesh_run_free)
    MeshRun one = run_on((MeshRun){.model = config, .layout = "d1", .cuda = true}, (EmuSetup){0});
    int wrong = 0;
    for (int i = 0; i < n; i += BASE_DEBUG && !test_long() ? 4 : 1) { // sanitizers are slow
        const Case *c = &cases[i];
        MeshRun r = {.model = config, .layout = c->layout, .overlap = c->overlap};
        r.next = c->next, r.move = 2;
        r.in_halves = !strstr(c->overlap, "halves"); // the same sums with halves and without
        OWNED(mesh_run_free) MeshRun cpu = run_on(r, (EmuSetup){0});
        r.cuda = true;
        EmuSetup s = {.late = i % 3 > 0, .devices = c->devices, .apart = apart};
        s.shuffle = i % 3 == 2 ? (unsigned)i : 0;
        OWNED(mesh_run_free) MeshRun gpu = run_on(r, s);
        wrong += !mesh_near(&gpu, &one, near) + !mesh_near(&gpu, &cpu, near);
    }
    return wrong;
}

TEST(cuda_mesh_of_2_and_4_ranks_trains_what_one_rank_trains) {
    static const Case cases[] = {
        {"x2", "none", 1, NULL},           {"y2", "bulk", 2, NULL},
        {"z2", "bulk", 1, NULL},           {"d2", "bulk", 2, NULL},
        {"x2.y2", "bulk+halves", 1, NULL}, {"x2+sp", "bulk+chunk=2", 2, NULL},
        {"x2+sp", "bulk+ring", 1, NULL},   {"x4+sp", "chunk=2", 4, NULL},
        {"z2.x2", "bulk+halves", 2, NULL}, {"x2+sp", "fused", 2, NULL},
        {"x4+sp", "bulk+fused", 1, NULL},  {"x2.y2+sp", "bulk+fused+halves", 4, NULL}};
    CHECK(wrong_of(model, cases, N_OF(cases), false) == 0);
}

/* Sums of K in one order, of however many rows. */
static void own_matmuls(UNUSED Model *m, UNUSED void *ctx) {
    matmul_set_backend(BACKEND_TILED);
}

TEST(cuda_mesh_of_fused_matmuls_changes_no_bit) {
    static const char *const layouts[] = {"x2+sp", "x4+sp+heads", "x2.y2+sp", "z2.x2+sp"};
    for (int i = 0; i < (BASE_DEBUG ? 2 : 4); i++) {
        MeshRun r = {.model = i % 2 ? llama : model, .layout = layouts[i], .cuda = true};
        r.bf16 = i % 2, r.before = own_matmuls, r.overlap = "bulk";
        OWNED(mesh_run_free) MeshRun bulk = run_on(r, (EmuSetup){0});
        r.overlap = i % 3 ? "bulk+fused" : "fused";
        EmuSetup s = {.late = i > 0, .shuffle = (unsigned)i / 2, .devices = 1 + i % 4};
        OWNED(mesh_run_free) MeshRun fused = run_on(r, s);
        CHECK(mesh_same_bits(&fused, &bulk));
    }
}

/* Ranks with handles of each other's memory in the place of pointers. Their steps are not
 * recorded. */
TEST_EMULATED(cuda_mesh_of_fused_matmuls_between_processes_changes_no_bit) {
    static const char *const layouts[] = {"x2+sp", "d2.x2+sp", "z2.x2+sp", "x2.y2+sp", "x4+sp"};
    for (int i = 0; i < (BASE_DEBUG ? 2 : 5); i++) {
        MeshRun r = {.model = i % 2 ? llama : model, .layout = layouts[i], .cuda = true};
        r.bf16 = i % 2, r.before = own_matmuls, r.overlap = "bulk";
        r.ipc = true;
        EmuSetup s = {.devices = i ? 4 : 2, .ipc_within = true};
        double apart = i < 4 ? 0 : 2e-4; // NCCL sums four in another order than slots are
        r.replay = REPLAY_ALWAYS, r.next = i == 2 ? r.layout : NULL, r.move = 1;
        OWNED(mesh_run_free) MeshRun bulk = run_on(r, s);
        int64_t before = emu_calls.replays;
        r.overlap = i % 3 ? "bulk+fused" : "fused";
        s.late = i > 0, s.shuffle = (unsigned)i / 2;
        OWNED(mesh_run_free) MeshRun fused = run_on(r, s);
        CHECK(mesh_near(&fused, &bulk, (MeshDiff){apart, apart, apart}));
        CHECK(emu_calls.replays == before && emu_nccl_open() == 0);
    }
}

static void limit_waits(Model *m, UNUSED void *ctx) {
    world_set_limit(m->grid->world, 0.3);
}
static void lose_flags(UNUSED void *ctx) {
    MeshRun r = {.model = model, .layout = "x2+sp", .cuda = true, .ipc = true, .overlap = "fused"};
    r.before = limit_waits;
    run_on(r,
           (EmuSetup){
               .late = true, .shuffle = 1, .devices = 2, .ipc_within = true, .lose_flags = true});
}
/* As the library: handles are for other processes, and for devices that are reached. */
static void refuse_handles(UNUSED void *ctx) {
    MeshRun r = {.model = model, .layout = "x2+sp", .cuda = true, .ipc = true, .overlap = "fused"};
    run_on(r, (EmuSetup){.devices = 2});
}

TEST_EMULATED(cuda_mesh_of_fused_matmuls_between_processes_ends_where_a_flag_never_comes) {
    CHECK_CHILD(75, lose_flags, NULL, "matmul with ", "not there: rank ");
    CHECK_CHILD(1, refuse_handles, NULL,
                "CUDA IPC opens no memory: mapping of buffer object failed");
}

TEST(cuda_mesh_of_llama_and_stationary_outputs) {
    static const Case cases[] = {{"x2.y2+stay=y", "bulk", 1, NULL},
                                 {"x2.y2+heads", "none", 2, NULL},
                                 {"d2.x2+zero1", "bulk", 4, NULL},
                                 {"x4", "bulk", 2, NULL}}; // with copies of key heads
    CHECK(wrong_of(llama, cases, N_OF(cases), false) == 0);
}

static void tensor_cores(UNUSED Model *m, UNUSED void *ctx) {
    matmul_set_backend(BACKEND_SM90);
}

/* Blocks of whole tiles: one kernel, which waits for flags or stores in other ranks' memory. */
TEST_EMULATED(cuda_mesh_of_fused_matmuls_on_tensor_cores) {
    MeshRun r = {.model = "layers=1,heads=2,channels=32,seq=64,vocab=40", .layout = "x2+sp"};
    r.cuda = r.bf16 = true, r.before = tensor_cores, r.steps = 1, r.S = 64, r.overlap = "bulk";
    OWNED(mesh_run_free) MeshRun bulk = run_on(r, (EmuSetup){.devices = 2});
    r.overlap = "bulk+fused";
    for (int i = 0; i < 4; i++) {
        bool forget = i % 2, wrong = false; // in some order a block comes after it was read
        for (unsigned seed = 1; seed <= (forget ? 8 : 1) && !wrong; seed++) {
            EmuSetup s = {.late = true, .shuffle = seed, .devices = 2, .forget_flags = forget};
            r.ipc = s.ipc_within = i / 2;
            OWNED(mesh_run_free) MeshRun fused = run_on(r, s);
            wrong = !mesh_same_bits(&fused, &bulk);
        }
        CHECK(wrong == forget);
    }
}

/* ---- master weights and their bf16 copies */

static float masters[4096]; // of the logical model, by whoever holds them
static atomic_llong held, wrong_casts;

static void put_masters(Model *m) {
    const TensorTable *host = model_pull(m);
    float *to = masters;
    for (int i = 0; i < host->n; to += tensor_size(&host->t[i++])) {
        const Tensor *t = &host->t[i];
        TensorRun r;
        for (TensorRuns it = tensor_runs(t, PART_PARAM, true); tensor_next(&it, &r); held += r.n)
            memcpy(to + r.row * t->cols + r.col, t->param + r.offset, (size_t)r.n * sizeof *to);
    }
}

/* Elements of the copy that matmuls of this rank read which are not the rounded master weight. */
static int64_t wrong_casts_of(Model *m, const Tensor *t, const float *whole) {
    uint16_t copy[4096];
    int64_t wrong = 0;
    TensorRun r;
    model_get(m, copy, t->cast, (size_t)tensor_part(t, PART_CAST) * sizeof *copy);
    for (TensorRuns it = tensor_runs(t, PART_CAST, false); tensor_next(&it, &r);)
        for (int64_t j = 0; j < r.n; j++) {
            uint32_t bits = (uint32_t)copy[r.offset + j] << 16;
            float x;
            memcpy(&x, &bits, sizeof x);
            int64_t at = r.row * t->cols + r.col + j;
            wrong += x != rounded(whole[at], true);
        }
    return wrong;
}

static void check_casts(Model *m, UNUSED int step, UNUSED void *ctx) {
    Comm *all = world_comm(m->grid->world);
    const float *whole = masters;
    put_masters(m);
    coll_barrier(all);
    for (int i = 0; i < m->tensors.n; whole += tensor_size(&m->tensors.t[i++])) {
        const Tensor *t = &m->tensors.t[i];
        wrong_casts += (t->cast != t->param) != t->in_matmuls;
        if (t->cast != t->param) wrong_casts += wrong_casts_of(m, t, whole);
        wrong_casts += tensor_part(t, PART_PARAM) != tensor_part(t, PART_MOMENTS);
    }
    coll_barrier(all);
}

/* Relative; other orders of sums make other roundings to words. */
static double loss_apart(const MeshRun *a, const MeshRun *b, int steps) {
    double most = 0;
    for (int i = 0; i < steps; i++) most = fmax(most, fabs(a->loss[i] / b->loss[i] - 1));
    return most;
}

/* Whoever holds which part of the masters, and when a run has moved: the copies that matmuls read
 * are the rounded masters. With zero1 and zero2 a rank has the masters that its AdamW updates and
 * the copies of all. It trains the same model as ranks that have all masters. */
TEST(cuda_mesh_gathers_bf16_copies_of_sharded_masters) {
    enum { STEPS = 2 };
    static const struct {
        Case c;
        double apart; // 0: the bits are the same
    } cases[] = {{{"d2", "none", 1, "d2+zero2"}, 0},
                 {{"d2+zero1", "none", 1, NULL}, 0},
                 {{"d2+zero1", "bulk", 2, "d2+zero3"}, 0},
                 {{"d2+zero2", "bulk", 2, "d2"}, 0},
                 {{"d3+zero1", "bulk", 1, NULL}, 1e-3}, // parts of odd sizes
                 {{"d2.z2+zero1", "bulk", 1, "d2.x2+zero2"}, 1e-3},
                 {{"z2.x2+sp", "none", 1, "x2.y2+heads"}, 1e-3},
                 {{"x3+heads", "none", 1, "y3"}, 1e-3},
                 {{"d2+zero3", "none", 1, "x2+stay=y"}, 1e-3}};
    OWNED(mesh_run_free)
    MeshRun all = {.model = small, .layout = "d2", .cuda = true, .bf16 = true, .steps = STEPS};
    all = run_on(all, (EmuSetup){0});
    for (int i = 0; i < 9; i += BASE_DEBUG && !test_long() ? 4 : 1) { // sanitizers are slow
        const Case *c = &cases[i].c;
        OWNED(mesh_run_free)
        MeshRun r = {.model = small, .layout = c->layout, .overlap = c->overlap, .next = c->next};
        r.cuda = r.bf16 = true, r.steps = STEPS, r.move = 1, r.after = check_casts;
        held = wrong_casts = 0;
        EmuSetup s = {.late = i % 2 > 0, .shuffle = (unsigned)i, .devices = c->devices};
        s.apart = c->devices > 1; // by NCCL
        r = run_on(r, s);
        double apart = loss_apart(&r, &all, STEPS);
        CHECK(wrong_casts == 0 && held == r.n_params * STEPS);
        CHECK_SAYS(apart <= cases[i].apart, "%s: %g apart", c->layout, apart);
    }
}

/* Each rank has a device that the others do not reach; what NCCL can register of its memory depends
 * on the version. */
TEST_EMULATED(cuda_mesh_by_nccl_trains_what_one_rank_trains) {
    static const Case cases[] = {
        {"x2.y2", "bulk+halves", 4, "d2.x2+zero1"}, {"x2+sp", "bulk+ring", 2, NULL},
        {"d2.x2+zero1", "bulk", 4, NULL},           {"y3", "bulk", 3, "z3"},
        {"x3+sp", "bulk", 3, "d3+zero2"},           {"x2.y2+heads", "chunk=2", 4, "x2.y2+stay=y"}};
    static const int versions[] = {22809, 21903, 21801};
    for (int i = 0; i < (test_long() ? 6 : 3); i++) {
        emu_nccl_version(versions[i % 3]);
        int wrong = wrong_of(model, &cases[i], 1, true);
        EmuNcclCounts n = emu_nccl_counts();
        emu_nccl_version(22809);
        CHECK(wrong == 0 && emu_nccl_open() == 0 && n.registered == 0);
        CHECK(n.calls > 0 && (versions[i % 3] < 21900 ? n.direct == 0 : n.direct > n.calls / 2));
    }
}

/* What a step sends lies in memory that NCCL knows, blocks that do not touch, too. */
TEST_EMULATED(cuda_mesh_by_nccl_sends_from_and_to_registered_memory) {
    static const Case cases[] = {
        {"x2.y2", "bulk+halves", 4, NULL}, {"x2.y2+sp+heads", "chunk=2", 4, NULL},
        {"y3+heads", "none", 3, NULL},     {"x3+sp", "chunk=4", 3, NULL},
        {"x2.y2+stay=y", "bulk", 4, NULL}, {"z2.x2+zero2", "bulk+ring", 4, NULL}};
    static const int versions[] = {22809, 21903};
    for (int i = 0; i < 6; i += BASE_DEBUG && !test_long() ? 3 : 1) { // sanitizers are slow
        OWNED(mesh_run_free)
        MeshRun r = {.model = i % 2 ? llama : model,
                     .layout = cases[i].layout,
                     .overlap = cases[i].overlap,
                     .recompute = (Recompute)(i % 3),
                     .cuda = true,
                     .steps = 1};
        emu_nccl_version(versions[i % 2]);
        r = run_on(r, (EmuSetup){.devices = cases[i].devices, .apart = true});
        EmuNcclCounts n = emu_nccl_counts();
        CHECK_SAYS(n.calls > 0 && n.direct == n.calls, "%s: %lld of %lld calls", cases[i].layout,
                   (long long)n.direct, (long long)n.calls);
    }
    emu_nccl_version(22809);
}

/* Threads and streams may run in any order. */
TEST_EMULATED(cuda_mesh_has_the_same_bits_in_any_order) {
    static const char relu2[] = "layers=2,heads=2,channels=10,seq=4,vocab=13,tied=0,act=relu2";
    static const struct {
        const char *model, *layout, *overlap;
        int devices, micro; // sequences of a micro-batch; 0: all at once
        Recompute recompute;
        bool bf16;
    } cases[] = {{model, "d1", "none", 1, 0, RECOMPUTE_NONE, false},
                 {llama, "d1", "bulk", 1, 2, RECOMPUTE_FULL, true},
                 // hidden features that are no multiple of 8
                 {relu2, "x2", "none", 1, 0, RECOMPUTE_FULL, true},
                 {llama, "x2+sp", "bulk", 2, 2, RECOMPUTE_FULL, false},
                 {relu2, "y2", "bulk", 1, 0, RECOMPUTE_SELECTIVE, true},
                 {llama, "x2.y2+heads", "bulk", 4, 1, RECOMPUTE_NONE, true},
                 {model, "d2.x2+zero1", "none", 1, 1, RECOMPUTE_NONE, true},
                 {model, "z2.x2+sp", "bulk", 4, 1, RECOMPUTE_FULL, false},
                 {relu2, "d2+zero3", "bulk", 2, 1, RECOMPUTE_SELECTIVE, false},
                 {relu2, "x2.y2+stay=y", "bulk", 4, 1, RECOMPUTE_NONE, false},
                 {llama, "x2+stay=y", "none", 1, 1, RECOMPUTE_FULL, true},
                 {llama, "x3+sp", "bulk+ring", 3, 0, RECOMPUTE_NONE, false},
                 {model, "x2+sp", "chunk=2", 2, 0, RECOMPUTE_SELECTIVE, true},
                 {llama, "d2.x2+zero2", "bulk+halves", 1, 0, RECOMPUTE_NONE, true}};
    for (int i = 0; i < N_OF(cases); i += BASE_DEBUG && !test_long() ? 3 : 1) {
        MeshRun r = {.model = cases[i].model, .layout = cases[i].layout, .micro = cases[i].micro};
        r.overlap = cases[i].overlap, r.recompute = cases[i].recompute, r.bf16 = cases[i].bf16;
        r.cuda = r.priced = true, r.replay = REPLAY_NEVER, r.steps = 2;
        EmuSetup s = {.devices = cases[i].devices, .apart = cases[i].devices > 1}; // by NCCL
        OWNED(mesh_run_free) MeshRun was = run_on(r, s);
        s.late = true, s.shuffle = i % 3 ? 1 + (unsigned)i % 3 : 0;
        OWNED(mesh_run_free) MeshRun is = run_on(r, s);
        CHECK(mesh_near(&is, &was, (MeshDiff){0, 0, 0}) && is.unpredicted == 0);
    }
}

/* ---- recorded micro-batches */

enum {
    STAY = 2
}; // steps on a layout: of a kind, at least one micro-batch is called, one is replayed

/* A layout with flags of --overlap. */
typedef struct Recorded {
    const char *layout, *overlap;
    int ranks, micro;         // sequences of a micro-batch; 0: all
    int kinds, micro_batches; // of a step then
    Recompute recompute;
    bool bf16;
    const char *next; // as in Case
} Recorded;

static MeshRun run_recorded(const Recorded *c, ReplayWhere where, EmuSetup s) {
    MeshRun r = {.model = model, .layout = c->layout, .overlap = c->overlap, .micro = c->micro};
    r.recompute = c->recompute, r.bf16 = c->bf16, r.next = c->next, r.move = STAY;
    r.steps = c->next ? 2 * STAY : STAY;
    r.cuda = true, r.replay = where, r.priced = !c->next;
    s.devices = c->ranks;
    return run_on(r, s);
}

/* Of each kind the first micro-batch on a model is called, all others are replayed: each by one
 * call of each rank. */
static int64_t replays_of(const Recorded *c) {
    return c->ranks * (c->micro_batches * STAY - c->kinds) * (c->next ? 2 : 1);
}

TEST_EMULATED(cuda_mesh_by_nccl_replays_the_bits_and_bytes_of_calls) {
    static const Recorded cases[] = {
        {"x2+sp", "bulk+ring", 2, 1, 3, 4, RECOMPUTE_NONE, false, NULL},
        {"d2+zero1", "bulk", 2, 1, 2, 2, RECOMPUTE_FULL, true, NULL},
        {"z2.x2", "bulk", 4, 0, 1, 1, RECOMPUTE_NONE, false, NULL},
        {"y2", "none", 2, 2, 2, 2, RECOMPUTE_SELECTIVE, false, "x2"},
        {"x2", "bulk+halves", 2, 4, 1, 1, RECOMPUTE_NONE, true, NULL},
        {"x2.y2+heads", "chunk=2", 4, 4, 1, 1, RECOMPUTE_NONE, false, NULL},
        {"d1", "none", 1, 2, 2, 2, RECOMPUTE_NONE, true, "d1"}, // another model
        {"x2.y2+stay=y", "bulk", 4, 2, 2, 2, RECOMPUTE_NONE, false, NULL},
        {"d2", "bulk", 2, 1, 2, 2, RECOMPUTE_NONE, false, "z2"},
        {"d2.x2", "bulk+halves", 4, 2, 1, 1, RECOMPUTE_FULL, false, NULL}};
    static const int versions[] = {22809, 21903, 21801};
    for (int i = 0; i < (test_long() ? 10 : 7); i += BASE_DEBUG && !test_long() ? 3 : 1) {
        EmuSetup s = {.late = i % 3 > 0, .shuffle = i % 3 == 2 ? 5 : 0, .apart = true};
        emu_nccl_version(versions[i % 3]);
        OWNED(mesh_run_free) MeshRun called = run_recorded(&cases[i], REPLAY_NEVER, s);
        int64_t before = emu_calls.replays;
        OWNED(mesh_run_free) MeshRun replayed = run_recorded(&cases[i], REPLAY_ALWAYS, s);
        int64_t replays = emu_calls.replays - before;
        bool same = mesh_same_bits(&called, &replayed);
        CHECK_SAYS(same && replays == replays_of(&cases[i]),
                   "%s, %s: %s bits, %lld replays instead of %lld", cases[i].layout,
                   cases[i].overlap, same ? "the same" : "other", (long long)replays,
                   (long long)replays_of(&cases[i]));
        CHECK(called.unpredicted + replayed.unpredicted == 0 && emu_nccl_open() == 0);
    }
    emu_nccl_version(22809);
}

/* Threads of one process do so on request alone; ranks that share memory never. */
TEST_EMULATED(cuda_mesh_records_where_it_is_safe) {
    static const Recorded d2 = {"d2", "none", 2, 0, 1, 1, RECOMPUTE_NONE, false, NULL};
    for (int peers = 0; peers < 2; peers++) {
        int64_t before = emu_calls.replays;
        ReplayWhere where = peers ? REPLAY_ALWAYS : REPLAY_AUTO;
        OWNED(mesh_run_free) MeshRun r = run_recorded(&d2, where, (EmuSetup){.apart = !peers});
        CHECK(emu_calls.replays == before);
    }
}
