/* Activations, gates, and biases with their gradients, against double precision by every table of
 * kernels. */
#include "tests/everywhere.h"
#include "tests/pointwise_double.h"

/* Exponentials of hardware are good to a few units in the last place; then the word of storage
 * rounds. */
static double tolerance(const Where *w) {
    return rounding_error(w->bf16) + 2e-6;
}

TEST(gelu_reference_is_the_tanh_form) {
    CHECK_NEAR(act_of(ACT_GELU, 1), 0.841191990608, 1e-12);
    for (double x = -5; x <= 5; x += 0.37) {
        double u = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x), h = 1e-5;
        CHECK_NEAR(act_of(ACT_GELU, x), x / 2 * (1 + tanh(u)), 1e-15);
        CHECK_NEAR(act_slope_of(ACT_GELU, x),
                   (act_of(ACT_GELU, x + h) - act_of(ACT_GELU, x - h)) / (2 * h), 1e-9);
        CHECK_NEAR(silu_slope_of(x), (silu_of(x + h) - silu_of(x - h)) / (2 * h), 1e-9);
    }
}

/* The first two are not for a GPU. */
static const struct Vector {
    int64_t n, skew;
} vectors[] = {{0, 0},  {50001, 0}, {1, 0},    {5, 0},    {7, 0},    {17, 0},
               {64, 0}, {64, 1},    {2051, 0}, {4099, 2}, {16384, 0}};
enum { VECTORS = N_OF(vectors) };

static bool pointwise(const Where *w, const void *of, int way) {
    const struct Vector *c = of;
    ActKind act = (ActKind)way;
    int64_t n = c->n;
    char name[16];
    Array x = array_random(n, 15, 1, w->bf16, c->skew),
          dy = array_random(n, 3, 2, w->bf16, c->skew);
    Array y = array_empty(n, w->bf16, c->skew), dx = array_empty(n, w->bf16, c->skew);
    double *want = doubles_copy(x.host, n), *slope = doubles_copy(dy.host, n);
    for (int64_t i = 0; i < n && !w->again; i++)
        slope[i] *= act_slope_of(act, want[i]), want[i] = act_of(act, want[i]);
    w->k->act_forward(w->team, act, y.device, x.device, n);
    w->k->act_backward(w->team, act, dx.device, dy.device, x.device, n);
    w->k->act_backward(w->team, act, dy.device, dy.device, x.device, n); // in place
    array_get(&y), array_get(&dx), array_get(&dy);
    return w->again || (same_bits(dy.host, dx.host, n) &&
                        near_all(config_act_name(act, name), y.host, want, n, tolerance(w)) &&
                        near_all("dx", dx.host, slope, n, tolerance(w)));
}
TEST_ON_CPU(pointwise_activations_match_double_for_any_team, pointwise, vectors, VECTORS,
            N_POINTWISE)
TEST_ON_CUDA(cuda_pointwise_activations_match_double_in_any_order, pointwise, vectors + 2,
             VECTORS - 2, VECTORS, N_POINTWISE)

TEST(gelu_matches_double_over_its_range) {
    enum { N = 40003 };
    for (EACH_SET(s)) {
        OWNED(test_team_end) Team *t = team_create(2);
        float *x = floats(N, 0, 0), *y = floats(N, 0, 0), *dy = floats(N, 1, 3),
              *dx = floats(N, 0, 0);
        for (int i = 0; i < N; i++) x[i] = ((float)i - 20000) * 5e-4f; // -10 .. 10
        kernels_cpu(*s)->act_forward(t, ACT_GELU, y, x, N);
        kernels_cpu(*s)->act_backward(t, ACT_GELU, dx, dy, x, N);
        for (int i = 0; i < N; i++) {
            // Below 0 an exponential of 2u counts: it turns the rounding of 2u, some 2^-24, into a
            // relative error. Results below 1e-35 may be flushed to 0.
            double v = (double)x[i], z = fabs(2 * sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v));
            double bound = fabs(act_of(ACT_GELU, v)) * (5 + (v < 0 ? 3 * z : 0)) * 0x1p-24 + 1e-35;
            CHECK_NEAR(y[i], act_of(ACT_GELU, v), bound);
            CHECK_NEAR(dx[i], (double)dy[i] * act_slope_of(ACT_GELU, v),
                       5e-7); // some roundings of 2^-24 of values up to 1.13
        }
        CHECK(scratch_end());
    }
}

