/* simd_block -- vector operations for packing a matrix: transposing a block in registers, and
 * bfloat16.
 *
 * One spelling for every instruction set, like simd.h; one of the few files with #if.
 */
#ifndef BASE_SIMD_BLOCK_H
#define BASE_SIMD_BLOCK_H

#include "base/amx.h"
#include "base/simd.h"

/* r[i] lane j <-> r[j] lane i: a VF x VF block of dwords is transposed in registers, by pairs of
 * rows of growing distance. */
#if defined(__AVX512F__)
static inline void vf_transpose(vf r[VF]) {
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps((__m512)r[i], (__m512)r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps((__m512)r[i], (__m512)r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) // u[i + c]: column c of every 4 x 4 block of rows i..i+3
        for (int h = 0; h < 2; h++) {
            u[i + 2 * h] = _mm512_castpd_ps(
                _mm512_unpacklo_pd(_mm512_castps_pd(t[i + h]), _mm512_castps_pd(t[i + 2 + h])));
            u[i + 2 * h + 1] = _mm512_castpd_ps(
                _mm512_unpackhi_pd(_mm512_castps_pd(t[i + h]), _mm512_castps_pd(t[i + 2 + h])));
        }
    // a 4 x 4 transpose of the 128-bit blocks of u[c], u[4 + c], u[8 + c], u[12 + c]
    for (int c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88),
               b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
        __m512 d = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
        __m512 e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
        r[c] = (vf)_mm512_shuffle_f32x4(a, d, 0x88);
        r[4 + c] = (vf)_mm512_shuffle_f32x4(b, e, 0x88);
        r[8 + c] = (vf)_mm512_shuffle_f32x4(a, d, 0xdd);
        r[12 + c] = (vf)_mm512_shuffle_f32x4(b, e, 0xdd);
    }
}
#elif defined(__AVX2__)
static inline void vf_transpose(vf r[VF]) {
    __m256 t[8];
    for (int i = 0; i < 8; i += 4) { // t[i + c]: column c of both 4 x 4 blocks of rows i..i+3
        __m256 a = _mm256_unpacklo_ps((__m256)r[i], (__m256)r[i + 1]);
        __m256 b = _mm256_unpackhi_ps((__m256)r[i], (__m256)r[i + 1]);
        __m256 c = _mm256_unpacklo_ps((__m256)r[i + 2], (__m256)r[i + 3]);
        __m256 d = _mm256_unpackhi_ps((__m256)r[i + 2], (__m256)r[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44), t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44), t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int c = 0; c < 4; c++) {
        r[c] = (vf)_mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
        r[4 + c] = (vf)_mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
    }
}
#else
static inline void vf_transpose(vf r[VF]) {
    for (int i = 0; i < VF; i++)
        for (int j = 0; j < i; j++) {
            float x = r[i][j];
            r[i][j] = r[j][i], r[j][i] = x;
        }
}
#endif

/* bfloat16, nearest, ties to even; NaN stays NaN. vf_round_bf16 keeps the value in a float.
 * A dword of two bf16 holds the element with the smaller index in its low half:
 *
 *     vf_pair_rows(x, y)   lane i is x[i], y[i]
 *     vf_pair_run(x, y)    lane i is elements 2i, 2i + 1 of x followed by y
 *
 * and vf_dot2(a, b, c) is c + a.low * b.low + a.high * b.high. Kernels use pairs where SIMD_BF16
 * is 1; the instructions for pairs take subnormal numbers for 0. */
static inline vf vf_round_bf16(vf x) {
    vi u = (vi)x, odd = (u >> 16) & vi_set1(1);
    vi rounded = (u + vi_set1(0x7fff) + odd) & vi_set1(~0xffff), nan = u | vi_set1(0x400000);
    vi is_nan = x != x;
    return (vf)((is_nan & nan & vi_set1(~0xffff)) | (~is_nan & rounded));
}
#if defined(__AVX512BF16__)
enum { SIMD_BF16 = 1 };
static inline vf vf_dot2(vf a, vf b, vf c) {
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}
static inline vf vf_pair_run(vf x, vf y) {
    return (vf)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
}
static inline vf vf_pair_rows(vf x, vf y) {
    __m512i lo = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x));
    __m512i hi = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)y));
    return (vf)_mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}
#else
enum { SIMD_BF16 = SIMD_TILES };
static inline vf vf_dot2(vf a, vf b, vf c) {
    vf a_low = (vf)((vi)a << 16), b_low = (vf)((vi)b << 16);
    vi high = vi_set1(~0xffff);
    return vf_fma((vf)((vi)a & high), (vf)((vi)b & high), vf_fma(a_low, b_low, c));
}
static inline vf vf_pair_rows(vf x, vf y) {
    vi low = ((vi)vf_round_bf16(x) >> 16) & vi_set1(0xffff);
    return (vf)(low | (vi)vf_round_bf16(y));
}
static inline vf vf_pair_run(vf x, vf y) {
    float z[2 * VF], even[VF], odd[VF];
    vf_store(z, x), vf_store(z + VF, y);
    for (int i = 0; i < VF; i++) even[i] = z[2 * i], odd[i] = z[2 * i + 1];
    return vf_pair_rows(vf_load(even), vf_load(odd));
}
#endif

#endif
