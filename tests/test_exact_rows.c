/* Norms and the classifier by panels, gradients of tables and biases by exact sums: right, and with
 * the same bits however rows, columns and tokens are sharded. */
#include <float.h>

#include "parallel/mesh/shard.h"
#include "tests/layers.h"

/* A dimension of n on so many ranks: blocks of whole panels, the last ones with padding or of
 * nothing else. */
typedef struct Blocks {
    int ranks;
    int64_t panel, panels, all; // of each rank; of all n elements
    int64_t first[MAX_PARTS], width[MAX_PARTS];
} Blocks;

static Blocks blocks_of(int64_t n, int ranks) {
    Blocks b = {.ranks = ranks, .panel = exact_panel(n)};
    b.all = (n + b.panel - 1) / b.panel, b.panels = (b.all + ranks - 1) / ranks;
    for (int i = 0; i < ranks; i++) {
        int64_t block = b.panels * b.panel, left = n - i * block;
        b.first[i] = left > 0 ? i * block : n;
        b.width[i] = left < 0 ? 0 : left < block ? left : block;
    }
    return b;
}
static const int worlds[] = {1, 2, 3, 4, 7};
enum { WORLDS = N_OF(worlds) };

/* Numbers of each panel of all ranks and each token; nobody may read those of panels of padding. */
static float *numbers_of(const Blocks *b, int64_t n) {
    float *x = floats(b->ranks * b->panels * n, 0, 0);
    for (int64_t i = 0; i < b->ranks * b->panels * n; i++) x[i] = NAN;
    return x;
}

/* Columns first .. first + width of x[T,C], in rows of ld. */
static float *part_of(const float *x, int64_t T, int64_t C, int64_t first, int64_t width,
                      int64_t ld) {
    float *part = floats(T * ld, 0, 0);
    for (int64_t i = 0; i < T * ld; i++)
        part[i] = i % ld < width ? x[i / ld * C + first + i % ld] : 12345;
    return part;
}

typedef struct NormCase {
    NormKind kind;
    int64_t T, C;
    float offset, scale; // x = offset + [-1, 1), dy in scale [-1, 1)
} NormCase;
static const NormCase norm_cases[] = {
    {NORM_LAYER, 5, 1, 0, 1},  {NORM_LAYER, 33, 100, 0, 1e-6f}, {NORM_LAYER, 20, 768, 1000, 1},
    {NORM_RMS, 33, 100, 0, 1}, {NORM_RMS, 7, 1023, 100, 1e-3f}, {NORM_LAYER, 6200, 5, 0, 1e-3f}};

typedef struct NormOut {
    float *y, *mean, *rstd, *dx, *dgamma, *dbeta;
} NormOut;

static NormOut norm_out(const NormCase *c) {
    return (NormOut){floats(c->T * c->C, 0, 0), floats(c->T, 0, 0), floats(c->T, 0, 0),
                     floats(c->T * c->C, 1, 5), floats(c->C, 0, 0), floats(c->C, 0, 0)};
}

