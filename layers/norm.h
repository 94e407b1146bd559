/* norm -- layer norm and RMS norm over the C features of each token.
 *
 *   layer  y = (x - mean) * rstd * gamma + beta      rstd = 1 / sqrt(mean((x - mean)^2) + eps)
 *   rms    y = x * rstd * gamma                      rstd = 1 / sqrt(mean(x^2) + eps)
 *
 * RMS norm uses no mean: `mean` may be NULL.
 * Source: Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019.
 */
#ifndef LAYERS_NORM_H
#define LAYERS_NORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/team.h"
#include "layers/act.h"

typedef struct Norm {
    NormKind kind;
    int64_t T, C;
    int64_t ld;    // elements from row to row of x, y, dx, dy; 0: C
    int64_t C_all; // features of the whole row, if these C are a shard; 0: C
    int64_t part;  // --exact: features of a part (see below), the same on every mesh; 0: ld
    float eps;
    const float *gamma, *beta; // [C]; beta NULL: none
    float *dgamma, *dbeta;     // [C], accumulated by backward; dbeta NULL: none
    void *workspace;           // norm_workspace() bytes, for backward
} Norm;

/* Elements from row to row. */
static inline int64_t norm_ld(const Norm *n) {
    return n->ld ? n->ld : n->C;
}
/* Rows of a piece of work for team_for: enough to hide the cost of handing it out. */
static inline int64_t norm_grain(const Norm *n) {
    return 16384 / (n->C < 1 ? 1 : n->C < 16384 ? n->C : 16384);
}
/* Features of each part but the last. */
static inline int64_t norm_part(const Norm *n) {
    return n->part ? n->part : norm_ld(n);
}
/* Parts of the whole row. */
static inline int64_t norm_parts(const Norm *n) {
    return ((n->C_all ? n->C_all : n->C) + norm_part(n) - 1) / norm_part(n);
}

size_t norm_workspace(int64_t T, int64_t C);
/* Local. Whole rows. Writes y[T,C], mean[T], rstd[T]; mean and rstd may be NULL. y may be x. */
void norm_forward(Team *t, const Norm *n, Act *y, float *mean, float *rstd, const Act *x);
/* Local. Whole rows, ld = C. Residual add and norm after a row-parallel matmul, in one pass:
 * stream[T,C] += addend + bias (bias may be NULL), then y = norm(stream). The same bits as
 * bias_residual (layers/activation.h) followed by norm_forward. */
void residual_norm(Team *t, const Norm *n, Act *stream, const Act *addend, const float *bias,
                   Act *y, float *mean, float *rstd);
/* Local. Whole rows. dx[T,C] += gradient (the residual stream's gradient is already there); dgamma,
 * dbeta += by fixed panels of tokens. */
void norm_backward(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x, const float *mean,
                   const float *rstd);

/* The same in two steps, for rows sharded by features: C of C_all features are here, possibly none.
 * Between the steps the caller gathers the statistics of all parts. A part is the ld columns of a
 * rank; or, for --exact, n->part columns, the same number on every mesh: then the bits of a row do
 * not depend on how the row is sharded. The last part of a row may be shorter. No part has padding.
 *
 *   forward    stats[parts,T,2] = mean and sum of squared distances from it, of the features of
 *              each part here (RMS: 0 and the sum of squares) -> those of all parts of the row, in
 *              order, are merged to mean[T], rstd[T] (Chan, Golub, LeVeque 1979: never
 *              E[x^2] - E[x]^2) -> y
 *   backward   sums[parts,T,2] = sum of g = dy gamma and of g h, h = (x - mean) rstd; dgamma,
 *              dbeta += (dgamma NULL: neither)
 *              -> the caller adds the sums of ranks to sums[1,T,2]; with n->part it gathers them
 *              -> dx[T,C] += rstd (g - sum_g / C_all - h sum_gh / C_all)
 *
 * Columns from C to ld are not touched; a rank with C = 0 has one part without features. */
void norm_statistics(Team *t, const Norm *n, float *stats, const Act *x);
/* Local. stats[norm_parts(n),T,2]; mean may be NULL for RMS norm. */
void norm_merge(Team *t, const Norm *n, float *mean, float *rstd, const float *stats);
void norm_apply(Team *t, const Norm *n, Act *y, const Act *x, const float *mean, const float *rstd);
void norm_backward_sums(Team *t, const Norm *n, float *sums, const Act *dy, const Act *x,
                        const float *mean, const float *rstd);
void norm_backward_apply(Team *t, const Norm *n, Act *dx, const Act *dy, const Act *x,
                         const float *mean, const float *rstd, const float *sums);

/* QK-norm: RMS norm of each query and each key head of qkv[T, (H + 2 Hkv) D], before positions are
 * rotated. All query heads share one weight, all key heads another one. rstd is computed again in
 * backward. Source: Henry et al. 2020; with these weights Qwen 3, 2025. */
typedef struct QkNorm {
    int64_t T, H, Hkv, D;
    float eps;
    const float *gamma; // [2 D]: of queries, of keys
    float *dgamma;      // [2 D], accumulated by qk_norm_weight_backward
    void *workspace;    // norm_workspace(T, D) bytes, for qk_norm_weight_backward
} QkNorm;

/* Heads of a row: queries, keys and values. */
static inline int64_t qk_norm_heads(const QkNorm *q) {
    return q->H + 2 * q->Hkv;
}
/* Local. y = norm(x), of values a copy. y may be x. */
void qk_norm(Team *t, const QkNorm *q, Act *y, const Act *x);
/* Local. dx of qk_norm, of values a copy of dy. dx may be dy. */
void qk_norm_backward(Team *t, const QkNorm *q, Act *dx, const Act *dy, const Act *x);
/* Local. dgamma += by fixed panels of tokens. */
void qk_norm_weight_backward(Team *t, const QkNorm *q, const Act *dy, const Act *x);
/* Of the head of D features at x, on the CPU. */
float qk_norm_rstd(const QkNorm *q, const float *x);

#endif
