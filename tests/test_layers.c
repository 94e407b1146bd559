/* Activations, rope and embeddings; norm, classifier, AdamW, matmul and attention have files of
 * their own. */
#include "tests/layers.h"
#include "tests/pointwise_double.h"

static double sigmoid(double x) {
    return x > 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
TEST(gelu_reference_is_the_tanh_form) {
    CHECK_NEAR(act_of(ACT_GELU, 1), 0.841191990608, 1e-12);
    for (double x = -5; x <= 5; x += 0.37) {
        double u = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x), h = 1e-5;
        CHECK_NEAR(act_of(ACT_GELU, x), x / 2 * (1 + tanh(u)), 1e-15);
        CHECK_NEAR(act_slope_of(ACT_GELU, x),
                   (act_of(ACT_GELU, x + h) - act_of(ACT_GELU, x - h)) / (2 * h), 1e-9);
    }
}

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

TEST(gelu_has_the_right_ends) {
    static const float ends[] = {0,   -0.0f, 1e-30f, 20,  1e5f,    3e38f,
                                 -20, -1e5f, -3e38f, NAN, INFINITY};
    static const float want[] = {0, 0, 5e-31f, 20, 1e5f, 3e38f, 0, 0, 0, NAN, INFINITY};
    static const float slope[] = {.5f, .5f, .5f, 1, 1, 1, 0, 0, 0, NAN, 1};
    enum { N = sizeof ends / sizeof *ends };
    for (EACH_SET(s)) {
        OWNED(test_team_end) Team *t = team_create(1);
        float y[N], dx[N], one[N];
        for (int i = 0; i < N; i++) one[i] = 1;
        kernels_cpu(*s)->act_forward(t, ACT_GELU, y, ends, N);
        kernels_cpu(*s)->act_backward(t, ACT_GELU, dx, one, ends, N);
        for (int i = 0; i < N; i++) {
            CHECK(isnan(want[i]) ? isnan(y[i]) : y[i] == want[i]);
            CHECK(isnan(slope[i]) ? isnan(dx[i]) : dx[i] == slope[i]);
        }
    }
}

