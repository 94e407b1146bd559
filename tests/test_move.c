/* layers/move: every element that was asked for, and no other. */
#include "base/mem.h"
#include "layers/kernels.h"
#include "tests/test.h"

enum { ROWS = 37, N = 5, TO_LD = 11, FROM_LD = 7, GUARD = 9 };

TEST(copy_moves_rows_and_nothing_between_them) {
    OWNED(test_team_end) Team *team = team_create(3);
    const Kernels *k = kernels_cpu(NULL);
    float from[ROWS * FROM_LD], to[ROWS * TO_LD];
    for (int i = 0; i < ROWS * FROM_LD; i++) from[i] = (float)(i + 1);
    for (int i = 0; i < ROWS * TO_LD; i++) to[i] = -1;
    k->copy(team, to, TO_LD, from, FROM_LD, ROWS, N, sizeof *to);
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < TO_LD; j++) {
            float want = j < N ? from[r * FROM_LD + j] : -1;
            CHECK(to[r * TO_LD + j] == want);
        }
    k->copy(team, to, TO_LD, from, FROM_LD, ROWS, 0, sizeof *to); // no columns: nothing
    CHECK(to[0] == 1);
}

TEST(zero_clears_n_floats_with_any_number_of_threads) {
    const int64_t n = 300001; // several pieces, the last one odd
    const Kernels *k = kernels_cpu(NULL);
    OWNED(test_mem_end) float *x = mem_alloc((size_t)(n + GUARD) * sizeof *x);
    for (int threads = 1; threads <= 4; threads += 3) {
        OWNED(test_team_end) Team *team = team_create(threads);
        for (int64_t i = 0; i < n + GUARD; i++) x[i] = 3;
        k->zero(team, x, (size_t)n * sizeof *x);
        CHECK(k->sum_of(x, n) == 0);
        CHECK(k->sum_of(x + n, GUARD) == 3 * GUARD);
    }
}

TEST(tokens_are_copied_and_padded) {
    const Kernels *k = kernels_cpu(NULL);
    int32_t from[] = {4, 5, 6}, to[6] = {9, 9, 9, 9, 9, 9};
    k->copy_tokens(to, 5, from, 3, -1);
    CHECK(to[0] == 4 && to[2] == 6 && to[3] == -1 && to[4] == -1 && to[5] == 9);
    k->copy_tokens(to, 5, NULL, 3, 7);
    CHECK(to[0] == 4 && to[4] == -1);
}

TEST(add_to_adds_every_element_once) {
    const int64_t n = 200003;
    const Kernels *k = kernels_cpu(NULL);
    OWNED(test_mem_end)
    float *x = mem_alloc((size_t)n * sizeof *x), *y = mem_alloc((size_t)(n + GUARD) * sizeof *y);
    OWNED(test_team_end) Team *team = team_create(3);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 7);
    for (int64_t i = 0; i < n + GUARD; i++) y[i] = (float)(i % 5);
    k->add_to(team, y, x, n);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n + GUARD; i++)
        wrong += y[i] != (float)(i % 5) + (i < n ? (float)(i % 7) : 0);
    CHECK(wrong == 0);
}
