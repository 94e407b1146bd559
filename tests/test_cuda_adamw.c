/* layers/adamw.cu: the update against torch.optim.AdamW in double, its copy in words of storage,
 * and sums of squares. */
#include "tests/cuda_test.h"
#include "tests/layers_double.h"

static const AdamW usual = {
    .lr = 6e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.7};

typedef struct Model {
    Words param, m, v, grad, words;
    double *p, *m_want, *v_want;
} Model;

static Model model_new(int64_t n, bool bf16, int64_t skew) {
    Model a = {words(n, 1, 1, false, skew),
               words(n, 0, 2, false, skew),
               words(n, 0, 3, false, skew),
               words_empty(n, false, skew),
               words_empty(n, bf16, skew),
               NULL,
               NULL,
               NULL};
    a.p = doubles_copy(a.param.host, n), a.m_want = doubles_copy(NULL, n);
    a.v_want = doubles_copy(NULL, n);
    return a;
}
static void model_get(Model *a) {
    words_get(&a->param), words_get(&a->m), words_get(&a->v), words_get(&a->words);
}
static void gradients(Model *a, unsigned seed) {
    test_fill(a->grad.host, (size_t)a->grad.n, 1, seed);
    words_put(&a->grad);
}

static const struct {
    int64_t n, skew;
} sizes[] = {{1, 0}, {5, 0}, {1024, 0}, {1024, 1}, {3333, 0}};

TEST(cuda_adamw_matches_double) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(order))
            for (int i = 0; i < 10; i++) {
                int64_t n = sizes[i / 2].n;
                bool decay = i % 2;
                AdamW o = usual;
                cuda_begin(*order);
                Model a = model_new(n, bf16, sizes[i / 2].skew);
                o.cast = a.words.device;
                for (o.step = 1; o.step <= 5; o.step++) {
                    gradients(&a, (unsigned)o.step);
                    kernels_cuda(bf16)->adamw(NULL, &o, a.param.device, a.m.device, a.v.device,
                                              a.grad.device, n, decay);
                    device_wait(); // the gradients of this step are overwritten
                    for (int64_t j = 0; j < n; j++)
                        adamw_double(&o, a.p + j, a.m_want + j, a.v_want + j,
                                     (double)a.grad.host[j], decay);
                }
                model_get(&a);
                // Five updates, each rounded a few times: units of 6e-8 of values up to 1.
                CHECK(near_all("param", a.param.host, a.p, n, 6e-7));
                CHECK(near_all("m", a.m.host, a.m_want, n, 3e-7));
                for (int64_t j = 0; j < n; j++) {
                    CHECK_NEAR(a.v.host[j], a.v_want[j], 6e-7 * a.v_want[j] + 1e-12);
                    CHECK(a.words.host[j] == rounded(a.param.host[j], bf16));
                }
                CHECK(cuda_end());
            }
}

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
            Model a = model_new(N, false, 0), b = model_new(N, false, 0);
            AdamWNow *at = cuda_take(1, sizeof *at, 0);
            Totals *totals = cuda_take(1, sizeof *totals, 0);
            device_put(totals, &of[i].totals, sizeof *totals);
            gradients(&a, 1), gradients(&b, 1);
            if (i < FINE)
                k->adamw(NULL, &o, a.param.device, a.m.device, a.v.device, a.grad.device, N, true);
            k->adamw_begin(at, totals, of[i].clip);
            decided.now = at;
            k->adamw(NULL, &decided, b.param.device, b.m.device, b.v.device, b.grad.device, N,
                     true);
            words_get(&a.param), words_get(&b.param);
            CHECK(same_bits(a.param.host, b.param.host, N));
            words_get(&a.v), words_get(&b.v);
            CHECK(same_bits(a.v.host, b.v.host, N));
            device_get(&now, at, sizeof now), device_wait();
            CHECK(now.finite == (i < FINE) && (i >= FINE || now.grad_scale == (float)of[i].scale));
            CHECK(cuda_end());
        }
}

TEST(cuda_sums_are_those_of_double) {
    static const struct {
        int64_t n, skew;
    } of[] = {{0, 0}, {1, 0}, {3, 1}, {4097, 0}, {100003, 1}, {100003, 0}};
    const Kernels *k = kernels_cuda(true);
    for (EACH_ORDER(order))
        for (int i = 0; i < 6; i++) {
            int64_t n = of[i].n;
            double want = 0, squares = 0, got[2] = {0}, first = 0;
            cuda_begin(*order);
            Words x = words(n, 1, 1, false, of[i].skew);
            double *sum = cuda_take(2, sizeof *sum, 0);
            for (int64_t j = 0; j < n; j++) {
                want += (double)x.host[j];
                squares += (double)x.host[j] * (double)x.host[j];
            }
            k->squares_to(sum, x.device, n, 1, n, false);
            k->squares_to(sum, x.device, n, 1, n, true);
            k->sum_to(sum + 1, x.device, n, false);
            device_get(got, sum, sizeof got), device_wait();
            CHECK_NEAR(got[0], 2 * squares, 1e-12 * squares); // orders of additions in double
            CHECK_NEAR(got[1], want, 1e-12 * (double)n);
            CHECK(k->sum_of(x.device, n) == got[1]);
            first = k->sum_of_squares(NULL, x.device, n);
            CHECK(2 * first == got[0]);
            CHECK(cuda_end());
        }
}

TEST(cuda_sums_of_rows_leave_out_what_lies_between_them) {
    static const struct {
        int64_t ld, rows, n;
        int64_t skew;
    } of[] = {{9, 5, 4, 0},     {8, 7, 4, 0}, {8, 7, 4, 1}, {64, 300, 36, 0},
              {64, 300, 37, 0}, {5, 1, 3, 0}, {3, 0, 2, 0}};
    const Kernels *k = kernels_cuda(true);
    for (EACH_ORDER(order))
        for (int i = 0; i < 7; i++) {
            int64_t ld = of[i].ld, rows = of[i].rows, n = of[i].n;
            double want = 0, got;
            cuda_begin(*order);
            Words x = words(rows * ld + 1, 1, 1, false, of[i].skew);
            double *sum = cuda_take(1, sizeof *sum, 0);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t j = 0; j < n; j++)
                    want += (double)x.host[r * ld + j] * (double)x.host[r * ld + j];
            k->squares_to(sum, x.device, ld, rows, n, false);
            device_get(&got, sum, sizeof got), device_wait();
            CHECK_NEAR(got, want, 1e-12 * want);
            CHECK(cuda_end());
        }
}

TEST(cuda_sum_of_squares_does_not_overflow_and_shows_nan) {
    const Kernels *k = kernels_cuda(true);
    cuda_begin(cuda_orders[0]);
    Words x = words(10000, 0, 1, false, 0);
    x.host[1] = 3e38f, x.host[9999] = 2e38f; // squares that no float holds
    words_put(&x);
    CHECK_NEAR(k->sum_of_squares(NULL, x.device, x.n) / 1.3e77, 1, 1e-6);
    x.host[7777] = NAN;
    words_put(&x);
    CHECK(isnan(k->sum_of_squares(NULL, x.device, x.n)));
    CHECK(cuda_end());
}
