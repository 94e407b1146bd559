#include "tests/layers.h"

typedef struct Case {
    int64_t T, V, ld;
    float size; // logits in [-size, size)
} Case;

static const float pad = 12345; // between the rows

static float *logits_new(const Case *c) {
    float *x = floats(c->T * c->ld, c->size, 1);
    for (int64_t t = 0; t < c->T; t++)
        for (int64_t v = c->V; v < c->ld; v++) x[t * c->ld + v] = pad;
    return x;
}

static int32_t *targets_new(const Case *c) {
    int32_t *y = scratch_take((size_t)c->T * sizeof *y);
    for (int64_t t = 0; t < c->T; t++) y[t] = t % 5 == 3 ? -1 : (int32_t)(t * 7919 % c->V);
    return y;
}

static void run(const char *set, int threads, const Case *c, const int32_t *targets, bool grad,
                float *loss, float *x) {
    OWNED(test_team_end) Team *t = team_create(threads);
    Classifier k = {.T = c->T,
                    .V = c->V,
                    .ld = c->ld,
                    .targets = targets,
                    .scale = 1.0f / (float)c->T,
                    .backward = grad};
    kernels_cpu(set)->classifier(t, &k, loss, x);
}

/* As run, with the columns in parts as ranks hold them. Columns of a part beyond V are 0 after
 * backward. */
static void run_cut(const char *set, int threads, const Case *c, const int32_t *targets, bool grad,
                    float *loss, float *x, int how) {
    const Kernels *k = kernels_cpu(set);
    OWNED(test_team_end) Team *t = team_create(threads);
    int64_t width[MAX_PARTS], first = 0, T = c->T;
    int n_parts = cut(how, c->V, width);
    float *stats = floats(n_parts * T * 3, 0, 0), *log_sum = floats(T, 0, 0), *part[MAX_PARTS];
    Classifier p[MAX_PARTS];
    for (int i = 0; i < n_parts; first += width[i++]) {
        int64_t ld = width[i] + i;
        p[i] = (Classifier){.T = T, .V = width[i], .ld = ld, .targets = targets, .backward = grad};
        p[i].scale = 1.0f / (float)T, p[i].first = first;
        part[i] = floats(T * ld, 0, 0);
        for (int64_t j = 0; j < T * ld; j++)
            part[i][j] = j % ld < width[i] ? x[j / ld * c->ld + first + j % ld] : pad;
        k->classifier_statistics(t, &p[i], stats + i * 3 * T, part[i]);
    }
    k->classifier_merge(&p[0], loss, log_sum, stats, n_parts);
    first = 0;
    for (int i = 0; i < n_parts; first += width[i++]) {
        int64_t ld = p[i].ld;
        if (grad) k->classifier_gradient(t, &p[i], stats + i * 3 * T, log_sum, part[i]);
        for (int64_t j = 0; j < T * ld; j++) {
            if (j % ld < width[i])
                x[j / ld * c->ld + first + j % ld] = part[i][j];
            else if (part[i][j] != (grad ? 0 : pad))
                test_fail(__FILE__, __LINE__, "padding holds %g", (double)part[i][j]);
        }
    }
}

static bool row_matches(const Case *c, const float *x, int32_t target, float loss,
                        const float *grad, bool in_parts) {
    double *dx = doubles_copy(NULL, c->V), scale = (double)(1.0f / (float)c->T),
           want = classifier_reference(x, c->V, target, scale, dx);
    // The loss is worked out in double from sums that fp32 exponentials (2e-7) went into; it is
    // stored in fp32.
    if (!near_all("loss", &loss, &want, 1, 5e-7)) return false;
    double max = -INFINITY;
    for (int64_t v = 0; v < c->V; v++) max = fmax(max, (double)x[v]);
    for (int64_t v = 0; v < c->V; v++) {
        // x - max is rounded to fp32, which is a relative error of its exponential; a softmax below
        // 1e-37 may be flushed to 0; the target's gradient is a difference from 1.
        // In parts, the logarithm of the sum is rounded to fp32 between the steps.
        double p = dx[v] + (v == target ? scale : 0),
               rel = 1e-6 + 6e-8 * (max - (double)x[v]) + (in_parts ? 6e-8 * (fabs(max) + 12) : 0);
        double bound = rel * p + 1e-37 + (v == target ? 1.2e-7 * scale : 0);
        if (fabs((double)grad[v] - dx[v]) <= bound) continue;
        test_fail(__FILE__, __LINE__, "gradient[%lld] is %.9g, not %.9g", (long long)v,
                  (double)grad[v], dx[v]);
        return false;
    }
    for (int64_t v = c->V; v < c->ld; v++)
        if (grad[v] != pad) return false;
    return true;
}

