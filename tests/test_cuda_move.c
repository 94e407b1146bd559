/* layers/move.cu and layers/rope.cu: every element that was asked for, and no other. */
#include "base/bf16.h"
#include "tests/cuda_test.h"

TEST(cuda_copy_moves_rows_and_nothing_between_them) {
    static const struct {
        int64_t rows, n, to_ld, from_ld, skew;
    } cases[] = {{37, 5, 11, 7, 0}, {37, 8, 12, 16, 0}, {37, 8, 12, 16, 1}, {5, 300, 300, 304, 0},
                 {1, 77, 0, 0, 1},  {9, 8, 8, 8, 0},    {3, 0, 4, 4, 0}};
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < 7; i++) {
                int64_t rows = cases[i].rows, n = cases[i].n, skew = cases[i].skew;
                int64_t to_ld = rows == 1 ? n : cases[i].to_ld,
                        from_ld = rows == 1 ? n : cases[i].from_ld;
                cuda_begin(*o);
                Words to = words(rows * to_ld, 1, 1, bf16, skew);
                Words from = words(rows * from_ld, 1, 2, bf16, skew);
                float *before = floats_copy(to.host, to.n);
                kernels_cuda(true)->copy(NULL, to.device, cases[i].to_ld, from.device,
                                         cases[i].from_ld, rows, n, bf16 ? 2 : 4);
                words_get(&to);
                for (int64_t j = 0; j < to.n; j++) {
                    int64_t r = j / to_ld, c = j % to_ld;
                    CHECK(to.host[j] == (c < n ? from.host[r * from_ld + c] : before[j]));
                }
                CHECK(cuda_end());
            }
}

TEST(cuda_zero_clears_n_floats) {
    cuda_begin(cuda_orders[2]);
    Words x = words(1001, 1, 1, false, 0);
    kernels_cuda(true)->zero(NULL, x.device, 4000);
    float last = x.host[1000];
    words_get(&x);
    for (int i = 0; i < 1000; i++) CHECK(x.host[i] == 0);
    CHECK(x.host[1000] == last);
    CHECK(cuda_end());
}

TEST(cuda_add_to_adds_floats) {
    static const int64_t cases[][2] = {{1, 0}, {7, 0}, {1030, 0}, {1030, 1}};
    for (EACH_ORDER(o))
        for (int i = 0; i < 4; i++) {
            int64_t n = cases[i][0], skew = cases[i][1];
            cuda_begin(*o);
            Words y = words(n + 1, 1, 1, false, skew), x = words(n + 1, 1, 2, false, skew);
            float *want = floats_copy(y.host, n + 1);
            for (int64_t j = 0; j < n; j++) want[j] += x.host[j];
            kernels_cuda(true)->add_to(NULL, y.device, x.device, n);
            words_get(&y);
            CHECK(same_bits(y.host, want, n + 1));
            CHECK(cuda_end());
        }
}

TEST(cuda_floats_become_words) {
    for (EACH_ORDER(o))
        for (int64_t n = 1; n < 3000; n = 3 * n + 4) {
            cuda_begin(*o);
            Words x = words(n, 1, 1, false, n % 2), y = words(n, 1, 2, true, 0);
            kernels_cuda(true)->to_bf16(y.device, x.device, n);
            words_get(&y);
            for (int64_t i = 0; i < n; i++)
                CHECK(y.host[i] == bf16_to_float(bf16_from_float(x.host[i])));
            CHECK(cuda_end());
        }
}

TEST(cuda_words_become_floats_of_the_host) {
    for (EACH_WORD(bf16))
        for (int n = 1; n < 40; n += 19) {
            cuda_begin(cuda_orders[2]);
            Words x = words(n, 1, 1, bf16, 0);
            float *to = floats(n, 0, 0);
            kernels_cuda(bf16)->to_floats(to, x.device, n);
            CHECK(same_bits(to, x.host, n));
            CHECK(cuda_end());
        }
}

TEST(cuda_tokens_are_copied_and_padded) {
    int32_t from[] = {4, 5, 6}, to[6] = {9, 9, 9, 9, 9, 9};
    cuda_begin(cuda_orders[2]);
    int32_t *at = cuda_take(6, sizeof *at, 0);
    device_put(at, to, sizeof to);
    kernels_cuda(true)->copy_tokens(at, 5, from, 3, -1);
    kernels_cuda(true)->copy_tokens(at, 5, NULL, 3, 7);
    from[0] = 77; // the call is done with it
    device_get(to, at, sizeof to), device_wait();
    CHECK(to[0] == 4 && to[2] == 6 && to[3] == -1 && to[4] == -1 && to[5] == 9);
    CHECK(cuda_end());
}

TEST(cuda_rope_turns_pairs_and_back) {
    static const struct {
        int64_t B, S, H, Hkv, D, first, skew;
    } cases[] = {{2, 3, 2, 1, 64, 0, 0},
                 {1, 5, 3, 3, 16, 2, 0},
                 {2, 3, 2, 1, 6, 1, 0},
                 {2, 3, 2, 2, 64, 0, 1},
                 {1, 2, 25, 25, 64, 0, 0}};
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < 5; i++) {
                int64_t S = cases[i].S, D = cases[i].D, first = cases[i].first, T = cases[i].B * S;
                int64_t turned = cases[i].H + cases[i].Hkv, heads = turned + cases[i].Hkv;
                cuda_begin(*o);
                Words x = words(T * heads * D, 1, 1, bf16, cases[i].skew);
                Words table = words_empty((first + S) * D, false, 0);
                rope_table(table.host, first + S, D, 10000);
                words_put(&table);
                double *want = doubles_copy(x.host, x.n), *before = doubles_copy(x.host, x.n);
                for (int64_t j = 0; j < T * heads; j++)
                    for (int64_t d = 0; d < D / 2 && j % heads < turned; d++) {
                        double *lo = want + j * D + d, *hi = lo + D / 2, a = *lo, b = *hi;
                        double angle = (double)(first + j / heads % S) *
                                       pow(10000, -2.0 * (double)d / (double)D);
                        *lo = a * cos(angle) - b * sin(angle),
                        *hi = b * cos(angle) + a * sin(angle);
                    }
                Rope r = {cases[i].B, S, cases[i].H, cases[i].Hkv, D, first, table.device};
                kernels_cuda(bf16)->rope(NULL, &r, x.device, 1);
                words_get(&x);
                CHECK(near_all("turned", x.host, want, x.n, 1.5 * word_error(bf16) + 2e-7));
                kernels_cuda(bf16)->rope(NULL, &r, x.device, -1);
                words_get(&x); // rounded twice
                CHECK(near_all("turned back", x.host, before, x.n, 3 * word_error(bf16) + 4e-7));
                CHECK(cuda_end());
            }
}
