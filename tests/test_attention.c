/* Attention of every instruction set against a plain one in double precision. */
#include <stdlib.h>
#include <string.h>

#include "base/simd_block.h"
#include "tests/layers_double.h"

typedef struct Case {
    int64_t B, S, H, Hkv, D;
} Case;

/* What one case reads and writes, with the truth beside it; all in the test's scratch. */
typedef struct Data {
    Case c;
    int64_t n_qkv, n_out, n_lse;
    float *qkv, *dout;
    float *out, *lse, *dqkv; // of the kernels under test
    AttentionDouble truth;
} Data;

static Attention attention_of(Case c, bool bf16) {
    return (Attention){.B = c.B, .S = c.S, .H = c.H, .Hkv = c.Hkv, .D = c.D, .bf16 = bf16};
}

/* Without its truth, for comparisons of the kernels with themselves. */
static Data data_plain(Case c, float scale, unsigned seed) {
    Data t = {.c = c};
    t.n_qkv = c.B * c.S * (c.H + 2 * c.Hkv) * c.D;
    t.n_out = c.B * c.S * c.H * c.D, t.n_lse = c.B * c.H * c.S;
    t.qkv = floats(t.n_qkv, scale, seed), t.dout = floats(t.n_out, 1, seed + 1);
    t.dqkv = floats(t.n_qkv, 0, 0), t.out = floats(t.n_out, 0, 0), t.lse = floats(t.n_lse, 0, 0);
    return t;
}

static Data data_create(Case c, float scale) {
    Data t = data_plain(c, scale, (unsigned)(c.S * 131 + c.D));
    Attention a = attention_of(c, false);
    t.truth = attention_double(&a, t.qkv, t.dout);
    return t;
}

static void fill_nan(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = NAN;
}

/* Forward and backward with nothing but the inputs and a workspace of exactly the stated size, both
 * full of NaN: what is not written stays a NaN, what is read too far is a NaN or an address
 * error. */
static void compute(const Kernels *k, Data *t, int threads, bool bf16) {
    Case c = t->c;
    OWNED(test_team_end) Team *team = team_create(threads);
    Attention a = attention_of(c, bf16);
    size_t n = k->attention_workspace(threads, c.B, c.S, c.H, c.Hkv, c.D);
    a.workspace = mem_alloc(n);
    fill_nan(a.workspace, (int64_t)(n / sizeof(float)));
    fill_nan(t->out, t->n_out), fill_nan(t->lse, t->n_lse), fill_nan(t->dqkv, t->n_qkv);
    k->attention_forward(team, &a, t->out, t->lse, t->qkv);
    fill_nan(a.workspace, (int64_t)(n / sizeof(float)));
    k->attention_backward(team, &a, t->dqkv, t->dout, t->qkv, t->out, t->lse);
    mem_free(a.workspace);
}

/* Largest difference in units of the root mean square of the truth; infinite for a NaN. */
static double worst(const float *x, const double *truth, int64_t n) {
    double most = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)x[i] - truth[i]);
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
        square += truth[i] * truth[i];
    }
    return most == 0 ? 0 : most / sqrt(square / (double)n + 1e-30);
}

static double nmse(const float *x, const double *truth, int64_t n) {
    double far = 0, square = 1e-30;
    for (int64_t i = 0; i < n; i++)
        far += pow((double)x[i] - truth[i], 2), square += truth[i] * truth[i];
    return isnan(far) ? INFINITY : far / square;
}

static const Case cases[] = {
    {1, 1, 1, 1, 1},     {2, 1, 3, 1, 5},     {1, 2, 1, 1, 1},    {1, 2, 2, 2, 32},
    {2, 63, 2, 1, 48},   {1, 65, 3, 3, 64},   {1, 64, 2, 2, 64},  {1, 96, 1, 1, 16},
    {1, 97, 2, 2, 17},   {1, 128, 1, 1, 80},  {1, 129, 2, 1, 1},  {1, 130, 4, 2, 5},
    {2, 130, 2, 2, 64},  {1, 130, 3, 1, 128}, {1, 257, 2, 1, 33}, {1, 300, 1, 1, 64},
    {1, 193, 1, 1, 130}, {1, 100, 2, 1, 257},
};
enum { N_CASES = sizeof cases / sizeof *cases };

