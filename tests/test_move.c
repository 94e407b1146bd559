/* layers/move: every element that was asked for, and no other, by every table of kernels. */
#include "base/bf16.h"
#include "tests/everywhere.h"

/* Of one row no length is told; the last rows are more than a piece. */
static const struct Rows {
    int64_t rows, n, to_ld, from_ld, skew;
} copies[] = {{37, 5, 11, 7, 0},     {37, 8, 12, 16, 0},         {37, 8, 12, 16, 1},
              {5, 300, 300, 304, 0}, {1, 77, 0, 0, 1},           {9, 8, 8, 8, 0},
              {3, 0, 4, 4, 0},       {2, 70001, 70001, 70004, 0}};
enum { COPIES = N_OF(copies) };

static bool copied(const Where *w, const void *of, UNUSED int way) {
    const struct Rows *c = of;
    int64_t to_ld = c->rows == 1 ? c->n : c->to_ld, from_ld = c->rows == 1 ? c->n : c->from_ld;
    Array to = array_random(c->rows * to_ld, 1, 1, w->bf16, c->skew);
    Array from = array_random(c->rows * from_ld, 1, 2, w->bf16, c->skew);
    float *want = floats_copy(to.host, to.n);
    for (int64_t i = 0; i < c->rows * c->n; i++)
        want[i / c->n * to_ld + i % c->n] = from.host[i / c->n * from_ld + i % c->n];
    w->k->copy(w->team, to.device, c->to_ld, from.device, c->from_ld, c->rows, c->n,
               w->bf16 ? 2 : 4);
    array_get(&to);
    return same_bits(to.host, want, to.n);
}
TEST_ON_CPU(copy_moves_rows_and_nothing_between_them, copied, copies, COPIES, 1)
TEST_ON_CUDA(cuda_copy_moves_rows_and_nothing_between_them, copied, copies, COPIES, COPIES, 1)

/* Of several pieces for a team, the last one odd; then of single elements and words of 16 bytes. */
static const struct Vector {
    int64_t n, skew;
} vectors[] = {{300001, 0}, {1, 0}, {7, 0}, {1000, 0}, {1030, 0}, {1030, 1}};
enum { VECTORS = N_OF(vectors) };

static bool cleared(const Where *w, const void *of, UNUSED int way) {
    const struct Vector *c = of;
    Array x = array_random(c->n + 9, 1, 1, false, c->skew);
    float *want = floats_copy(x.host, x.n);
    memset(want, 0, (size_t)c->n * sizeof *want);
    w->k->zero(w->team, x.device, (size_t)c->n * sizeof *want);
    array_get(&x);
    return same_bits(x.host, want, x.n);
}
TEST_ON_CPU(zero_clears_n_floats_with_any_number_of_threads, cleared, vectors, VECTORS, 1)
TEST_ON_CUDA(cuda_zero_clears_n_floats, cleared, vectors + 1, VECTORS - 1, VECTORS, 1)

static bool added(const Where *w, const void *of, UNUSED int way) {
    const struct Vector *c = of;
    Array y = array_random(c->n + 9, 1, 1, false, c->skew),
          x = array_random(c->n + 9, 1, 2, false, c->skew);
    float *want = floats_copy(y.host, y.n);
    for (int64_t i = 0; i < c->n; i++) want[i] += x.host[i];
    w->k->add_to(w->team, y.device, x.device, c->n);
    array_get(&y);
    return same_bits(y.host, want, y.n);
}
TEST_ON_CPU(add_to_adds_every_element_once, added, vectors, VECTORS, 1)
TEST_ON_CUDA(cuda_add_to_adds_every_element_once, added, vectors + 1, VECTORS - 1, VECTORS, 1)

static bool tokens(const Where *w, UNUSED const void *of, UNUSED int way) {
    int32_t from[] = {4, 5, 6}, to[] = {9, 9, 9, 9, 9, 9}, *at = tokens_put(to, 6);
    w->k->copy_tokens(at, 5, from, 3, -1);
    w->k->copy_tokens(at, 5, NULL, 3, 7);
    from[0] = 77; // the call is done with it
    if (w->set)
        memcpy(to, at, sizeof to);
    else
        device_get(to, at, sizeof to), device_wait();
    return memcmp(to, (int32_t[]){4, 5, 6, -1, -1, 9}, sizeof to) == 0;
}
TEST_ON_CPU(tokens_are_copied_and_padded, tokens, vectors, 1, 1)
TEST_ON_CUDA(cuda_tokens_are_copied_and_padded, tokens, vectors, 1, 1, 1)

TEST(cuda_floats_become_words) {
    for (EACH_ORDER(o))
        for (int64_t n = 1; n < 3000; n = 3 * n + 4) {
            cuda_begin(*o);
            Array x = array_random(n, 1, 1, false, n % 2), y = array_random(n, 1, 2, true, 0);
            kernels_cuda(true)->to_bf16(y.device, x.device, n);
            array_get(&y);
            for (int64_t i = 0; i < n; i++)
                CHECK(y.host[i] == bf16_to_float(bf16_from_float(x.host[i])));
            CHECK(cuda_end());
        }
}

TEST(cuda_words_become_floats_of_the_host) {
    for (EACH_DTYPE(bf16))
        for (int n = 1; n < 40; n += 19) {
            cuda_begin(cuda_orders[2]);
            Array x = array_random(n, 1, 1, bf16, 0);
            float *to = floats(n, 0, 0);
            kernels_cuda(bf16)->to_floats(to, x.device, n);
            CHECK(same_bits(to, x.host, n));
            CHECK(cuda_end());
        }
}
