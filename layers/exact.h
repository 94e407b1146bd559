/* exact -- sums whose bits do not depend on how the terms are sharded (--exact; fp32).
 *
 * Addition of floats is not associative, addition of integers is. So every term is rounded to a
 * whole number of grid steps, the integers are added in any order by threads and ranks, and the sum
 * is rounded to a float once. A term is an element, or in matmuls the fp32 sum over a small panel
 * of K, which must lie on one rank.
 *
 *   narrow  int64 v means v 2^-e, for tensors. In range: |v| < 2^51. A term is rounded to the grid
 *           once, by at most 2^-(e+1); the sum adds no error; the float at its end is rounded once.
 *   wide    int64 hi, lo mean hi 2^-14 + lo 2^-64, for sums of everything: |v| < 2^37 with steps of
 *           2^-64, so that neither losses nor squares of gradients need a grid of their own.
 *
 *   grid of a narrow sum          e                    range, scale           steps
 *     activations                 36                   32768                  1.5e-11
 *     gradients of activations    40 - log2(scale)     2048 scale             9e-13 scale
 *     gradients of weights        44                   128                    6e-14
 *
 * scale = 1 / (targets of the whole batch) is what gradients of activations grow with; weights'
 * gradients are sums over all tokens and do not. Nothing here depends on the mesh. Beside the 2^-24
 * of a value of fp32 a step is small for activations above 2^-12, for gradients above scale 2^-16,
 * and for weights' gradients above 1e-6; below it counts as noise of that absolute size, without
 * bias.
 *
 * A term out of range, an infinity or a NaN, and a sum that leaves the range make the sum
 * EXACT_POISON, which no further term mends and which becomes NaN. Parts of up to 4,095 ranks may
 * be added as plain integers: the sum of parts in range cannot wrap, and if it is out of range it
 * becomes NaN; so it does when any number of parts is poisoned and the others' sum is in range: k
 * poisoned parts add k 2^52, which for 1 <= k <= 4095 is at least 2^52 away from 0 modulo 2^64.
 *
 * Integers *_64 are added to (+=) unless said otherwise. All calls are local.
 * Source: Demmel, Nguyen, "Parallel reproducible summation", 2015, for the idea of a fixed grid.
 */
#ifndef LAYERS_EXACT_H
#define LAYERS_EXACT_H

#include <math.h>
#include <stdint.h>

#include "base/team.h"
#include "layers/embedding.h"
#include "layers/matmul.h"
#include "layers/norm.h"

enum { EXACT_BITS = 51, EXACT_ACTIVATIONS = 36, EXACT_GRADIENTS = 40, EXACT_WEIGHTS = 44 };
#define EXACT_POISON (INT64_C(1) << (EXACT_BITS + 1))
enum { WIDE = 2 }; // integers of a wide sum

/* Local, pure. Grid of the gradients of activations. */
static inline int exact_gradients(double scale) {
    int exponent;
    frexp(scale, &exponent); // scale < 2^exponent
    return EXACT_GRADIENTS - exponent;
}

/* y_64[M,N] += a b, a sum over K of panels' fp32 sums, each a chain of multiply-adds in order.
 * Panels are k_panel elements (at most 384), counted from the start of every unit of k_unit; the
 * last panel of a unit may be shorter. k_first is the offset of k = 0 in its unit, where a panel
 * begins. The same panels must exist on every mesh: for sums over tokens a unit is a sequence, for
 * sums over features a head, or the whole. */
typedef struct MatmulExact {
    int64_t *y_64;                    // [M,N], rows ldy apart
    int64_t k_panel, k_unit, k_first; // k_unit 0: one unit
    int exponent;                     // e
    bool overwrite;                   // y_64 = a b, not +=
} MatmulExact;
/* Uses M, N, K, a, b, ldy and workspace of p. Once the sum is complete, the caller adds bias and
 * residual and applies the activation (bias_residual, act_forward, act_backward). */
void matmul_exact(Team *t, const Matmul *p, const MatmulExact *x);

/* y[i] = y_64[i] 2^-exponent, rounded once; NaN where poisoned or out of range. */
void exact_to_float(Team *t, float *y, const int64_t *y_64, int64_t n, int exponent);
/* The value of a wide sum; NaN likewise. */
double exact_wide_to_double(const int64_t sum_64[WIDE]);

/* to_64[n] += from_64[n]: adds the parts of narrow sums, or of wide ones. */
void exact_add(Team *t, int64_t *to_64, const int64_t *from_64, int64_t n);

/* sum_64[WIDE] += sum of x[n], for losses; or of x[n]^2, squared in fp32, for the gradient norm. */
void exact_sum(Team *t, int64_t sum_64[WIDE], const float *x, int64_t n, bool squares);

/* dbias_64[N] += column sums of dy[T,N]. */
void exact_bias_backward(Team *t, int64_t *dbias_64, const float *dy, int64_t T, int64_t N,
                         int exponent);
/* The sums of embedding_backward and position_backward, added to dwte_64[V,C] and
 * dwpe_64[positions,C] instead of e->dwte and e->dwpe. */
void exact_embedding_backward(Team *t, const Embedding *e, int64_t *dwte_64, const float *dx,
                              int exponent);
void exact_position_backward(Team *t, const Embedding *e, int64_t *dwpe_64, int64_t T, int64_t t0,
                             const float *dx, int exponent);

/* dgamma_64[C], dbeta_64[C] (or NULL) += what norm_backward_sums adds to dgamma and dbeta. */
void exact_norm_weight_backward(Team *t, const Norm *n, int64_t *dgamma_64, int64_t *dbeta_64,
                                const float *dy, const float *x, const float *mean,
                                const float *rstd, int exponent);
/* dgamma_64[2 D] += what qk_norm_weight_backward adds to dgamma. */
void exact_qk_norm_weight_backward(Team *t, const QkNorm *q, int64_t *dgamma_64, const float *dy,
                                   const float *x, int exponent);

#endif