TEST(attention_equals_double_precision) {
    for (int i = 0; i < N_CASES; i++) {
        Data t = data_create(cases[i], 2);
        for (EACH_SET(set)) {
            compute(kernels_cpu(*set), &t, 2, false);
            /* Rounding of sums of a few hundred fp32 terms: a few hundred times 6e-8 at worst, and
             * exp(s - lse) has the rounding of s and lse, |s| up to about 20 here. */
            double e[] = {worst(t.out, t.truth.out, t.n_out), worst(t.lse, t.truth.lse, t.n_lse),
                          worst(t.dqkv, t.truth.dqkv, t.n_qkv)};
            if (!(e[0] < 1e-5 && e[1] < 2e-6 && e[2] < 2e-5))
                test_fail(__FILE__, __LINE__, "%s S=%d H=%d D=%d: out %.2g lse %.2g dqkv %.2g",
                          *set, (int)t.c.S, (int)t.c.H, (int)t.c.D, e[0], e[1], e[2]);
        }
        CHECK(scratch_end());
    }
}

TEST(attention_in_bf16_is_near) {
    for (int i = 0; i < N_CASES; i++) {
        Data t = data_create(cases[i], 1);
        for (EACH_SET(set)) {
            compute(kernels_cpu(*set), &t, 2, true);
            /* Rounding to 8 bits: a relative error of at most 2^-9, with a mean square of about
             * 1.3e-6, for q, k, v, P, and in the backward pass for dout, dS as well. Half a dozen
             * such errors add up to 1e-5 of the mean square; with D = 1 two numbers may cancel. */
            double e[] = {nmse(t.out, t.truth.out, t.n_out), nmse(t.dqkv, t.truth.dqkv, t.n_qkv),
                          worst(t.lse, t.truth.lse, t.n_lse)};
            if (!(e[0] < 2e-5 && e[1] < 5e-5 && e[2] < 1e-2))
                test_fail(__FILE__, __LINE__, "%s S=%d H=%d D=%d: out %.2g dqkv %.2g lse %.2g",
                          *set, (int)t.c.S, (int)t.c.H, (int)t.c.D, e[0], e[1], e[2]);
            if (t.c.D > 16 && t.c.S > 16 && e[0] < 1e-7)
                test_fail(__FILE__, __LINE__, "%s: bf16 was not used", *set);
        }
        CHECK(scratch_end());
    }
}

TEST(attention_survives_large_scores) { // of about 1e4: exp() of them is infinite
    Data t = data_create((Case){1, 140, 2, 1, 64}, 70);
    for (EACH_SET(set)) {
        compute(kernels_cpu(*set), &t, 2, false);
        /* Scores of 1e4 are rounded by 1e-3, and so are the logarithms of the probabilities. */
        CHECK(worst(t.out, t.truth.out, t.n_out) < 2e-2);
        CHECK(worst(t.lse, t.truth.lse, t.n_lse) < 1e-6);
    }
    CHECK(scratch_end());
}

TEST(attention_is_the_same_for_any_number_of_threads) {
    /* One head, one group, more heads than threads: whole heads and pieces of heads. */
    static const Case some[] = {{1, 700, 1, 1, 64},
                                {1, 300, 4, 1, 20},
                                {2, 200, 3, 3, 33},
                                {1, 64, 2, 1, 64},
                                {1, 1, 1, 1, 3}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        for (EACH_SET(set)) {
            for (int bf16 = 0; bf16 < 2; bf16++) {
                Data one = data_plain(some[i], 1, 1);
                compute(kernels_cpu(*set), &one, 1, bf16);
                for (int threads = 2; threads <= 7; threads += threads < 3 ? 1 : 4) {
                    Data more = data_plain(some[i], 1, 1);
                    compute(kernels_cpu(*set), &more, threads, bf16);
                    CHECK(memcmp(one.out, more.out, (size_t)one.n_out * 4) == 0);
                    CHECK(memcmp(one.lse, more.lse, (size_t)one.n_lse * 4) == 0);
                    CHECK(memcmp(one.dqkv, more.dqkv, (size_t)one.n_qkv * 4) == 0);
                }
                CHECK(!isnan(one.out[0]) && !isnan(one.dqkv[0]));
                CHECK(scratch_end());
            }
        }
    }
}

