/* Exact sums: the same bits however the terms are cut into parts and in whatever order those are
 * added. */
#include "base/rng.h"
#include "tests/layers.h"

static const int64_t range = INT64_C(1) << EXACT_BITS;

static bool same_sums(const int64_t *a, const int64_t *b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

typedef struct Case {
    int64_t M, N, K, panel, unit;
    bool a_turned, b_turned;
} Case;

/* Tiles are up to 14 x 32, panels of K 384, chunks of columns 384, blocks of rows about 1,024. A
 * panel of 48 fits 384 evenly, 50 does not; units of 100 and 77 are no multiples of their
 * panels. */
static const Case cases[] = {{1, 1, 1, 64, 0, 0, 0},        {3, 5, 64, 64, 0, 0, 1},
                             {15, 33, 500, 64, 0, 0, 0},    {31, 70, 1153, 48, 0, 1, 0},
                             {29, 40, 1000, 50, 100, 0, 0}, {17, 96, 924, 16, 77, 1, 1},
                             {1050, 34, 130, 13, 0, 0, 0},  {16, 400, 769, 384, 0, 1, 0},
                             {14, 32, 256, 64, 64, 0, 1},   {45, 403, 800, 100, 160, 1, 0}};
enum { EXPONENT = 36 };

static Matmul matmul_of(const Case *c, const float *a, const float *b) {
    Matmul p = {.M = c->M, .N = c->N, .K = c->K, .a = a, .b = b, .ldy = c->N + 3};
    p.a_row = c->a_turned ? 1 : c->K, p.a_col = c->a_turned ? c->M : 1;
    p.b_row = c->b_turned ? 1 : c->N, p.b_col = c->b_turned ? c->K : 1;
    return p;
}

static void run(const char *set, int threads, Matmul p, MatmulExact x) {
    const Kernels *k = kernels_cpu(set);
    OWNED(test_team_end) Team *t = team_create(threads);
    size_t n = k->matmul_workspace(threads);
    p.workspace = mem_alloc_aligned(n, 64);
    memset(p.workspace, 0xff, n); // NaN: what was not packed shows
    k->matmul_exact(t, &p, &x);
    mem_free(p.workspace);
}

/* Every panel's sum as its chain of multiply-adds, and the sum of those on the grid. */
static bool is_the_sum_of_chains(const char *set, const Case *c, const Matmul *p,
                                 const int64_t *y_64) {
    bool fused = strcmp(set, "portable") != 0;
    for (int64_t m = 0; m < c->M; m += 1 + c->M / 40)
        for (int64_t n = 0; n < c->N; n += 1 + c->N / 40) {
            int64_t want = 0;
            float sum = 0;
            for (int64_t k = 0; k < c->K; k++) {
                const float *p_a = p->a, *p_b = p->b;
                float a = p_a[m * p->a_row + k * p->a_col], b = p_b[k * p->b_row + n * p->b_col];
                sum = fused ? fmaf(a, b, sum) : a * b + sum;
                int64_t next = c->unit ? (k + 1) % c->unit : k + 1;
                if (next % c->panel == 0 || k + 1 == c->K)
                    want += llrint(ldexp((double)sum, EXPONENT)), sum = 0;
            }
            if (y_64[m * p->ldy + n] != want) {
                test_fail("%s: y_64[%lld,%lld] is not the sum of panels", set, (long long)m,
                          (long long)n);
                return false;
            }
        }
    return true;
}

TEST(exact_matmul_is_the_sum_of_chains_over_panels) {
    for (EACH_SET(s))
        for (EACH(c, cases)) {
            Matmul p = matmul_of(c, floats(c->M * c->K, 1, 1), floats(c->K * c->N, 1, 2));
            int64_t n_y = c->M * p.ldy, *y = whole_numbers(n_y), *z = whole_numbers(n_y);
            MatmulExact x = {y, c->panel, c->unit, 0, EXPONENT, true};
            for (int64_t j = 0; j < n_y; j++) y[j] = j % p.ldy < c->N ? -999 : 7;
            run(*s, 1, p, x);
            CHECK(is_the_sum_of_chains(*s, c, &p, y));
            for (int64_t j = 0; j < n_y; j++) CHECK(j % p.ldy < c->N || y[j] == 7);
            memcpy(z, y, (size_t)n_y * sizeof *y);
            x.y_64 = z, x.overwrite = false; // adds the same again
            run(*s, 5, p, x);
            for (int64_t j = 0; j < n_y; j++) CHECK(z[j] == (j % p.ldy < c->N ? 2 * y[j] : 7));
            CHECK(scratch_end());
        }
}

/* Where a cut may be: the start of the panel that k lies in. */
static int64_t panel_start(const Case *c, int64_t k) {
    int64_t unit = c->unit ? k / c->unit * c->unit : 0;
    return unit + (k - unit) / c->panel * c->panel;
}

/* Part i of n of the sum, of rows and columns in pieces of their own, as other tiles meet them. */
static void add_part(const char *set, const Case *c, const Matmul *whole, int64_t *y_64,
                     int64_t begin, int64_t end, uint64_t random) {
    int64_t rows = 1 + c->M / 4 + (int64_t)(random % (uint64_t)c->M),
            columns = 1 + c->N / 4 + (int64_t)(random / 7 % (uint64_t)c->N),
            n_y = c->M * whole->ldy;
    OWNED(test_mem_end) int64_t *part = mem_calloc((size_t)n_y, sizeof *part);
    for (int64_t m = 0; m < c->M; m += rows)
        for (int64_t n = 0; n < c->N; n += columns) {
            Matmul p = *whole;
            p.M = c->M - m < rows ? c->M - m : rows, p.N = c->N - n < columns ? c->N - n : columns;
            p.K = end - begin;
            p.a = act_at(p.a, m * p.a_row + begin * p.a_col, sizeof(float));
            p.b = act_at(p.b, n * p.b_col + begin * p.b_row, sizeof(float));
            MatmulExact x = {part + m * p.ldy + n, c->panel, c->unit, begin, EXPONENT, random & 1};
            if (c->unit) x.k_first %= c->unit;
            run(set, 1 + (int)(random % 3), p, x);
        }
    add_parts(y_64, part, n_y);
}

TEST(exact_matmul_in_parts_has_the_bits_of_the_whole) {
    for (EACH_SET(s))
        for (int i = 0; i < N_OF(cases); i++)
            for (int n_parts = 1; n_parts <= 8; n_parts++) {
                const Case *c = &cases[i];
                if (c->M * c->N > 20000 && n_parts % 3) continue; // enough of the large ones
                Matmul p = matmul_of(c, floats(c->M * c->K, 1, 1), floats(c->K * c->N, 1, 2));
                int64_t n_y = c->M * p.ldy, *y = whole_numbers(n_y), *z = whole_numbers(n_y);
                int64_t edge[9] = {0};
                run(*s, 2, p, (MatmulExact){y, c->panel, c->unit, 0, EXPONENT, false});
                for (int j = 1; j < n_parts;
                     j++) // even cuts, or any that are in order; some are empty
                    edge[j] = panel_start(c, n_parts % 2 ? c->K * j / n_parts
                                                         : c->K * j * j / n_parts / n_parts);
                edge[n_parts] = c->K;
                for (int j = 0; j < n_parts; j++) {
                    int at =
                        (j * 3 + 1) % n_parts == j || n_parts % 3 == 0 ? j : (j * 3 + 1) % n_parts;
                    add_part(*s, c, &p, z, edge[at], edge[at + 1],
                             rng_u64(1, (uint64_t)i, (uint64_t)j));
                }
                CHECK(same_sums(y, z, n_y));
                CHECK(scratch_end());
            }
}

TEST(exact_matmul_of_nothing_is_zero) {
    for (EACH_SET(s)) {
        float x[4] = {1, 2, 3, 4};
        int64_t y[6] = {5, 5, 5, 5, 5, 5}, zero[6] = {0};
        Matmul p = matmul_of(&(Case){.M = 2, .N = 3}, x, x);
        p.ldy = 3;
        run(*s, 1, p, (MatmulExact){y, 64, 0, 0, EXPONENT, false});
        for (int i = 0; i < 6; i++) CHECK(y[i] == 5);
        run(*s, 1, p, (MatmulExact){y, 64, 0, 0, EXPONENT, true});
        CHECK(same_sums(y, zero, 6));
    }
}

/* One bad panel among many poisons its element, for good, and no other. */
TEST(exact_matmul_shows_what_is_out_of_range) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 40000, -40000, 32768};
    enum { M = 20, N = 40, K = 1000 };
    for (EACH_SET(s))
        for (int i = 0; i < 6; i++)
            for (int where = 0; where < K; where += 333) { // the first, middle and last panel
                float *a = floats(M * K, 0.01f, 1), *b = floats(K * N, 0.01f, 2), y[M * N];
                Case c = {M, N, K, 64, 0, 0, 0};
                int64_t *y_64 = whole_numbers(M * N);
                Matmul p = matmul_of(&c, a, b);
                p.ldy = N;
                a[3 * K + where] =
                    bad[i]; // times 1 in column 5; 32768 is the first float out of range
                for (int k = 0; k < K; k++) b[k * N + 5] = k == where;
                run(*s, 2, p, (MatmulExact){y_64, 64, 0, 0, EXPONENT, true});
                a[3 * K + where] = 0; // later terms, in or out of range, do not mend it
                for (int again = 0; again < 3; again++)
                    run(*s, 2, p, (MatmulExact){y_64, 64, 0, 0, EXPONENT, false});
                OWNED(test_team_end) Team *t = team_create(1);
                kernels_cpu(*s)->exact_to_float(t, y, y_64, M * N, EXPONENT);
                CHECK(y_64[3 * N + 5] == EXACT_POISON);
                for (int j = 0; j < M * N; j++) {
                    bool same_row = j / N == 3 && i < 3; // NaN and infinity reach all of it
                    CHECK(same_row || j == 3 * N + 5 ? isnan(y[j]) : isfinite(y[j]));
                }
                CHECK(scratch_end());
            }
}

