/* Micro-batches that are recorded and replayed: the bits of those that are called; and what is done
 * before the first step. */
#include "tests/parsed.h"
#include "tests/test.h"

#include "base/rng.h"
#include "layers/cuda/matmuls.h"
#include "parallel/step/generate.h"
#include "parallel/step/mirror.h"
#include "tests/cuda_test.h"
#include "tests/emu/calls.h"
#include "tests/emu/emu_cublaslt.h"

enum { STEPS = 6, SEQUENCES = 4, B = SEQUENCES / 2, S = 8, VOCAB = 37, TOKENS = SEQUENCES * S };

static const char gpt2[] = "layers=1,heads=2,channels=16,seq=8,vocab=37",
                  llama[] = "llama,layers=1,heads=2,channels=16,ffn=24,seq=8,vocab=37";

/* A model of two sequences, half of a step. */
static Model model_of(const char *config, ModelShape shape, Team *team) {
    Model m;
    shape.config = config_of(config), shape.B = B, shape.S = S, shape.training = true;
    model_plan(&m, &shape, kernels_cuda(shape.bf16), team);
    model_allocate(&m);
    tensors_init(model_host(&m), team, 7);
    model_push(&m);
    return m;
}

static void fill_tokens(int step, int32_t *inputs, int32_t *targets) {
    for (int i = 0; i < TOKENS; i++) {
        inputs[i] = (int32_t)(rng_u64(1, (uint64_t)step, (uint64_t)i) % VOCAB);
        targets[i] = (inputs[i] * 5 + 3) % VOCAB;
    }
}

static StepSums step_of(Model *m, int step) {
    int32_t inputs[TOKENS], targets[TOKENS];
    AdamW o = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    o.lr = 0.01 / (step + 1), o.step = step + 1;
    float scale = (step == 3 ? 2.0f : 1.0f) / TOKENS; // no recording of another scale is right
    fill_tokens(step, inputs, targets);
    model_zero_grads(m, SEQUENCES / B);
    for (int at = 0; at < TOKENS; at += B * S) model_step(m, inputs + at, targets + at, scale);
    model_sums_begin(m);
    model_update_clipped(m, &o, 0.5);
    return model_sums_end(m);
}

/* What comes between steps, with the buffers of the steps: the loss and a logit. */
static void look(Model *m, double seen[2]) {
    int32_t inputs[TOKENS], targets[TOKENS];
    fill_tokens(99, inputs, targets);
    model_zero_losses(m);
    model_loss(m, inputs, targets, NULL);
    seen[0] = model_losses(m);
    Generator *g = generator_create(m);
    generator_prompt(g, inputs, 3);
    seen[1] = (double)generator_next(g, inputs[3])[1];
    generator_free(g);
}

/* On another model, and by NCCL: cuda_mesh_by_nccl_replays_... */
TEST(cuda_replay_changes_no_bit) {
    static const ModelShape shapes[] = {{.bf16 = false},
                                        {.recompute = RECOMPUTE_FULL, .bf16 = true},
                                        {.bf16 = true, .overlap.halves = true}};
    // all steps but the first, that of another scale and the one that comes back
    enum { REPLAYED = STEPS - 3 };
    for (int i = 0; i < 3; i++) {
        StepSums sums[2][STEPS];
        double seen[2][2][2]; // after the second step, after the last
        for (int replay = 0; replay < 2; replay++) {
            ModelShape shape = shapes[i];
            shape.replay = replay ? REPLAY_AUTO : REPLAY_NEVER;
            EmuSetup s = cuda_orders[i ? 2 : 0];
            s.shuffle = i ? 5 : 0;
            cuda_begin(s);
            OWNED(test_team_end) Team *team = team_create(1);
            Model m = model_of(i == 1 ? llama : gpt2, shape, team);
            int64_t before = emu_calls.replays;
            for (int step = 0; step < STEPS; step++) {
                sums[replay][step] = step_of(&m, step);
                if (step == 1) look(&m, seen[replay][0]);
                if (step == STEPS - 1) look(&m, seen[replay][1]);
            }
            CHECK(test_on_device ||
                  emu_calls.replays - before == (replay ? REPLAYED * SEQUENCES / B : 0));
            model_free(&m);
            CHECK(cuda_end());
        }
        CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
        CHECK(memcmp(seen[0], seen[1], sizeof seen[0]) == 0);
        CHECK(sums[0][STEPS - 1].loss < sums[0][0].loss);
    }
}

/* Nothing is chosen, allocated or recorded in a step, and what was done before has changed
 * nothing. */
TEST_EMULATED(cuda_replay_prepares_what_steps_would_meet) {
    double loss[3] = {0};
    for (int way = 0; way < 3; way++) { // not prepared, prepared, chosen by time
        int32_t inputs[TOKENS], targets[TOKENS];
        fill_tokens(0, inputs, targets);
        cuda_begin(cuda_orders[0]);
        OWNED(test_team_end) Team *team = team_create(1);
        Model m = model_of(gpt2, (ModelShape){.replay = true}, team);
        EmuLt lt = emu_lt;
        cuda_forget_choices();
        if (way > 0) replay_prepare(&m, inputs, targets, 1.0f / TOKENS, 2, way == 2);
        // which are not those that the library proposes first
        CHECK((emu_lt.runs[3] > lt.runs[3] && emu_lt.runs[4] > lt.runs[4]) == (way == 2));
        MatmulCounts plans = matmul_counts();
        EmuCalls before = emu_calls;
        for (int step = 0; step < 3; step++) loss[way] = step_of(&m, step).loss;
        bool made_none = matmul_counts().plans == plans.plans &&
                         emu_calls.choices == before.choices && emu_calls.memory == before.memory &&
                         emu_calls.objects == before.objects;
        CHECK(made_none == (way > 0));
        CHECK(emu_calls.waits - before.waits == 3);
        model_free(&m);
        CHECK(cuda_end());
    }
    CHECK(loss[1] == loss[0]);
    CHECK_NEAR(loss[2], loss[0], 1e-4 * loss[0]); // algorithms add in other orders
}

TEST_EMULATED(cuda_replay_times_a_matmul_once_for_all_layers) {
    int64_t waits[2];
    for (int deep = 0; deep < 2; deep++) {
        int32_t inputs[TOKENS], targets[TOKENS];
        fill_tokens(0, inputs, targets);
        cuda_begin(cuda_orders[0]);
        OWNED(test_team_end) Team *team = team_create(1);
        const char *config =
            test_path("layers=%d,heads=2,channels=16,seq=8,vocab=37", deep ? 4 : 2);
        Model m = model_of(config, (ModelShape){.bf16 = true}, team);
        int64_t before = emu_calls.waits;
        cuda_forget_choices();
        replay_prepare(&m, inputs, targets, 1.0f / TOKENS, 2, true);
        waits[deep] = emu_calls.waits - before;
        model_free(&m);
        CHECK(cuda_end());
    }
    // how often each is timed depends on the times; all twice would be nearly twice as many
    CHECK(waits[0] > 100 && 2 * waits[1] < 3 * waits[0]);
}
