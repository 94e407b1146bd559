/* Norms against double precision, by every table of kernels: whole rows and rows that are cut. */
#include "tests/everywhere.h"
#include "tests/layers_double.h"

typedef struct Case {
    NormKind kind;
    int64_t T, C, skew;
    bool beta;
    float offset; // added to x: a large mean with a small variance
} Case;

/* Of the CPU panels are 32 tokens, vectors up to 16 lanes and 4 at a time. */
static const Case cpu_cases[] = {
    {NORM_LAYER, 1, 1, 0, true, 0},      {NORM_LAYER, 1, 768, 0, true, 0},
    {NORM_LAYER, 70, 5, 0, true, 0},     {NORM_LAYER, 33, 768, 0, true, 0},
    {NORM_LAYER, 67, 100, 0, false, 0},  {NORM_LAYER, 130, 63, 0, true, 1000},
    {NORM_LAYER, 3, 768, 0, true, 1000}, {NORM_RMS, 1, 1, 0, false, 0},
    {NORM_RMS, 70, 5, 0, true, 0},       {NORM_RMS, 33, 768, 0, false, 0},
    {NORM_RMS, 2, 1023, 0, false, 0},    {NORM_LAYER, 0, 5, 0, true, 0},
};
/* Sizes that take each kernel of CUDA: rows of a warp, one to eight words of 16 bytes in a lane;
 * rows of a block; single elements; several rows for each warp of a panel. */
static const Case cuda_cases[] = {
    {NORM_LAYER, 1, 1, 0, true, 0},     {NORM_LAYER, 5, 33, 0, true, 0},
    {NORM_LAYER, 19, 64, 0, true, 0},   {NORM_RMS, 19, 64, 0, false, 0},
    {NORM_LAYER, 19, 64, 1, true, 0},   {NORM_LAYER, 4, 96, 0, true, 30},
    {NORM_RMS, 37, 400, 0, false, 0},   {NORM_LAYER, 3, 768, 0, false, 0},
    {NORM_RMS, 9, 31, 0, false, 0},     {NORM_LAYER, 5, 1000, 0, true, 0},
    {NORM_LAYER, 2, 1600, 0, true, 0},  {NORM_RMS, 3, 4096, 0, true, 0},
    {NORM_LAYER, 2, 8192, 0, true, 0},  {NORM_LAYER, 2, 16384, 0, true, 0},
    {NORM_LAYER, 1, 16392, 0, true, 0}, {NORM_RMS, 2, 1280, 0, true, 0},
    {NORM_LAYER, 2, 1536, 0, true, 0},  {NORM_LAYER, 3, 2048, 0, true, 0},
};
enum { CPU_CASES = N_OF(cpu_cases), CUDA_CASES = N_OF(cuda_cases), QUICK = 10 };

/* What a norm reads and writes, of whole rows or of some of their columns. */
typedef struct Data {
    Array x, dy, dx, gamma, beta, dgamma, dbeta, y, mean, rstd;
    Norm n;
} Data;

/* dx, dgamma and dbeta are added to what is there. */
static Data data_of(const Where *w, const Case *c) {
    int64_t T = c->T, C = c->C, n = T * C;
    Data d = {.x = array_random_around(n, 1, c->offset, 1, w->bf16, c->skew),
              .dy = array_random(n, 1, 4, w->bf16, c->skew),
              .dx = array_random(n, 1, 5, w->bf16, c->skew),
              .gamma = array_random(C, 1, 2, false, 0),
              .beta = array_random(C, 1, 3, false, 0),
              .dgamma = array_random(C, 1, 6, false, 0),
              .dbeta = array_random(C, 1, 7, false, 0),
              .y = array_empty(n, w->bf16, c->skew),
              .mean = array_empty(T, false, 0),
              .rstd = array_empty(T, false, 0)};
    d.n = (Norm){.kind = c->kind, .T = T, .C = C, .eps = 1e-5f};
    return d;
}
static Norm *bind(const Where *w, const Case *c, Data *d) {
    d->n.gamma = d->gamma.device, d->n.dgamma = d->dgamma.device;
    d->n.beta = c->beta ? d->beta.device : NULL, d->n.dbeta = c->beta ? d->dbeta.device : NULL;
    d->n.workspace = workspace_of(w->k->norm_workspace(d->n.T, d->n.C));
    return &d->n;
}
/* RMS norm has none. */
static float *mean_of(const Case *c, const Data *d) {
    return c->kind == NORM_LAYER ? d->mean.device : NULL;
}

