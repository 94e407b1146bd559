/* layers/norm.cu against double precision: whole rows and rows that are cut, in both words of
 * storage. */
#include "tests/cuda_test.h"
#include "tests/layers_double.h"

typedef struct Case {
    NormKind kind;
    int64_t T, C, skew;
    bool beta;
    float offset; // added to x: a large mean with a small variance
} Case;

/* Sizes that take each kernel: rows of a warp, one to eight words of 16 bytes in a lane; rows of a
 * block; single elements; several rows for each warp of a panel. */
static const Case cases[] = {
    {NORM_LAYER, 1, 1, 0, true, 0},     {NORM_LAYER, 5, 33, 0, true, 0},
    {NORM_LAYER, 19, 64, 0, true, 0},   {NORM_RMS, 19, 64, 0, false, 0},
    {NORM_LAYER, 19, 64, 1, true, 0},   {NORM_LAYER, 4, 96, 0, true, 30},
    {NORM_RMS, 37, 400, 0, false, 0},   {NORM_LAYER, 3, 768, 0, false, 0},
    {NORM_LAYER, 2, 1600, 0, true, 0},  {NORM_RMS, 3, 4096, 0, true, 0},
    {NORM_LAYER, 2, 8192, 0, true, 0},  {NORM_LAYER, 2, 16384, 0, true, 0},
    {NORM_LAYER, 1, 16392, 0, true, 0}, {NORM_RMS, 9, 31, 0, false, 0},
    {NORM_LAYER, 5, 1000, 0, true, 0},  {NORM_RMS, 2, 1280, 0, true, 0},
    {NORM_LAYER, 2, 1536, 0, true, 0},  {NORM_LAYER, 3, 2048, 0, true, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

static Norm norm_of(const Case *c, int64_t T, int64_t C) {
    return (Norm){.kind = c->kind, .T = T, .C = C, .eps = 1e-5f};
}

typedef struct Reference {
    double *y, *mean, *rstd, *dx, *dgamma, *dbeta;
} Reference;

static Reference reference(const Case *c, const Words *x, const Words *gamma, const Words *beta,
                           const Words *dy, const Words *dx, const Words *dgamma,
                           const Words *dbeta) {
    int64_t T = c->T, C = c->C;
    Reference r = {doubles_copy(NULL, T * C),     doubles_copy(NULL, T),
                   doubles_copy(NULL, T),         doubles_copy(dx->host, T * C),
                   doubles_copy(dgamma->host, C), doubles_copy(dbeta->host, C)};
    Norm n = norm_of(c, T, C);
    double *in = doubles_copy(x->host, T * C), *d = doubles_copy(dy->host, T * C),
           *g = doubles_copy(gamma->host, C), *b = doubles_copy(beta->host, C);
    norm_double(&n, in, g, c->beta ? b : NULL, r.y, r.mean, r.rstd);
    norm_backward_double(&n, in, g, d, r.mean, r.rstd, r.dx, r.dgamma, c->beta ? r.dbeta : NULL);
    return r;
}

static Words moved(int64_t n, float scale, float offset, unsigned seed, bool bf16, int64_t skew) {
    Words w = words_empty(n, bf16, skew);
    test_fill(w.host, (size_t)n, scale, seed);
    for (int64_t i = 0; i < n; i++) w.host[i] += offset;
    words_put(&w);
    return w;
}

/* Sums of thousands of numbers in dozens of partial sums; with an offset of 30 the mean is known to
 * some units of 2e-6, and what is divided by a deviation of 0.5 likewise. Then the word of storage
 * rounds. */
static double tolerance(const Case *c, bool bf16) {
    return word_error(bf16) + (c->offset != 0 ? 2e-5 : 4e-6);
}

static bool check_case(const Case *c, bool bf16) {
    int64_t T = c->T, C = c->C, n = T * C;
    const Kernels *k = kernels_cuda(bf16);
    Words x = moved(n, 1, c->offset, 1, bf16, c->skew), dy = words(n, 1, 4, bf16, c->skew);
    Words gamma = words(C, 1, 2, false, 0), beta = words(C, 1, 3, false, 0);
    Words y = words_empty(n, bf16, c->skew), dx = words(n, 1, 5, bf16, c->skew);
    Words mean = words_empty(T, false, 0), rstd = words_empty(T, false, 0);
    Words dgamma = words(C, 1, 6, false, 0), dbeta = words(C, 1, 7, false, 0);
    Reference r = reference(c, &x, &gamma, &beta, &dy, &dx, &dgamma, &dbeta);
    Norm norm = norm_of(c, T, C);
    norm.gamma = gamma.device, norm.beta = c->beta ? beta.device : NULL;
    norm.dgamma = dgamma.device, norm.dbeta = c->beta ? dbeta.device : NULL;
    norm.workspace = cuda_take((int64_t)k->norm_workspace(T, C), 1, 0);
    float *m = c->kind == NORM_LAYER ? mean.device : NULL;
    k->norm_forward(NULL, &norm, y.device, m, rstd.device, x.device);
    k->norm_backward(NULL, &norm, dx.device, dy.device, x.device, m, rstd.device);
    words_get(&y), words_get(&rstd), words_get(&dx), words_get(&dgamma), words_get(&dbeta);
    double tol = tolerance(c, bf16), exact = tolerance(c, false);
    bool fine = near_all("y", y.host, r.y, n, tol) &&
                near_all("rstd", rstd.host, r.rstd, T, exact) &&
                near_all("dx", dx.host, r.dx, n, tol * fmax(1, r.rstd[0])) &&
                near_all("dgamma", dgamma.host, r.dgamma, C, exact * sqrt((double)T)) &&
                near_all("dbeta", dbeta.host, r.dbeta, C, exact * sqrt((double)T));
    if (m) words_get(&mean), fine = fine && near_all("mean", mean.host, r.mean, T, exact);
    k->norm_forward(NULL, &norm, x.device, NULL, NULL, x.device); // in place
    words_get(&x);
    return fine && same_bits(x.host, y.host, n);
}

TEST(cuda_norm_matches_double) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < CASES; i++) {
                const Case *c = &cases[i];
                if (c->C > 1000 && o->order != EMU_RANDOM && !test_long()) continue;
                cuda_begin(*o);
                CHECK_SAYS(check_case(c, bf16), "case %d bf16 %d", i, bf16);
                CHECK(cuda_end());
            }
}