/* Features over ranks, and tokens of the gradients of gamma and beta in two calls. */
static NormOut norm_on_ranks(const Kernels *k, int threads, const NormCase *c, int ranks) {
    NormOut o = norm_out(c);
    OWNED(test_team_end) Team *t = team_create(threads);
    int64_t T = c->T, C = c->C, half = T / 3;
    Blocks b = blocks_of(C, ranks);
    float *x_all = floats(T * C, 1, 1), *dy_all = floats(T * C, c->scale, 4),
          *gamma = floats(C, 1, 2), *beta = floats(C, 1, 3);
    float *stats = numbers_of(&b, 2 * T), *sums = numbers_of(&b, 2 * T);
    float *x[MAX_PARTS], *dy[MAX_PARTS], *mean = c->kind == NORM_LAYER ? o.mean : NULL;
    int64_t *dgamma = whole_numbers(C), *dbeta = whole_numbers(C);
    Norm n[MAX_PARTS];
    for (int64_t i = 0; i < T * C; i++) x_all[i] += c->offset;
    for (int i = 0; i < ranks; i++) {
        int64_t first = b.first[i], width = b.width[i], ld = b.panels * b.panel + i;
        n[i] = (Norm){.kind = c->kind, .T = T, .C = width, .ld = ld, .C_all = C, .part = b.panel};
        n[i].eps = 1e-5f, n[i].gamma = gamma + first, n[i].beta = beta + first;
        x[i] = part_of(x_all, T, C, first, width, ld);
        dy[i] = part_of(dy_all, T, C, first, width, ld);
        k->norm_statistics(t, &n[i], stats + i * b.panels * 2 * T, x[i]);
    }
    k->norm_merge(t, &n[ranks - 1], mean, o.rstd, stats);
    for (int i = 0; i < ranks; i++) {
        int64_t first = b.first[i];
        Norm rows = n[i]; // the first tokens, and the others
        rows.T = half;
        k->exact_norm_weight_backward(t, &rows, dgamma + first, dbeta + first, dy[i], x[i], mean,
                                      o.rstd, EXACT_WEIGHTS);
        rows.T = T - half;
        k->exact_norm_weight_backward(t, &rows, dgamma + first, dbeta + first,
                                      dy[i] + half * n[i].ld, x[i] + half * n[i].ld,
                                      mean ? mean + half : NULL, o.rstd + half, EXACT_WEIGHTS);
        k->norm_backward_sums(t, &n[i], sums + i * b.panels * 2 * T, dy[i], x[i], mean, o.rstd);
    }
    k->exact_to_float(t, o.dgamma, dgamma, C, EXACT_WEIGHTS);
    k->exact_to_float(t, o.dbeta, dbeta, C, EXACT_WEIGHTS);
    for (int i = 0; i < ranks; i++) {
        int64_t first = b.first[i], width = b.width[i];
        float *dx = part_of(o.dx, T, C, first, width, n[i].ld);
        k->norm_backward_apply(t, &n[i], dx, dy[i], x[i], mean, o.rstd, sums);
        k->norm_apply(t, &n[i], x[i], x[i], mean, o.rstd);
        for (int64_t j = 0; j < T * width; j++) {
            int64_t from = j / width * n[i].ld + j % width, to = j / width * C + first + j % width;
            o.dx[to] = dx[from], o.y[to] = x[i][from];
        }
    }
    return o;
}

static bool norm_same(const NormOut *a, const NormOut *b, const NormCase *c) {
    return same_bits(a->y, b->y, c->T * c->C) && same_bits(a->mean, b->mean, c->T) &&
           same_bits(a->rstd, b->rstd, c->T) && same_bits(a->dx, b->dx, c->T * c->C) &&
           same_bits(a->dgamma, b->dgamma, c->C) && same_bits(a->dbeta, b->dbeta, c->C);
}

TEST(exact_norm_in_parts_has_the_bits_of_the_whole) {
    for (EACH_SET(s))
        for (EACH(c, norm_cases)) {
            NormOut whole = norm_on_ranks(kernels_cpu(*s), 1, c, 1);
            for (int j = 1; j < WORLDS; j++) {
                NormOut parts = norm_on_ranks(kernels_cpu(*s), j == 2 ? 5 : 2, c, worlds[j]);
                CHECK(norm_same(&whole, &parts, c));
            }
            CHECK(scratch_end());
        }
}

/* The fused norm is tested against double and against slopes; the exact one must be as near to it
 * as rounding lets them be. */
