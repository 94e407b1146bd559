/* The program of a step on emulated GPUs, ranks as threads: the same bits whatever order threads
 * and streams run in. That replays have them too, and that they are those of the CPU but for
 * rounding, is tested by test_cuda_mesh.c, test_cuda_replay.c and test_cuda_model.c. */
#include "tests/test.h"

#include "base/debug.h"
#include "tests/cuda_test.h"
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
} Case;

/* Ranks with a device each are apart: by NCCL. */
static MeshRun run_on(const Case *c, ReplayWhere replay, int order) {
    MeshRun r = {.model = models[c->model], .layout = c->layout, .overlap = c->overlap};
    r.sequences = 4, r.S = 4, r.micro = c->micro, r.steps = STEPS;
    r.recompute = c->recompute, r.bf16 = c->bf16;
    r.cuda = true, r.replay = replay;
    r.priced = true;
    r.emu = (EmuSetup){order ? EMU_RANDOM : EMU_FORWARD, 3, .late = order > 0};
    r.emu.shuffle = order > 1 ? (unsigned)order : 0;
    r.emu.devices = c->devices, r.emu.apart = c->devices > 1;
    mesh_run(&r);
    return r;
}

/* Sanitizers are slow. */
static int every(void) {
    return BASE_DEBUG && !test_long() ? 3 : 1;
}

TEST_EMULATED(cuda_step_program_has_the_same_bits_in_any_order) {
    static const Case cases[] = {{0, "d1", "none", 1, 0, RECOMPUTE_NONE, false},
                                 {1, "d1", "bulk", 1, 2, RECOMPUTE_FULL, true},
                                 // hidden features that are no multiple of 8
                                 {2, "x2", "none", 1, 0, RECOMPUTE_FULL, true},
                                 {1, "x2+sp", "bulk", 2, 2, RECOMPUTE_FULL, false},
                                 {2, "y2", "bulk", 1, 0, RECOMPUTE_SELECTIVE, true},
                                 {1, "x2.y2+heads", "bulk", 4, 1, RECOMPUTE_NONE, true},
                                 {0, "d2.x2+zero1", "none", 1, 1, RECOMPUTE_NONE, true},
                                 {0, "z2.x2+sp", "bulk", 4, 1, RECOMPUTE_FULL, false},
                                 {2, "d2+zero3", "bulk", 2, 1, RECOMPUTE_SELECTIVE, false},
                                 {2, "x2.y2+stay=y", "bulk", 4, 1, RECOMPUTE_NONE, false},
                                 {1, "x2+stay=y", "none", 1, 1, RECOMPUTE_FULL, true},
                                 {1, "x3+sp", "bulk+ring", 3, 0, RECOMPUTE_NONE, false},
                                 {0, "x2+sp", "chunk=2", 2, 0, RECOMPUTE_SELECTIVE, true},
                                 {1, "d2.x2+zero2", "bulk+halves", 1, 0, RECOMPUTE_NONE, true}};
    enum { N_CASES = sizeof cases / sizeof *cases };
    int wrong = 0;
    for (int i = 0; i < N_CASES; i += every()) {
        const Case *c = &cases[i];
        OWNED(mesh_run_free)
        MeshRun was = run_on(c, REPLAY_NEVER, 0), is = run_on(c, REPLAY_NEVER, 1 + i % 3);
        wrong += !mesh_near(&is, &was, (MeshDiff){0, 0, 0}) + (is.unpredicted > 0);
    }
    CHECK(wrong == 0);
}