/* Chunks of a row are 4,096 logits or more; 1,100,003 makes more than 256 of those. */
static const Case cases[] = {{3, 50257, 50304, 5}, {7, 1, 1, 5},          {9, 5, 8, 5},
                             {4, 4095, 4095, 80},  {2, 4113, 4200, 1e4f}, {1, 1100003, 1100003, 10},
                             {11, 17, 17, 0},      {0, 3, 3, 1}};

TEST(classifier_matches_double_for_any_team) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (EACH_SET(s)) {
            const Case *c = &cases[i];
            int32_t *targets = targets_new(c);
            float *x = logits_new(c), *first = NULL, *first_loss = NULL;
            for (int j = 0; j < TEAMS; j++) {
                float *y = floats_copy(x, c->T * c->ld), *loss = floats(c->T, 0, 0),
                      *only = floats(c->T, 0, 0);
                run(*s, team_sizes[j], c, targets, false, only, y);
                CHECK(same_bits(x, y, c->T * c->ld)); // without backward the logits stay
                run(*s, team_sizes[j], c, targets, true, loss, y);
                CHECK(same_bits(only, loss, c->T));
                if (j == 0) first = y, first_loss = loss;
                CHECK(same_bits(first, y, c->T * c->ld) && same_bits(first_loss, loss, c->T));
            }
            for (int64_t t = 0; t < c->T; t++)
                CHECK(row_matches(c, x + t * c->ld, targets[t], first_loss[t], first + t * c->ld,
                                  false));
            CHECK(scratch_end());
        }
}

TEST(classifier_in_parts_matches_double_for_any_team) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (EACH_SET(s))
            for (int how = 0; how < CUTS; how++) {
                const Case *c = &cases[i];
                if (c->V > 1000000 && how != 4) continue; // slow, and nothing new
                int32_t *targets = targets_new(c);
                float *x = logits_new(c), *y = floats_copy(x, c->T * c->ld),
                      *z = floats_copy(x, c->T * c->ld);
                float *loss = floats(c->T, 0, 0), *loss5 = floats(c->T, 0, 0);
                run_cut(*s, 1, c, targets, false, loss, y, how);
                CHECK(same_bits(x, y, c->T * c->ld)); // without backward the logits stay
                run_cut(*s, 1, c, targets, true, loss5, y, how);
                CHECK(same_bits(loss, loss5, c->T));
                run_cut(*s, 5, c, targets, true, loss5, z, how);
                CHECK(same_bits(loss, loss5, c->T) && same_bits(y, z, c->T * c->ld));
                for (int64_t t = 0; t < c->T; t++)
                    CHECK(row_matches(c, x + t * c->ld, targets[t], loss[t], y + t * c->ld, true));
                CHECK(scratch_end());
            }
}