TEST(exact_norm_is_the_norm) {
    for (EACH_SET(s))
        for (EACH(c, norm_cases)) {
            const Kernels *k = kernels_cpu(*s);
            int64_t n_x = c->T * c->C;
            NormOut o = norm_on_ranks(k, 2, c, 3), want = norm_out(c);
            float *x = floats(n_x, 1, 1);
            for (int64_t j = 0; j < n_x; j++) x[j] += c->offset;
            Norm n = {.kind = c->kind, .T = c->T, .C = c->C, .eps = 1e-5f};
            n.gamma = floats(c->C, 1, 2), n.beta = floats(c->C, 1, 3);
            n.dgamma = want.dgamma, n.dbeta = want.dbeta;
            n.workspace = scratch_take(k->norm_workspace(c->T, c->C));
            float *mean = c->kind == NORM_LAYER ? want.mean : NULL;
            OWNED(test_team_end) Team *t = team_create(2);
            k->norm_forward(t, &n, want.y, mean, want.rstd, x);
            k->norm_backward(t, &n, want.dx, floats(n_x, c->scale, 4), x, mean, want.rstd);
            // Rounding of a mean of 1000 is 3e-5, of which y has rstd = 1.7 times; E[x^2] - E[x]^2
            // would be off by 0.1 and more. Sums over tokens: rounding of each term, at random.
            double tol = c->offset == 1000 ? 4e-4 : 4e-6, sum_tol = tol * sqrt((double)c->T);
            double *y = doubles_copy(want.y, n_x), *dx = doubles_copy(want.dx, n_x),
                   *rstd = doubles_copy(want.rstd, c->T), *m = doubles_copy(want.mean, c->T),
                   *dg = doubles_copy(want.dgamma, c->C), *db = doubles_copy(want.dbeta, c->C);
            double slope = 0;
            for (int64_t j = 0; j < c->T; j++) slope = fmax(slope, rstd[j]);
            CHECK(near_all("y", o.y, y, n_x, tol) && near_all("mean", o.mean, m, c->T, 1e-6));
            CHECK(near_all("rstd", o.rstd, rstd, c->T, tol));
            CHECK(near_all("dx", o.dx, dx, n_x, tol * fmax(1, slope)));
            for (int64_t j = 0; j < c->C;
                 j++) { // relative to the size of dy, but for the step of the grid
                CHECK(fabs((double)o.dgamma[j] - dg[j]) <=
                      (sum_tol + 1e-13) * (double)c->scale *
                              fmax(1, fabs(dg[j] / (double)c->scale)) +
                          1e-12);
                CHECK(fabs((double)o.dbeta[j] - db[j]) <=
                      (sum_tol + 1e-13) * (double)c->scale *
                              fmax(1, fabs(db[j] / (double)c->scale)) +
                          1e-12);
            }
            CHECK(scratch_end());
        }
}

/* Key heads with their query heads over ranks, and tokens in two calls. */
TEST(exact_qk_norm_weight_is_the_sum_in_any_parts) {
    enum { T = 71, H = 6, HKV = 3, D = 19, ALL = H + 2 * HKV };
    for (EACH_SET(s)) {
        const Kernels *k = kernels_cpu(*s);
        float *x = floats(T * ALL * D, 1, 1), *dy = floats(T * ALL * D, 1, 2), got[2 * D];
        double want[2 * D] = {0};
        for (int64_t i = 0; i < T * ALL; i++) {
            double squares = 0;
            for (int64_t j = 0; j < D; j++) squares += pow((double)x[i * D + j], 2) / D;
            for (int64_t j = 0; j < D && i % ALL < H + HKV; j++)
                want[(i % ALL < H ? 0 : D) + j] +=
                    (double)dy[i * D + j] * (double)x[i * D + j] / sqrt(squares + 1e-5);
        }
        int64_t *first = NULL;
        for (int ranks = 1; ranks <= HKV; ranks += 2) {
            int64_t *sum = whole_numbers(2 * D), heads = H / ranks, kv = HKV / ranks,
                    row = (heads + 2 * kv) * D;
            OWNED(test_team_end) Team *t = team_create(ranks);
            for (int64_t rank = 0; rank < ranks; rank++) {
                float *own[] = {floats(T * row, 0, 0), floats(T * row, 0, 0)};
                for (int64_t i = 0; i < T * row; i++) {
                    int64_t head = i % row / D, at = head < heads ? rank * heads + head
                                                     : head < heads + kv
                                                         ? H + rank * kv + head - heads
                                                         : H + HKV; // a value
                    int64_t from = (i / row * ALL + at) * D + i % D;
                    own[0][i] = x[from], own[1][i] = dy[from];
                }
                QkNorm q = {.T = T / 3, .H = heads, .Hkv = kv, .D = D, .eps = 1e-5f};
                k->exact_qk_norm_weight_backward(t, &q, sum, own[1], own[0], EXACT_WEIGHTS);
                q.T = T - T / 3;
                k->exact_qk_norm_weight_backward(t, &q, sum, own[1] + T / 3 * row,
                                                 own[0] + T / 3 * row, EXACT_WEIGHTS);
            }
            if (!first) first = sum;
            CHECK(memcmp(sum, first, 2 * D * sizeof *sum) == 0);
            k->exact_to_float(t, got, sum, 2 * D, EXACT_WEIGHTS);
            CHECK(near_all("dgamma", got, want, 2 * D, 1e-5));
        }
        CHECK(scratch_end());
    }
}

