/* The training step on the CUDA kernels, emulated: the losses of the CPU, and how many launches. */
#include "tests/parsed.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "layers/cuda/matmuls.h"
#include "parallel/step/generate.h"
#include "parallel/step/mirror.h"
#include "tests/cuda_test.h"
#include "tests/emu/calls.h"
#include "tests/emu/emu_cublaslt.h"
#include "tests/mesh_run.h"

enum { STEPS = 3, TOKENS = 2 * 12 };

typedef struct Losses {
    double of[STEPS], norm[STEPS], evaluated, logit;
} Losses;

/* Some steps. */
static Losses train(const char *config, const Kernels *k, bool bf16, Recompute recompute) {
    ModelShape shape = {.config = config_of(config), .B = 2, .training = true, .bf16 = bf16};
    Model m;
    Losses l;
    shape.recompute = recompute;
    shape.S = shape.config.seq;
    Team *team = team_create(1);
    model_plan(&m, &shape, k, team);
    model_allocate(&m);
    mesh_weights(model_host(&m), team, 7);
    model_push(&m);
    int32_t inputs[TOKENS], targets[TOKENS];
    mesh_tokens(0, TOKENS, TOKENS, shape.config.vocab, inputs, targets);
    targets[3] = -1;
    for (int s = 0; s < STEPS; s++) {
        AdamW o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
        o.step = s + 1;
        model_zero_grads(&m, 1);
        model_step(&m, inputs, targets, 1.0f / TOKENS);
        StepSums sums = model_sums(&m);
        l.of[s] = sums.loss, l.norm[s] = sums.norm;
        model_update_clipped(&m, &o, 0);
    }
    model_zero_losses(&m);
    model_loss(&m, inputs, targets, NULL);
    l.evaluated = model_losses(&m);
    Generator *g = generator_create(&m);
    generator_prompt(g, inputs, 5);
    l.logit = (double)generator_next(g, inputs[5])[1];
    generator_free(g);
    model_free(&m);
    team_destroy(team);
    return l;
}

static void close_to(const Losses *got, const Losses *want, double bound) {
    for (int s = 0; s < STEPS; s++) {
        CHECK_NEAR(got->of[s], want->of[s], bound * want->of[s]);
        CHECK_NEAR(got->norm[s], want->norm[s], 10 * bound * want->norm[s]);
    }
    CHECK_NEAR(got->evaluated, want->evaluated, bound * want->evaluated);
    CHECK_NEAR(got->logit, want->logit, 20 * bound);
}

TEST(cuda_model_trains_as_on_the_cpu) {
    static const char *const configs[] = {
        "layers=2,heads=3,channels=24,seq=12,vocab=37",
        "llama,layers=2,heads=4,kv_heads=2,channels=32,ffn=40,seq=12,vocab=29"};
    for (int i = 0; i < 2; i++)
        for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
            Losses want = train(configs[i], kernels_cpu(NULL), false, r);
            cuda_begin(cuda_orders[r]);
            Losses fp32 = train(configs[i], kernels_cuda(false), false, r);
            CHECK(cuda_end());
            cuda_begin(cuda_orders[r]);
            Losses bf16 = train(configs[i], kernels_cuda(true), true, r);
            CHECK(cuda_end());
            close_to(&fp32, &want, 1e-5);
            close_to(&bf16, &want, 1e-2);
        }
}

/* Of the sizes of the golden model; whatever the order, own matmuls have the same bits. Logits,
 * whose rows end within 16 bytes, are the newest kernel's, too. */
