/* The whole model without reference numbers: finite differences, sampling. */
#include "tests/parsed.h"
#include "tests/test.h"

#include "base/rng.h"
#include "parallel/step/generate.h"
#include "parallel/step/learning_rate.h"
#include "parallel/step/memory.h"
#include "parallel/step/model.h"

static const char *const shapes[] = {
    "layers=2,heads=3,channels=24,seq=11,vocab=37",
    "layers=2,heads=2,channels=16,seq=9,vocab=31,bias=0,qkv_bias=1,tied=0",
    "llama,layers=2,heads=4,kv_heads=2,channels=32,ffn=40,seq=10,vocab=29",
    "llama,layers=1,heads=2,channels=8,seq=7,vocab=5,tied=1,bias=1,head_dim=6,qk_norm=1",
    "layers=1,heads=1,channels=6,seq=4,vocab=1"};

typedef struct Setup {
    Team *team;
    Model m;
    int32_t inputs[64], targets[64];
} Setup;

static void set_up(Setup *s, const char *config, int64_t B, int threads) {
    ModelShape shape = {.B = B, .training = true};
    shape.config = config_of(config);
    shape.S = shape.config.seq;
    s->team = team_create(threads);
    model_plan(&s->m, &shape, kernels_cpu(NULL), s->team);
    model_allocate(&s->m);
    tensors_init(&s->m.tensors, s->team, 42);
    for (int i = 0; i < s->m.tensors.n;
         i++) { // larger weights than a real start, so that every path carries signal
        Tensor *t = &s->m.tensors.t[i];
        for (int64_t j = 0; j < tensor_size(t); j++)
            t->param[j] += 0.2f * (float)(rng_uniform(9, rng_stream(t->name), (uint64_t)j) - 0.5);
    }
    for (int i = 0; i < 64; i++) {
        s->inputs[i] = (int32_t)(rng_u64(1, 1, (uint64_t)i) % (uint64_t)shape.config.vocab);
        s->targets[i] = (int32_t)(rng_u64(1, 2, (uint64_t)i) % (uint64_t)shape.config.vocab);
    }
    s->targets[3] = -1;
}

static void tear_down(Setup *s) {
    model_free(&s->m);
    team_destroy(s->team);
}

/* The directional derivative along a tensor's own gradient is the gradient's squared length. */
TEST(model_gradients_agree_with_finite_differences) {
    for (EACH(shape, shapes)) {
        Setup s;
        set_up(&s, *shape, 2, 1);
        model_zero_grads(&s.m, 1);
        model_step(&s.m, s.inputs, s.targets, 1);
        for (int i = 0; i < s.m.tensors.n; i++) {
            Tensor *t = &s.m.tensors.t[i];
            int64_t n = tensor_size(t);
            double len2 = 0, loss[2];
            for (int64_t j = 0; j < n; j++) len2 += (double)t->grad[j] * (double)t->grad[j];
            if (len2 < 1e-8) continue; // vocab=1: nothing depends on anything
            float *saved = mem_alloc((size_t)n * sizeof *saved), h = (float)(2e-2 / sqrt(len2));
            memcpy(saved, t->param, (size_t)n * sizeof *saved);
            for (int side = 0; side < 2; side++) {
                for (int64_t j = 0; j < n; j++)
                    t->param[j] = saved[j] + (side ? h : -h) * t->grad[j];
                model_zero_losses(&s.m);
                model_loss(&s.m, s.inputs, s.targets, NULL);
                loss[side] = model_losses(&s.m);
            }
            memcpy(t->param, saved, (size_t)n * sizeof *saved);
            mem_free(saved);
            double slope = (loss[1] - loss[0]) / (2 * (double)h);
            // fp32 losses of about 60 carry 1e-5; divided by 2h|g| = 4e-2 that is 2.5e-4 of |g|,
            // plus curvature
            if (!(fabs(slope - len2) <= 2e-2 * len2 + 1e-3 * sqrt(len2)))
                printf("    %s %s\n", *shape, t->name);
            CHECK_NEAR(slope, len2, 2e-2 * len2 + 1e-3 * sqrt(len2));
        }
        tear_down(&s);
    }
}