typedef struct Reference {
    double *y, *mean, *rstd, *dx, *dgamma, *dbeta;
    double tol, of_word, of_dx, of_sums;
} Reference;

/* Of what is there before the norm. Values of size 1 and sums of thousands of them in dozens of
 * partial sums: some units of 6e-8. With a mean of 1000 the mean is known to some units of
 * 6e-5 / 2, and so is all else; E[x^2] - E[x]^2 would be wrong by 0.1 and more. Errors of tokens
 * add up at random. Then the word of storage rounds. */
static Reference reference(const Where *w, const Case *c, const Data *d) {
    int64_t T = c->T, C = c->C, n = T * C;
    Reference r = {doubles_copy(NULL, n),
                   doubles_copy(NULL, T),
                   doubles_copy(NULL, T),
                   doubles_copy(d->dx.host, n),
                   doubles_copy(d->dgamma.host, C),
                   doubles_copy(d->dbeta.host, C),
                   .tol = 4e-6 + 4e-7 * (double)c->offset};
    double *x = doubles_copy(d->x.host, n), *dy = doubles_copy(d->dy.host, n),
           *gamma = doubles_copy(d->gamma.host, C), *beta = doubles_copy(d->beta.host, C);
    norm_double(&d->n, x, gamma, c->beta ? beta : NULL, r.y, r.mean, r.rstd);
    norm_backward_double(&d->n, x, gamma, dy, r.mean, r.rstd, r.dx, r.dgamma,
                         c->beta ? r.dbeta : NULL);
    r.of_word = rounding_error(w->bf16) + r.tol, r.of_sums = r.tol * sqrt((double)T);
    r.of_dx = r.of_word * fmax(1, T ? r.rstd[0] : 0);
    return r;
}

static bool whole(const Where *w, const void *of, UNUSED int way) {
    const Case *c = of;
    int64_t T = c->T, C = c->C, n = T * C;
    Data d = data_of(w, c);
    Reference r = {0};
    if (!w->again) r = reference(w, c, &d);
    Norm *norm = bind(w, c, &d);
    float *mean = mean_of(c, &d);
    w->k->norm_forward(w->team, norm, d.y.device, mean, d.rstd.device, d.x.device);
    w->k->norm_backward(w->team, norm, d.dx.device, d.dy.device, d.x.device, mean, d.rstd.device);
    array_get(&d.y), array_get(&d.rstd), array_get(&d.dx), array_get(&d.dgamma);
    array_get(&d.dbeta);
    if (mean) array_get(&d.mean);
    w->k->norm_forward(w->team, norm, d.x.device, NULL, NULL,
                       d.x.device); // in place, keeps nothing
    array_get(&d.x);
    if (w->again) return true;
    return same_bits(d.x.host, d.y.host, n) && near_all("y", d.y.host, r.y, n, r.of_word) &&
           near_all("rstd", d.rstd.host, r.rstd, T, r.tol) &&
           (!mean || near_all("mean", d.mean.host, r.mean, T, 1e-6)) &&
           near_all("dx", d.dx.host, r.dx, n, r.of_dx) &&
           near_all("dgamma", d.dgamma.host, r.dgamma, C, r.of_sums) &&
           near_all("dbeta", d.dbeta.host, r.dbeta, C, r.of_sums);
}
TEST_ON_CPU(norm_matches_double_for_any_team, whole, cpu_cases, CPU_CASES, 1)
TEST_ON_CUDA(cuda_norm_matches_double_in_any_order, whole, cuda_cases, CUDA_CASES, QUICK, 1)

/* With statistics as they are in double. */
static bool backward(const Where *w, const void *of, UNUSED int way) {
    const Case *c = of;
    Data d = data_of(w, c);
    Reference r = reference(w, c, &d);
    for (int64_t t = 0; t < c->T; t++)
        d.mean.host[t] = (float)r.mean[t], d.rstd.host[t] = (float)r.rstd[t];
    array_put(&d.mean), array_put(&d.rstd);
    w->k->norm_backward(w->team, bind(w, c, &d), d.dx.device, d.dy.device, d.x.device,
                        d.mean.device, d.rstd.device);
    array_get(&d.dx), array_get(&d.dgamma), array_get(&d.dbeta);
    return near_all("dx", d.dx.host, r.dx, c->T * c->C, 10 * r.of_word) && // rstd is up to 10
           near_all("dgamma", d.dgamma.host, r.dgamma, c->C, 1e-5) &&
           near_all("dbeta", d.dbeta.host, r.dbeta, c->C, 1e-5);
}
/* More panels of tokens than one warp of panels.cuh adds, and rows per panel that its warps cannot
 * share evenly; more rows for each warp than the 32 whose statistics it knows at a time. */
