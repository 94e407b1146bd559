/* AdamW against torch.optim.AdamW in double, its copy in words of storage, and sums of squares, by
 * every table of kernels. */
#include "tests/everywhere.h"
#include "tests/layers_double.h"

static const AdamW usual = {.lr = 6e-4,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .weight_decay = 0.1,
                            .grad_scale = 0.7},
                   other = {.lr = 0.1,
                            .beta1 = 0.8,
                            .beta2 = 0.999,
                            .eps = 1e-3,
                            .weight_decay = 0.5,
                            .grad_scale = 1};

/* The first two are not for a GPU. */
static const struct Vector {
    int64_t n, skew;
} vectors[] = {{0, 0}, {100003, 0}, {1, 0}, {5, 0}, {33, 0}, {1024, 0}, {1024, 1}, {3333, 0}};
enum { VECTORS = N_OF(vectors) };

/* Five updates, with decay and without, and by another rule. */
static bool updates(const Where *w, const void *of, int way) {
    const struct Vector *c = of;
    AdamW o = way == 2 ? other : usual;
    bool decay = way != 1;
    int64_t n = c->n, skew = c->skew;
    Array param = array_random(n, 1, 1, false, skew), m = array_random(n, 0, 2, false, skew),
          v = array_random(n, 0, 3, false, skew), grad = array_empty(n, false, skew),
          cast = array_random(n, 0, 4, w->bf16, skew);
    double *p = doubles_copy(param.host, n), *dm = doubles_copy(NULL, n),
           *dv = doubles_copy(NULL, n);
    if (!w->set) o.cast = cast.device;
    for (o.step = 1; o.step <= 5; o.step++) {
        test_fill(grad.host, (size_t)n, 1, (unsigned)o.step);
        array_put(&grad);
        w->k->adamw(w->team, &o, param.device, m.device, v.device, grad.device, n, decay);
        if (!w->set) device_wait(); // the gradients of this step are overwritten
        for (int64_t i = 0; i < n && !w->again; i++)
            adamw_double(&o, p + i, dm + i, dv + i, (double)grad.host[i], decay);
    }
    array_get(&param), array_get(&m), array_get(&v), array_get(&cast);
    if (w->again) return true;
    for (int64_t i = 0; i < n; i++) {
        // relative: its root divides
        if (!(fabs((double)v.host[i] - dv[i]) <= 6e-7 * dv[i] + 1e-12)) return false;
        if (!w->set && cast.host[i] != rounded(param.host[i], w->bf16)) return false;
    }
    // each rounded a few times: units of 6e-8 of values up to 1
    return near_all("param", param.host, p, n, 6e-7) && near_all("m", m.host, dm, n, 3e-7);
}
TEST_ON_CPU(adamw_matches_double_for_any_team, updates, vectors, VECTORS, 3)
TEST_ON_CUDA(cuda_adamw_matches_double_in_any_order, updates, vectors + 2, VECTORS - 2, VECTORS, 3)

/* Clipping read from the device gives the bits that it gives as an argument; where a sum is not
 * finite nothing is touched. */
TEST(cuda_adamw_decides_on_the_device) {
    enum { N = 1000, FINE = 2 };
    const Kernels *k = kernels_cuda(false);
    static const struct {
        Totals totals;
        double clip, scale;
    } of[] = {{{3, 6.25}, 0.5, 0.5 / (2.5 + 1e-6)},
              {{3, 6.25}, 0, 1},
              {{3, NAN}, 0.5, 0},
              {{3, INFINITY}, 0, 0},
              {{-INFINITY, 6.25}, 0.5, 0}};
    for (int i = 0; i < 5; i++)
        for (EACH_ORDER(order)) {
            AdamW o = usual, decided = usual;
            AdamWNow now;
            o.step = decided.step = 3, o.grad_scale = of[i].scale, decided.grad_scale = NAN;
            cuda_begin(*order);
            Array param[2], m[2], v[2], grad = array_random(N, 1, 1, false, 0);
            for (int j = 0; j < 2; j++)
                param[j] = array_random(N, 1, 1, false, 0), m[j] = array_random(N, 0, 2, false, 0),
                v[j] = array_random(N, 0, 3, false, 0);
            AdamWNow *at = cuda_take(1, sizeof *at, 0);
            Totals *totals = cuda_take(1, sizeof *totals, 0);
            device_put(totals, &of[i].totals, sizeof *totals);
            if (i < FINE)
                k->adamw(NULL, &o, param[0].device, m[0].device, v[0].device, grad.device, N, true);
            k->adamw_begin(at, totals, of[i].clip);
            decided.now = at;
            k->adamw(NULL, &decided, param[1].device, m[1].device, v[1].device, grad.device, N,
                     true);
            for (int j = 0; j < 2; j++) array_get(&param[j]), array_get(&v[j]);
            CHECK(same_bits(param[0].host, param[1].host, N));
            CHECK(same_bits(v[0].host, v[1].host, N));
            device_get(&now, at, sizeof now), device_wait();
            CHECK(now.finite == (i < FINE) && (i >= FINE || now.grad_scale == (float)of[i].scale));
            CHECK(cuda_end());
        }
}

/* The first step moves every parameter by lr, whatever the size of its gradient: what bias
 * correction is for. */
