/* The classifier against double precision, by every table of kernels: whole rows and rows that are
 * cut. */
#include "tests/everywhere.h"

typedef struct Case {
    int64_t T, V, ld, skew;
    float size; // logits in [-size, size)
} Case;

/* Chunks of a row are 4,096 logits or more; 1,100,003 makes more than 256 of those. */
static const Case cpu_cases[] = {
    {3, 50257, 50304, 0, 5},  {7, 1, 1, 0, 5},    {9, 5, 8, 0, 5}, {4, 4095, 4095, 0, 80},
    {2, 4113, 4200, 0, 1e4f}, {11, 17, 17, 0, 0}, {0, 3, 3, 0, 1}, {1, 1100003, 1100003, 0, 10}};
/* Rows in single words, in words of 16 bytes with a rest, longer than a block takes at once, longer
 * than shared memory. */
static const Case cuda_cases[] = {
    {1, 1, 1, 0, 5},        {6, 37, 37, 0, 20},    {6, 40, 40, 0, 20},
    {6, 43, 48, 0, 20},     {6, 40, 48, 1, 20},    {1, 3000, 3000, 0, 30},
    {2, 5001, 5008, 0, 80}, {2, 4096, 4096, 0, 3}, {1, 120000, 120000, 0, 10},
};
enum { CPU_CASES = N_OF(cpu_cases), CUDA_CASES = N_OF(cuda_cases), QUICK = 6 };

static Array logits_of(const Where *w, const Case *c) {
    Array all = array_random(c->T * c->ld, c->size, 1, w->bf16, 0);
    return part_of(&all, c->T, c->ld, 0, c->V, c->ld, c->skew);
}
/* Some are not counted. */
static int32_t *targets_of(const Case *c, int32_t **device) {
    int32_t *y = scratch_take((size_t)c->T * sizeof *y);
    for (int64_t t = 0; t < c->T; t++) y[t] = t % 5 == 3 ? -1 : (int32_t)(t * 7919 % c->V);
    return *device = tokens_put(y, c->T), y;
}

/* scale = 1: probabilities. */
static bool row_near(const Where *w, const Case *c, const float *x, int32_t target, float loss,
                     const float *dx, bool in_parts) {
    double *want = doubles_copy(NULL, c->V), max = -INFINITY;
    double of_row = classifier_reference(x, c->V, target, 1, want);
    // The CPU works out the loss in double from sums that fp32 exponentials (2e-7) went into; CUDA
    // has exponentials of numbers up to 160, which are known to 1e-5.
    if (!near_all("loss", &loss, &of_row, 1, w->set ? 5e-7 : 2e-6 * (1 + (double)c->size)))
        return false;
    if (!w->set) return near_all("dlogits", dx, want, c->V, rounding_error(w->bf16) + 2e-5);
    for (int64_t v = 0; v < c->V; v++) max = fmax(max, (double)x[v]);
    for (int64_t v = 0; v < c->V; v++) {
        // x - max is rounded to fp32, which is a relative error of its exponential; a softmax below
        // 1e-37 may be flushed to 0; the target's gradient is a difference from 1.
        // In parts, the logarithm of the sum is rounded to fp32 between the steps.
        double p = want[v] + (v == target),
               rel = 1e-6 + 6e-8 * (max - (double)x[v]) + (in_parts ? 6e-8 * (fabs(max) + 12) : 0);
        double bound = rel * p + 1e-37 + (v == target ? 1.2e-7 : 0);
        if (fabs((double)dx[v] - want[v]) <= bound) continue;
        test_fail("gradient[%lld] is %.9g, not %.9g", (long long)v, (double)dx[v], want[v]);
        return false;
    }
    return true;
}
static bool rows_near(const Where *w, const Case *c, const Array *before, const int32_t *target,
                      const Array *loss, const Array *after, bool in_parts) {
    for (int64_t t = 0; t < c->T; t++)
        if (!row_near(w, c, before->host + t * c->ld, target[t], loss->host[t],
                      after->host + t * c->ld, in_parts))
            return false;
    return true;
}

