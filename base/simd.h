/* simd -- short vectors of floats, one spelling for every instruction set.
 *
 * Each C file of layers/ is compiled once per instruction set (see Makefile); VF is the number of
 * lanes of a vector:
 *
 *     set            VF   fused multiply-add   bf16 dot product
 *     portable        4   a*b + c              widened to fp32
 *     avx2            8   yes                  widened to fp32
 *     avx512         16   yes                  widened to fp32
 *     avx512_bf16    16   yes                  VDPBF16PS
 *     avx512_amx     16   yes                  VDPBF16PS; matmuls, attention by tiles (amx.h)
 *
 * + - * / on vf are the compiler's vector extension. This is one of the few files with #if: the
 * others stay plain C.
 */
#ifndef BASE_SIMD_H
#define BASE_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/bf16.h"

#if defined(__AVX2__) // other sets do not use it, and it takes 0.4 s to compile
#include <immintrin.h>
#endif

/* Unrolls the loop behind it, which has a constant number of iterations over vectors in registers.
 * clang 14 unrolls by "GCC unroll" too late: the vectors then lie in memory. With SIMD_WIDE they
 * lie in memory anyway, and without unrolling compile in a quarter of the time. */
#ifdef SIMD_WIDE
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif

#if defined(__AVX512F__) || defined(SIMD_WIDE) // SIMD_WIDE: tests have 16 lanes in plain C
#define VF 16
#elif defined(__AVX2__)
#define VF 8
#else
#define VF 4
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
enum { VF_REGISTERS = 32 }; // vectors that a loop holds without spilling
#else
enum { VF_REGISTERS = 16 };
#endif

#define LOG2_E 1.44269504088896341f

typedef float vf __attribute__((vector_size(VF * 4)));
typedef int32_t vi __attribute__((vector_size(VF * 4)));
typedef float vf_any
    __attribute__((vector_size(VF * 4), aligned(4), may_alias)); // unaligned memory
typedef int32_t vi_any __attribute__((vector_size(VF * 4), aligned(4), may_alias));

static inline vf vf_load(const float *p) {
    return *(const vf_any *)p;
}
static inline void vf_store(float *p, vf x) {
    *(vf_any *)p = x;
}
static inline vf vf_set1(float x) {
    return x - (vf){0};
}
/* The same of *x, loaded anew. Compilers load a float once for all its uses; of a float that has
 * one use, the multiply-adds of AVX-512 read it themselves, which is an instruction less. The empty
 * statement only tells the compiler that *x might have changed. */
