/* The program of a step on emulated GPUs, ranks as threads, against the step of block.c on the same
 * GPUs: the same kernels, so the same bits, whatever order threads and streams run in. */
#include "tests/test.h"

#include <stdatomic.h>

#include "base/debug.h"
#include "tests/cuda.h"
#include "tests/emu/calls.h"
#include "tests/emu/nccl.h"
#include "tests/mesh_run.h"

static const char *const models[] = {
    "layers=2,heads=4,channels=16,seq=4,vocab=13",
    "llama,layers=1,heads=4,kv_heads=2,channels=16,ffn=20,seq=4,vocab=13",
    "layers=2,heads=2,channels=10,seq=4,vocab=13,tied=0,act=relu2"};

enum { STEPS = 2 };

typedef struct Case {
    int model;
    const char *layout, *overlap;
    int devices, micro; // sequences of a micro-batch; 0: all at once
    Recompute recompute;
    bool bf16;
    double apart; // 0: the same bits
} Case;

static atomic_int unpredicted; // of the last run: what it sent and held, and its price has not

static void look(Model *m, int step, void *ctx) {
    const MeshRun *r = ctx;
    if (step > 0) unpredicted += mesh_unpredicted(m, r, kernels_cuda_sizes(r->bf16));
    world_count_reset(m->grid->world);
}

static MeshRun run_on(const Case *c, bool program, ReplayWhere replay, int order) {
    MeshRun r = {.model = models[c->model], .layout = c->layout, .overlap = c->overlap};
    r.sequences = 4, r.S = 4, r.micro = c->micro, r.steps = STEPS;
    r.recompute = c->recompute, r.bf16 = c->bf16;
    r.cuda = true, r.program = program, r.replay = replay;
    if (program) r.after = look, r.ctx = &r;
    unpredicted = 0;
    emu_set_devices(c->devices);
    emu_set_order(order ? EMU_RANDOM : EMU_FORWARD, 3);
    emu_set_late(order > 0), emu_set_shuffle(order > 1 ? (unsigned)order : 0);
    mesh_run(&r);
    emu_set_late(false), emu_set_shuffle(0);
    emu_set_order(EMU_FORWARD, 0);
    emu_set_devices(1);
    return r;
}

/* Sanitizers are slow. */
static int every(void) {
    return BASE_DEBUG && !test_long() ? 3 : 1;
}

static bool same(const char *what, const Case *c, const MeshRun *got, const MeshRun *want) {
    MeshDiff d = mesh_diff(got, want);
    bool good = got->agreed && unpredicted == 0 && d.loss <= c->apart && d.norm <= c->apart &&
                d.weights <= 10 * c->apart;
    if (!good)
        printf("    %s, %s, %s%s: loss %.2g, norm %.2g, weights %.2g%s\n", what, c->layout,
               c->overlap, c->bf16 ? ", bf16" : "", d.loss, d.norm, d.weights,
               got->agreed ? "" : "; ranks disagree");
    return good;
}

