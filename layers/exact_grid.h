/* exact_grid -- the inner parts of exact sums: lanes of floats to whole numbers of grid steps.
 *
 * Adding 1.5 2^(52-e) to a double x leaves it in a binade whose neighbours are 2^-e apart: the
 * addition rounds x to the grid, and the bits of the result, less those of the constant, are the
 * whole number. A sum adds the bits with the constant in them, and subtracts the multiple of the
 * constant once at its end; both in unsigned integers, which may wrap.
 *
 *     bits   0x4338...0  +-  x 2^e        (e = 0; |x| 2^e < 2^51)
 */
#ifndef LAYERS_EXACT_GRID_H
#define LAYERS_EXACT_GRID_H

#include <stdbool.h>
#include <string.h>

#include "base/simd.h"
#include "layers/exact.h"

typedef uint64_t vu __attribute__((vector_size(VD * 8)));
typedef uint64_t vu_any __attribute__((vector_size(VD * 8), aligned(8), may_alias));
typedef uint32_t vb __attribute__((vector_size(VF * 4))); // sign bit: this lane is out of range

static inline vu vu_load(const void *p) {
    return *(const vu_any *)p;
}
static inline void vu_store(void *p, vu x) {
    *(vu_any *)p = x;
}
static inline uint64_t double_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

typedef struct ExactGrid {
    double magic;
    uint32_t over; // added to the bits of |x|, sets the sign bit where x is out of range or NaN
} ExactGrid;
static inline ExactGrid exact_grid_of(int exponent) {
    return (ExactGrid){ldexp(1.5, EXACT_BITS + 1 - exponent),
                       0x80000000u - float_bits(ldexpf(1, EXACT_BITS - exponent))};
}

static inline vb exact_grid_over(const ExactGrid *g, vf x) {
    return ((vb)x & 0x7fffffffu) + g->over;
}
static inline bool exact_grid_good(const ExactGrid *g, float x) {
    return ((float_bits(x) & 0x7fffffffu) + g->over) >> 31 == 0;
}
static inline bool vb_any(vb over) {
    uint32_t any = 0;
    for (int i = 0; i < VF; i++) any |= over[i];
    return any >> 31;
}

/* Is v out of range? Then bits at or above 2^52 of the result are set; results of several v may be
 * joined by |. */
static inline uint64_t out_of_range(uint64_t v) {
    return v + (UINT64_C(1) << EXACT_BITS);
}
static inline vu vu_out_of_range(vu v) {
    return v + (UINT64_C(1) << EXACT_BITS);
}
static inline bool vu_any_out(vu out) {
    uint64_t any = 0;
    for (int i = 0; i < VD; i++) any |= out[i];
    return any >> (EXACT_BITS + 1);
}
/* The sum of two parts: EXACT_POISON if a part or the sum is out of range. */
static inline int64_t exact_join(int64_t a, int64_t b) {
    uint64_t sum = (uint64_t)a + (uint64_t)b;
    uint64_t out = out_of_range((uint64_t)a) | out_of_range((uint64_t)b) | out_of_range(sum);
    return out >> (EXACT_BITS + 1) ? EXACT_POISON : (int64_t)sum;
}

/* Narrow sums of VF columns, one in each lane. */
typedef struct Lanes {
    vu bits[2]; // sums of the low and of the high half of the lanes
    vb over;
} Lanes;
enum { LANES_MOST = 4096 }; // most terms of a sum: below 2^51 each, they cannot wrap

static inline void lanes_add(Lanes *s, const ExactGrid *g, vf x) {
    s->bits[0] += (vu)(vd_low(x) + g->magic);
    s->bits[1] += (vu)(vd_high(x) + g->magic);
    s->over |= exact_grid_over(g, x);
}
/* sum_64[n] += the first n sums, of `terms` terms each. */
static inline void lanes_join(const Lanes *s, const ExactGrid *g, int64_t *sum_64, int64_t n,
                              int64_t terms) {
    for (int i = 0; i < n && i < VF; i++) {
        int64_t v = (int64_t)(s->bits[i / VD][i % VD] - (uint64_t)terms * double_bits(g->magic));
        sum_64[i] = exact_join(sum_64[i], s->over[i] >> 31 ? EXACT_POISON : v);
    }
}

/* VD lanes as whole numbers of grid steps; any bits for lanes out of range. */
static inline vu exact_steps_of(vd x, double magic) {
    return (vu)(x + magic) - double_bits(magic);
}