TEST(cuda_model_of_own_matmuls_trains_as_with_the_librarys) {
    static const char config[] = "layers=2,heads=2,channels=32,seq=12,vocab=67";
    static const MatmulBackend backend[] = {BACKEND_LIBRARY, BACKEND_SM90, BACKEND_SM90};
    Losses got[3];
    for (int i = 0; i < 3; i++) {
        cuda_begin(cuda_orders[i]);
        bool here = device_is_sm90();
        emu_lt_setup.mood = EMU_LT_FINE;
        MatmulCounts before = matmul_counts();
        matmul_set_backend(here ? backend[i] : BACKEND_LIBRARY);
        got[i] = train(config, kernels_cuda(true), true, RECOMPUTE_NONE);
        matmul_set_backend(BACKEND_LIBRARY);
        MatmulCounts after = matmul_counts();
        CHECK(cuda_end());
        if (!here) {
            test_skip("the device is not of capability 9.0");
            return;
        }
        CHECK((after.sm90 > before.sm90) == (i > 0) && after.sm80 == before.sm80);
    }
    close_to(&got[1], &got[0], 1e-2);
    CHECK(memcmp(&got[1], &got[2], sizeof got[1]) == 0);
}

static Team *model_begin(Model *m, const char *config) {
    ModelShape shape = {.config = config_of(config), .B = 2, .training = true, .bf16 = true};
    shape.S = shape.config.seq;
    Team *team = team_create(1);
    model_plan(m, &shape, kernels_cuda(true), team);
    model_allocate(m);
    tensors_init(model_host(m), team, 7);
    model_push(m);
    return team;
}

/* Kernels of a pass forward in words. */
static int64_t launches_forward(const char *config) {
    int32_t tokens[TOKENS] = {0};
    Model m;
    Team *team = model_begin(&m, config);
    int64_t before = emu_calls.launches;
    model_loss(&m, tokens, tokens, NULL);
    before = emu_calls.launches - before;
    model_free(&m);
    team_destroy(team);
    return before;
}

/* Launches, and blocks of kernels, of the start of a step (zeros) and of its end with AdamW, of so
 * many layers. */
typedef struct Around {
    int64_t launches, blocks;
} Around;

static Around since(Around begin) {
    device_wait();
    return (Around){emu_calls.launches - begin.launches, emu_calls.blocks - begin.blocks};
}

static Around around(int layers) {
    char config[128];
    snprintf(config, sizeof config, "layers=%d,heads=2,channels=64,seq=12,vocab=37", layers);
    int32_t tokens[TOKENS] = {0};
    Model m;
    Team *team = model_begin(&m, config);
    AdamW rule = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 1};
    Around begin = since((Around){0});
    model_zero_grads(&m, 1);
    Around zeros = since(begin);
    model_step(&m, tokens, tokens, 1.0f / TOKENS);
    begin = since((Around){0});
    model_sums_begin(&m);
    model_update_clipped(&m, &rule, 1);
    Around end = since(begin);
    model_sums_end(&m);
    model_free(&m);
    team_destroy(team);
    return (Around){zeros.launches + end.launches, zeros.blocks + end.blocks};
}

/* Of vectors there are many: their zeros are a call for each region of memory, and AdamW takes
 * lists of ADAMW_TENSORS: 12 tensors of each layer, and 4. A block of AdamW takes 1024 elements:
 * of a layer 48 are of matrices and 8 of vectors, and squares have some. */
TEST(cuda_model_launches_no_more_around_a_step_for_more_layers) {
    NEEDS_EMULATION();
    cuda_begin(cuda_orders[0]);
    Around one = around(1), five = around(5), six = around(6);
    CHECK(one.launches > 0 && one.launches < 16);
    CHECK(five.launches == one.launches && 4 + 5 * 12 == ADAMW_TENSORS);
    CHECK(six.launches == one.launches + 1);
    CHECK(six.blocks - five.blocks < 2 * (12 * 64 * 64 / 1024 + 8));
    CHECK(cuda_end());
}

/* Words of biases are made where those of weights are, once in a step, and not at each matmul. */
TEST(cuda_model_launches_nothing_for_biases_of_matmuls) {
    NEEDS_EMULATION();
    cuda_begin(cuda_orders[0]);
    int64_t with = launches_forward("layers=2,heads=2,channels=16,seq=12,vocab=37"),
            without = launches_forward("layers=2,heads=2,channels=16,seq=12,vocab=37,bias=0");
    CHECK(with == without && with > 2 * 4);
    CHECK(cuda_end());
}