/* Bits of a row of the stream that is made whole on the way, and of its norm, are those of
 * bias_residual and norm_forward, which are held against double. */
static bool check_residual(const Case *c, bool bf16, bool bias) {
    int64_t T = c->T, C = c->C, n = T * C;
    const Kernels *k = kernels_cuda(bf16);
    Words x = moved(n, 1, c->offset, 1, bf16, c->skew), x2 = moved(n, 1, c->offset, 1, bf16, 0);
    Words a = words(n, 1, 2, bf16, c->skew), b = words(C, 1, 3, false, c->skew);
    Words gamma = words(C, 1, 4, false, 0), beta = words(C, 1, 5, false, 0);
    Words y = words_empty(n, bf16, c->skew), y2 = words_empty(n, bf16, 0);
    Words stats = words_empty(2 * T, false, 0), stats2 = words_empty(2 * T, false, 0);
    double *sum = doubles_copy(x.host, n);
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)a.host[i] + (bias ? (double)b.host[i % C] : 0);
    Norm norm = norm_of(c, T, C);
    norm.gamma = gamma.device, norm.beta = c->beta ? beta.device : NULL;
    float *biases = bias ? b.device : NULL;
    k->residual_norm(NULL, &norm, x.device, a.device, biases, y.device, stats.device,
                     stats.device + T);
    k->bias_residual(NULL, x2.device, a.device, biases, T, C);
    k->norm_forward(NULL, &norm, y2.device, stats2.device, stats2.device + T, x2.device);
    words_get(&x), words_get(&y), words_get(&stats);
    words_get(&x2), words_get(&y2), words_get(&stats2);
    bool fine = near_all("stream", x.host, sum, n, word_error(bf16) + 2e-7) &&
                same_bits(x.host, x2.host, n);
    // a row that is not aligned is added up in another order
    if (c->skew == 0)
        return fine && same_bits(y.host, y2.host, n) && same_bits(stats.host, stats2.host, 2 * T);
    double tol = tolerance(c, bf16);
    return fine && near_all("y", y.host, doubles_copy(y2.host, n), n, 2 * tol) &&
           near_all("statistics", stats.host, doubles_copy(stats2.host, 2 * T), 2 * T,
                    tolerance(c, false));
}

TEST(cuda_residual_norm_has_the_bits_of_both_its_halves) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 0; i < CASES * 2; i++) {
                const Case *c = &cases[i / 2];
                if (c->C > 1000 && (o->order != EMU_RANDOM || i % 2) && !test_long()) continue;
                cuda_begin(*o);
                CHECK_SAYS(check_residual(c, bf16, i % 2 == 0), "case %d bf16 %d", i, bf16);
                CHECK(cuda_end());
            }
}

