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

enum { STEPS = 8, SEQUENCES = 4, S = 8, VOCAB = 37, TOKENS = SEQUENCES * S };

typedef struct Training {
    const char *config;
    Recompute recompute;
    bool bf16, halves;
    bool replay;
} Training;

/* What a training made, and how many micro-batches were replayed in it. */
typedef struct Made {
    double loss[STEPS], norm[STEPS], evaluated;
    float logit;
    uint64_t weights;
    int64_t replays;
} Made;

static Model model_of(const Training *t, Team *team, int64_t B, const TensorTable *weights) {
    ModelShape shape = {.B = B, .training = true, .bf16 = t->bf16, .recompute = t->recompute};
    Model m;
    shape.config = config_of(t->config);
    shape.S = S, shape.replay = t->replay, shape.overlap.halves = t->halves;
    model_plan(&m, &shape, kernels_cuda(t->bf16), team);
    model_allocate(&m);
    TensorTable *host = model_host(&m);
    tensors_init(host, team, 7);
    for (int i = 0; weights && i < host->n; i++) {
        const Tensor *from = &weights->t[i], *to = &host->t[i];
        size_t n = (size_t)tensor_size(to) * sizeof(float);
        memcpy(to->param, from->param, n), memcpy(to->m, from->m, n), memcpy(to->v, from->v, n);
    }
    model_push(&m);
    return m;
}

static void fill_tokens(int step, int32_t *inputs, int32_t *targets) {
    for (int i = 0; i < TOKENS; i++) {
        inputs[i] = (int32_t)(rng_u64(1, (uint64_t)step, (uint64_t)i) % VOCAB);
        targets[i] = (inputs[i] * 5 + 3) % VOCAB;
    }
}

static void step_of(Model *m, int step, Made *made) {
    int32_t inputs[TOKENS], targets[TOKENS];
    AdamW o = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    o.lr = 0.01 / (step + 1), o.step = step + 1;
    float scale = (step == 6 ? 2.0f : 1.0f) / TOKENS; // no recording of another scale is right
    fill_tokens(step, inputs, targets);
    model_zero_grads(m, TOKENS / (m->shape.B * S));
    for (int64_t at = 0; at < TOKENS; at += m->shape.B * S)
        model_step(m, inputs + at, targets + at, scale);
    model_sums_begin(m);
    model_update_clipped(m, &o, 0.5);
    StepSums sums = model_sums_end(m);
    made->loss[step] = sums.loss, made->norm[step] = sums.norm;
}

/* What comes between steps, with the buffers of the steps. */
static void look(Model *m, Made *made) {
    int32_t inputs[TOKENS], targets[TOKENS];
    fill_tokens(99, inputs, targets);
    model_zero_losses(m);
    model_loss(m, inputs, targets, NULL);
    made->evaluated = model_losses(m);
    Generator *g = generator_create(m);
    generator_prompt(g, inputs, 3);
    made->logit = generator_next(g, inputs[3])[1];
    generator_free(g);
}

static uint64_t hash_of(const TensorTable *t) {
    uint64_t h = 0;
    for (int i = 0; i < t->n; i++)
        for (int64_t j = 0; j < tensor_size(&t->t[i]); j++) {
            uint32_t bits;
            memcpy(&bits, &t->t[i].param[j], sizeof bits);
            h = rng_u64(h, bits, (uint64_t)j);
        }
    return h;
}

/* Two micro-batches a step; then, as after a checkpoint or on another layout, one or four on
 * another model. */
static Made train(const Training *t, int64_t later) {
    Made made;
    memset(&made, 0, sizeof made);
    OWNED(test_team_end) Team *team = team_create(1);
    int64_t before = emu_calls.replays;
    Model first = model_of(t, team, SEQUENCES / 2, NULL);
    for (int step = 0; step < STEPS / 2; step++) {
        step_of(&first, step, &made);
        if (step == 1) look(&first, &made);
    }
    Model second = model_of(t, team, later, model_pull(&first));
    model_free(&first);
    for (int step = STEPS / 2; step < STEPS; step++) step_of(&second, step, &made);
    made.weights = hash_of(model_pull(&second));
    model_free(&second);
    made.replays = emu_calls.replays - before;
    return made;
}

TEST(cuda_replay_changes_no_bit) {
    static const char gpt2[] = "layers=1,heads=2,channels=16,seq=8,vocab=37",
                      llama[] = "llama,layers=1,heads=2,channels=16,ffn=24,seq=8,vocab=37";
    const Training trainings[] = {{.config = gpt2},
                                  {.config = llama, .recompute = RECOMPUTE_FULL, .bf16 = true},
                                  {.config = gpt2, .bf16 = true, .halves = true}};
    // all but the first step on a model, that of another scale and the one that comes back
    static const int replays[] = {2 * 4, 2 * 3 + 1, 2 * 4};
    for (int i = 0; i < 3; i++) {
        Made made[2];
        for (int replay = 0; replay < 2; replay++) {
            Training t = trainings[i];
            t.replay = replay;
            EmuSetup s = cuda_orders[i ? 2 : 0];
            s.shuffle = i ? 5 : 0;
            cuda_begin(s);
            made[replay] = train(&t, i == 1 ? SEQUENCES : SEQUENCES / 2);
            CHECK(cuda_end());
        }
        CHECK(test_on_device || (made[0].replays == 0 && made[1].replays == replays[i]));
        made[0].replays = made[1].replays;
        CHECK(memcmp(&made[0], &made[1], sizeof made[0]) == 0);
        CHECK(made[0].loss[STEPS - 1] < made[0].loss[0]);
    }
}

/* Nothing is chosen, allocated or recorded in a step, and what was done before has changed
 * nothing. */
TEST_EMULATED(cuda_replay_prepares_what_steps_would_meet) {
    Training t = {.config = "layers=1,heads=2,channels=16,seq=8,vocab=37", .replay = true};
    double loss[3] = {0};
    for (int way = 0; way < 3; way++) { // not prepared, prepared, chosen by time
        int32_t inputs[TOKENS], targets[TOKENS];
        Made made;
        fill_tokens(0, inputs, targets);
        cuda_begin(cuda_orders[0]);
        OWNED(test_team_end) Team *team = team_create(1);
        Model m = model_of(&t, team, SEQUENCES / 2, NULL);
        EmuLt lt = emu_lt;
        cuda_forget_choices();
        if (way > 0) replay_prepare(&m, inputs, targets, 1.0f / TOKENS, 2, way == 2);
        // which are not those that the library proposes first
        CHECK((emu_lt.runs[3] > lt.runs[3] && emu_lt.runs[4] > lt.runs[4]) == (way == 2));
        MatmulCounts plans = matmul_counts();
        EmuCalls before = emu_calls;
        for (int step = 0; step < 3; step++) step_of(&m, step, &made);
        loss[way] = made.loss[2];
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
    static const char *const config[] = {"layers=2,heads=2,channels=16,seq=8,vocab=37",
                                         "layers=4,heads=2,channels=16,seq=8,vocab=37"};
    int64_t waits[2];
    for (int deep = 0; deep < 2; deep++) {
        int32_t inputs[TOKENS], targets[TOKENS];
        fill_tokens(0, inputs, targets);
        cuda_begin(cuda_orders[0]);
        OWNED(test_team_end) Team *team = team_create(1);
        Model m = model_of(&(Training){.config = config[deep], .bf16 = true}, team, 2, NULL);
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