TEST(cuda_norm_backward_of_many_rows_in_any_order) {
    static const Case many[] = {{NORM_LAYER, 512 * 16 + 700, 8, 0, true, 0},
                                {NORM_LAYER, 512 * 4 * 32 + 600, 8, 0, true, 0}};
    ON_CUDA(backward, many, 2, 1, 1);
}

/* The two steps of both directions with the columns in parts, as ranks would take them. */
static bool cut_rows(const Where *w, const void *of, int way) {
    const Case *c = of;
    const Kernels *k = w->k;
    int64_t T = c->T, C = c->C, width[MAX_PARTS], at = 0, block = (C + way) / (way + 1);
    int parts = way + 1; // the last of them shorter, or without columns
    for (int i = 0; i < parts; at += width[i++]) width[i] = C - at < block ? C - at : block;
    at = 0;
    Data all = data_of(w, c), part[MAX_PARTS];
    Reference r = {0};
    if (!w->again) r = reference(w, c, &all);
    Array stats = array_empty(parts * 2 * T, false, 0), sums = array_empty(parts * 2 * T, false, 0);
    float *mean = mean_of(c, &all), *rstd = all.rstd.device;
    for (int i = 0; i < parts; at += width[i++]) {
        int64_t n = width[i], ld = (n + 15) / 8 * 8;
        Data *p = &part[i];
        p->x = part_of(&all.x, T, C, at, n, ld, 0), p->dy = part_of(&all.dy, T, C, at, n, ld, 0);
        p->dx = part_of(&all.dx, T, C, at, n, ld, 0), p->y = part_of(&all.x, T, C, at, 0, ld, 0);
        p->gamma = part_of(&all.gamma, 1, C, at, n, n, 0);
        p->beta = part_of(&all.beta, 1, C, at, n, n, 0);
        p->dgamma = part_of(&all.dgamma, 1, C, at, n, n, 0);
        p->dbeta = part_of(&all.dbeta, 1, C, at, n, n, 0);
        p->n = all.n, p->n.C = n, p->n.ld = ld, p->n.C_all = C, p->n.part = block;
        k->norm_statistics(w->team, bind(w, c, p), stats.device + i * 2 * T, p->x.device);
    }
    k->norm_merge(w->team, &part[0].n, mean, rstd, stats.device);
    for (int i = 0; i < parts; i++) {
        Data *p = &part[i];
        p->n.part = 0; // the sums are added here
        k->norm_backward_sums(w->team, &p->n, sums.device + i * 2 * T, p->dy.device, p->x.device,
                              mean, rstd);
    }
    array_get(&sums);
    Array total = array_random(2 * T, 0, 0, false, 0);
    for (int64_t i = 0; i < parts * 2 * T; i++) total.host[i % (2 * T)] += sums.host[i];
    array_put(&total);
    bool good = true;
    at = 0;
    for (int i = 0; i < parts; at += width[i++]) {
        Data *p = &part[i];
        int64_t n = width[i], ld = p->n.ld;
        k->norm_backward_apply(w->team, &p->n, p->dx.device, p->dy.device, p->x.device, mean, rstd,
                               total.device);
        k->norm_apply(w->team, &p->n, p->y.device, p->x.device, mean, rstd);
        k->norm_apply(w->team, &p->n, p->x.device, p->x.device, mean, rstd); // in place
        array_get(&p->y), array_get(&p->x), array_get(&p->dx);
        array_get(&p->dgamma), array_get(&p->dbeta);
        if (w->again) continue;
        good = good && part_near("y", &p->y, r.y, T, C, at, n, ld, r.of_word) &&
               same_bits(p->x.host, p->y.host, T * ld) &&
               part_near("dx", &p->dx, r.dx, T, C, at, n, ld, r.of_dx) &&
               part_near("dgamma", &p->dgamma, r.dgamma, 1, C, at, n, n, r.of_sums) &&
               part_near("dbeta", &p->dbeta, r.dbeta, 1, C, at, n, n, r.of_sums);
    }
    return good;
}
TEST_ON_CPU(norm_of_rows_in_parts_matches_double_for_any_team, cut_rows, cpu_cases, CPU_CASES, CUTS)
TEST_ON_CUDA(cuda_norm_of_cut_rows_matches_double_in_any_order, cut_rows, cuda_cases + 1, 6, 0,
             CUTS)

/* The fused norm and the one in two steps are one mathematics: the same bits where nothing is
 * cut. */
