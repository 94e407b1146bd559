/* base/simd.h in the build of the tests, which is the portable one; the sets are tested through
 * their layers. */
#include "base/simd.h"

#include "tests/test.h"

static float exp1(float x) {
    return vf_exp(vf_set1(x))[0];
}
static float sigmoid1(float x) {
    return vf_sigmoid(vf_set1(x))[0];
}

TEST(simd_exp_is_exact_to_two_ulp) {
    CHECK(exp1(0) == 1);
    for (int i = 0; i <= 699200; i++) { // -86.5 .. 88.3
        float x = -86.5f + (float)i * 2.5e-4f;
        double want = exp((double)x);
        CHECK(fabs((double)exp1(x) / want - 1) < 1.3e-7); // 2^-23 is 1.2e-7
    }
}

TEST(simd_exp_has_the_right_ends) {
    CHECK(exp1(-87) == 0 && exp1(-1e30f) == 0 && exp1(-INFINITY) == 0);
    CHECK(exp1(89) > 2e38f && isfinite(exp1(89)) && exp1(INFINITY) == exp1(89)); // clamped
    CHECK(isnan(exp1(NAN)));
}

TEST(simd_sigmoid_keeps_relative_accuracy) {
    CHECK(sigmoid1(0) == 0.5f && sigmoid1(-INFINITY) == 0 && sigmoid1(INFINITY) == 1);
    CHECK(isnan(sigmoid1(NAN)));
    for (float x = -86; x < 90; x += 0.003f) {
        double want = x > 0 ? 1 / (1 + exp(-(double)x)) : exp((double)x) / (1 + exp((double)x));
        vf rest, s = vf_sigmoid_rest(vf_set1(x), &rest);
        CHECK(fabs((double)s[0] / want - 1) < 3e-7); // exponential, sum, quotient, product
        CHECK(rest[0] == sigmoid1(-x));
    }
}

TEST(simd_rounds_to_even) {
    static const float in[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 2.4999f, 126.5f, -126.5f};
    static const float out[] = {0, 2, 2, 0, -2, 2, 126, -126};
    for (int i = 0; i < 8; i++) {
        CHECK(vf_round(vf_set1(in[i]))[0] == out[i]);
        CHECK(vf_to_vi(vf_set1(out[i]))[0] == (int)out[i]);
    }
}

TEST(simd_lanes_beyond_n_stay_out) {
    float in[VF], out[VF + 1];
    for (int n = 0; n <= VF; n++) {
        for (int i = 0; i < VF; i++) in[i] = (float)(i + 1);
        for (int i = 0; i <= VF; i++) out[i] = -1;
        vf x = vf_load_n(in, n);
        vf_store_n(out, vf_first_lanes(vf_load(in), n, vf_zero()), n);
        for (int i = 0; i < VF; i++)
            CHECK(x[i] == (i < n ? in[i] : 0) && out[i] == (i < n ? in[i] : -1));
        CHECK(out[VF] == -1);
        CHECK(vf_sum(x) == (float)(n * (n + 1) / 2));
        CHECK(vf_hmax(x) == (float)n);
    }
}

TEST(simd_minimum_and_maximum_hand_on_the_second_when_one_is_nan) {
    vf one = vf_set1(1), nan = vf_set1(NAN);
    CHECK(vf_max(nan, one)[0] == 1 && isnan(vf_max(one, nan)[0]));
    CHECK(vf_min(nan, one)[0] == 1 && isnan(vf_min(one, nan)[0]));
}

TEST(bf16_rounds_to_nearest_even) {
    CHECK(bf16_from_float(1.0f) == 0x3f80 && bf16_to_float(0x3f80) == 1);
    CHECK(bf16_from_float(1.00390625f) == 0x3f80); // half way, down to even
    CHECK(bf16_from_float(1.01171875f) == 0x3f82); // half way, up to even
    CHECK(bf16_from_float(1.00390637f) == 0x3f81);
    CHECK(bf16_from_float(3.4e38f) == 0x7f80 &&
          bf16_from_float(-INFINITY) == 0xff80); // rounds to infinity
    CHECK(isnan(bf16_to_float(bf16_from_float(NAN))));
    for (uint32_t h = 0; h < 0x10000; h++) // every value that is one comes back
        if (!isnan(bf16_to_float((uint16_t)h)))
            CHECK(bf16_from_float(bf16_to_float((uint16_t)h)) == h);
}