typedef struct ClassifierOut {
    float *loss, *gradient;
} ClassifierOut;

/* Logits x[T,V] as they are, columns over ranks. */
static ClassifierOut classify(const Kernels *k, int threads, int64_t T, int64_t V,
                              const int32_t *targets, const float *logits, int ranks) {
    ClassifierOut o = {floats(T, 0, 0), floats(T * V, 0, 0)};
    OWNED(test_team_end) Team *t = team_create(threads);
    Blocks b = blocks_of(V, ranks);
    float *stats = numbers_of(&b, 3 * T), *log_sum = floats(T, 0, 0), *x[MAX_PARTS];
    Classifier c[MAX_PARTS];
    for (int i = 0; i < ranks; i++) {
        c[i] = (Classifier){.T = T, .V = b.width[i], .targets = targets, .part = b.panel};
        c[i].ld = b.panels * b.panel + i, c[i].first = b.first[i];
        c[i].scale = 1.0f / (float)T, c[i].backward = true;
        x[i] = part_of(logits, T, V, b.first[i], b.width[i], c[i].ld);
        k->classifier_statistics(t, &c[i], stats + i * b.panels * 3 * T, x[i]);
    }
    k->classifier_merge(t, &c[0], o.loss, log_sum, stats, b.all);
    for (int i = 0; i < ranks; i++) {
        k->classifier_gradient(t, &c[i], stats + i * b.panels * 3 * T, log_sum, x[i]);
        for (int64_t j = 0; j < T * c[i].ld; j++) {
            if (j % c[i].ld < b.width[i])
                o.gradient[j / c[i].ld * V + c[i].first + j % c[i].ld] = x[i][j];
            else if (x[i][j] != 0)
                test_fail("padding holds %g", (double)x[i][j]);
        }
    }
    return o;
}

static ClassifierOut classify_fused(const Kernels *k, int64_t T, int64_t V, const int32_t *targets,
                                    const float *logits) {
    ClassifierOut o = {floats(T, 0, 0), floats_copy(logits, T * V)};
    Classifier c = {.T = T, .V = V, .ld = V, .targets = targets, .scale = 1.0f / (float)T};
    OWNED(test_team_end) Team *t = team_create(1);
    c.backward = true;
    k->classifier(t, &c, o.loss, o.gradient);
    return o;
}