static bool two_steps(const Where *w, const void *of, UNUSED int way) {
    const Case *c = of;
    const Kernels *k = w->k;
    int64_t T = c->T, n = T * c->C;
    Data a = data_of(w, c), b = data_of(w, c);
    Norm *fused = bind(w, c, &a), *steps = bind(w, c, &b);
    Array sums = array_empty(2 * T, false, 0);
    float *mean = mean_of(c, &a), *rstd = a.rstd.device;
    k->norm_forward(w->team, fused, a.y.device, mean, rstd, a.x.device);
    k->norm_backward(w->team, fused, a.dx.device, a.dy.device, a.x.device, mean, rstd);
    k->norm_apply(w->team, steps, b.y.device, b.x.device, mean, rstd);
    k->norm_backward_sums(w->team, steps, sums.device, b.dy.device, b.x.device, mean, rstd);
    k->norm_backward_apply(w->team, steps, b.dx.device, b.dy.device, b.x.device, mean, rstd,
                           sums.device);
    return same_bits(a.y.host, b.y.host, n) && same_bits(a.dx.host, b.dx.host, n) &&
           same_bits(a.dgamma.host, b.dgamma.host, c->C) &&
           same_bits(a.dbeta.host, b.dbeta.host, c->C);
}
TEST_ON_CPU(norm_in_two_steps_is_the_fused_one, two_steps, cpu_cases, CPU_CASES, 1)

/* Bits of a row of the stream that is made whole on the way, and of its norm, are those of
 * bias_residual and norm_forward, which are held against double. With a bias, and without. */
static bool residual(const Where *w, const void *of, int way) {
    const Case *c = of;
    const Kernels *k = w->k;
    int64_t T = c->T, C = c->C, n = T * C;
    Data d = data_of(w, c), two = data_of(w, &(Case){c->kind, T, C, 0, c->beta, c->offset});
    Array addend = array_random(n, 1, 8, w->bf16, c->skew),
          bias = array_random(C, 1, 9, false, c->skew);
    double *sum = doubles_copy(d.x.host, n);
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)addend.host[i] + (way ? 0 : (double)bias.host[i % C]);
    k->residual_norm(w->team, bind(w, c, &d), d.x.device, addend.device, way ? NULL : bias.device,
                     d.y.device, d.mean.device, d.rstd.device);
    k->bias_residual(w->team, two.x.device, addend.device, way ? NULL : bias.device, T, C);
    k->norm_forward(w->team, bind(w, c, &two), two.y.device, two.mean.device, two.rstd.device,
                    two.x.device);
    Array *all[] = {&d.x, &two.x, &d.y, &two.y, &d.mean, &two.mean, &d.rstd, &two.rstd};
    for (EACH(a, all)) array_get(*a);
    if (w->again) return true;
    // a row that is not aligned is added up in another order
    double off = c->skew ? 4e-6 : 0, off_y = c->skew ? 2 * (rounding_error(w->bf16) + off) : 0;
    return near_all("stream", d.x.host, sum, n, rounding_error(w->bf16) + 2e-7) &&
           same_bits(d.x.host, two.x.host, n) &&
           near_all("y", d.y.host, doubles_copy(two.y.host, n), n, off_y) &&
           near_all("mean", d.mean.host, doubles_copy(two.mean.host, T), T, off) &&
           near_all("rstd", d.rstd.host, doubles_copy(two.rstd.host, T), T, off);
}
TEST_ON_CPU(residual_norm_has_the_bits_of_both_its_halves, residual, cpu_cases, CPU_CASES, 2)
TEST_ON_CUDA(cuda_residual_norm_has_the_bits_of_both_its_halves, residual, cuda_cases, CUDA_CASES,
             QUICK, 2)