/* Infinities and NaN, in any part, come out as they do of the whole row. */
TEST(classifier_in_parts_treats_extremes_as_the_fused_one) {
    enum { V = 40 };
    static const float odd[] = {-INFINITY, INFINITY, NAN, -3e38f, 3e38f};
    Case c = {1, V, V, 3};
    for (EACH_SET(s))
        for (int how = 0; how < CUTS; how++)
            for (int i = 0; i < 5 * 3; i++) {
                int from = i / 5 == 0 ? 7 : 0, to = i / 5 == 2 ? V : 8; // one, a block, all
                int32_t target = i % 2 ? 7 : V - 1;
                float *x = logits_new(&c), *y, loss, loss_cut;
                for (int v = from; v < to; v++) x[v] = odd[i % 5];
                y = floats_copy(x, V);
                run(*s, 1, &c, &target, true, &loss, x);
                run_cut(*s, 1, &c, &target, true, &loss_cut, y, how);
                CHECK(near_or_nan(&loss, &loss_cut, 1, 1e-6f)); // losses of size 8
                // The cut one rounds log_sum of size 4 to fp32. Where several logits are 3e38 it
                // rounds away the logarithm of their number, and each exponential counts as 1.
                CHECK(near_or_nan(x, y, V, fabsf(odd[i % 5]) == 3e38f && i >= 5 ? 1 : 1e-6f));
                CHECK(scratch_end());
            }
}

TEST(classifier_keeps_its_head_at_extremes) {
    enum { V = 4100 }; // two chunks
    Case c = {1, V, V, 1};
    for (EACH_SET(s)) {
        int32_t first = 0, last = V - 1;
        float loss, *x = floats(V, 0, 0), *y = floats(V, 0, 0);
        run(*s, 1, &c, &first, true, &loss, x); // all equal
        CHECK_NEAR(loss, log((double)V), 1e-6);
        CHECK_NEAR(x[7], 1.0 / V, 1e-9);

        for (int i = 0; i < V; i++)
            x[i] = -INFINITY; // a whole chunk of -inf, and most of the other
        x[last] = -3e38f, x[V - 2] = -3e38f;
        run(*s, 1, &c, &last, true, &loss, x);
        CHECK_NEAR(loss, log(2.0), 1e-6);
        CHECK(x[0] == 0 && x[V - 3] == 0);
        CHECK_NEAR(x[last], -0.5, 1e-6);

        memset(x, 0, V * sizeof *x);
        x[first] = -INFINITY; // the target is impossible: the loss is infinite, the gradient is not
        run(*s, 1, &c, &first, true, &loss, x);
        CHECK(isinf(loss) && loss > 0);
        CHECK_NEAR(x[first], -1, 1e-6);

        x[3] = 1e4f, x[first] = 1e4f - 1; // differences count, not sizes
        memset(x + 4, 0, (V - 4) * sizeof *x);
        run(*s, 1, &c, &first, true, &loss, x);
        CHECK_NEAR(loss, log(1 + exp(-1.0)) + 1, 1e-6);

        for (int where = 0; where < V; where += 137) { // NaN anywhere shows
            memset(y, 0, V * sizeof *y);
            y[where] = NAN;
            run(*s, 1, &c, &last, false, &loss, y);
            CHECK(isnan(loss));
            run(*s, 1, &c, &last, true, &loss, y);
            CHECK(isnan(loss));
        }
        CHECK(scratch_end());
    }
}

/* The exponential of every set, through the softmax of {x, 0}: e^x / (1 + e^x). */
TEST(exponentials_of_every_set_are_exact_to_an_ulp_or_two) {
    enum { N = 20000 };
    Case c = {N, 2, 2, 0};
    for (EACH_SET(s)) {
        float *x = floats(2 * N, 0, 0), *y, *loss = floats(N, 0, 0);
        int32_t *targets = scratch_take(N * sizeof *targets);
        for (int i = 0; i < N; i++) x[2 * i] = -86.4f * (float)i / (float)N, targets[i] = 1;
        y = floats_copy(x, 2 * N);
        run(*s, 1, &c, targets, true, loss, y);
        for (int i = 0; i < N; i++) {
            double e = exp((double)x[2 * i]), want = e / (1 + e) / N, got = (double)y[2 * i];
            if (want < 1.2e-38) break; // a denormal
            CHECK(fabs(got / want - 1) <
                  4.5e-7); // vf_exp, 1 + e^x, the factor and the product: four roundings
        }
        CHECK(scratch_end());
    }
}