TEST(cuda_step_program_has_the_bits_of_the_step) {
    NEEDS_EMULATION();
    static const Case cases[] = {{0, "d1", "none", 1, 0, RECOMPUTE_NONE, false, 0},
                                 {1, "d1", "bulk", 1, 2, RECOMPUTE_FULL, true, 0},
                                 {2, "x2", "none", 1, 0, RECOMPUTE_FULL, true,
                                  0}, // hidden features that are no multiple of 8
                                 {1, "x2+sp", "bulk", 2, 2, RECOMPUTE_FULL, false, 0},
                                 {2, "y2", "bulk", 1, 0, RECOMPUTE_SELECTIVE, true, 0},
                                 {1, "x2.y2+heads", "bulk", 4, 1, RECOMPUTE_NONE, true, 0},
                                 {0, "d2.x2+zero1", "none", 1, 1, RECOMPUTE_NONE, true, 0},
                                 {0, "z2.x2+sp", "bulk", 4, 1, RECOMPUTE_FULL, false, 1e-6},
                                 {2, "d2+zero3", "bulk", 2, 1, RECOMPUTE_SELECTIVE, false, 0},
                                 // the library adds the bias before it rounds the last panel's sum
                                 {2, "x2.y2+stay=y", "bulk", 4, 1, RECOMPUTE_NONE, false, 1e-6},
                                 {1, "x2+stay=y", "none", 1, 1, RECOMPUTE_FULL, true, 0},
                                 {1, "x3+sp", "bulk+ring", 3, 0, RECOMPUTE_NONE, false, 0},
                                 {0, "x2+sp", "chunk=2", 2, 0, RECOMPUTE_SELECTIVE, true, 0},
                                 {1, "d2.x2", "bulk+halves", 1, 0, RECOMPUTE_NONE, true, 0}};
    enum { N_CASES = sizeof cases / sizeof *cases };
    int wrong = 0;
    for (int i = 0; i < N_CASES; i += every()) {
        const Case *c = &cases[i];
        emu_set_peers(c->devices == 1); // else by NCCL
        MeshRun was = run_on(c, false, REPLAY_NEVER, 0), is = run_on(c, true, REPLAY_NEVER, i % 4);
        wrong += !same("bits", c, &is, &was);
        mesh_run_free(&was), mesh_run_free(&is);
    }
    emu_set_peers(true);
    CHECK(wrong == 0);
}

/* Of each kind the first micro-batch on a model is called, all others are replayed: each by one
 * call of each rank. */
TEST(cuda_step_program_replays_the_bits_of_calls) {
    NEEDS_EMULATION();
    static const struct {
        Case c;
        int ranks, micro_steps, kinds;
    } cases[] = {{{0, "d1", "none", 1, 2, RECOMPUTE_NONE, true, 0}, 1, 2, 2},
                 {{1, "x2+sp", "bulk", 2, 1, RECOMPUTE_FULL, false, 0}, 2, 4, 3},
                 {{2, "x2.y2+heads", "bulk+halves", 4, 4, RECOMPUTE_NONE, false, 0}, 4, 1, 1},
                 {{0, "d2+zero2", "none", 2, 1, RECOMPUTE_SELECTIVE, true, 0}, 2, 2, 2}};
    for (int i = 0; i < 4; i += every()) {
        const Case *c = &cases[i].c;
        emu_set_peers(c->devices == 1);
        MeshRun called = run_on(c, true, REPLAY_NEVER, 0);
        int64_t before = emu_calls.replays;
        MeshRun replayed = run_on(c, true, REPLAY_ALWAYS, i);
        int64_t replays = emu_calls.replays - before,
                expected = cases[i].ranks * (cases[i].micro_steps * STEPS - cases[i].kinds);
        CHECK(same("replayed", c, &replayed, &called));
        if (replays != expected)
            printf("    %s: %lld replays instead of %lld\n", c->layout, (long long)replays,
                   (long long)expected);
        CHECK(replays == expected && emu_nccl_open() == 0);
        mesh_run_free(&called), mesh_run_free(&replayed);
    }
    emu_set_peers(true);
}

/* Sums of gradients run beside the backward pass of the layers before: products then leave
 * multiprocessors to them. */
TEST(cuda_step_program_sums_gradients_under_backward) {
    NEEDS_EMULATION();
    static const Case cases[] = {{0, "d2", "none", 2, 1, RECOMPUTE_NONE, true, 0},
                                 {0, "d2", "bulk", 2, 1, RECOMPUTE_NONE, true, 0},
                                 {0, "d2+zero1", "bulk", 2, 1, RECOMPUTE_FULL, true, 0}};
    emu_set_peers(false);
    for (int i = 0; i < 3; i++) {
        int64_t beside[2];
        MeshRun r[2];
        for (int program = 0; program < 2; program++) {
            beside[program] = emu_calls.narrow;
            r[program] = run_on(&cases[i], program, REPLAY_NEVER, 2);
            beside[program] = emu_calls.narrow - beside[program];
        }
        CHECK(same("sums", &cases[i], &r[1], &r[0]));
        // the old step begins those of a layer one layer later
        CHECK((beside[1] > 0) == (i > 0) && beside[1] >= beside[0]);
        mesh_run_free(&r[0]), mesh_run_free(&r[1]);
    }
    emu_set_peers(true);
}
