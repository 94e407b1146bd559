/* Kernels with memory of their own: the host's copy of weights and moments follows what they
 * compute, and they compute from what the host wrote. The memory here is the host's as well, so
 * that the CPU's kernels run on it, and it counts what passes. */
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/step/generate.h"
#include "parallel/step/mirror.h"

static struct {
    int maps, unmaps;
    size_t put, got;
} seen;

static void *map(size_t n_bytes) {
    seen.maps++;
    void *p = aligned_alloc(ARENA_ALIGN, (n_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
    return memset(p, 0, n_bytes);
}
static void unmap(void *p) {
    seen.unmaps++;
    free(p);
}
static void put(void *to, const void *from, size_t n_bytes) {
    seen.put += n_bytes;
    memcpy(to, from, n_bytes);
}
static void get(void *to, const void *from, size_t n_bytes) {
    seen.got += n_bytes;
    memcpy(to, from, n_bytes);
}
static size_t available(void) {
    return (size_t)1 << 40;
}

enum { STEPS = 3, TOKENS = 20 };

typedef struct Outcome {
    double loss[STEPS];
    uint64_t weights; // hash of them after the last step
    int32_t sampled;
} Outcome;

static Outcome train(const char *config, const Kernels *k, Team *team) {
    static const AdamW o = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 1, .weight_decay = 0.1};
    ModelShape shape = {.B = 2, .training = true, .samples = true};
    Model m;
    Err e;
    Outcome out = {0};
    if (!config_parse(&shape.config, config, &e)) die("%s", e.text);
    shape.S = shape.config.seq;
    model_plan(&m, &shape, k, team);
    model_allocate(&m);
    tensors_init(model_host(&m), team, 7);
    model_push(&m);
    int32_t inputs[TOKENS], targets[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        inputs[i] = (int32_t)(rng_u64(1, 1, (uint64_t)i) % (uint64_t)shape.config.vocab);
        targets[i] = (int32_t)(rng_u64(1, 2, (uint64_t)i) % (uint64_t)shape.config.vocab);
    }
    for (int s = 0; s < STEPS; s++) {
        AdamW now = o;
        now.step = s + 1;
        model_zero_grads(&m, 1);
        model_step(&m, inputs, targets, 1.0f / TOKENS);
        out.loss[s] = model_sums(&m).loss;
        model_update_clipped(&m, &now, 0);
    }
    const TensorTable *host = model_pull(&m);
    for (int i = 0; i < host->n; i++)
        for (int64_t j = 0; j < tensor_size(&host->t[i]); j++) {
            uint32_t bits;
            memcpy(&bits, &host->t[i].param[j], sizeof bits);
            out.weights = rng_u64(out.weights, bits, (uint64_t)j);
            memcpy(&bits, &host->t[i].v[j], sizeof bits);
            out.weights = rng_u64(out.weights, bits, (uint64_t)j);
        }
    Generator *g = generator_create(&m);
    const float *logits = generator_prompt(g, inputs, 4);
    out.sampled = sample_token(logits, shape.config.vocab, &(Sampling){.temperature = 1}, 3);
    generator_free(g);
    model_free(&m);
    return out;
}

TEST(mirror_kernels_with_memory_of_their_own_train_the_same_model) {
    static const char *const configs[] = {
        "layers=2,heads=2,channels=16,seq=10,vocab=31",
        "llama,layers=1,heads=4,kv_heads=2,channels=32,ffn=40,seq=10,vocab=29"};
    static const ArenaMemory own = {map, unmap, put, get, available, NULL};
    Team *team = team_create(2);
    for (int i = 0; i < 2; i++) {
        Kernels k = *kernels_cpu(NULL);
        Outcome want = train(configs[i], &k, team);
        k.memory = &own;
        memset(&seen, 0, sizeof seen);
        Outcome got = train(configs[i], &k, team);
        for (int s = 0; s < STEPS; s++) CHECK(got.loss[s] == want.loss[s]);
        CHECK(got.weights == want.weights && got.sampled == want.sampled);
        CHECK(seen.maps > 0 && seen.maps == seen.unmaps);
        CHECK(seen.put > 0 && seen.got > 0);
    }
    team_destroy(team);
}
