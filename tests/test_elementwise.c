/* What a mesh may cut must not notice: elements have the same bits wherever in a row they lie (in
 * whole vectors or in the rest), and heads whichever others are in the call. */
#include "tests/layers.h"

enum { N = 200 };

/* Inputs of N elements, and what came out of elements begin .. begin + n. */
typedef struct Row {
    float a[N], b[N], c[N], d[N];
} Row;
typedef void (*Elementwise)(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                            float *out);

static void gelu_forward_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                            float *out) {
    k->act_forward(t, ACT_GELU, out, in->a + begin, n);
}
static void gelu_backward_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                             float *out) {
    k->act_backward(t, ACT_GELU, out, in->b + begin, in->a + begin, n);
}
static void gate_and_up(const Row *in, int64_t begin, int64_t n, float x[2 * N]) {
    memcpy(x, in->a + begin, (size_t)n * sizeof *x);
    memcpy(x + n, in->b + begin, (size_t)n * sizeof *x);
}
static void swiglu_forward_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                              float *out) {
    float x[2 * N];
    gate_and_up(in, begin, n, x);
    k->swiglu_forward(t, out, x, 1, n);
}
static void swiglu_backward_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                               float *out) {
    float x[2 * N], dx[2 * N];
    gate_and_up(in, begin, n, x);
    k->swiglu_backward(t, dx, in->c + begin, x, 1, n);
    for (int64_t i = 0; i < n; i++) out[i] = dx[i] + 3 * dx[n + i]; // one number for both
}
static void bias_residual_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                             float *out) {
    memcpy(out, in->a + begin, (size_t)n * sizeof *out);
    k->bias_residual(t, out, in->b + begin, in->c + begin, 1, n);
}
static void adamw_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                     float *out) {
    AdamW o = {.lr = 1e-2, .beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1, .step = 3};
    float m[N], v[N];
    o.grad_scale = .7;
    memcpy(out, in->a + begin, (size_t)n * sizeof *out);
    memcpy(m, in->b + begin, (size_t)n * sizeof *m);
    for (int64_t i = 0; i < n; i++) v[i] = in->c[begin + i] * in->c[begin + i];
    k->adamw(t, &o, out, m, v, in->d + begin, n, true);
    for (int64_t i = 0; i < n; i++) out[i] += m[i] + 3 * v[i];
}
static const float mean = .3f, rstd = 1.7f, sums[2] = {.9f, -.7f};
static Norm norm_of(const Row *in, int64_t begin, int64_t n) {
    return (Norm){.kind = NORM_LAYER,
                  .T = 1,
                  .C = n,
                  .C_all = N,
                  .gamma = in->b + begin,
                  .beta = in->c + begin};
}
static void norm_apply_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                          float *out) {
    Norm norm = norm_of(in, begin, n);
    k->norm_apply(t, &norm, out, in->a + begin, &mean, &rstd);
}
static void norm_backward_of(const Kernels *k, Team *t, const Row *in, int64_t begin, int64_t n,
                             float *out) {
    Norm norm = norm_of(in, begin, n);
    memset(out, 0, (size_t)n * sizeof *out);
    k->norm_backward_apply(t, &norm, out, in->d + begin, in->a + begin, &mean, &rstd, sums);
}
static void classifier_gradient_of(const Kernels *k, Team *t, const Row *in, int64_t begin,
                                   int64_t n, float *out) {
    int32_t target = 0;
    float stats[3] = {6.1f}, log_sum = 7.3f;
    Classifier c = {.T = 1, .V = n, .ld = n, .targets = &target, .scale = .01f, .backward = true};
    c.first = begin;
    memcpy(out, in->a + begin, (size_t)n * sizeof *out);
    k->classifier_gradient(t, &c, stats, &log_sum, out);
}

static const struct {
    const char *name;
    Elementwise f;
} kernels[] = {{"gelu forward", gelu_forward_of},
               {"gelu backward", gelu_backward_of},
               {"swiglu forward", swiglu_forward_of},
               {"swiglu backward", swiglu_backward_of},
               {"bias and residual", bias_residual_of},
               {"AdamW", adamw_of},
               {"norm apply", norm_apply_of},
               {"norm backward apply", norm_backward_of},
               {"classifier gradient", classifier_gradient_of}};

TEST(elements_have_the_same_bits_wherever_they_lie) {
    static Row in;
    test_fill(in.a, N, 6, 1), test_fill(in.b, N, 1, 2), test_fill(in.c, N, 1, 3),
        test_fill(in.d, N, 1, 4);
    for (EACH_SET(s))
        for (EACH(kernel, kernels)) {
            const Kernels *k = kernels_cpu(*s);
            OWNED(test_team_end) Team *t = team_create(1);
            float whole[N], part[N];
            kernel->f(k, t, &in, 0, N, whole);
            for (int64_t n = 1; n <= 70;
                 n++) // vectors have up to 16 lanes, and are taken four at a time
                for (int64_t begin = 0; begin + n <= N; begin += 13) {
                    kernel->f(k, t, &in, begin, n, part);
                    if (!same_bits(part, whole + begin, n))
                        test_fail("%s: %s of %lld from %lld differs", *s, kernel->name,
                                  (long long)n, (long long)begin);
                }
            CHECK(!test_failed());
        }
}

