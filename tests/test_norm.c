#include "tests/layers_double.h"

typedef struct Case {
    NormKind kind;
    int64_t T, C;
    bool beta;
    float offset; // added to x: a large mean with a small variance
} Case;

/* With what the tests ask of all kernels; rows of C. */
static Norm norm_of(const Case *c) {
    return (Norm){.kind = c->kind, .T = c->T, .C = c->C, .eps = 1e-5f};
}

typedef struct In {
    float *x, *gamma, *beta, *dy;
} In;

typedef struct Out {
    float *y, *mean, *rstd, *dx, *dgamma, *dbeta; // the gradients are added to what is there
} Out;

static In in_new(const Case *c) {
    In in = {floats(c->T * c->C, 1, 1), floats(c->C, 1, 2), floats(c->C, 1, 3),
             floats(c->T * c->C, 1, 4)};
    for (int64_t i = 0; i < c->T * c->C; i++) in.x[i] += c->offset;
    return in;
}

static Out out_new(const Case *c) {
    return (Out){floats(c->T * c->C, 0, 0), floats(c->T, 0, 0), floats(c->T, 0, 0),
                 floats(c->T * c->C, 1, 5), floats(c->C, 1, 6), floats(c->C, 1, 7)};
}

static bool out_same(const Out *a, const Out *b, const Case *c) {
    int64_t T = c->T, C = c->C;
    return same_bits(a->y, b->y, T * C) && same_bits(a->mean, b->mean, T) &&
           same_bits(a->rstd, b->rstd, T) && same_bits(a->dx, b->dx, T * C) &&
           same_bits(a->dgamma, b->dgamma, C) && same_bits(a->dbeta, b->dbeta, C);
}

static Out run(const Kernels *k, int threads, const Case *c, const In *in) {
    Out o = out_new(c);
    OWNED(test_team_end) Team *t = team_create(threads);
    Norm n = norm_of(c);
    n.gamma = in->gamma, n.beta = c->beta ? in->beta : NULL;
    n.dgamma = o.dgamma, n.dbeta = c->beta ? o.dbeta : NULL;
    n.workspace = scratch_take(k->norm_workspace(c->T, c->C));
    float *mean = c->kind == NORM_LAYER ? o.mean : NULL; // RMS norm has none
    k->norm_forward(t, &n, o.y, mean, o.rstd, in->x);
    k->norm_backward(t, &n, o.dx, in->dy, in->x, mean, o.rstd);
    return o;
}

static void check(const char *set, const Case *c, const Out *o, const In *in) {
    int64_t n = c->T * c->C, C = c->C;
    Out start = out_new(c);
    double *x = doubles_copy(in->x, n), *g = doubles_copy(in->gamma, C),
           *b = doubles_copy(in->beta, C);
    double *dy = doubles_copy(in->dy, n), *y = doubles_copy(NULL, n);
    double *mean = doubles_copy(NULL, c->T), *rstd = doubles_copy(NULL, c->T);
    double *dx = doubles_copy(start.dx, n), *dg = doubles_copy(start.dgamma, C),
           *db = doubles_copy(start.dbeta, C);
    Norm of = norm_of(c);
    norm_double(&of, x, g, c->beta ? b : NULL, y, mean, rstd);
    norm_backward_double(&of, x, g, dy, mean, rstd, dx, dg, c->beta ? db : NULL);
    // Values of size 1 and sums of at most 1,023 of them in 64 partial sums: some units of 6e-8.
    // With a mean of 1000 the mean is known to some units of 6e-5 / 2, and so is all else; E[x^2] -
    // E[x]^2 would be wrong by 0.1 and more.
    double tol = c->offset != 0 ? 4e-4 : 4e-6,
           sum_tol = tol * sqrt((double)c->T); // errors of tokens add up at random
    bool fine = near_all("y", o->y, y, n, tol) && near_all("rstd", o->rstd, rstd, c->T, tol) &&
                near_all("mean", o->mean, mean, c->T, 1e-6) &&
                near_all("dx", o->dx, dx, n, tol * fmax(1, rstd[0])) &&
                near_all("dgamma", o->dgamma, dg, C, sum_tol) &&
                near_all("dbeta", o->dbeta, db, C, sum_tol);
    if (!fine)
        test_fail(__FILE__, __LINE__, "%s kind %d T %lld C %lld offset %g", set, c->kind,
                  (long long)c->T, (long long)C, (double)c->offset);
}

enum { GAP = 3 }; // columns between rows of a part, which nobody may touch
static const float untouched = -12345.5f;

/* Columns first .. first + width of x[T,C], rows of width + GAP. */
static float *part_of(const float *x, int64_t T, int64_t C, int64_t first, int64_t width) {
    int64_t ld = width + GAP;
    float *part = floats(T * ld, 0, 0);
    for (int64_t i = 0; i < T * ld; i++)
        part[i] = i % ld < width ? x[i / ld * C + first + i % ld] : untouched;
    return part;
}
/* The way back; false when the gap was touched. */
static bool part_back(const float *part, float *x, int64_t T, int64_t C, int64_t first,
                      int64_t width) {
    int64_t ld = width + GAP;
    bool intact = true;
    for (int64_t i = 0; i < T * ld; i++) {
        if (i % ld < width)
            x[i / ld * C + first + i % ld] = part[i];
        else
            intact = intact && part[i] == untouched;
    }
    return intact;
}