/* A part of the columns of a matrix, in rows of ld. */
static Words part_of(const Words *x, int64_t T, int64_t C, int64_t first, int64_t width,
                     int64_t ld) {
    Words p = words_empty(T * ld, x->bf16, 0);
    for (int64_t i = 0; i < T * ld; i++)
        p.host[i] = i % ld < width ? x->host[i / ld * C + first + i % ld] : -12;
    words_put(&p);
    return p;
}
/* Are these columns as they should be, and what lies between rows as it was? */
static bool part_is(Words *p, const double *want, int64_t T, int64_t C, int64_t first,
                    int64_t width, int64_t ld, double tol) {
    words_get(p);
    for (int64_t i = 0; i < T * ld; i++) {
        bool inside = i % ld < width;
        double w = inside ? want[i / ld * C + first + i % ld] : -12;
        if (fabs((double)p->host[i] - w) <= (inside ? tol * fmax(1, fabs(w)) : 0)) continue;
        test_fail(__FILE__, __LINE__, "part from %lld, at %lld: %g, not %g", (long long)first,
                  (long long)i, (double)p->host[i], w);
        return false;
    }
    return true;
}

typedef struct Part {
    Words x, y, dy, dx, gamma, beta, dgamma, dbeta;
    Norm norm;
} Part;

static Part part_new(const Case *c, const Kernels *k, const Words all[7], int64_t first,
                     int64_t width) {
    Part p;
    int64_t T = c->T, C = c->C, ld = (width + 15) / 8 * 8;
    p.x = part_of(&all[0], T, C, first, width, ld), p.dy = part_of(&all[1], T, C, first, width, ld);
    p.dx = part_of(&all[2], T, C, first, width, ld), p.y = part_of(&all[0], T, C, first, 0, ld);
    p.gamma = part_of(&all[3], 1, C, first, width, width);
    p.beta = part_of(&all[4], 1, C, first, width, width);
    p.dgamma = part_of(&all[5], 1, C, first, width, width);
    p.dbeta = part_of(&all[6], 1, C, first, width, width);
    p.norm = norm_of(c, T, width), p.norm.ld = ld, p.norm.C_all = C;
    p.norm.gamma = p.gamma.device, p.norm.dgamma = p.dgamma.device;
    p.norm.beta = c->beta ? p.beta.device : NULL, p.norm.dbeta = c->beta ? p.dbeta.device : NULL;
    p.norm.workspace = cuda_take((int64_t)k->norm_workspace(T, width), 1, 0);
    return p;
}

/* The two steps of both directions with the columns in parts, as ranks would take them. */
static bool check_parts(const Case *c, bool bf16, int how) {
    int64_t T = c->T, C = c->C, n = T * C, width[MAX_PARTS], first[MAX_PARTS];
    const Kernels *k = kernels_cuda(bf16);
    int parts = cut(how, C, width);
    const Words all[] = {moved(n, 1, c->offset, 1, bf16, 0),
                         words(n, 1, 4, bf16, 0),
                         words(n, 1, 5, bf16, 0),
                         words(C, 1, 2, false, 0),
                         words(C, 1, 3, false, 0),
                         words(C, 1, 6, false, 0),
                         words(C, 1, 7, false, 0)};
    Reference r = reference(c, &all[0], &all[3], &all[4], &all[1], &all[2], &all[5], &all[6]);
    Words stats = words_empty(parts * 2 * T, false, 0), sums = words_empty(parts * 2 * T, false, 0);
    Words mean = words_empty(T, false, 0), rstd = words_empty(T, false, 0);
    float *m = c->kind == NORM_LAYER ? mean.device : NULL;
    Part part[MAX_PARTS];
    for (int i = 0; i < parts; i++) {
        first[i] = i ? first[i - 1] + width[i - 1] : 0;
        part[i] = part_new(c, k, all, first[i], width[i]);
        k->norm_statistics(NULL, &part[i].norm, stats.device + i * 2 * T, part[i].x.device);
    }
    k->norm_merge(&part[0].norm, m, rstd.device, stats.device, width, parts);
    for (int i = 0; i < parts; i++) {
        Part *p = &part[i];
        k->norm_apply(NULL, &p->norm, p->y.device, p->x.device, m, rstd.device);
        k->norm_backward_sums(NULL, &p->norm, sums.device + i * 2 * T, p->dy.device, p->x.device, m,
                              rstd.device);
    }
    words_get(&sums);
    Words total = words(2 * T, 0, 0, false, 0);
    for (int64_t i = 0; i < parts * 2 * T; i++) total.host[i % (2 * T)] += sums.host[i];
    words_put(&total);
    double tol = tolerance(c, bf16), exact = tolerance(c, false) * sqrt((double)T);
    bool fine = true;
    for (int i = 0; i < parts && fine; i++) {
        Part *p = &part[i];
        int64_t w = width[i], ld = p->norm.ld, at = first[i];
        k->norm_backward_apply(NULL, &p->norm, p->dx.device, p->dy.device, p->x.device, m,
                               rstd.device, total.device);
        fine = part_is(&p->y, r.y, T, C, at, w, ld, tol) &&
               part_is(&p->dx, r.dx, T, C, at, w, ld, tol * fmax(1, r.rstd[0])) &&
               part_is(&p->dgamma, r.dgamma, 1, C, at, w, w, exact) &&
               part_is(&p->dbeta, r.dbeta, 1, C, at, w, w, exact);
    }
    return fine;
}