/* The bits of the first two, added to the grid as if they were in range, would come to 0; the third
 * panel is bad in another column. */
TEST(exact_matmul_keeps_bad_panels_apart) {
    for (EACH_SET(s)) {
        float a[] = {1, 1, 1}, b[] = {-163840, 0, -229376, 0, 0, 32768};
        int64_t y[2] = {0};
        Matmul p = matmul_of(&(Case){.M = 1, .N = 2, .K = 3}, a, b);
        run(*s, 1, p, (MatmulExact){y, 1, 0, 0, EXPONENT, false});
        CHECK(y[0] == EXACT_POISON && y[1] == EXACT_POISON);
    }
}

/* Terms in range whose sum is not: in a whole vector of columns, and in the columns left over. */
TEST(exact_sums_that_leave_the_range_are_poisoned) {
    enum { N = 19 };
    for (EACH_SET(s))
        for (int j = 0; j < N; j += N - 1) {
            float a[8], b[8 * N] = {0};
            int64_t y[N] = {0};
            for (int i = 0; i < 8; i++) a[i] = 1, b[i * N + j] = 32767;
            Matmul p = matmul_of(&(Case){.M = 1, .N = N, .K = 8}, a, b);
            p.K = 1;
            run(*s, 1, p, (MatmulExact){y, 1, 0, 0, EXPONENT, true});
            CHECK(y[j] == INT64_C(32767) << EXPONENT);
            p.K = 8; // within one panel of K
            run(*s, 1, p, (MatmulExact){y, 1, 0, 0, EXPONENT, true});
            CHECK(y[j] == EXACT_POISON);
            p.K = 1, y[j] = INT64_C(2) << EXPONENT; // and from one call to the next
            run(*s, 1, p, (MatmulExact){y, 1, 0, 0, EXPONENT, false});
            CHECK(y[j] == EXACT_POISON);
            p.K = 3; // a sum that is out of range itself does not mend it
            for (int i = 0; i < 3; i++) b[i * N + j] = -16384;
            run(*s, 1, p, (MatmulExact){y, 1, 0, 0, EXPONENT, false});
            CHECK(y[j] == EXACT_POISON && y[1] == 0);
        }
}