TEST(exact_classifier_in_parts_has_the_bits_of_the_whole) {
    static const int64_t sizes[][2] = {{3, 50257}, {9, 5}, {4, 4113}, {7, 1}};
    for (EACH_SET(s))
        for (int i = 0; i < 4; i++) {
            int64_t T = sizes[i][0], V = sizes[i][1];
            const Kernels *k = kernels_cpu(*s);
            float *x = floats(T * V, i == 2 ? 80 : 5, 1);
            int32_t *targets = scratch_take((size_t)T * sizeof *targets);
            for (int64_t j = 0; j < T * V && i == 1; j++) x[j] -= 200; // the largest is below 0
            for (int64_t t = 0; t < T; t++) targets[t] = t % 5 == 3 ? -1 : (int32_t)(t * 7919 % V);
            ClassifierOut whole = classify(k, 1, T, V, targets, x, 1),
                          fused = classify_fused(k, T, V, targets, x);
            // Both are right to some 1e-6 (losses up to 160, gradients up to 1).
            CHECK(near_or_nan(whole.loss, fused.loss, T, i == 2 ? 3e-5f : 2e-6f));
            CHECK(near_or_nan(whole.gradient, fused.gradient, T * V, 5e-6f));
            for (int j = 1; j < WORLDS; j++) {
                ClassifierOut parts = classify(k, j == 2 ? 5 : 2, T, V, targets, x, worlds[j]);
                CHECK(same_bits(whole.loss, parts.loss, T));
                CHECK(same_bits(whole.gradient, parts.gradient, T * V));
            }
            CHECK(scratch_end());
        }
}

TEST(exact_classifier_treats_extremes_as_the_fused_one) {
    enum { V = 40 };
    static const float odd[] = {-INFINITY, INFINITY, NAN, -3e38f, 1e30f};
    for (EACH_SET(s))
        for (EACH(w, worlds))
            for (int i = 0; i < 5 * 2; i++) { // one of them, or a block
                const Kernels *k = kernels_cpu(*s);
                int32_t target = i % 2 ? 7 : V - 1;
                float *x = floats(V, 3, 1);
                for (int v = i / 5 ? 0 : 7; v < 8; v++) x[v] = odd[i % 5];
                ClassifierOut whole = classify_fused(k, 1, V, &target, x),
                              parts = classify(k, 1, 1, V, &target, x, *w);
                CHECK(near_or_nan(whole.loss, parts.loss, 1, 1e-6f)); // losses of size 8
                // log_sum in fp32 rounds away the logarithm of how many logits are 1e30.
                CHECK(near_or_nan(whole.gradient, parts.gradient, V, i == 9 ? 1 : 2e-6f));
                CHECK(scratch_end());
            }
}

static const int64_t bias_cases[][2] = {{1, 1}, {67, 100}, {5000, 33}, {300, 513}, {0, 7}};

TEST(exact_bias_gradient_is_the_sum_in_any_parts) {
    for (EACH_SET(s))
        for (int i = 0; i < 5; i++) {
            int64_t T = bias_cases[i][0], N = bias_cases[i][1], width[MAX_PARTS];
            float *dy = floats(T * N, 1, 1);
            int64_t *want = whole_numbers(N);
            for (int64_t j = 0; j < T * N; j++)
                want[j % N] += llrint(ldexp((double)dy[j], EXACT_WEIGHTS));
            for (int how = 0; how < CUTS && T > 0; how++) {
                int64_t *sum = whole_numbers(N), first = 0;
                int n_parts = cut(how, T, width);
                OWNED(test_team_end) Team *t = team_create(team_sizes[how % TEAMS]);
                for (int j = 0; j < n_parts; first += width[j++])
                    kernels_cpu(*s)->exact_bias_backward(t, sum, dy + first * N, width[j], N,
                                                         EXACT_WEIGHTS);
                CHECK(memcmp(sum, want, (size_t)N * sizeof *sum) == 0);
            }
            CHECK(scratch_end());
        }
}

TEST(exact_bias_gradient_shows_what_is_out_of_range) {
    enum { T = 16384, N = 19 };
    for (EACH_SET(s)) {
        float *dy = floats(T * N, 0, 0), y[N];
        int64_t *sum = whole_numbers(N);
        for (int t = 0; t < T; t++) dy[t * N + 3] = 64; // 2^50 steps: all of them are 2^64
        dy[7000 * N + 5] = NAN, dy[16383 * N + 18] = -INFINITY, dy[9] = 128;
        dy[N + 12] = 192, dy[2 * N + 12] = -100, dy[3 * N + 12] = -90; // the sum is 2, in range
        OWNED(test_team_end) Team *t = team_create(2);
        kernels_cpu(*s)->exact_bias_backward(t, sum, dy, T, N, EXACT_WEIGHTS);
        dy[9] = 0;
        kernels_cpu(*s)->exact_bias_backward(t, sum, dy, 1, N, EXACT_WEIGHTS); // is not mended
        kernels_cpu(*s)->exact_to_float(t, y, sum, N, EXACT_WEIGHTS);
        for (int n = 0; n < N; n++)
            CHECK(n == 3 || n == 5 || n == 9 || n == 12 || n == 18 ? isnan(y[n]) : y[n] == 0);
        CHECK(scratch_end());
    }
}