TEST(cuda_norm_of_cut_rows_is_that_of_whole_rows) {
    for (EACH_WORD(bf16))
        for (EACH_ORDER(o))
            for (int i = 1; i < 7; i++)
                for (int how = 0; how < CUTS; how++) {
                    Case c = cases[i];
                    if ((i + how + (int)(o - cuda_orders)) % 3 && !test_long()) continue;
                    c.skew = 0;
                    cuda_begin(*o);
                    CHECK_SAYS(check_parts(&c, bf16, how), "case %d cut %d bf16 %d", i, how, bf16);
                    CHECK(cuda_end());
                }
}

/* More panels of tokens than one warp of panels.cuh adds, and rows per panel that its warps cannot
 * share evenly. C columns; the sums of the first order. */
enum { NARROW = 8 };
static bool check_panels(int64_t T, bool is_first, float first[2 * NARROW]) {
    enum { C = NARROW };
    Case c = {NORM_LAYER, T, C, 0, true, 0};
    const Kernels *k = kernels_cuda(true);
    Words x = words(T * C, 1, 1, true, 0), dy = words(T * C, 1, 2, true, 0);
    Words dx = words(T * C, 0, 2, true, 0), gamma = words(C, 1, 3, false, 0);
    Words sums = words(2 * C, 0, 3, false, 0), rstd = words_empty(T, false, 0);
    Words mean = words_empty(T, false, 0);
    Norm norm = norm_of(&c, T, C);
    norm.gamma = gamma.device, norm.dgamma = sums.device, norm.dbeta = sums.device + C;
    norm.workspace = cuda_take((int64_t)k->norm_workspace(T, C), 1, 0);
    Words stats = words_empty(2 * T, false, 0);
    k->norm_statistics(NULL, &norm, stats.device, x.device);
    const int64_t all[] = {C};
    k->norm_merge(&norm, mean.device, rstd.device, stats.device, all, 1);
    k->norm_backward(NULL, &norm, dx.device, dy.device, x.device, mean.device, rstd.device);
    words_get(&sums), words_get(&mean), words_get(&rstd);
    if (is_first) memcpy(first, sums.host, 2 * C * sizeof *first);
    double want[2 * C] = {0};
    for (int64_t i = 0; i < T * C; i++) {
        double d = (double)dy.host[i], m = (double)mean.host[i / C], r = (double)rstd.host[i / C];
        want[i % C] += d * ((double)x.host[i] - m) * r, want[C + i % C] += d;
    }
    return same_bits(first, sums.host, 2 * C) && near_all("sums", sums.host, want, 2 * C, 1e-5);
}

TEST(cuda_norm_backward_has_the_same_bits_in_any_order) {
    float first[2 * NARROW];
    for (EACH_ORDER(o)) {
        cuda_begin(*o);
        CHECK(check_panels(512 * 16 + 700, o == cuda_orders, first));
        CHECK(cuda_end());
    }
}

/* A warp knows the statistics of 32 rows at a time. */
TEST(cuda_norm_backward_of_many_rows_for_each_warp) {
    float sums[2 * NARROW];
    cuda_begin(cuda_orders[0]);
    CHECK(check_panels(512 * 4 * 32 + 600, true, sums));
    CHECK(cuda_end());
}
