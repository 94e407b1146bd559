/* layers -- helpers of the tests of layers: memory with guards, double references, finite
 * differences. */
#ifndef TESTS_LAYERS_H
#define TESTS_LAYERS_H

#include <stdint.h>

#include "base/debug.h"
#include "layers/kernels.h"
#include "tests/test.h"

/* The instruction sets that this processor runs. With sanitizers only the last, portable, except
 * in long tests. */
static inline const char *const *layer_sets(void) {
    const char *const *set = kernels_cpu_sets();
    while (BASE_DEBUG && !test_long() && set[1]) set++;
    return set;
}
/* for (EACH_SET(s)) kernels_cpu(*s)->... */
#define EACH_SET(s)                                                                                \
    const char *const *s = layer_sets();                                                           \
    *s;                                                                                            \
    s++

/* Sizes of teams, which must all give the same bits. 5 is more than there are cores, and more than
 * small inputs have panels. */
enum { TEAMS = 4 };
static const int team_sizes[TEAMS] = {1, 2, 3, 5};

/* Memory of a test: allocated piece by piece, freed together by scratch_end. A guard follows each
 * piece. */
enum { SCRATCH = 256, GUARD = 64 };
static struct {
    unsigned char *p;
    size_t n;
} scratch[SCRATCH];
static int n_scratch;

static inline void *scratch_take(size_t n_bytes) {
    unsigned char *p = mem_calloc(n_bytes + GUARD, 1);
    if (n_scratch == SCRATCH)
        test_fail("more than %d pieces of scratch", SCRATCH);
    else
        scratch[n_scratch].p = p, scratch[n_scratch++].n = n_bytes;
    memset(p + n_bytes, 0x77, GUARD);
    return p;
}
/* Frees all pieces; false if a guard was written. */
static inline bool scratch_end(void) {
    bool intact = true;
    while (n_scratch > 0) {
        unsigned char *p = scratch[--n_scratch].p;
        for (int i = 0; i < GUARD; i++)
            intact = intact && p[scratch[n_scratch].n + (size_t)i] == 0x77;
        mem_free(p);
    }
    return intact;
}
static inline float *floats(int64_t n, float scale, unsigned seed) { // uniform in [-scale, scale)
    float *x = scratch_take((size_t)n * sizeof *x);
    test_fill(x, (size_t)n, scale, seed);
    return x;
}
static inline float *floats_copy(const float *x, int64_t n) {
    return memcpy(scratch_take((size_t)n * sizeof *x), x, (size_t)n * sizeof *x);
}
static inline double *doubles_copy(const float *x, int64_t n) { // x NULL: zeros
    double *d = scratch_take((size_t)n * sizeof *d);
    for (int64_t i = 0; i < n && x; i++) d[i] = (double)x[i];
    return d;
}
static inline bool same_bits(const float *a, const float *b, int64_t n) {
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* Sums for --exact: partial sums are added as integers, as a collective adds them. */
static inline int64_t *whole_numbers(int64_t n) {
    return scratch_take((size_t)n * sizeof(int64_t));
}
static inline void add_parts(int64_t *to, const int64_t *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (int64_t)((uint64_t)to[i] + (uint64_t)from[i]);
}

/* Ways to cut a row of n columns into parts of awkward or zero width. Fills width; returns the
 * number of parts. */
enum { CUTS = 6, MAX_PARTS = 8 };
static inline int cut(int how, int64_t n, int64_t width[MAX_PARTS]) {
    int64_t at = 0;
    switch (how) {
    case 0:
        return width[0] = n, 1;
    case 1:
        return width[0] = 0, width[1] = n, 2;
    case 2:
        return width[0] = 1, width[1] = n - 1, 2;
    case 3:
        return width[0] = n / 2, width[1] = 0, width[2] = n - n / 2, 3;
    case 4:
        return width[0] = n - n / 3 - n / 5, width[1] = n / 3, width[2] = n / 5, 3;
    }
    // blocks of equal length: the last ones are shorter, or padding only
    for (int i = 0; i < 7; i++) {
        int64_t block = (n + 6) / 7;
        width[i] = n - at < block ? n - at : block;
        at += width[i];
    }
    return 7;
}

/* Is |got - want| <= tol max(1, |want|) for all elements? Prints the first that fails. */
static inline bool near_all(const char *what, const float *got, const double *want, int64_t n,
                            double tol) {
    for (int64_t i = 0; i < n; i++) {
        double bound = tol * fmax(1, fabs(want[i]));
        if (fabs((double)got[i] - want[i]) <= bound) continue;
        test_fail("%s[%lld] is %.9g, not %.9g (+- %.2g)", what, (long long)i, (double)got[i],
                  want[i], bound);
        return false;
    }
    return true;
}

/* Are all elements within tol of each other, or equal (infinities), or both NaN? */
static inline bool near_or_nan(const float *a, const float *b, int64_t n, float tol) {
    for (int64_t i = 0; i < n; i++)
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) || fabsf(a[i] - b[i]) <= tol))
            return false;
    return true;
}

/* dx[i] = df/dx[i] by central differences in double. With h = 1e-5 the error is about 1e-9 for
 * functions of size 1. */
static inline void slopes(double (*f)(const void *ctx, const double *x), const void *ctx, double *x,
                          int64_t n, double *dx) {
    for (int64_t i = 0; i < n; i++) {
        double old = x[i], h = 1e-5;
        x[i] = old + h;
        double up = f(ctx, x);
        x[i] = old - h;
        double down = f(ctx, x);
        x[i] = old;
        dx[i] = (up - down) / (2 * h);
    }
}

/* Loss and gradient of one row, as defined in the header of classifier. */
static inline double classifier_reference(const float *x, int64_t V, int32_t target, double scale,
                                          double *dx) {
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < V; v++) max = fmax(max, (double)x[v]);
    for (int64_t v = 0; v < V; v++) sum += exp((double)x[v] - max);
    for (int64_t v = 0; v < V; v++)
        dx[v] = target < 0 ? 0 : (exp((double)x[v] - max) / sum - (v == target)) * scale;
    return target < 0 ? 0 : log(sum) + max - (double)x[target];
}

#endif
