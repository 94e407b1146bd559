#include "tests/test.h"

#include "base/rng.h"
#include "base/zscore.h"

TEST(zscore_is_nan_until_the_window_is_full) {
    ZScore z = {0};
    for (int i = 0; i < ZSCORE_WINDOW; i++) CHECK(isnan(zscore_add(&z, i)));
    CHECK(!isnan(zscore_add(&z, 1)));
}

TEST(zscore_of_known_windows) {
    ZScore z = {0};
    for (int i = 0; i < ZSCORE_WINDOW; i++) zscore_add(&z, 2.5);
    CHECK(zscore_add(&z, 2.5) == 0); // no spread
    // 127 equal values and one that differs by d: mean d/128, variance d^2 127/128^2, z =
    // 127/sqrt(127)
    CHECK_NEAR(zscore_add(&z, 3.5), sqrt(127), 1e-12);
    CHECK_NEAR(zscore_add(&z, 1.5), -sqrt(128 / 2.),
               1e-12); // both outliers: mean 2.5, variance 2/128
}

TEST(zscore_forgets_and_does_not_drift) {
    ZScore z = {0}, fresh = {0};
    for (uint64_t i = 0; i < 1000; i++) zscore_add(&z, 1e12 * rng_uniform(1, 2, i));
    for (uint64_t i = 0; i < ZSCORE_WINDOW; i++) zscore_add(&z, rng_uniform(3, 4, i));
    for (uint64_t i = 0; i < ZSCORE_WINDOW; i++) zscore_add(&fresh, rng_uniform(3, 4, i));
    // the rings are turned against each other, so only the order of the sums differs
    CHECK_NEAR(zscore_add(&z, 0.75), zscore_add(&fresh, 0.75), 1e-12);
}

TEST(zscore_leaves_out_what_is_not_finite) {
    ZScore z = {0};
    for (int i = 0; i < 200; i++) zscore_add(&z, i % 7);
    ZScore before = z;
    CHECK(isnan(zscore_add(&z, NAN)) && isnan(zscore_add(&z, INFINITY)));
    CHECK(memcmp(&z, &before, sizeof z) == 0);
    CHECK(isfinite(zscore_add(&z, 3)));
}

TEST(zscore_continues_from_its_bytes) {
    ZScore z = {0}, copy;
    for (int i = 0; i < 300; i++) zscore_add(&z, sin(i));
    memcpy(&copy, &z, sizeof z);
    for (int i = 300; i < 600; i++) CHECK(zscore_add(&z, sin(i)) == zscore_add(&copy, sin(i)));
    CHECK(sizeof z == 8 * (ZSCORE_WINDOW + 1)); // no padding: the bytes are the saved form
}