/* As run, with the rows in parts as ranks hold them, each part with memory of its own. */
static Out run_cut(const Kernels *k, int threads, const Case *c, const In *in, int how) {
    Out o = out_new(c);
    OWNED(test_team_end) Team *t = team_create(threads);
    int64_t T = c->T, C = c->C, width[MAX_PARTS], first = 0;
    int n_parts = cut(how, C, width);
    float *stats = floats(n_parts * T * 2, 0, 0), *sums = floats(T * 2, 0, 0);
    float *mean = c->kind == NORM_LAYER ? o.mean : NULL, *x[MAX_PARTS], *dy[MAX_PARTS];
    Norm n[MAX_PARTS];
    for (int i = 0; i < n_parts; first += width[i++]) {
        n[i] = norm_of(c), n[i].C = width[i], n[i].ld = width[i] + GAP, n[i].C_all = C;
        n[i].gamma = in->gamma + first;
        n[i].beta = c->beta ? in->beta + first : NULL;
        n[i].dgamma = o.dgamma + first, n[i].dbeta = c->beta ? o.dbeta + first : NULL;
        n[i].workspace = scratch_take(k->norm_workspace(T, width[i]));
        x[i] = part_of(in->x, T, C, first, width[i]);
        dy[i] = part_of(in->dy, T, C, first, width[i]);
        k->norm_statistics(t, &n[i], stats + i * 2 * T, x[i]);
    }
    k->norm_merge(&n[0], mean, o.rstd, stats, width, n_parts);
    for (int i = 0; i < n_parts; i++) {
        float *part = stats + i * 2 * T; // used again for the sums
        k->norm_backward_sums(t, &n[i], part, dy[i], x[i], mean, o.rstd);
        for (int64_t j = 0; j < 2 * T; j++) sums[j] += part[j];
    }
    first = 0;
    for (int i = 0; i < n_parts; first += width[i++]) {
        float *dx = part_of(o.dx, T, C, first, width[i]);
        k->norm_backward_apply(t, &n[i], dx, dy[i], x[i], mean, o.rstd, sums);
        k->norm_apply(t, &n[i], x[i], x[i], mean, o.rstd); // in place
        if (!part_back(dx, o.dx, T, C, first, width[i]) ||
            !part_back(x[i], o.y, T, C, first, width[i]))
            test_fail(__FILE__, __LINE__, "columns beyond C were touched");
    }
    return o;
}

/* Panels are 32 tokens, vectors up to 16 lanes and 4 at a time. */
static const Case cases[] = {
    {NORM_LAYER, 1, 1, true, 0},      {NORM_LAYER, 1, 768, true, 0},
    {NORM_LAYER, 70, 5, true, 0},     {NORM_LAYER, 33, 768, true, 0},
    {NORM_LAYER, 67, 100, false, 0},  {NORM_LAYER, 130, 63, true, 1000},
    {NORM_LAYER, 3, 768, true, 1000}, {NORM_RMS, 1, 1, false, 0},
    {NORM_RMS, 70, 5, true, 0},       {NORM_RMS, 33, 768, false, 0},
    {NORM_RMS, 2, 1023, false, 0},    {NORM_LAYER, 0, 5, true, 0},
};

static Out run_either(const Kernels *k, int threads, const Case *c, const In *in, int how) {
    return how < 0 ? run(k, threads, c, in) : run_cut(k, threads, c, in, how);
}

TEST(norm_of_rows_in_parts_matches_double_for_any_team) { // and of whole ones
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && !test_failed(); i++)
        for (EACH_SET(s))
            for (int how = -1; how < CUTS; how++) {
                const Case *c = &cases[i];
                In in = in_new(c);
                Out first = run_either(kernels_cpu(*s), 1, c, &in, how);
                check(*s, c, &first, &in);
                for (int j = 1; j < TEAMS; j++) {
                    Out o = run_either(kernels_cpu(*s), team_sizes[j], c, &in, how);
                    CHECK(out_same(&first, &o, c));
                }
                CHECK(scratch_end());
            }
}

/* The fused norm and the one in two steps are one mathematics: the same bits where nothing is
 * cut. */