TEST(relu2_squares_what_is_positive) {
    static const float x[] = {-3, -0.0f, 0, 1e-30f, 0.3f, 3, 1e20f, -1e20f, NAN, INFINITY};
    enum { N = N_OF(x) };
    for (EACH_SET(s)) {
        OWNED(test_team_end) Team *t = team_create(1);
        float y[N], dx[N], two[N];
        for (int i = 0; i < N; i++) two[i] = 2;
        kernels_cpu(*s)->act_forward(t, ACT_RELU2, y, x, N);
        kernels_cpu(*s)->act_backward(t, ACT_RELU2, dx, two, x, N);
        for (int i = 0; i < N; i++) {
            float up = x[i] > 0 ? x[i] : 0;
            CHECK(isnan(x[i]) ? isnan(y[i]) && isnan(dx[i])
                              : y[i] == up * up && dx[i] == 2 * (2 * up));
        }
    }
}

/* The first six are not for a GPU; of the last, panels of the bias' gradient grow: more rows than
 * panels of 64 make. */
static const struct Matrix {
    int64_t T, N, skew;
} matrices[] = {
    {0, 7, 0},     {3, 0, 0},   {1, 40000, 0}, {40, 2048, 0}, {67, 2304, 0},         {301, 513, 0},
    {1, 1, 0},     {3, 5, 0},   {5, 24, 0},    {5, 24, 1},    {130, 40, 0},          {2, 2100, 0},
    {200, 257, 0}, {7, 333, 0}, {64, 5, 0},    {1, 768, 0},   {128 * 64 + 77, 16, 0}};
enum { MATRICES = N_OF(matrices), CPU_ALONE = 6, ALL = MATRICES - CPU_ALONE };

static bool swiglu(const Where *w, const void *of, UNUSED int way) {
    const struct Matrix *c = of;
    int64_t F = c->N, n = c->T * F;
    Array x = array_random(2 * n, 15, 1, w->bf16, c->skew),
          dy = array_random(n, 2, 2, w->bf16, c->skew);
    Array y = array_empty(n, w->bf16, c->skew), dx = array_empty(2 * n, w->bf16, c->skew);
    w->k->swiglu_forward(w->team, y.device, x.device, c->T, F);
    w->k->swiglu_backward(w->team, dx.device, dy.device, x.device, c->T, F);
    array_get(&y), array_get(&dx);
    if (w->again) return true;
    double *want = doubles_copy(NULL, n), *slope = doubles_copy(NULL, 2 * n);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i / F * 2 * F + i % F;
        double g = (double)x.host[at], u = (double)x.host[at + F], d = (double)dy.host[i];
        want[i] = silu_of(g) * u;
        slope[at] = d * u * silu_slope_of(g), slope[at + F] = d * silu_of(g);
    }
    return near_all("swiglu", y.host, want, n, tolerance(w)) &&
           near_all("dx of swiglu", dx.host, slope, 2 * n, tolerance(w));
}
TEST_ON_CPU(swiglu_matches_double_for_any_team, swiglu, matrices, MATRICES, 1)
TEST_ON_CUDA(cuda_swiglu_matches_double_in_any_order, swiglu, matrices + CPU_ALONE, ALL - 1, ALL, 1)