/* By vocabulary and by blocks of tokens, with rows beyond the batch. */
TEST(exact_embedding_gradient_is_the_sum_in_any_parts) {
    for (EACH_SET(s))
        for (int how = 0; how < CUTS; how++) {
            enum { B = 3, S = 14, C = 37, V = 11, T = B * S, FIRST = 5, ROWS = 60 };
            const Kernels *k = kernels_cpu(*s);
            int32_t tokens[T];
            float *dx = floats(ROWS * C, 1, 3);
            int64_t width[MAX_PARTS], first = 0, *want_w = whole_numbers(V * C),
                                      *want_p = whole_numbers((FIRST + S) * C);
            int64_t *dw = whole_numbers(V * C), *dp = whole_numbers((FIRST + S) * C);
            for (int t = 0; t < T; t++) tokens[t] = t * t % V;
            for (int j = 0; j < T * C; j++) {
                int64_t v = llrint(ldexp((double)dx[j], EXACT_WEIGHTS));
                want_w[tokens[j / C] * C + j % C] += v;
                want_p[(FIRST + j / C % S) * C + j % C] += v;
            }
            OWNED(test_team_end) Team *t = team_create(team_sizes[how % TEAMS]);
            int n_parts = cut(how, V, width);
            for (int i = 0; i < n_parts; first += width[i++]) {
                Embedding e = {.B = B, .S = S, .C = C, .V = width[i], .first = FIRST};
                e.token0 = first, e.tokens = tokens;
                k->exact_embedding_backward(t, &e, dw + first * C, dx, EXACT_WEIGHTS);
            }
            Embedding e = {.B = B, .S = S, .C = C, .first = FIRST};
            n_parts = cut(how, ROWS, width), first = 0;
            for (int i = 0; i < n_parts; first += width[i++])
                k->exact_position_backward(t, &e, dp, width[i], first, dx + first * C,
                                           EXACT_WEIGHTS);
            CHECK(memcmp(dw, want_w, V * C * sizeof *dw) == 0);
            CHECK(memcmp(dp, want_p, (FIRST + S) * C * sizeof *dp) == 0);
            CHECK(scratch_end());
        }
}

TEST(exact_embedding_gradient_shows_what_is_out_of_range) {
    enum { C = 21 };
    // twice 127 leaves the range of 128, and nothing leads back; -128 is not in it
    static const float bad[] = {127, NAN, -128};
    for (EACH_SET(s))
        for (int j = 0; j < 3 * C; j++) {
            int at = j / 3;
            int32_t tokens[4] = {1, 1, 1, 0};
            float dx[4 * C], y[2 * C];
            int64_t dw[2 * C] = {0};
            Embedding e = {.B = 1, .S = 4, .C = C, .V = 2, .tokens = tokens};
            OWNED(test_team_end) Team *t = team_create(1);
            for (int i = 0; i < 4 * C; i++) dx[i] = 1;
            dx[at] = bad[j % 3];
            dx[C + at] = 127, dx[2 * C + at] = -127, dx[3 * C + at] = 127;
            kernels_cpu(*s)->exact_embedding_backward(t, &e, dw, dx, EXACT_WEIGHTS);
            kernels_cpu(*s)->exact_to_float(t, y, dw, 2 * C, EXACT_WEIGHTS);
            for (int i = 0; i < 2 * C; i++) {
                float want = i < C ? i == at ? 127 : 1 : 3;
                CHECK(i == C + at ? isnan(y[i]) : y[i] == want);
            }
        }
}