/* To the norm that was asked for, and only a larger one; 0: none. A first moment says the scale. */
TEST(model_clips_gradients_of_a_larger_norm) {
    static const double of_norm[] = {0, 0.25, 2}, scale[] = {1, 0.25, 1};
    for (int i = 0; i < 3; i++) {
        const AdamW rule = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .step = 1};
        Setup s;
        set_up(&s, shapes[0], 2, 1);
        model_zero_grads(&s.m, 1);
        model_step(&s.m, s.inputs, s.targets, 1);
        model_update_clipped(&s.m, &rule, of_norm[i] * model_sums(&s.m).norm);
        const Tensor *wte = &s.m.tensors.t[0];
        double m = 0, grad = 0;
        for (int64_t j = 0; j < tensor_size(wte); j++)
            m += fabs((double)wte->m[j]), grad += fabs((double)wte->grad[j]);
        tear_down(&s);
        CHECK_NEAR(m / grad, 0.1 * scale[i], 1e-5);
    }
}

TEST(model_names_the_first_tensor_that_is_not_finite) {
    Setup s;
    char name[128];
    set_up(&s, shapes[0], 1, 1);
    model_zero_grads(&s.m, 1);
    model_step(&s.m, s.inputs, s.targets, 1);
    model_first_nonfinite(&s.m, name, sizeof name);
    bool clean = name[0] == 0;
    s.m.tensors.t[tensors_find(&s.m.tensors, "h.1.up.weight")].param[5] = INFINITY;
    model_first_nonfinite(&s.m, name, sizeof name);
    tear_down(&s);
    CHECK(clean);
    CHECK_STR(name, "parameter h.1.up.weight");
}

TEST(sampling_respects_its_limits) {
    enum { V = 50 };
    float logits[V];
    test_fill(logits, V, 3, 1);
    int best = 0, second = -1;
    for (int i = 0; i < V; i++) best = logits[i] > logits[best] ? i : best;
    for (int i = 0; i < V; i++)
        if (i != best && (second < 0 || logits[i] > logits[second])) second = i;
    Sampling greedy = {.temperature = 0, .top_p = 1},
             two = {.temperature = 1, .top_k = 2, .top_p = 1, .seed = 3};
    Sampling narrow = {.temperature = 1, .top_p = 1e-9, .seed = 3},
             all = {.temperature = 1, .top_p = 1, .seed = 3};
    int hits[V] = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        int t = sample_token(logits, V, &two, i);
        CHECK(t == best || t == second);
        if (i < 100)
            CHECK(sample_token(logits, V, &greedy, i) == best &&
                  sample_token(logits, V, &narrow, i) == best);
        hits[sample_token(logits, V, &all, i)]++;
    }
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)logits[i]);
    for (int i = 0; i < V; i++) { // 5 standard deviations of a binomial count
        double p = exp((double)logits[i]) / sum;
        CHECK_NEAR(hits[i], 20000 * p, 5 * sqrt(20000 * p * (1 - p)) + 1);
    }
}