TEST(exact_floats_are_rounded_once) {
    enum { N = 1003 };
    for (EACH_SET(s))
        for (int exponent = -20; exponent <= 80; exponent += 25) {
            int64_t *v = whole_numbers(N);
            float *y = floats(N, 0, 0);
            for (int i = 0; i < N; i++) {
                v[i] = (int64_t)(rng_u64(5, 0, (uint64_t)i) >> (13 + i % 50));
                if (i % 2) v[i] = -v[i];
            }
            v[0] = range - 1, v[1] = -range, v[2] = 0;
            OWNED(test_team_end) Team *t = team_create(2);
            for (int odd = 0; odd < 2; odd++) {
                kernels_cpu(*s)->exact_to_float(t, y, v, N, exponent);
                for (int i = odd ? 3 : 0; i < N; i++)
                    CHECK(y[i] == (float)ldexp((double)v[i], -exponent));
                CHECK(!odd || (isnan(y[0]) && isnan(y[1]) && isnan(y[2])));
                v[0] = range, v[1] = -range - 1, v[2] = EXACT_POISON; // what is not in range
            }
            CHECK(scratch_end());
        }
}

/* Parts of ranks are added as plain integers; a poisoned one among them always shows. */
TEST(exact_poison_survives_the_addition_of_parts) {
    const Kernels *k = kernels_cpu(NULL);
    OWNED(test_team_end) Team *t = team_create(1);
    for (int64_t poisoned = 1; poisoned <= 4095; poisoned++)
        for (int64_t others = -range + 1; others < range; others += range - 1) {
            int64_t sum = (int64_t)((uint64_t)poisoned * (uint64_t)EXACT_POISON + (uint64_t)others);
            int64_t wide[WIDE] = {sum, 12345};
            float y;
            k->exact_to_float(t, &y, &sum, 1, 0);
            CHECK(isnan(y));
            CHECK(isnan(k->exact_wide_to_double(wide)));
        }
}