/* Near what double has, relative to it; NaN where that is. */
static bool same_end(const char *what, float x, float got, double want, double off) {
    bool same = isnan(want) ? isnan(got) : fabs((double)got - want) <= off * fabs(want) + 1e-20;
    if (!same) test_fail("%s of %g is %g, not %g", what, (double)x, (double)got, want);
    return same;
}
/* What fast exponentials and reciprocals make of numbers that are far out, and of NaN. */
static bool ends_of_gates(const Where *w, UNUSED const void *of, UNUSED int way) {
    static const float ends[] = {0,   -0.0f, 1e-30f, 20,    200,    1e5f, 3e38f,
                                 -20, -88,   -100,   -1e5f, -3e38f, NAN,  INFINITY};
    enum { N = N_OF(ends) };
    Array g = array_empty(N, w->bf16, 0), x = array_empty(2 * N, w->bf16, 0),
          dy = array_empty(N, w->bf16, 0), y = array_empty(N, w->bf16, 0),
          dg = array_empty(N, w->bf16, 0), gated = array_empty(N, w->bf16, 0),
          dx = array_empty(2 * N, w->bf16, 0);
    double off = 4 * tolerance(w); // the exponential of -20 has the rounding of 20 in it
    bool fine = true;
    for (int i = 0; i < N; i++) {
        g.host[i] = x.host[i] = ends[i];
        dy.host[i] = x.host[N + i] = 1;
    }
    array_put(&g), array_put(&x), array_put(&dy);
    w->k->act_forward(w->team, ACT_GELU, y.device, g.device, N);
    w->k->act_backward(w->team, ACT_GELU, dg.device, dy.device, g.device, N);
    w->k->swiglu_forward(w->team, gated.device, x.device, 1, N);
    w->k->swiglu_backward(w->team, dx.device, dy.device, x.device, 1, N);
    array_get(&y), array_get(&dg), array_get(&gated), array_get(&dx);
    for (int i = 0; i < N; i++) {
        float at = g.host[i];
        double v = (double)at;
        if (isinf(at)) { // of which double makes NaN, and a GPU may
            fine &= !w->set || (y.host[i] == at && dg.host[i] == 1);
            continue;
        }
        fine &= same_end("gelu", at, y.host[i], act_of(ACT_GELU, v), off);
        fine &= same_end("swiglu", at, gated.host[i], silu_of(v), off);
        fine &= same_end("d gate", at, dx.host[i], silu_slope_of(v), off);
        fine &= same_end("d up", at, dx.host[N + i], silu_of(v), off);
        if (isnan(at)) continue; // the slope there is a number, but dy is NaN then, too
        fine &= same_end("slope of gelu", at, dg.host[i], act_slope_of(ACT_GELU, v), off);
    }
    return fine;
}
static const char once[1];
TEST_ON_CPU(activations_have_the_right_ends, ends_of_gates, once, 1, 1)
TEST_ON_CUDA(cuda_activations_have_the_right_ends, ends_of_gates, once, 1, 1, 1)

static bool bias_gradient(const Where *w, const void *of, UNUSED int way) {
    const struct Matrix *c = of;
    Array dy = array_random(c->T * c->N, 1, 1, w->bf16, c->skew),
          dbias = array_random(c->N, 1, 2, false, 0);
    double *want = doubles_copy(dbias.host, c->N);
    for (int64_t i = 0; i < dy.n; i++) want[i % c->N] += (double)dy.host[i];
    w->k->bias_backward(w->team, dbias.device, dy.device, c->T, c->N);
    array_get(&dbias);
    // sums of up to T numbers below 1, each addition rounded
    return near_all("dbias", dbias.host, want, c->N, 1e-7 * (double)(c->T + 4));
}
TEST_ON_CPU(bias_gradient_is_the_column_sum_for_any_team, bias_gradient, matrices, MATRICES, 1)
TEST_ON_CUDA(cuda_bias_backward_has_the_column_sum_in_any_order, bias_gradient,
             matrices + CPU_ALONE, ALL, ALL, 1)

/* In the order of a matmul: addend, y, bias; one of them, both, or none. */
static bool added(const Where *w, const void *of, int way) {
    const struct Matrix *c = of;
    int64_t n = c->T * c->N;
    Array y = array_random(n, 1, 1, w->bf16, c->skew), a = array_random(n, 1, 2, w->bf16, c->skew),
          b = array_random(c->N, 1, 3, false, 0);
    float *sum = floats_copy(y.host, n);
    for (int64_t i = 0; i < n; i++) {
        if (way & 1) sum[i] = a.host[i] + sum[i];
        if (way & 2) sum[i] += b.host[i % c->N];
    }
    w->k->bias_residual(w->team, y.device, way & 1 ? a.device : NULL, way & 2 ? b.device : NULL,
                        c->T, c->N);
    array_get(&y);
    return w->bf16 ? near_all("y", y.host, doubles_copy(sum, n), n, rounding_error(true))
                   : same_bits(y.host, sum, n);
}
TEST_ON_CPU(bias_and_residual_are_added_in_the_order_of_a_matmul, added, matrices, MATRICES, 4)
TEST_ON_CUDA(cuda_bias_and_residual_are_added_in_the_order_of_a_matmul, added, matrices + CPU_ALONE,
             ALL - 1, ALL, 4)
