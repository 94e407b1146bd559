/* layers/activation.cu against double precision, in both words of storage, aligned and not. */
#include "tests/cuda_test.h"
#include "tests/pointwise_double.h"

/* Exponentials of hardware are good to a few units in the last place; then the word of storage
 * rounds. */
static double tolerance(bool bf16) {
    return word_error(bf16) + 2e-6;
}

static double sigmoid_of(double x) {
    return 1 / (1 + exp(-x));
}
static const struct {
    int64_t n, skew;
} vectors[] = {{1, 0}, {7, 0}, {64, 0}, {64, 1}, {2051, 0}, {4099, 2}};

static void check_pointwise(ActKind act, bool bf16, int64_t n, int64_t skew) {
    const Kernels *k = kernels_cuda(bf16);
    Words x = words(n, 15, 1, bf16, skew), dy = words(n, 3, 2, bf16, skew);
    Words y = words_empty(n, bf16, skew), dx = words_empty(n, bf16, skew);
    k->act_forward(NULL, act, y.device, x.device, n);
    k->act_backward(NULL, act, dx.device, dy.device, x.device, n);
    words_get(&y), words_get(&dx);
    double *want = doubles_copy(x.host, n), *slope = doubles_copy(x.host, n);
    for (int64_t j = 0; j < n; j++) {
        slope[j] = (double)dy.host[j] * act_slope_of(act, want[j]);
        want[j] = act_of(act, want[j]);
    }
    CHECK(near_all(config_act_name(act), y.host, want, n, tolerance(bf16)));
    CHECK(near_all("dx", dx.host, slope, n, tolerance(bf16)));
    k->act_backward(NULL, act, dy.device, dy.device, x.device, n); // in place
    words_get(&dy);
    CHECK(same_bits(dy.host, dx.host, n));
}

TEST(cuda_pointwise_activations_match_double) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
                for (EACH_ACT(act)) {
                    cuda_begin(*o);
                    check_pointwise(*act, bf16, vectors[i].n, vectors[i].skew);
                    CHECK(cuda_end());
                }
}

static const struct {
    int64_t T, F, skew;
} matrices[] = {{1, 1, 0},    {3, 5, 0},    {5, 24, 0},   {5, 24, 1},
                {130, 40, 0}, {2, 2100, 0}, {200, 257, 0}};

TEST(cuda_swiglu_matches_double) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
                int64_t T = matrices[i].T, F = matrices[i].F, skew = matrices[i].skew, n = T * F;
                const Kernels *k = kernels_cuda(bf16);
                cuda_begin(*o);
                Words x = words(2 * n, 15, 1, bf16, skew), dy = words(n, 2, 2, bf16, skew);
                Words y = words_empty(n, bf16, skew), dx = words_empty(2 * n, bf16, skew);
                k->swiglu_forward(NULL, y.device, x.device, T, F);
                k->swiglu_backward(NULL, dx.device, dy.device, x.device, T, F);
                words_get(&y), words_get(&dx);
                double *want = doubles_copy(NULL, n), *slope = doubles_copy(NULL, 2 * n);
                for (int64_t j = 0; j < n; j++) {
                    int64_t at = j / F * 2 * F + j % F;
                    double g = (double)x.host[at], u = (double)x.host[at + F], s = sigmoid_of(g);
                    double d = (double)dy.host[j];
                    want[j] = g * s * u;
                    slope[at] = d * u * s * (1 + g * (1 - s));
                    slope[at + F] = d * g * s;
                }
                CHECK(near_all("swiglu", y.host, want, n, tolerance(bf16)));
                CHECK(near_all("dx of swiglu", dx.host, slope, 2 * n, tolerance(bf16)));
                CHECK(cuda_end());
            }
}

TEST(cuda_bias_backward_adds_columns) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
                int64_t T = matrices[i].T, N = matrices[i].F, skew = matrices[i].skew;
                cuda_begin(*o);
                Words dy = words(T * N, 1, 1, bf16, skew), dbias = words(N, 1, 2, false, 0);
                double *want = doubles_copy(dbias.host, N);
                for (int64_t j = 0; j < T * N; j++) want[j % N] += (double)dy.host[j];
                kernels_cuda(bf16)->bias_backward(NULL, dbias.device, dy.device, T, N);
                words_get(&dbias);
                // sums of up to T numbers below 1, each addition rounded
                CHECK(near_all("dbias", dbias.host, want, N, 1e-7 * (double)(T + 4)));
                CHECK(cuda_end());
            }
}

/* More rows than panels of 64 make: panels grow. Whatever the order of threads, the bits are the
 * same. */
TEST(cuda_bias_backward_has_the_same_bits_in_any_order) {
    enum { T = 128 * 64 + 77, N = 16 };
    float first[N];
    for (EACH_ORDER(o)) {
        cuda_begin(*o);
        Words dy = words((int64_t)T * N, 1, 1, true, 0), dbias = words(N, 0, 2, false, 0);
        double want[N] = {0};
        for (int64_t j = 0; j < T * N; j++) want[j % N] += (double)dy.host[j];
        kernels_cuda(true)->bias_backward(NULL, dbias.device, dy.device, T, N);
        words_get(&dbias);
        for (int j = 0; j < N; j++) CHECK_NEAR(dbias.host[j], want[j], 1e-3); // of sums near 50
        if (o == cuda_orders) memcpy(first, dbias.host, sizeof first);
        CHECK(same_bits(first, dbias.host, N));
        CHECK(cuda_end());
    }
}

TEST(cuda_bias_residual_adds_what_there_is) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < 3 * 7; i++) {
                int64_t T = matrices[i / 3].T, N = matrices[i / 3].F, skew = matrices[i / 3].skew;
                bool add = i % 3 != 1, bias = i % 3 != 2;
                cuda_begin(*o);
                Words y = words(T * N, 1, 1, bf16, skew), a = words(T * N, 1, 2, bf16, skew);
                Words b = words(N, 1, 3, false, 0);
                double *want = doubles_copy(y.host, T * N);
                for (int64_t j = 0; j < T * N; j++)
                    want[j] += (add ? (double)a.host[j] : 0) + (bias ? (double)b.host[j % N] : 0);
                kernels_cuda(bf16)->bias_residual(NULL, y.device, add ? a.device : NULL,
                                                  bias ? b.device : NULL, T, N);
                words_get(&y);
                CHECK(near_all("y", y.host, want, T * N, word_error(bf16) + 2e-7));
                CHECK(cuda_end());
            }
}