TEST(attention_looks_at_no_later_position) {
    Case c = {1, 200, 2, 1, 24};
    int64_t keep = 131, W = (c.H + 2 * c.Hkv) * c.D;
    for (EACH_SET(set)) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            Data a = data_plain(c, 1, 1), b = data_plain(c, 1, 1);
            test_fill(b.qkv + keep * W, (size_t)((c.S - keep) * W), 3, 9);
            compute(kernels_cpu(*set), &a, 2, bf16);
            compute(kernels_cpu(*set), &b, 2, bf16);
            CHECK(memcmp(a.out, b.out, (size_t)(keep * c.H * c.D) * 4) == 0);
            CHECK(memcmp(a.out, b.out, (size_t)a.n_out * 4) != 0);
            CHECK(scratch_end());
        }
    }
}

TEST(attention_decode_equals_the_last_row_of_forward) {
    static const Case some[] = {{2, 130, 4, 2, 64}, {1, 70, 3, 1, 5},   {1, 1, 2, 2, 16},
                                {3, 33, 2, 2, 128}, {2, 300, 1, 1, 80}, {1, 9, 1, 1, 1}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        Case c = some[i];
        Data t = data_plain(c, 1, 1);
        int64_t W = (c.H + 2 * c.Hkv) * c.D, R = 2 * c.Hkv * c.D, room = c.S + 7, last = c.S - 1;
        float *q = floats(c.B * c.H * c.D, 0, 0), *out = floats(c.B * c.H * c.D, 0, 0);
        float *cache = floats(c.B * room * R, 0, 0);
        fill_nan(cache, c.B * room * R); // rows after the position are not looked at
        for (int64_t b = 0; b < c.B; b++) {
            for (int64_t j = 0; j < c.S; j++)
                memcpy(cache + (b * room + j) * R, t.qkv + (b * c.S + j) * W + c.H * c.D,
                       (size_t)R * sizeof(float));
            memcpy(q + b * c.H * c.D, t.qkv + (b * c.S + last) * W,
                   (size_t)(c.H * c.D) * sizeof(float));
        }
        for (EACH_SET(set)) {
            const Kernels *k = kernels_cpu(*set);
            compute(k, &t, 2, false);
            for (int threads = 1; threads <= 2; threads++) {
                OWNED(test_team_end) Team *team = team_create(threads);
                size_t n = k->attention_workspace(threads, c.B, room, c.H, c.Hkv, c.D);
                Attention a = attention_of(c, false);
                a.S = room, a.workspace = mem_alloc(n);
                fill_nan(a.workspace, (int64_t)(n / sizeof(float)));
                fill_nan(out, c.B * c.H * c.D);
                k->attention_decode(team, &a, out, q, cache, last);
                mem_free(a.workspace);
                for (int64_t b = 0; b < c.B; b++)
                    for (int64_t d = 0; d < c.H * c.D; d++) // both are sums of S matmuls in fp32
                        CHECK_NEAR(out[b * c.H * c.D + d], t.out[(b * c.S + last) * c.H * c.D + d],
                                   2e-6);
            }
        }
        CHECK(scratch_end());
    }
}

TEST(vf_exp2_is_accurate) {
    double most = 0;
    for (int i = 0; i < 400000; i++) {
        float x = -124.9f + (float)i * (251.0f / 400000);
        double y = exp2((double)x);
        most = fmax(most, fabs((double)vf_exp2(vf_set1(x))[0] - y) / y);
    }
    CHECK(most < 2e-7); // 1.1e-7 of the polynomial, 0.6e-7 of rounding the result
    CHECK(vf_exp2(vf_zero())[0] == 1 && vf_exp2(vf_set1(-1))[0] == 0.5f);
    CHECK(vf_exp2(vf_set1(-1e30f))[0] < 1e-37f && isnan(vf_exp2(vf_set1(NAN))[0]));
}