static inline vf vf_set1_anew(const float *x) {
    __asm__("" : "+m"(*(float *)x));
    return vf_set1(*x);
}
static inline vf vf_zero(void) {
    return (vf){0};
}
static inline vi vi_set1(int32_t x) {
    return x - (vi){0};
}
static inline vf vf_abs(vf x) {
    return (vf)((vi)x & vi_set1(INT32_MAX));
}
// a where the mask of a comparison such as x < y is set, b elsewhere
static inline vf vf_select(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

#if defined(__AVX512F__)

static inline vf vf_fma(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
static inline vf vf_max(vf a, vf b) {
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}
static inline vf vf_min(vf a, vf b) {
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}
static inline vf vf_sqrt(vf a) {
    return (vf)_mm512_sqrt_ps((__m512)a);
}
static inline vf vf_load_part(const float *p, int64_t n) {
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline void vf_store_part(float *p, vf x, int64_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
}
static inline vf vf_round(vf a) {
    return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEAREST_INT);
}
static inline vi vf_to_vi(vf a) {
    return (vi)_mm512_cvtps_epi32((__m512)a);
}
static inline vf vf_scale2(vf a, vf n) { // a 2^n
    return (vf)_mm512_scalef_ps((__m512)a, (__m512)n);
}

#else

#if defined(__AVX2__) && defined(__FMA__)
static inline vf vf_fma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
static inline vf vf_max(vf a, vf b) {
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}
static inline vf vf_min(vf a, vf b) {
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
}
static inline vf vf_sqrt(vf a) {
    return (vf)_mm256_sqrt_ps((__m256)a);
}
static inline vf vf_round(vf a) {
    return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vi vf_to_vi(vf a) {
    return (vi)_mm256_cvtps_epi32((__m256)a);
}
#else
static inline vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}
static inline vf vf_max(vf a, vf b) {
    return vf_select(a > b, a, b);
} // as on x86: b when a or b is NaN
static inline vf vf_min(vf a, vf b) {
    return vf_select(a < b, a, b);
}
static inline vf vf_sqrt(vf a) {
    for (int i = 0; i < VF; i++) a[i] = sqrtf(a[i]);
    return a;
}
static inline vf vf_round(vf a) { // to nearest even for |a| < 2^22, by the rounding of an addition
    vf magic = vf_set1(12582912.0f);
    vf sum = a + magic;
    __asm__("" : "+m"(sum)); // keeps a compiler from folding the two additions
    return sum - magic;
}
static inline vi vf_to_vi(vf a) {
    return __builtin_convertvector(a, vi);
} // a holds whole numbers
#endif

// a 2^n for whole n in [-126, 127], through the exponent bits
static inline vf vf_scale2(vf a, vf n) {
    return a * (vf)((vf_to_vi(n) + 127) << 23);
}

#if defined(__AVX2__)
static inline __m256i vf_first(int64_t n) { // all ones in the first n lanes
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_load_part(const float *p, int64_t n) {
    return (vf)_mm256_maskload_ps(p, vf_first(n));
}
static inline void vf_store_part(float *p, vf x, int64_t n) {
    _mm256_maskstore_ps(p, vf_first(n), (__m256)x);
}
#else
static inline vf vf_load_part(const float *p, int64_t n) {
    float x[VF] = {0};
    memcpy(x, p, (size_t)n * sizeof *x);
    return vf_load(x);
}
static inline void vf_store_part(float *p, vf x, int64_t n) {
    float y[VF];
    vf_store(y, x);
    memcpy(p, y, (size_t)n * sizeof *y);
}
#endif

#endif

// vf_load_n loads the first n lanes, the others are 0; vf_store_n stores n lanes. Whole vectors are
// moved without a mask: on AMD a masked store of AVX2 is microcode.
static inline vf vf_load_n(const float *p, int64_t n) {
    return n == VF ? vf_load(p) : vf_load_part(p, n);
}
static inline void vf_store_n(float *p, vf x, int64_t n) {
    if (n == VF)
        vf_store(p, x);
    else
        vf_store_part(p, x, n);
}

/* A loop over begin .. end by vectors: i is the first element of a vector, n <= VF its elements.
 *
 *     EACH_VECTOR(i, n, 0, N) vf_store_n(y + i, vf_abs(vf_load_n(x + i, n)), n);
 *
 * The body is compiled twice: for whole vectors, with n = VF, and for the elements left over. */
#define EACH_VECTOR(i, n, begin, end)                                                              \
    UNROLL                                                                                         \
    for (int64_t i = (begin), n = VF, i##_end = (end), i##_turn = 0; i##_turn < 2;                 \
         n = i##_end - i, i##_turn++)                                                              \
        for (; n > 0 && i + n <= i##_end; i += n)

/* Sum and maximum of the lanes, by halves: the order is fixed. */
#if defined(__AVX512F__)
static inline float vf_sum(vf x) {
    return _mm512_reduce_add_ps((__m512)x);
}
static inline float vf_hmax(vf x) {
    return _mm512_reduce_max_ps((__m512)x);
}
#else
static inline float vf_sum(vf x) {
    float y[VF];
    vf_store(y, x);
    for (int h = VF / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++) y[i] += y[i + h];
    return y[0];
}
static inline float vf_hmax(vf x) {
    float y[VF];
    vf_store(y, x);
    for (int h = VF / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++) y[i] = y[i] > y[i + h] ? y[i] : y[i + h];
    return y[0];
}
#endif

/* Prefetches the cache line of p[ahead], which may lie outside the array: nothing is read. */
static inline void prefetch(const float *p, int64_t ahead) {
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)ahead * sizeof *p));
}

/* The first n lanes of x and the others of fill; n may be negative or beyond VF. */
static inline vf vf_first_lanes(vf x, int64_t n, vf fill) {
    int32_t lane[VF];
    for (int i = 0; i < VF; i++) lane[i] = i;
    int32_t k = n < 0 ? 0 : n < VF ? (int32_t)n : VF;
    return vf_select(*(const vi_any *)lane < vi_set1(k), x, fill);
}

/* e^x within 1.5 units in the last place for x in [-86.5, 88.3]; below that 0, above clamped; NaN
 * stays NaN. x = n ln2 + r, |r| <= ln2/2; e^r by a polynomial of degree 7 (Cephes coefficients),
 * then times 2^n. */
static inline vf vf_exp(vf x) {
    vf lo = vf_set1(-86.5f), hi = vf_set1(88.37f); // n = -125 .. 127: no denormal
    vf t = vf_min(hi, vf_max(lo, x));              // operand order keeps NaN
    vf n = vf_round(t * vf_set1(LOG2_E));
    vf r = vf_fma(n, vf_set1(-0.693359375f), t);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p * r, r, r) + vf_set1(1.0f);
    return (vf)((vi)vf_scale2(p, n) & ~(vi)(x < lo));
}

/* 2^x to a relative 1.5e-7 for x in [-125, 127]; below that 2^-125; NaN stays NaN. 2^n times a
 * polynomial of degree 5 in the rest, |r| <= 1/2, that is exactly 1 at 0. */
static inline vf vf_exp2(vf x) {
    vf t = vf_max(vf_set1(-125.0f), x), n = vf_round(t), r = t - n; // operand order keeps NaN
    vf p = vf_set1(1.3264727e-3f);
    p = vf_fma(p, r, vf_set1(9.671513e-3f));
    p = vf_fma(p, r, vf_set1(5.5507336e-2f));
    p = vf_fma(p, r, vf_set1(2.4022242e-1f));
    p = vf_fma(p, r, vf_set1(6.93147e-1f));
    return vf_scale2(vf_fma(p, r, vf_set1(1.0f)), n);
}

/* 1 / (1 + e^-x) and, in *rest, 1 minus that. Both come from e^-|x|, so that nothing overflows and
 * each keeps its relative accuracy. */
static inline vf vf_sigmoid_rest(vf x, vf *rest) {
    vf e = vf_exp(-vf_abs(x)), big = vf_set1(1.0f) / (vf_set1(1.0f) + e), small = e * big;
    vi negative = x < vf_zero();
    *rest = vf_select(negative, big, small);
    return vf_select(negative, small, big);
}
static inline vf vf_sigmoid(vf x) {
    vf rest;
    return vf_sigmoid_rest(x, &rest);
}

/* Vectors of VD doubles, as many bytes as vf. */
#define VD (VF / 2)
typedef double vd __attribute__((vector_size(VD * 8)));
typedef float vf_half_any __attribute__((vector_size(VD * 4), aligned(4), may_alias));

/* VD floats from memory, and the lower and the upper half of a vector, as doubles. */
#if defined(__AVX512DQ__)
static inline vd vd_load_floats(const float *p) {
    return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p));
}
static inline vd vd_low(vf x) {
    return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
}
static inline vd vd_high(vf x) {
    return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
static inline vd vd_load_floats(const float *p) {
    return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p));
}
static inline vd vd_low(vf x) {
    return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
}
static inline vd vd_high(vf x) {
    return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
}
#else
static inline vd vd_load_floats(const float *p) {
    return __builtin_convertvector(*(const vf_half_any *)p, vd);
}
static inline vd vd_low(vf x) {
    float y[VF];
    vf_store(y, x);
    return vd_load_floats(y);
}
static inline vd vd_high(vf x) {
    float y[VF];
    vf_store(y, x);
    return vd_load_floats(y + VD);
}
#endif

#endif