typedef struct Heads {
    int64_t B, S, H, Hkv, D;
} Heads;

/* The floats of sequence b and of head group g (its query heads, key, value) of qkv, as a call for
 * them alone has them.
 */
static void one_group(const Heads *a, int64_t b, int64_t g, const float *all, float *alone) {
    int64_t each = a->H / a->Hkv, W = (a->H + 2 * a->Hkv) * a->D, w = (each + 2) * a->D;
    for (int64_t s = 0; s < a->S; s++)
        for (int64_t i = 0; i < w; i++) {
            int64_t h = i / a->D, head = h < each    ? g * each + h
                                         : h == each ? a->H + g
                                                     : a->H + a->Hkv + g;
            alone[s * w + i] = all[(b * a->S + s) * W + head * a->D + i % a->D];
        }
}

/* rope, then attention there and back, of all in `a`: what is cut by heads and by sequences. */
static void attend(const Kernels *k, int threads, const Heads *a, float *qkv, const float *dout,
                   float *out, float *lse, float *dqkv) {
    OWNED(test_team_end) Team *t = team_create(threads);
    Attention at = {a->B, a->S, a->H, a->Hkv, a->D, false, NULL};
    size_t bytes = k->attention_workspace(threads, a->B, a->S, a->H, a->Hkv, a->D);
    float *table = floats(a->S * a->D, 0, 0);
    Config heads = {.channels = a->D, .heads = 1, .rope_theta = 10000, .rope_factor = 1};
    rope_table(table, a->S, &heads);
    Rope r = {a->B, a->S, a->H, a->Hkv, a->D, 0, table};
    at.workspace = mem_alloc_aligned(bytes, 64);
    memset(at.workspace, 0xff, bytes);
    k->rope(t, &r, qkv, 1);
    k->attention_forward(t, &at, out, lse, qkv);
    k->attention_backward(t, &at, dqkv, dout, qkv, out, lse);
    k->rope(t, &r, dqkv, -1);
    mem_free(at.workspace);
}

/* Tiles are 96 queries by 128 keys. */
static const Heads attentions[] = {{3, 40, 5, 5, 64},
                                   {2, 300, 4, 2, 32},
                                   {1, 513, 3, 3, 64},
                                   {7, 1, 2, 2, 10},
                                   {2, 129, 6, 3, 18}};

TEST(heads_have_the_same_bits_alone_and_among_others) {
    for (EACH_SET(s))
        for (EACH(a, attentions)) {
            const Kernels *k = kernels_cpu(*s);
            int64_t each = a->H / a->Hkv, T = a->B * a->S, W = (a->H + 2 * a->Hkv) * a->D;
            int64_t w = (each + 2) * a->D, n = each * a->D, NO = a->H * a->D;
            float *qkv = floats(T * W, 1, 1), *dout = floats(T * NO, 1, 2),
                  *turned = floats_copy(qkv, T * W);
            float *out = floats(T * NO, 0, 0), *lse = floats(T * a->H, 0, 0),
                  *dqkv = floats(T * W, 0, 0);
            float *x = floats(a->S * w, 0, 0), *d = floats(a->S * n, 0, 0),
                  *y = floats(a->S * n, 0, 0), *l = floats(a->S * each, 0, 0),
                  *dx = floats(a->S * w, 0, 0);
            float *want = floats(a->S * w, 0, 0);
            attend(k, 3, a, turned, dout, out, lse, dqkv);
            for (int64_t b = 0; b < a->B; b++)
                for (int64_t g = 0; g < a->Hkv; g++) {
                    Heads alone = {1, a->S, each, 1, a->D};
                    one_group(a, b, g, qkv, x);
                    for (int64_t j = 0; j < a->S * n; j++)
                        d[j] = dout[(b * a->S + j / n) * NO + g * n + j % n];
                    attend(k, 1 + (int)((b + g) % 5), &alone, x, d, y, l, dx);
                    one_group(a, b, g, turned, want);
                    CHECK(same_bits(x, want, a->S * w)); // rope
                    one_group(a, b, g, dqkv, want);
                    CHECK(same_bits(dx, want, a->S * w));
                    for (int64_t j = 0; j < a->S; j++)
                        CHECK(same_bits(y + j * n, out + (b * a->S + j) * NO + g * n, n));
                    CHECK(same_bits(l, lse + (b * a->H + g * each) * a->S, each * a->S));
                }
            CHECK(scratch_end());
        }
}