TEST(adamw_first_step_is_lr) {
    AdamW o = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-12, .grad_scale = 1, .step = 1};
    for (EACH_SET(s)) {
        float p[3] = {0, 0, 0}, m[3] = {0}, v[3] = {0}, g[3] = {1e-4f, -1, 3e4f};
        OWNED(test_team_end) Team *t = team_create(1);
        kernels_cpu(*s)->adamw(t, &o, p, m, v, g, 3, true);
        CHECK_NEAR(p[0], -1e-3, 1e-9);
        CHECK_NEAR(p[1], 1e-3, 1e-9);
        CHECK_NEAR(p[2], -1e-3, 1e-9);
    }
}

TEST(adamw_leaves_a_parameter_without_gradient) {
    AdamW o = usual;
    o.step = 1000000; // beta^step is 0
    for (EACH_SET(s)) {
        float p[2] = {0.5f, -2}, m[2] = {0}, v[2] = {0}, g[2] = {0};
        OWNED(test_team_end) Team *t = team_create(1);
        kernels_cpu(*s)->adamw(t, &o, p, m, v, g, 2, false);
        CHECK(p[0] == 0.5f && p[1] == -2 && m[0] == 0 && v[1] == 0);
    }
}

/* Subnormal moments are kept, not flushed to zero: on every set, by every member of a team. */
TEST(adamw_keeps_subnormal_moments_on_every_set) {
    enum { N = 100003 };
    for (EACH_SET(s)) {
        OWNED(test_team_end) Team *t = team_create(5);
        float *param = floats(N, 1, 1), *m = floats(N, 0, 2), *v = floats(N, 0, 3);
        int64_t lost = 0;
        for (int64_t i = 0; i < N; i++) m[i] = 1e-40f, v[i] = 1e-41f;
        AdamW o = usual;
        o.step = 1;
        kernels_cpu(*s)->adamw(t, &o, param, m, v, floats(N, 0, 4), N, true);
        // each product is rounded to a unit of 1.4e-45, once or twice
        for (int64_t i = 0; i < N; i++)
            lost +=
                !(fabs((double)m[i] - 0.9e-40) < 3e-45) || !(fabs((double)v[i] - 0.95e-41) < 3e-45);
        CHECK(lost == 0);
        CHECK(scratch_end());
    }
}

/* The first three are not for a GPU, and those of several rows for it alone. */
static const struct Sums {
    int64_t ld, rows, n, skew;
} sums[] = {{4095, 1, 4095, 0}, {131072, 1, 131072, 0}, {1500007, 1, 1500007, 0},
            {1, 1, 0, 0},       {1, 1, 1, 0},           {5, 1, 3, 1},
            {4097, 1, 4097, 0}, {100003, 1, 100003, 1}, {100003, 1, 100003, 0},
            {9, 5, 4, 0},       {8, 7, 4, 0},           {8, 7, 4, 1},
            {64, 300, 36, 0},   {64, 300, 37, 0},       {3, 0, 2, 0}};
enum { SUMS = N_OF(sums), OF_ROWS = 6, CPU_ALONE = 3 };

static bool sums_of(const Where *w, const void *of, UNUSED int way) {
    const struct Sums *c = of;
    double sum = 0, squares = 0, got[2];
    Array x = array_random(c->rows * c->ld + 1, 1, 1, false, c->skew);
    for (int64_t i = 0; i < c->rows * c->n; i++) {
        double v = (double)x.host[i / c->n * c->ld + i % c->n];
        sum += v, squares += v * v;
    }
    if (w->set) {
        got[0] = w->k->sum_of_squares(w->team, x.device, c->n);
        got[1] = w->k->sum_of(x.device, c->n);
    } else {
        double *at = cuda_take(2, sizeof *at, 0);
        w->k->squares_to(at, x.device, c->ld, c->rows, c->n, false);
        w->k->squares_to(at, x.device, c->ld, c->rows, c->n, true);
        w->k->sum_to(at + 1, x.device, c->n, false);
        device_get(got, at, sizeof got), device_wait();
        got[0] /= 2;
        if (c->rows == 1 && (w->k->sum_of(x.device, c->n) != got[1] ||
                             w->k->sum_of_squares(NULL, x.device, c->n) != got[0]))
            return false;
    }
    seen(got, sizeof got);
    return fabs(got[0] - squares) <= 1e-12 * squares && // orders of additions in double
           (c->rows != 1 || fabs(got[1] - sum) <= 1e-12 * (double)c->n);
}
TEST_ON_CPU(sums_are_those_of_double_for_any_team, sums_of, sums, SUMS - OF_ROWS, 1)
TEST_ON_CUDA(cuda_sums_are_those_of_double_in_any_order, sums_of, sums + CPU_ALONE,
             SUMS - CPU_ALONE, SUMS, 1)

static const float largest[] = {3e38f, 2e38f}; // squares that no float holds
static bool overflows(const Where *w, UNUSED const void *of, int way) {
    Array x = array_random(10000, 0, 1, false, 0);
    x.host[1] = largest[0], x.host[9999] = largest[1];
    if (way) x.host[7777] = NAN;
    array_put(&x);
    double got = w->k->sum_of_squares(w->team, x.device, x.n);
    return way ? isnan(got) : fabs(got / 1.3e77 - 1) <= 1e-6;
}
TEST_ON_CPU(sum_of_squares_does_not_overflow_and_shows_nan, overflows, largest, 1, 2)
TEST_ON_CUDA(cuda_sum_of_squares_does_not_overflow_and_shows_nan, overflows, largest, 1, 1, 2)
