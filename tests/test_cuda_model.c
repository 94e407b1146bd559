/* The training step on the CUDA kernels, emulated: the losses of the CPU, and how many launches. */
#include "tests/parsed.h"
#include "tests/test.h"

#include "layers/cuda/matmuls.h"
#include "parallel/step/generate.h"
#include "parallel/step/mirror.h"
#include "tests/cuda_test.h"
#include "tests/emu/calls.h"
#include "tests/mesh_run.h"

enum { SEQUENCES = 3, MICRO = 2, S = 12, TOKENS = MICRO * S };

/* A run on one rank, in the last micro-batch of which a sequence is padding; what it ends with. */
typedef struct Training {
    MeshRun run;
    MatmulBackend backend;
    MatmulCounts counts[2]; // before and after it
    bool sm90;
    double evaluated, logit;
} Training;

static void choose(UNUSED Model *m, void *ctx) {
    Training *t = ctx;
    t->sm90 = t->run.cuda && device_is_sm90();
    t->counts[0] = matmul_counts();
    matmul_set_backend(t->sm90 ? t->backend : BACKEND_LIBRARY);
}

static void look(Model *m, int step, void *ctx) {
    Training *t = ctx;
    int32_t inputs[TOKENS], targets[TOKENS];
    if (step < MESH_STEPS - 1) return;
    mesh_tokens(0, TOKENS, TOKENS, m->shape.config.vocab, inputs, targets);
    model_zero_losses(m);
    model_loss(m, inputs, targets, NULL);
    t->evaluated = model_losses(m);
    Generator *g = generator_create(m);
    generator_prompt(g, inputs, 5);
    t->logit = (double)generator_next(g, inputs[5])[1];
    generator_free(g);
    matmul_set_backend(BACKEND_LIBRARY);
    t->counts[1] = matmul_counts();
}

static void train(Training *t, const char *config) {
    MeshRun *r = &t->run;
    r->model = config, r->layout = "d1", r->sequences = SEQUENCES, r->micro = MICRO, r->S = S;
    r->before = choose, r->after = look, r->ctx = t;
    mesh_run(r);
}

static bool close_to(const Training *got, const Training *want, double bound) {
    return mesh_near(&got->run, &want->run, (MeshDiff){bound, 10 * bound, 100 * bound}) &&
           fabs(got->evaluated - want->evaluated) <= bound * want->evaluated &&
           fabs(got->logit - want->logit) <= 20 * bound;
}

TEST(cuda_model_trains_as_on_the_cpu) {
    static const char *const configs[] = {"layers=2,heads=3,channels=24,seq=12,vocab=37",
                                          "llama,layers=2,heads=4,kv_heads=2,channels=32,ffn=40,"
                                          "seq=12,vocab=29,head_dim=16,qk_norm=1"};
    // every model, --recompute and order; all pairs on a device, and where there is time
    for (int i = 0; i < 2 * 3; i += test_on_device || test_long() ? 1 : 2) {
        Training t[3]; // of the CPU, of CUDA in fp32 and in bf16
        for (int j = 0; j < 3; j++) {
            t[j] = (Training){.run = {.recompute = (Recompute)(i % 3), .cuda = j > 0}};
            t[j].run.bf16 = j == 2, t[j].run.emu = cuda_orders[i % 3];
            train(&t[j], configs[i / 3]);
        }
        CHECK(close_to(&t[1], &t[0], 1e-5) && close_to(&t[2], &t[0], 1e-2));
        for (int j = 0; j < 3; j++) mesh_run_free(&t[j].run);
    }
}

/* Of the sizes of the golden model; whatever the order, own matmuls have the same bits. Logits,
 * whose rows end within 16 bytes, are the newest kernel's, too. */
TEST(cuda_model_of_own_matmuls_trains_as_with_the_librarys) {
    static const MatmulBackend backend[] = {BACKEND_LIBRARY, BACKEND_SM90, BACKEND_SM90};
    Training t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = (Training){.run = {.cuda = true, .bf16 = true}, .backend = backend[i]};
        t[i].run.emu = cuda_orders[i];
        train(&t[i], "layers=2,heads=2,channels=32,seq=12,vocab=67");
        SKIP_IF(!t[i].sm90, "the device is not of capability 9.0");
        MatmulCounts before = t[i].counts[0], after = t[i].counts[1];
        CHECK((after.sm90 > before.sm90) == (i > 0) && after.sm80 == before.sm80);
    }
    CHECK(close_to(&t[1], &t[0], 1e-2));
    CHECK(mesh_same_bits(&t[1].run, &t[2].run) && t[1].evaluated == t[2].evaluated &&
          t[1].logit == t[2].logit);
    for (int i = 0; i < 3; i++) mesh_run_free(&t[i].run);
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
    OWNED(test_team_end) Team *team = model_begin(&m, config);
    int64_t before = emu_calls.launches;
    model_loss(&m, tokens, tokens, NULL);
    before = emu_calls.launches - before;
    model_free(&m);
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
    int32_t tokens[TOKENS] = {0};
    Model m;
    OWNED(test_team_end)
    Team *team =
        model_begin(&m, test_path("layers=%d,heads=2,channels=64,seq=12,vocab=37", layers));
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
    return (Around){zeros.launches + end.launches, zeros.blocks + end.blocks};
}

/* Of vectors there are many: their zeros are a call for each region of memory, and AdamW takes
 * lists of ADAMW_TENSORS: 12 tensors of each layer, and 4. A block of AdamW takes 1024 elements:
 * of a layer 48 are of matrices and 8 of vectors, and squares have some. */
TEST_EMULATED(cuda_model_launches_no_more_around_a_step_for_more_layers) {
    cuda_begin(cuda_orders[0]);
    Around one = around(1), five = around(5), six = around(6);
    CHECK(one.launches > 0 && one.launches < 16);
    CHECK(five.launches == one.launches && 4 + 5 * 12 == ADAMW_TENSORS);
    CHECK(six.launches == one.launches + 1);
    CHECK(six.blocks - five.blocks < 2 * (12 * 64 * 64 / 1024 + 8));
    CHECK(cuda_end());
}

/* Words of biases are made where those of weights are, once in a step, and not at each matmul. */
TEST_EMULATED(cuda_model_launches_nothing_for_biases_of_matmuls) {
    cuda_begin(cuda_orders[0]);
    int64_t with = launches_forward("layers=2,heads=2,channels=16,seq=12,vocab=37"),
            without = launches_forward("layers=2,heads=2,channels=16,seq=12,vocab=37,bias=0");
    CHECK(with == without && with > 2 * 4);
    CHECK(cuda_end());
}