/* Corrects sum_64[n] after a loop over vectors that added x[n], where a term or a sum may be out of
 * range: subtracts x and joins it with checks. */
static inline void exact_repair(int64_t *sum_64, const float *x, int64_t n, const ExactGrid *g) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t v = double_bits((double)x[i] + g->magic) - double_bits(g->magic);
        sum_64[i] = exact_grid_good(g, x[i])
                        ? exact_join((int64_t)((uint64_t)sum_64[i] - v), (int64_t)v)
                        : EXACT_POISON;
    }
}

/* sum_64[n] += x[n] */
static inline void exact_add_row(int64_t *sum_64, const float *x, int64_t n, const ExactGrid *g) {
    vu out = {0};
    uint32_t over = 0;
    int64_t i = 0;
    for (; i + VD <= n; i += VD) {
        vu old = vu_load(sum_64 + i), sum = old + exact_steps_of(vd_load_floats(x + i), g->magic);
        vu_store(sum_64 + i, sum);
        out |= vu_out_of_range(old) | vu_out_of_range(sum);
    }
    for (int64_t j = 0; j < i; j++) over |= (float_bits(x[j]) & 0x7fffffffu) + g->over;
    if (over >> 31 || vu_any_out(out)) exact_repair(sum_64, x, i, g);
    for (; i < n; i++) {
        int64_t v = (int64_t)(double_bits((double)x[i] + g->magic) - double_bits(g->magic));
        sum_64[i] = exact_join(sum_64[i], exact_grid_good(g, x[i]) ? v : EXACT_POISON);
    }
}

/* A wide sum of many terms, over all lanes. */
enum { WIDE_HI = 14, WIDE_LO = 64 };
typedef struct WideSum {
    ExactGrid hi, lo;
    vu bits[4]; // hi of the low and the high half of the lanes, then lo
    vb over;
    int64_t terms;     // terms in bits
    int64_t sum[WIDE]; // the sum of earlier terms
} WideSum;

static inline WideSum wide_start(void) {
    return (WideSum){.hi = exact_grid_of(WIDE_HI), .lo = exact_grid_of(WIDE_LO)};
}
/* to += from; lo is carried into hi, so that it stays below 2^50. */
static inline void wide_join(int64_t to[WIDE], const int64_t from[WIDE]) {
    int64_t lo = to[1] + from[1], carry = (lo + (INT64_C(1) << 49)) >> (WIDE_LO - WIDE_HI);
    to[1] = lo - carry * (INT64_C(1) << (WIDE_LO - WIDE_HI));
    to[0] = exact_join(exact_join(to[0], from[0]), carry);
}
/* Adds the lanes to s->sum and empties them. */
static inline void wide_flush(WideSum *s) {
    uint64_t hi = 0, lo = 0;
    for (int i = 0; i < VD; i++) {
        hi += s->bits[0][i] + s->bits[1][i];
        lo += s->bits[2][i] + s->bits[3][i];
    }
    int64_t part[WIDE] = {(int64_t)(hi - (uint64_t)s->terms * double_bits(s->hi.magic)),
                          (int64_t)(lo - (uint64_t)s->terms * double_bits(s->lo.magic))};
    if (vb_any(s->over)) part[0] = EXACT_POISON, part[1] = 0;
    wide_join(s->sum, part);
    memset(s->bits, 0, sizeof s->bits), s->terms = 0;
}
// hi takes x rounded to 2^-14. The rest is exact as a double; lo takes it, rounded to 2^-64.
static inline void wide_add(WideSum *s, vf x) {
    vd half[2] = {vd_low(x), vd_high(x)};
    for (int i = 0; i < 2; i++) {
        vd hi = half[i] + s->hi.magic, rest = half[i] - (hi - s->hi.magic);
        s->bits[i] += (vu)hi;
        s->bits[2 + i] += (vu)(rest + s->lo.magic);
    }
    s->over |= exact_grid_over(&s->hi, x);
    s->terms += VF;
    if (s->terms == LANES_MOST) wide_flush(s);
}
/* sum_64[WIDE] = the sum. */
static inline void wide_end(WideSum *s, int64_t *sum_64) {
    wide_flush(s);
    sum_64[0] = s->sum[0], sum_64[1] = s->sum[1];
}

#endif