/* Without backward the logits stay; with it, what lies between rows. */
static bool whole(const Where *w, const void *of, UNUSED int way) {
    const Case *c = of;
    int32_t *on_device, *target = targets_of(c, &on_device);
    Array x = logits_of(w, c), before = logits_of(w, c), loss = array_empty(c->T, false, 0);
    Classifier k = {.T = c->T, .V = c->V, .ld = c->ld, .targets = on_device, .scale = 1};
    w->k->classifier(w->team, &k, loss.device, x.device);
    array_get(&x), array_get(&loss);
    if (!same_bits(x.host, before.host, x.n)) return false;
    float *alone = floats_copy(loss.host, c->T);
    k.backward = true;
    w->k->classifier(w->team, &k, loss.device, x.device);
    array_get(&x), array_get(&loss);
    if (w->again) return true;
    for (int64_t i = 0; i < x.n; i++)
        if (i % c->ld >= c->V && x.host[i] != between_rows) return false;
    return same_bits(alone, loss.host, c->T) && rows_near(w, c, &before, target, &loss, &x, false);
}
TEST_ON_CPU(classifier_matches_double_for_any_team, whole, cpu_cases, CPU_CASES, 1)
TEST_ON_CUDA(cuda_classifier_matches_double_in_any_order, whole, cuda_cases, CUDA_CASES, QUICK, 1)

/* The loss of these logits, which become their gradients, or stay; the columns in parts, each with
 * rows of its own length, as ranks hold them. Columns of a part beyond V are 0 after backward. */
static bool in_parts(const Where *w, const Case *c, int32_t *targets, bool backward, int how,
                     Array *loss, Array *x) {
    int64_t width[MAX_PARTS], first = 0, T = c->T;
    int n = cut(how, c->V, width);
    Array stats = array_empty(n * T * 3, false, 0), log_sum = array_empty(T, false, 0);
    Array part[MAX_PARTS];
    Classifier p[MAX_PARTS];
    for (int i = 0; i < n; first += width[i++]) {
        int64_t ld = (width[i] + 15) / 8 * 8 + i % 2;
        p[i] = (Classifier){.T = T, .V = width[i], .ld = ld, .targets = targets, .scale = 1};
        p[i].first = first, p[i].backward = backward;
        part[i] = part_of(x, T, c->ld, first, width[i], ld, 0);
        w->k->classifier_statistics(w->team, &p[i], stats.device + i * 3 * T, part[i].device);
    }
    w->k->classifier_merge(w->team, &p[0], loss->device, log_sum.device, stats.device, n);
    array_get(loss);
    for (int i = 0; i < n; i++) {
        int64_t ld = p[i].ld;
        if (backward)
            w->k->classifier_gradient(w->team, &p[i], stats.device + i * 3 * T, log_sum.device,
                                      part[i].device);
        array_get(&part[i]);
        for (int64_t j = 0; j < T * ld; j++)
            if (j % ld < width[i])
                x->host[j / ld * c->ld + p[i].first + j % ld] = part[i].host[j];
            else if (part[i].host[j] != (backward ? 0 : between_rows))
                return false;
    }
    return true;
}
static bool cut_rows(const Where *w, const void *of, int way) {
    const Case *c = of;
    if (c->V > 1000000 && way != 4) return true; // slow, and nothing new
    int32_t *on_device, *target = targets_of(c, &on_device);
    Array x = logits_of(w, c), before = logits_of(w, c), loss = array_empty(c->T, false, 0);
    if (!in_parts(w, c, on_device, false, way, &loss, &x)) return false;
    if (!same_bits(x.host, before.host, x.n)) return false;
    float *alone = floats_copy(loss.host, c->T);
    if (!in_parts(w, c, on_device, true, way, &loss, &x)) return false;
    return w->again ||
           (same_bits(alone, loss.host, c->T) && rows_near(w, c, &before, target, &loss, &x, true));
}
TEST_ON_CPU(classifier_in_parts_matches_double_for_any_team, cut_rows, cpu_cases, CPU_CASES, CUTS)
TEST_ON_CUDA(cuda_classifier_of_cut_rows_matches_double_in_any_order, cut_rows, cuda_cases + 1, 6,
             0, CUTS)

/* Infinities and NaN, one of them, a block, or all, in any part come out as they do of the whole
 * row. -inf has probability 0, a NaN is not hidden. In a row that is not counted nothing comes of
 * them. */