__extension__ typedef __int128 Big;

/* Sum in steps of 2^-64, of which every float from 2^-40 on is a multiple. */
static double sum_with(const float *x, int64_t n, bool squares) {
    Big sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = squares ? x[i] * x[i] : x[i];
        sum += (Big)ldexp((double)v, 64);
    }
    int64_t hi = (int64_t)((sum + (Big)1 * (INT64_C(1) << 49)) >> 50);
    return ldexp((double)hi, -14) + ldexp((double)(int64_t)(sum - (Big)hi * ((Big)1 << 50)), -64);
}

static const int64_t lengths[] = {0, 1, 17, 4096, 4097, 50003, 5000000};

TEST(exact_sum_is_the_sum_in_any_parts) {
    for (EACH_SET(s))
        for (int i = 0; i < 7; i++)
            for (int squares = 0; squares < 2; squares++) {
                const Kernels *k = kernels_cpu(*s);
                int64_t n = lengths[i], whole[WIDE] = {0}, width[MAX_PARTS];
                float *x = floats(n, 1, 1);
                for (int64_t j = 0; j < n;
                     j++) { // sizes from 2^-15 to 2^9; squares are multiples of 2^-64 too
                    x[j] = ldexpf(x[j], (int)(j % 25) - 15);
                    if (fabsf(x[j]) < 0x1p-18f) x[j] = 0;
                }
                if (n > 100000 && i % 2 + squares == 1 && **s == 'p') continue; // slow, nothing new
                OWNED(test_team_end) Team *t = team_create(3);
                k->exact_sum(t, whole, x, n, squares);
                double want = sum_with(x, n, squares);
                CHECK(k->exact_wide_to_double(whole) == want);
                for (int how = 0; how < CUTS && n > 0; how++) {
                    int64_t sum[WIDE] = {0}, first = 0;
                    int n_parts = cut(how, n, width);
                    for (int j = 0; j < n_parts; first += width[j++]) {
                        int64_t part[WIDE] = {0};
                        k->exact_sum(t, part, x + first, width[j], squares);
                        add_parts(sum, part, WIDE);
                    }
                    CHECK(k->exact_wide_to_double(sum) == want);
                }
                CHECK(scratch_end());
            }
}

TEST(exact_add_adds_each_integer_for_any_team) {
    enum { N = 40001 };
    for (EACH_SET(s))
        for (int threads = 1; threads <= 5; threads += 4) {
            int64_t *from = whole_numbers(N), *to = whole_numbers(N), *want = whole_numbers(N);
            for (int64_t i = 0; i < N; i++) {
                from[i] = i % 5 ? (int64_t)rng_u64(1, 2, (uint64_t)i) / 8 : EXACT_POISON;
                to[i] = want[i] = (int64_t)rng_u64(1, 3, (uint64_t)i) / 8;
            }
            OWNED(test_team_end) Team *t = team_create(threads);
            kernels_cpu(*s)->exact_add(t, to, from, N - 1);
            add_parts(want, from, N - 1);
            CHECK(same_sums(to, want, N));
            CHECK(scratch_end());
        }
}

TEST(exact_sum_shows_what_is_out_of_range) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p37f, -3e38f};
    enum { N = 10000 };
    for (EACH_SET(s))
        for (EACH(b, bad))
            for (int where = 0; where < N; where += 1111) {
                float *x = floats(N, 1, 1);
                int64_t sum[WIDE] = {0}, squares[WIDE] = {0};
                OWNED(test_team_end) Team *t = team_create(2);
                x[where] = *b;
                kernels_cpu(*s)->exact_sum(t, sum, x, N, false);
                kernels_cpu(*s)->exact_sum(t, squares, x, N, true);
                x[where] = 0;
                kernels_cpu(*s)->exact_sum(t, sum, x, N, false); // is not mended
                CHECK(isnan(kernels_cpu(*s)->exact_wide_to_double(sum)));
                CHECK(isnan(kernels_cpu(*s)->exact_wide_to_double(squares)));
                CHECK(scratch_end());
            }
}

/* 16,384 times 2^50 steps are 2^64, which must not look like 0. */
TEST(exact_sum_does_not_wrap) {
    enum { N = 16384 };
    for (EACH_SET(s)) {
        float *x = floats(N, 0, 0);
        int64_t sum[WIDE] = {0};
        OWNED(test_team_end) Team *t = team_create(2);
        for (int i = 0; i < N; i++) x[i] = 0x1p36f;
        kernels_cpu(*s)->exact_sum(t, sum, x, N, false);
        CHECK(isnan(kernels_cpu(*s)->exact_wide_to_double(sum)));
        CHECK(scratch_end());
    }
}
