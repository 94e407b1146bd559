#include "tests/layers_double.h"

typedef struct Model {
    float *param, *m, *v, *grad;
} Model;

static Model model_new(int64_t n) {
    return (Model){floats(n, 1, 1), floats(n, 0, 2), floats(n, 0, 3), floats(n, 0, 4)};
}

enum { STEPS = 5 };

static void train(const char *set, int threads, AdamW o, Model *a, int64_t n, bool decay) {
    OWNED(test_team_end) Team *t = team_create(threads);
    for (o.step = 1; o.step <= STEPS; o.step++) {
        test_fill(a->grad, (size_t)n, 1, (unsigned)o.step);
        kernels_cpu(set)->adamw(t, &o, a->param, a->m, a->v, a->grad, n, decay);
    }
}

static const AdamW usual = {
    .lr = 6e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.7};
static const AdamW other = {
    .lr = 0.1, .beta1 = 0.8, .beta2 = 0.999, .eps = 1e-3, .weight_decay = 0.5, .grad_scale = 1};
static const int64_t sizes[] = {0, 1, 5, 16, 33, 1000, 32768, 100003};

TEST(adamw_matches_double_for_any_team) {
    for (EACH_SET(s))
        for (int i = 0; i < 16; i++) {
            int64_t n = sizes[i / 2];
            AdamW o = i % 2 ? usual : other;
            bool decay = i % 4 != 1;
            Model a = model_new(n);
            double *p = doubles_copy(a.param, n), *m = doubles_copy(NULL, n),
                   *v = doubles_copy(NULL, n);
            train(*s, 1, o, &a, n, decay);
            for (int j = 1; j < TEAMS; j++) {
                Model b = model_new(n);
                train(*s, team_sizes[j], o, &b, n, decay);
                CHECK(same_bits(a.param, b.param, n) && same_bits(a.m, b.m, n) &&
                      same_bits(a.v, b.v, n));
            }
            for (o.step = 1; o.step <= STEPS; o.step++) {
                test_fill(a.grad, (size_t)n, 1, (unsigned)o.step);
                for (int64_t k = 0; k < n; k++)
                    adamw_double(&o, p + k, m + k, v + k, (double)a.grad[k], decay);
            }
            // Five updates, each rounded a few times: units of 6e-8 of values up to 1.
            CHECK(near_all("param", a.param, p, n, 6e-7));
            CHECK(near_all("m", a.m, m, n, 3e-7));
            for (int64_t k = 0; k < n; k++)
                CHECK_NEAR(a.v[k], v[k], 6e-7 * v[k] + 1e-12); // relative: its root divides
            CHECK(scratch_end());
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

TEST(sum_of_squares_is_exact_in_double_for_any_team) {
    static const int64_t n_of[] = {0, 1, 5, 4095, 4097, 131072, 1500007};
    for (EACH_SET(s))
        for (int i = 0; i < 7; i++) {
            int64_t n = n_of[i];
            float *x = floats(n, 1, 1);
            double want = 0, first = 0;
            for (int64_t k = 0; k < n; k++) want += (double)x[k] * (double)x[k];
            for (int j = 0; j < TEAMS; j++) {
                OWNED(test_team_end) Team *t = team_create(team_sizes[j]);
                double got = kernels_cpu(*s)->sum_of_squares(t, x, n);
                if (j == 0) first = got;
                CHECK(memcmp(&got, &first, sizeof got) == 0);
            }
            CHECK_NEAR(first, want, 1e-12 * want); // two orders of additions in double
            CHECK(scratch_end());
        }
}

TEST(sum_of_squares_does_not_overflow_and_shows_nan) {
    enum { N = 10000 };
    for (EACH_SET(s)) {
        OWNED(test_team_end) Team *t = team_create(2);
        float *x = floats(N, 0, 0);
        x[1] = 3e38f, x[N - 1] = 2e38f; // squares that no float holds
        CHECK_NEAR(kernels_cpu(*s)->sum_of_squares(t, x, N) / 1.3e77, 1, 1e-6);
        x[7777] = NAN;
        CHECK(isnan(kernels_cpu(*s)->sum_of_squares(t, x, N)));
        CHECK(scratch_end());
    }
}

/* Subnormal moments are kept, not flushed to zero: on every set, by every member of a team. */
TEST(adamw_keeps_subnormal_moments_on_every_set) {
    enum { N = 100003 };
    for (EACH_SET(s)) {
        OWNED(test_team_end) Team *t = team_create(5);
        Model a = model_new(N);
        int64_t lost = 0;
        for (int64_t i = 0; i < N; i++) a.m[i] = 1e-40f, a.v[i] = 1e-41f, a.grad[i] = 0;
        AdamW o = usual;
        o.step = 1;
        kernels_cpu(*s)->adamw(t, &o, a.param, a.m, a.v, a.grad, N, true);
        // each matmul is rounded to a unit of 1.4e-45, once or twice
        for (int64_t i = 0; i < N; i++)
            lost += !(fabs((double)a.m[i] - 0.9e-40) < 3e-45) ||
                    !(fabs((double)a.v[i] - 0.95e-41) < 3e-45);
        CHECK(lost == 0);
        CHECK(scratch_end());
    }
}
