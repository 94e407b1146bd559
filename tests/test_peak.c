/* The measured peak of the multiply units. Every comparison is of two measurements of this moment,
 * and repeated while it fails: other programs and a changing clock rate disturb some repetitions, a
 * wrong peak fails all of them. A host may run both cores of a virtual machine on one of its own
 * for a second, where each has half the rate. */
#include "tests/layers.h"
#include "tests/parsed.h"

#include "base/clock.h"
#include "parallel/step/profile.h"

static const double PATIENCE = 20; // seconds

/* FLOP/s of one thread on a matmul that stays in the caches: the fastest of some calls. */
static double fastest_matmul(const Kernels *k, Team *t, bool bf16) {
    enum { M = 168, N = 384, K = 384, CALLS = 12 };
    float *x = floats(M * K, 1, 1), *w = floats(K * N, 1, 2), *y = floats(M * N, 0, 0);
    Matmul p = matmul_forward(M, K, N, x, K, w);
    size_t bytes = k->matmul_workspace(1);
    p.y = y, p.bf16 = bf16, p.workspace = mem_alloc_aligned(bytes, 64);
    double least = INFINITY;
    for (int i = 0; i < CALLS; i++) {
        double start = now_s();
        k->matmul(t, &p);
        least = fmin(least, now_s() - start);
    }
    mem_free(p.workspace);
    return scratch_end() ? 2.0 * M * N * K / least : NAN;
}

TEST_ALONE(peak_is_above_matmuls_and_not_far) {
    SKIP_IF(BASE_DEBUG, "sanitized loops are measured");
    for (EACH_SET(s))
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const Kernels *k = kernels_cpu(*s);
            OWNED(test_team_end) Team *t = team_create(1);
            // Tile registers multiply faster than fp32 operands are rounded and packed.
            double least = bf16 && strcmp(*s, "avx512_amx") == 0 ? 0.1 : 0.5;
            double share = INFINITY, matmul = 0; // the fastest of all tries: others may compute
            double end = now_s() + PATIENCE;
            while (!(share > least && share < 1) && now_s() < end) {
                double peak = k->peak(t, bf16).core;
                matmul = fmax(matmul, fastest_matmul(k, t, bf16));
                share = matmul / peak;
            }
            if (!(share > least && share < 1))
                test_fail("%s, %s: a matmul does %.1f %% of the peak", *s, bf16 ? "bf16" : "fp32",
                          100 * share);
        }
}

/* Twice as many members as cores: each core is shared, by these alone. */
TEST_ALONE(peak_is_the_same_while_others_compute_and_says_so) {
    int cores = team_cores();
    const Kernels *k = kernels_cpu(NULL);
    double ratio = 0, alone = 0, together = 0; // the best of all tries: others may compute
    double end = now_s() + PATIENCE;
    Peak beside = {0};
    while (!(ratio > 0.95 && ratio < 1.05) && now_s() < end) {
        Team *own = team_create(cores), *shared = team_create(2 * cores);
        alone = fmax(alone, k->peak(own, false).core), beside = k->peak(shared, false);
        together = fmax(together, beside.core);
        team_destroy(own), team_destroy(shared);
        ratio = together / alone;
    }
    CHECK_NEAR(ratio, 1, 0.05); // a changing clock rate; shared cores would halve it
    CHECK(beside.cpu_share > 0 && beside.cpu_share < 0.8);
}

TEST(profile_prints_no_share_above_the_peak) {
    ModelShape shape = {.B = 2, .S = 8, .training = true};
    int32_t tokens[16] = {0};
    OWNED(test_team_end) Team *t = team_create(1);
    shape.config = config_of("layers=2,heads=2,channels=16,vocab=24,seq=8");
    OWNED(model_free) Model m;
    model_plan(&m, &shape, kernels_cpu("portable"), t);
    model_allocate(&m);
    profile_begin(&m), profile_end(&m, true);  // the first step does not count
    for (int whole = 1; whole >= 0; whole--) { // nor does one that a signal ends
        profile_begin(&m);
        model_zero_grads(&m, 1);
        model_step(&m, tokens, tokens, 1);
        profile_end(&m, whole);
    }
    OWNED(test_mem_end) char *text = PRINTED(profile_print(f, 1e6)); // a peak of 1 MFLOP/s
    CHECK(strstr(text, test_path("  %-42s %6.1f ", "matmul up[T, N]", 2.0)) &&
          strstr(text, "  attention_backward dqkv[T, N] "));
    CHECK(strstr(text, " 100.0%\n") && strstr(text, "per step, mean of 1 "));
    CHECK(strstr(text, "shares of peak are of the fastest row"));
}