/* Of two (logit, id): the more likely first. */
static int more_likely(const void *a, const void *b) {
    const float *x = a, *y = b;
    return x[0] != y[0] ? (x[0] < y[0]) - (x[0] > y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

/* The same tokens as from a sorted list; one of two logits has an equal one. */
TEST(sampling_draws_what_a_draw_from_a_sorted_list_does) {
    enum { V = 1000 };
    static float logits[V], sorted[V][2];
    test_fill(logits, V, 5, 4);
    for (int v = 0; v < V; v++) {
        if (v % 4 == 3) logits[v] = logits[v - 2];
        sorted[v][0] = logits[v], sorted[v][1] = (float)v;
    }
    qsort(sorted, V, sizeof *sorted, more_likely);
    for (uint64_t draw = 0; draw < 600; draw++) {
        Sampling s = {.temperature = 0.5 + (double)(draw % 5),
                      .top_k = (int64_t[]){0, 1, 7, 999, 5000}[draw / 5 % 5],
                      .top_p = (double[]){1, 0.9, 1e-6}[draw / 25 % 3],
                      .seed = 7};
        int n = s.top_k > 0 && s.top_k < V ? (int)s.top_k : V, upto = 0, pick = 0;
        double w[V], sum = 0, part = 0;
        for (int i = 0; i < n; i++)
            sum += w[i] = exp(((double)sorted[i][0] - (double)sorted[0][0]) / s.temperature);
        while (upto < n && (upto == 0 || part < s.top_p * sum)) part += w[upto++];
        double left = rng_uniform(s.seed, rng_stream("sample"), draw) * part;
        while (pick + 1 < upto && left >= w[pick]) left -= w[pick++];
        CHECK(sample_token(logits, V, &s, draw) == (int32_t)sorted[pick][1]);
    }
}

/* In the last column of rows that are longer than what is converted from bf16 at once. */
TEST(model_names_logits_whose_last_is_not_finite) {
    Setup s;
    char name[128];
    set_up(&s, "layers=1,heads=1,channels=8,seq=4,vocab=1100,tied=0", 1, 1);
    float *last = s.m.tensors.t[tensors_find(&s.m.tensors, "head")].param + 1099 * 8;
    for (int i = 0; i < 8; i++) last[i] = last[i] < 0 ? -3e38f : 3e38f;
    model_zero_grads(&s.m, 1);
    model_step(&s.m, s.inputs, s.targets, 1);
    model_first_nonfinite(&s.m, name, sizeof name);
    tear_down(&s);
    CHECK_STR(name, "logits (matmul_bt h, head)");
}

/* Shares of 56, 21 and 13 %: the second token is needed, the third is not. */
TEST(sampling_takes_the_smallest_set_that_reaches_top_p) {
    static const float logits[] = {1, 3, -1, 5, 2};
    const Sampling s = {.temperature = 2, .top_p = 0.7, .seed = 3};
    int hits[5] = {0};
    for (uint64_t i = 0; i < 2000; i++) hits[sample_token(logits, 5, &s, i)]++;
    CHECK(hits[0] == 0 && hits[2] == 0 && hits[4] == 0);
    double p = exp(-1) / (1 + exp(-1)); // of the token with logit 3
    CHECK_NEAR(hits[1], 2000 * p, 5 * sqrt(2000 * p * (1 - p)));
}

TEST(schedules_have_the_right_ends) {
    for (int kind = LR_COSINE; kind <= LR_WSD; kind++) {
        LrSchedule s = {.kind = (LrKind)kind,
                        .lr = 1,
                        .min_lr = 0.1,
                        .warmup = 10,
                        .steps = 100,
                        .wsd_decay = 0.2};
        CHECK_NEAR(learning_rate(&s, 0), 0.1, 1e-12);
        CHECK_NEAR(learning_rate(&s, 9), 1, 1e-12);
        CHECK_NEAR(learning_rate(&s, 10), 1, 1e-12);
        CHECK_NEAR(learning_rate(&s, 100), kind == LR_CONSTANT ? 1 : 0.1, 1e-12);
        for (int i = 11; i < 100; i++) CHECK(learning_rate(&s, i) <= learning_rate(&s, i - 1));
    }
    LrSchedule s = {.kind = LR_COSINE, .lr = 1, .steps = 100};
    CHECK_NEAR(learning_rate(&s, 50), 0.5, 1e-12);
}

TEST(memory_is_printed_as_parts_of_a_whole) {
    ModelShape shape = {.config = config_of("d12"), .B = 4, .S = 1024, .training = true};
    shape.samples = true, shape.outer = 2;
    OWNED(test_team_end) Team *team = team_create(2);
    Model m;
    model_plan(&m, &shape, kernels_cpu(NULL), team);
    double all = (double)memory_needed(&m) / 1048576, sum = 0, mib, percent;
    size_t states = 0; // weights, gradients, m and v are fp32
    for (int i = ARENA_PARAMS; i <= ARENA_OPTIMIZER; i++) states += m.arena[i].used;
    OWNED(test_mem_end) char *text = PRINTED(memory_print(&m, f));
    model_free(&m);
    CHECK(states >= 16 * 124439808ull);
    int parts = 0;
    for (const char *line = strchr(text, '\n'); line; line = strchr(line + 1, '\n'))
        if (sscanf(line, "\n  %*12c %lf %lf %%", &mib, &percent) == 2) {
            CHECK_NEAR(percent, 100 * mib / all, 0.1);
            parts++, sum += mib;
        }
    CHECK(parts == N_ARENAS + 1 && strstr(text, test_path("\n  all          %8.1f", all)));
    CHECK_NEAR(sum, all, 0.05 * (parts + 1));
}