/* sum(dy y) as a function of x[T C], gamma[C], beta[C] in one array. */
enum { SMALL_T = 4, SMALL_C = 5, SMALL = SMALL_T * SMALL_C };
static double loss(const void *ctx, const double *p) {
    double y[SMALL], mean[SMALL_T], rstd[SMALL_T], sum = 0;
    float dy[SMALL];
    test_fill(dy, SMALL, 1, 4);
    norm_double(ctx, p, p + SMALL, p + SMALL + SMALL_C, y, mean, rstd);
    for (int i = 0; i < SMALL; i++) sum += (double)dy[i] * y[i];
    return sum;
}
TEST(norm_gradients_in_double_are_slopes) {
    enum { ALL = SMALL + 2 * SMALL_C };
    for (NormKind kind = NORM_LAYER; kind <= NORM_RMS; kind++) {
        Norm n = {.kind = kind, .T = SMALL_T, .C = SMALL_C, .eps = 1e-5f};
        double *p = doubles_copy(floats(ALL, 1, 1), ALL), y[SMALL], mean[SMALL_T], rstd[SMALL_T],
               got[ALL] = {0}, slope[ALL];
        norm_double(&n, p, p + SMALL, p + SMALL + SMALL_C, y, mean, rstd);
        norm_backward_double(&n, p, p + SMALL, doubles_copy(floats(SMALL, 1, 4), SMALL), mean, rstd,
                             got, got + SMALL, got + SMALL + SMALL_C);
        slopes(loss, &n, p, ALL, slope);
        for (int i = 0; i < ALL; i++) CHECK_NEAR(got[i], slope[i], 1e-8);
        CHECK(scratch_end());
    }
}

/* ---- QK-norm ---- */

typedef struct HeadCase {
    int64_t T, H, Hkv, D, skew;
} HeadCase;
static const HeadCase head_cases[] = {{1, 1, 1, 1, 0},    {33, 3, 1, 64, 0}, {70, 4, 2, 10, 0},
                                      {5, 2, 2, 300, 0},  {9, 6, 2, 128, 1}, {0, 2, 1, 8, 0},
                                      {2, 16, 8, 128, 0}, {3, 1, 1, 512, 0}};
enum { HEAD_CASES = N_OF(head_cases) };

/* Heads as rows of norms in double. In place where way is 1. */
static bool heads(const Where *w, const void *of, int way) {
    const HeadCase *c = of;
    QkNorm q = {.T = c->T, .H = c->H, .Hkv = c->Hkv, .D = c->D, .eps = 1e-5f};
    int64_t all = qk_norm_heads(&q), D = c->D, n = c->T * all * D;
    Array x = array_random(n, 1, 1, w->bf16, c->skew), dy = array_random(n, 1, 2, w->bf16, c->skew),
          gamma = array_random(2 * D, 1, 3, false, 0), dgamma = array_random(2 * D, 1, 4, false, 0),
          y = array_empty(n, w->bf16, c->skew), dx = array_empty(n, w->bf16, c->skew);
    double *want_y = doubles_copy(x.host, n), *want_dx = doubles_copy(dy.host, n),
           *want_dgamma = doubles_copy(dgamma.host, 2 * D),
           *weight = doubles_copy(gamma.host, 2 * D), *from = doubles_copy(x.host, n),
           *d = doubles_copy(dy.host, n), steepest = 1;
    Norm row = {.kind = NORM_RMS, .T = 1, .C = D, .eps = q.eps};
    for (int64_t i = 0; i < c->T * all; i++) {
        int64_t at = i * D, of_key = i % all < c->H ? 0 : D;
        double mean = 0, rstd;
        if (i % all >= c->H + c->Hkv) continue; // a value
        norm_double(&row, from + at, weight + of_key, NULL, want_y + at, &mean, &rstd);
        for (int64_t j = 0; j < D; j++) want_dx[at + j] = 0;
        norm_backward_double(&row, from + at, weight + of_key, d + at, &mean, &rstd, want_dx + at,
                             want_dgamma + of_key, NULL);
        steepest = fmax(steepest, rstd);
    }
    q.gamma = gamma.device, q.dgamma = dgamma.device;
    q.workspace = workspace_of(w->k->norm_workspace(c->T, D));
    w->k->qk_norm_weight_backward(w->team, &q, dy.device, x.device);
    w->k->qk_norm_backward(w->team, &q, way ? dy.device : dx.device, dy.device, x.device);
    w->k->qk_norm(w->team, &q, way ? x.device : y.device, x.device);
    Array *got_y = way ? &x : &y, *got_dx = way ? &dy : &dx;
    array_get(got_y), array_get(got_dx), array_get(&dgamma);
    if (w->again) return true;
    double tol = 4e-6, of_word = rounding_error(w->bf16) + tol;
    return near_all("y", got_y->host, want_y, n, 2 * of_word) &&
           near_all("dx", got_dx->host, want_dx, n, of_word * steepest) &&
           near_all("dgamma", dgamma.host, want_dgamma, 2 * D,
                    tol * sqrt((double)(c->T * c->H + 1)));
}
TEST_ON_CPU(qk_norm_matches_double_for_any_team, heads, head_cases, HEAD_CASES, 2)
TEST_ON_CUDA(cuda_qk_norm_matches_double_in_any_order, heads, head_cases, HEAD_CASES, 3, 2)