TEST(norm_in_two_steps_is_the_fused_one) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (EACH_SET(s)) {
            const Case *c = &cases[i];
            const Kernels *k = kernels_cpu(*s);
            In in = in_new(c);
            Out fused = run(k, 2, c, &in), o = out_new(c);
            Norm n = norm_of(c);
            n.gamma = in.gamma, n.beta = c->beta ? in.beta : NULL;
            n.dgamma = o.dgamma, n.dbeta = c->beta ? o.dbeta : NULL;
            n.workspace = scratch_take(k->norm_workspace(c->T, c->C));
            float *sums = floats(2 * c->T, 0, 0);
            OWNED(test_team_end) Team *t = team_create(2);
            o.mean = fused.mean, o.rstd = fused.rstd;
            k->norm_apply(t, &n, o.y, in.x, o.mean, o.rstd);
            k->norm_backward_sums(t, &n, sums, in.dy, in.x, o.mean, o.rstd);
            k->norm_backward_apply(t, &n, o.dx, in.dy, in.x, o.mean, o.rstd, sums);
            CHECK(out_same(&fused, &o, c));
            CHECK(scratch_end());
        }
}

TEST(norm_may_work_in_place_and_keep_nothing) {
    Case c = {NORM_LAYER, 40, 37, true, 0};
    for (EACH_SET(s)) {
        In in = in_new(&c);
        Out o = run(kernels_cpu(*s), 2, &c, &in);
        OWNED(test_team_end) Team *t = team_create(2);
        Norm n = norm_of(&c);
        n.gamma = in.gamma, n.beta = in.beta;
        kernels_cpu(*s)->norm_forward(t, &n, in.x, NULL, NULL, in.x);
        CHECK(same_bits(in.x, o.y, c.T * c.C));
        CHECK(scratch_end());
    }
}

TEST(residual_norm_has_the_bits_of_both_its_halves) {
    const Case sizes[] = {{NORM_LAYER, 1, 1, true, 0},
                          {NORM_LAYER, 40, 37, true, 3},
                          {NORM_RMS, 67, 64, false, 0},
                          {NORM_RMS, 0, 5, true, 0},
                          {NORM_LAYER, 300, 131, false, 0}};
    for (EACH_SET(s))
        for (int i = 0; i < 5 * 2 * TEAMS; i++) {
            const Case *c = &sizes[i % 5];
            int64_t T = c->T, C = c->C;
            const Kernels *k = kernels_cpu(*s);
            In in = in_new(c);
            float *addend = floats(T * C, 1, 8), *bias = i / 5 % 2 ? floats(C, 1, 9) : NULL;
            float *x = floats_copy(in.x, T * C);
            Out one = out_new(c), two = out_new(c);
            Norm n = norm_of(c);
            n.gamma = in.gamma, n.beta = c->beta ? in.beta : NULL;
            Team *t = team_create(team_sizes[i / 10]);
            k->residual_norm(t, &n, in.x, addend, bias, one.y, one.mean, one.rstd);
            team_destroy(t);
            t = team_create(1);
            k->bias_residual(t, x, addend, bias, T, C);
            k->norm_forward(t, &n, two.y, two.mean, two.rstd, x);
            team_destroy(t);
            CHECK(same_bits(in.x, x, T * C) && out_same(&one, &two, c));
            CHECK(scratch_end());
        }
}

/* sum(dy y) as a function of x[T C], gamma[C], beta[C] in one array. */
static double loss(const void *ctx, const double *p) {
    const Case *c = ctx;
    int64_t n = c->T * c->C;
    double y[64], mean[8], rstd[8], sum = 0;
    float dy[64];
    test_fill(dy, (size_t)n, 1, 4);
    Norm of = norm_of(c);
    norm_double(&of, p, p + n, p + n + c->C, y, mean, rstd);
    for (int64_t i = 0; i < n; i++) sum += (double)dy[i] * y[i];
    return sum;
}

TEST(norm_gradients_are_slopes) {
    for (int how = 0; how < 4; how++)
        for (EACH_SET(s)) {
            Case c = {how % 2 ? NORM_RMS : NORM_LAYER, 4, 5, true, 0};
            In in = in_new(&c);
            Out o = run_either(kernels_cpu(*s), 2, &c, &in, how < 2 ? -1 : 4), start = out_new(&c);
            int64_t n = c.T * c.C, C = c.C, all = n + 2 * C;
            float *p = floats(all, 0, 0);
            memcpy(p, in.x, (size_t)n * 4), memcpy(p + n, in.gamma, (size_t)C * 4);
            memcpy(p + n + C, in.beta, (size_t)C * 4);
            double *slope = doubles_copy(NULL, all);
            slopes(loss, &c, doubles_copy(p, all), all, slope);
            for (int64_t i = 0; i < n; i++) slope[i] += (double)start.dx[i];
            for (int64_t i = 0; i < C; i++) slope[n + i] += (double)start.dgamma[i];
            for (int64_t i = 0; i < C; i++) slope[n + C + i] += (double)start.dbeta[i];
            double tol =
                1e-5; // fp32 rounding of values of size 1, times rstd of about 2 and sums of 5
            CHECK(near_all("dx", o.dx, slope, n, tol));
            CHECK(near_all("dgamma", o.dgamma, slope + n, C, tol));
            CHECK(near_all("dbeta", o.dbeta, slope + n + C, C, tol));
            CHECK(scratch_end());
        }
}