static bool extreme(const Where *w, const void *of, int way) {
    enum { V = 40 };
    static const Case c = {2, V, V, 0, 3};
    float odd = *(const float *)of;
    int how = way % CUTS, many = way / CUTS;
    int32_t target = way % 2 ? 7 : V - 1, *at = tokens_put((int32_t[]){target, -1}, 2);
    Array x = logits_of(w, &c), loss = array_empty(2, false, 0),
          cut_loss = array_empty(2, false, 0);
    for (int v = many ? 0 : 7; v < (many == 2 ? V : 8); v++) x.host[v] = x.host[V + v] = odd;
    array_put(&x);
    Array y = part_of(&x, 2, V, 0, V, V, 0);
    Classifier k = {.T = 2, .V = V, .ld = V, .targets = at, .scale = 1, .backward = true};
    w->k->classifier(w->team, &k, loss.device, x.device);
    array_get(&x), array_get(&loss);
    if (!in_parts(w, &c, at, true, how, &cut_loss, &y)) return false;
    for (int v = V; v < 2 * V; v++)
        if (x.host[v] != 0 || y.host[v] != 0) return false;
    if (loss.host[1] != 0 || cut_loss.host[1] != 0) return false;
    if (isnan(odd) && !isnan(loss.host[0])) return false;
    if (odd < -1e38f && !many && target != 7 && x.host[7] != 0) return false;
    // Losses are of size 8. The cut one rounds log_sum of size 4 to fp32. Where several logits are
    // 3e38 it rounds away the logarithm of their number, and each exponential counts as 1.
    bool lost = fabsf(odd) == 3e38f && many;
    return near_or_nan(loss.host, cut_loss.host, 1, w->set ? 1e-6f : 1e-5f) &&
           near_or_nan(x.host, y.host, V, lost ? 1 : (float)rounding_error(w->bf16) + 1e-6f);
}
static const float odd[] = {-INFINITY, INFINITY, NAN, -3e38f, 3e38f};
TEST_ON_CPU(classifier_in_parts_treats_extremes_as_the_fused_one, extreme, odd, 5, 3 * CUTS)
TEST_ON_CUDA(cuda_classifier_in_parts_treats_extremes_as_the_fused_one, extreme, odd, 5, 0,
             3 * CUTS)

/* T rows of V logits. */
static void run(const char *set, int64_t T, int64_t V, const int32_t *targets, bool backward,
                float *loss, float *x) {
    OWNED(test_team_end) Team *t = team_create(1);
    Classifier k = {.T = T, .V = V, .ld = V, .targets = targets, .backward = backward, .scale = 1};
    kernels_cpu(set)->classifier(t, &k, loss, x);
}

TEST(classifier_keeps_its_head_at_extremes) {
    enum { V = 4100 }; // two chunks
    for (EACH_SET(s)) {
        int32_t first = 0, last = V - 1;
        float loss, *x = floats(V, 0, 0), *y = floats(V, 0, 0);
        run(*s, 1, V, &first, true, &loss, x); // all equal
        CHECK_NEAR(loss, log((double)V), 1e-6);
        CHECK_NEAR(x[7], 1.0 / V, 1e-9);

        for (int i = 0; i < V; i++)
            x[i] = -INFINITY; // a whole chunk of -inf, and most of the other
        x[last] = -3e38f, x[V - 2] = -3e38f;
        run(*s, 1, V, &last, true, &loss, x);
        CHECK_NEAR(loss, log(2.0), 1e-6);
        CHECK(x[0] == 0 && x[V - 3] == 0);
        CHECK_NEAR(x[last], -0.5, 1e-6);

        memset(x, 0, V * sizeof *x);
        x[first] = -INFINITY; // the target is impossible: the loss is infinite, the gradient is not
        run(*s, 1, V, &first, true, &loss, x);
        CHECK(isinf(loss) && loss > 0);
        CHECK_NEAR(x[first], -1, 1e-6);

        x[3] = 1e4f, x[first] = 1e4f - 1; // differences count, not sizes
        memset(x + 4, 0, (V - 4) * sizeof *x);
        run(*s, 1, V, &first, true, &loss, x);
        CHECK_NEAR(loss, log(1 + exp(-1.0)) + 1, 1e-6);

        for (int where = 0; where < V; where += 137) { // NaN anywhere shows
            memset(y, 0, V * sizeof *y);
            y[where] = NAN;
            run(*s, 1, V, &last, false, &loss, y);
            CHECK(isnan(loss));
            run(*s, 1, V, &last, true, &loss, y);
            CHECK(isnan(loss));
        }
        CHECK(scratch_end());
    }
}

/* The exponential of every set, through the softmax of {x, 0}: e^x / (1 + e^x). */
TEST(exponentials_of_every_set_are_exact_to_an_ulp_or_two) {
    enum { N = 20000 };
    for (EACH_SET(s)) {
        float *x = floats(2 * N, 0, 0), *y, *loss = floats(N, 0, 0);
        int32_t *targets = scratch_take(N * sizeof *targets);
        for (int i = 0; i < N; i++) x[2 * i] = -86.4f * (float)i / (float)N, targets[i] = 1;
        y = floats_copy(x, 2 * N);
        run(*s, N, 2, targets, true, loss, y);
        for (int i = 0; i < N; i++) {
            double e = exp((double)x[2 * i]), want = e / (1 + e), got = (double)y[2 * i];
            if (want < 1.2e-38) break; // a denormal
            CHECK(fabs(got / want - 1) <
                  4.5e-7); // vf_exp, 1 + e^x, the factor and the product: four roundings
        }
        CHECK(scratch_end());
    }
}