TEST(relu2_squares_what_is_positive) {
    static const float x[] = {-3, -0.0f, 0, 1e-30f, 0.3f, 3, 1e20f, -1e20f, NAN, INFINITY};
    enum { N = sizeof x / sizeof *x };
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

static void same_for_any_team(const char *set, ActKind act, int64_t n) {
    float *x = floats(n, 4, 1), *dy = floats(n, 1, 2), *y = NULL, *dx = NULL;
    for (int j = 0; j < TEAMS; j++) {
        OWNED(test_team_end) Team *t = team_create(team_sizes[j]);
        float *y2 = floats(n, 0, 0), *dx2 = floats_copy(dy, n);
        kernels_cpu(set)->act_forward(t, act, y2, x, n);
        kernels_cpu(set)->act_backward(t, act, dx2, dx2, x, n); // in place
        if (j == 0) {
            y = y2, dx = floats(n, 0, 0);
            kernels_cpu(set)->act_backward(t, act, dx, dy, x, n);
        }
        CHECK(same_bits(y, y2, n) && same_bits(dx, dx2, n));
    }
    CHECK(scratch_end());
}

TEST(pointwise_activations_are_the_same_for_any_team_and_in_place) {
    static const int64_t sizes[] = {0, 1, 5, 17, 16384, 50001};
    for (EACH_SET(s))
        for (EACH_ACT(act))
            for (int i = 0; i < 6; i++) same_for_any_team(*s, *act, sizes[i]);
}

static const struct {
    int64_t T, F;
} swiglu_cases[] = {{1, 1}, {3, 5}, {40, 2048}, {7, 333}, {1, 40000}, {0, 3}};

TEST(swiglu_matches_double_for_any_team) {
    for (EACH_SET(s))
        for (int i = 0; i < 6; i++) {
            int64_t T = swiglu_cases[i].T, F = swiglu_cases[i].F, n = T * F;
            float *x = floats(2 * n, 6, 1), *dy = floats(n, 1, 2), *y = NULL, *dx = NULL;
            for (int j = 0; j < TEAMS; j++) {
                OWNED(test_team_end) Team *t = team_create(team_sizes[j]);
                float *y2 = floats(n, 0, 0), *dx2 = floats(2 * n, 0, 0);
                kernels_cpu(*s)->swiglu_forward(t, y2, x, T, F);
                kernels_cpu(*s)->swiglu_backward(t, dx2, dy, x, T, F);
                if (j == 0) y = y2, dx = dx2;
                CHECK(same_bits(y, y2, n) && same_bits(dx, dx2, 2 * n));
            }
            for (int64_t k = 0; k < n; k++) {
                int64_t at = k / F * 2 * F + k % F;
                double g = (double)x[at], u = (double)x[at + F], d = (double)dy[k], h = 1e-5;
                double slope = ((g + h) * sigmoid(g + h) - (g - h) * sigmoid(g - h)) / (2 * h);
                double tol = 6e-6; // matmuls of size 36 and less, some roundings of 2^-24 each
                CHECK_NEAR(y[k], g * sigmoid(g) * u, tol);
                CHECK_NEAR(dx[at], d * u * slope, tol);
                CHECK_NEAR(dx[at + F], d * g * sigmoid(g), tol);
            }
            CHECK(scratch_end());
        }
}

TEST(swiglu_gates_do_not_overflow) {
    static const float x[] = {-3e38f, -200, 200, 3e38f, 1, 1, 1, 1};
    for (EACH_SET(s)) {
        OWNED(test_team_end) Team *t = team_create(1);
        float y[4], dx[8], dy[4] = {1, 1, 1, 1};
        kernels_cpu(*s)->swiglu_forward(t, y, x, 1, 4);
        kernels_cpu(*s)->swiglu_backward(t, dx, dy, x, 1, 4);
        CHECK(y[0] == 0 && y[1] == 0 && y[2] == 200 && y[3] == 3e38f);
        CHECK(dx[0] == 0 && dx[1] == 0 && dx[2] == 1 && dx[3] == 1);
    }
}

static const struct {
    int64_t T, N;
} bias_cases[] = {{1, 1}, {1, 768}, {64, 5}, {67, 2304}, {301, 513}, {0, 7}};

TEST(bias_gradient_is_the_column_sum_for_any_team) {
    for (EACH_SET(s))
        for (int i = 0; i < 6; i++) {
            int64_t T = bias_cases[i].T, N = bias_cases[i].N;
            float *dy = floats(T * N, 1, 1), *start = floats(N, 1, 2), *sum = NULL;
            double *want = doubles_copy(start, N);
            for (int64_t t = 0; t < T; t++)
                for (int64_t n = 0; n < N; n++) want[n] += (double)dy[t * N + n];
            for (int j = 0; j < TEAMS; j++) {
                OWNED(test_team_end) Team *t = team_create(team_sizes[j]);
                float *sum2 = floats_copy(start, N); // accumulates
                kernels_cpu(*s)->bias_backward(t, sum2, dy, T, N);
                if (j == 0) sum = sum2;
                CHECK(same_bits(sum, sum2, N));
            }
            CHECK(near_all("dbias", sum, want, N,
                           1e-5)); // sums of 301 values below 1 reach 20: units of 2e-6
            CHECK(scratch_end());
        }
}

TEST(bias_and_residual_are_added_in_the_order_of_a_matmul) {
    for (EACH_SET(s))
        for (int i = 0; i < 6 * 4; i++) {
            int64_t T = bias_cases[i % 6].T, N = bias_cases[i % 6].N;
            float *y = floats(T * N, 1, 1), *addend = i / 6 & 1 ? floats(T * N, 1, 2) : NULL,
                  *bias = i / 6 & 2 ? floats(N, 1, 3) : NULL;
            for (int j = 0; j < TEAMS; j++) {
                OWNED(test_team_end) Team *t = team_create(team_sizes[j]);
                float *z = floats_copy(y, T * N);
                kernels_cpu(*s)->bias_residual(t, z, addend, bias, T, N);
                for (int64_t k = 0; k < T * N; k++) {
                    float want = addend ? addend[k] + y[k] : y[k];
                    CHECK(z[k] == (bias ? want + bias[k % N] : want));
                }
            }
            CHECK(scratch_end());
        }
}

static const Rope ropes[] = {{.B = 1, .S = 1, .H = 1, .Hkv = 1, .D = 2},
                             {.B = 2, .S = 19, .H = 4, .Hkv = 2, .D = 10},
                             {.B = 3, .S = 33, .H = 6, .Hkv = 6, .D = 64},
                             {.B = 2, .S = 1, .H = 5, .Hkv = 1, .D = 34, .first = 70}};

TEST(rope_turns_pairs_and_back_for_any_team) {
    for (EACH_SET(s))
        for (int i = 0; i < 4; i++) {
            Rope r = ropes[i];
            int64_t T = r.B * r.S, W = (r.H + 2 * r.Hkv) * r.D, positions = r.first + r.S,
                    half = r.D / 2;
            float *table = floats(positions * r.D, 0, 0), *x = floats(T * W, 1, 1), *y = NULL;
            rope_table(table, positions, r.D, 10000);
            r.table = table;
            for (int j = 0; j < TEAMS; j++) {
                OWNED(test_team_end) Team *t = team_create(team_sizes[j]);
                float *y2 = floats_copy(x, T * W);
                kernels_cpu(*s)->rope(t, &r, y2, 1);
                if (j == 0) y = floats_copy(y2, T * W);
                CHECK(same_bits(y, y2, T * W));
                kernels_cpu(*s)->rope(t, &r, y2, -1); // backward is the turn back
                CHECK(test_nmse(y2, x, (size_t)(T * W)) <
                      1e-13); // cos^2 + sin^2 of rounded values: 1 +- 1e-7
            }
            for (int64_t k = 0; k < T * W; k++) {
                int64_t t = k / W, d = k % r.D, pair = d % half, first = k - d;
                double a =
                    (double)(r.first + t % r.S) * pow(10000, -2 * (double)pair / (double)r.D);
                double lo = (double)x[first + pair], hi = (double)x[first + pair + half];
                double want = d < half ? lo * cos(a) - hi * sin(a) : hi * cos(a) + lo * sin(a);
                if (k % W >= (r.H + r.Hkv) * r.D) want = (double)x[k];
                CHECK_NEAR(y[k], want, 3e-7); // values up to 1.4, rounded three times
            }
            CHECK(scratch_end());
        }
}

static const Embedding embeddings[] = {{.B = 1, .S = 1, .C = 1, .V = 1},
                                       {.B = 3, .S = 7, .C = 5, .V = 4},
                                       {.B = 2, .S = 40, .C = 768, .V = 11},
                                       {.B = 4, .S = 1, .C = 33, .V = 9, .first = 12}};

TEST(embedding_matches_double_for_any_team) {
    for (EACH_SET(s))
        for (int i = 0; i < 8; i++) {
            Embedding e = embeddings[i / 2];
            bool learned = i % 2; // with and without a table of positions
            int64_t T = e.B * e.S, n = T * e.C, nw = e.V * e.C, np = (e.first + e.S) * e.C;
            int32_t *tokens = scratch_take((size_t)T * sizeof *tokens);
            for (int64_t t = 0; t < T; t++)
                tokens[t] = (int32_t)(t * t % e.V); // tokens come more than once
            float *wte = floats(nw, 1, 1), *wpe = floats(np, 1, 2), *dx = floats(n, 1, 3);
            float *x = NULL, *dw = NULL, *dp = NULL;
            e.tokens = tokens, e.wte = wte, e.wpe = learned ? wpe : NULL;
            for (int j = 0; j < TEAMS; j++) {
                OWNED(test_team_end) Team *t = team_create(team_sizes[j]);
                float *x2 = floats(n, 0, 0), *dw2 = floats(nw, 1, 4), *dp2 = floats(np, 1, 5);
                e.dwte = dw2, e.dwpe = learned ? dp2 : NULL;
                kernels_cpu(*s)->embedding_forward(t, &e, x2);
                kernels_cpu(*s)->embedding_backward(t, &e, dx);
                if (j == 0) x = x2, dw = dw2, dp = dp2;
                CHECK(same_bits(x, x2, n) && same_bits(dw, dw2, nw) && same_bits(dp, dp2, np));
            }
            double *want_w = doubles_copy(floats(nw, 1, 4), nw),
                   *want_p = doubles_copy(floats(np, 1, 5), np);
            for (int64_t k = 0; k < n; k++) {
                int64_t w = tokens[k / e.C] * e.C + k % e.C,
                        p = (e.first + k / e.C % e.S) * e.C + k % e.C;
                CHECK(x[k] == (learned ? wte[w] + wpe[p] : wte[w])); // one rounding
                want_w[w] += (double)dx[k];
                if (learned) want_p[p] += (double)dx[k];
            }
            CHECK(near_all("dwte", dw, want_w, nw, 2e-6)); // at most 20 additions of values below 1
            CHECK(near_all("dwpe", dp, want_p, np, 5e-7));
            CHECK(scratch_end());
        }
}

/* The token table in parts: each gives the rows of its own tokens, the others' are 0, so the sum of
 * all is the whole, and so are the gradients. A part may hold no tokens at all. */
TEST(embedding_by_vocabulary_adds_up_to_the_whole) {
    for (EACH_SET(s))
        for (int how = 0; how < CUTS; how++) {
            Embedding e = {.B = 3, .S = 14, .C = 33, .V = 11};
            int64_t n = e.B * e.S * e.C, width[MAX_PARTS], first = 0;
            int32_t *tokens = scratch_take((size_t)(e.B * e.S) * sizeof *tokens);
            for (int64_t t = 0; t < e.B * e.S; t++) tokens[t] = (int32_t)(t * t % e.V);
            float *wte = floats(e.V * e.C, 1, 1), *dx = floats(n, 1, 3), *x = floats(n, 0, 0),
                  *sum = floats(n, 0, 0), *part = floats(n, 1, 9);
            float *dw = floats(e.V * e.C, 1, 4), *dw_parts = floats_copy(dw, e.V * e.C);
            int n_parts = cut(how, e.V, width);
            OWNED(test_team_end) Team *t = team_create(2);
            e.tokens = tokens, e.wte = wte, e.dwte = dw;
            kernels_cpu(*s)->embedding_forward(t, &e, x);
            kernels_cpu(*s)->embedding_backward(t, &e, dx);
            for (int i = 0; i < n_parts; first += width[i++]) {
                e.token0 = first, e.V = width[i];
                e.wte = width[i] ? wte + first * e.C : NULL;
                e.dwte = width[i] ? dw_parts + first * e.C : NULL;
                kernels_cpu(*s)->embedding_forward(t, &e, part);
                kernels_cpu(*s)->embedding_backward(t, &e, dx);
                for (int64_t k = 0; k < n; k++) sum[k] += part[k];
            }
            CHECK(same_bits(x, sum, n) && same_bits(dw, dw_parts, 11 * e.C));
            CHECK(scratch_end());
        }
}

/* The table of positions on its own, on blocks of tokens that begin and end anywhere; the last
 * blocks hold rows beyond the batch. */
TEST(positions_by_blocks_of_tokens_are_those_of_the_embedding) {
    for (EACH_SET(s))
        for (int64_t block = 1; block <= 50; block += 7) {
            Embedding e = {.B = 3, .S = 14, .C = 33, .V = 2, .first = 5};
            int64_t T = e.B * e.S, n = T * e.C, np = (e.first + e.S) * e.C,
                    rows = (T / block + 2) * block;
            int32_t *tokens = scratch_take((size_t)T * sizeof *tokens);
            float *wte = floats(2 * e.C, 1, 1), *wpe = floats(np, 1, 2), *dw = floats(np, 1, 4),
                  *dw2 = floats_copy(dw, np), *x = floats(n, 0, 0), *x2 = floats(rows * e.C, 0, 0),
                  *dx = floats(rows * e.C, 1, 3);
            OWNED(test_team_end) Team *t = team_create(3);
            e.tokens = tokens, e.wte = wte, e.wpe = wpe, e.dwpe = dw;
            kernels_cpu(*s)->embedding_forward(t, &e, x);
            kernels_cpu(*s)->embedding_backward(t, &e, dx);
            Embedding p = {.B = 3, .S = 14, .C = 33, .first = 5, .wpe = wpe, .dwpe = dw2};
            for (int64_t k = 0; k < n; k++) x2[k] = wte[k % e.C];
            for (int64_t t0 = 0; t0 < rows; t0 += block) {
                kernels_cpu(*s)->position_forward(t, &p, block, t0, x2 + t0 * e.C);
                kernels_cpu(*s)->position_backward(t, &p, block, t0, dx + t0 * e.C);
            }
            for (int64_t k = n; k < rows * e.C; k++) CHECK(x2[k] == 0);
            CHECK(same_bits(x, x2, n) && same_bits(dw, dw2, np));
            CHECK(scratch_end());
        }
}

/* ---- polls */

static void count_poll(void *ctx) {
    ++*(int *)ctx;
}

/* Kernels that share out their work by themselves look after what is under way, between pieces and
 * not only at the end: sizes that take several milliseconds. */
TEST(kernels_that_take_long_poll) {
    enum { N = 600, S = 1024, H = 4, D = 64, V = 100, T = 16384, C = 512 };
    const Kernels *k = kernels_cpu(layer_sets()[0]);
    for (int size = 1; size <= 2; size++) {
        OWNED(test_team_end) Team *t = team_create(size);
        int wanted = 1, calls = 0;
        team_set_poll(t, &wanted, count_poll, &calls);
        Matmul p = matmul_forward(N, N, N, floats(N * N, 1, 1), N, floats(N * N, 1, 2));
        p.y = floats(N * N, 0, 0), p.ldy = N,
        p.workspace = floats((int64_t)k->matmul_workspace(size) / 4 + 16, 0, 0);
        p.workspace = (void *)(((uintptr_t)p.workspace + 63) & ~(uintptr_t)63);
        k->matmul(t, &p);
        CHECK(calls >= 2);
        Attention a = {.B = 1, .S = S, .H = H, .Hkv = H, .D = D};
        a.workspace = floats((int64_t)k->attention_workspace(size, 1, S, H, H, D) / 4, 0, 0);
        float *qkv = floats(S * 3 * H * D, 1, 3), *out = floats(S * H * D, 0, 0),
              *lse = floats(S * H, 0, 0);
        calls = 0, k->attention_forward(t, &a, out, lse, qkv);
        CHECK(calls >= 2);
        calls = 0, k->attention_backward(t, &a, floats(S * 3 * H * D, 0, 0),
                                         floats(S * H * D, 1, 4), qkv, out, lse);
        CHECK(calls >= 2);
        int32_t *tokens = scratch_take(T * sizeof *tokens);
        Embedding e = {.B = T / S,
                       .S = S,
                       .V = V,
                       .C = C,
                       .tokens = tokens,
                       .dwte = floats(V * C, 0, 0),
                       .dwpe = floats(S * C, 0, 0)};
        calls = 0, k->embedding_backward(t, &e, floats(T * C, 1, 5));
        CHECK(calls >= 2);
        CHECK(scratch_end());
    }
}
