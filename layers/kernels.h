/* kernels -- the mathematics of one rank's block, as a table of functions. It knows no other rank.
 *
 * The training step is written against this table. Every entry is declared with its full contract
 * in the header of its layer (product.h, attention.h, norm.h, ...); the table only lists them.
 *
 * Each layer is one plain C file over base/simd.h. The build compiles all of them once per
 * instruction set, joins each set into one object and hides all of its names but its table,
 * `kernels_cpu_<set>`; kernels_cpu.c picks the best that this processor runs. So there is one
 * source, no suffixes, and tests run every set against `portable` through its table.
 *
 * All matrices are row-major, last index fastest, float (fp32) unless said otherwise; T = B*S
 * tokens. All calls are local and complete when they return. Buffers come from the caller.
 * Gradients of parameters accumulate (+=); gradients of activations are written (=) unless said
 * otherwise.
 */
#ifndef LAYERS_KERNELS_H
#define LAYERS_KERNELS_H

#include "base/team.h"
#include "layers/activation.h"
#include "layers/adamw.h"
#include "layers/attention.h"
#include "layers/classifier.h"
#include "layers/embedding.h"
#include "layers/exact.h"
#include "layers/move.h"
#include "layers/norm.h"
#include "layers/peak.h"
#include "layers/product.h"
#include "layers/rope.h"

typedef struct Kernels {
    void (*product)(Team *, const Product *);
    size_t (*product_workspace)(int n_threads);
    size_t (*attention_workspace)(int n_threads, int64_t S, int64_t H, int64_t Hkv, int64_t D);
    size_t (*norm_workspace)(int64_t T, int64_t C);
    void (*embedding_forward)(Team *, const Embedding *, float *x);
    void (*embedding_backward)(Team *, const Embedding *, const float *dx);
    void (*norm_forward)(Team *, const Norm *, float *y, float *mean, float *rstd, const float *x);
    void (*norm_backward)(Team *, const Norm *, float *dx, const float *dy, const float *x,
                          const float *mean, const float *rstd);
    void (*norm_statistics)(Team *, const Norm *, float *stats, const float *x);
    void (*norm_merge)(const Norm *, float *mean, float *rstd, const float *parts,
                       const int64_t *counts, int n_parts);
    void (*norm_apply)(Team *, const Norm *, float *y, const float *x, const float *mean,
                       const float *rstd);
    void (*norm_backward_sums)(Team *, const Norm *, float *sums, const float *dy, const float *x,
                               const float *mean, const float *rstd);
    void (*norm_backward_apply)(Team *, const Norm *, float *dx, const float *dy, const float *x,
                                const float *mean, const float *rstd, const float *sums);
    void (*position_forward)(Team *, const Embedding *, int64_t T, int64_t t0, float *x);
    void (*position_backward)(Team *, const Embedding *, int64_t T, int64_t t0, const float *dx);
    void (*bias_residual)(Team *, float *y, const float *addend, const float *bias, int64_t T,
                          int64_t N);
    void (*classifier_statistics)(Team *, const Classifier *, float *stats, float *logits);
    void (*classifier_merge)(const Classifier *, float *loss, float *log_sum, const float *parts,
                             int n_parts);
    void (*classifier_gradient)(Team *, const Classifier *, const float *stats,
                                const float *log_sum, float *logits);
    void (*rope)(Team *, const Rope *, float *qkv, int direction);
    void (*attention_forward)(Team *, const Attention *, float *out, float *lse, const float *qkv);
    void (*attention_backward)(Team *, const Attention *, float *dqkv, const float *dout,
                               const float *qkv, const float *out, const float *lse);
    void (*attention_decode)(Team *, const Attention *, float *out, const float *q,
                             const float *cache, int64_t pos);
    void (*gelu_forward)(Team *, float *y, const float *x, int64_t n);
    void (*gelu_backward)(Team *, float *dx, const float *dy, const float *x, int64_t n);
    void (*swiglu_forward)(Team *, float *y, const float *x, int64_t T, int64_t F);
    void (*swiglu_backward)(Team *, float *dx, const float *dy, const float *x, int64_t T,
                            int64_t F);
    void (*bias_backward)(Team *, float *dbias, const float *dy, int64_t T, int64_t N);
    void (*classifier)(Team *, const Classifier *, float *loss, float *logits);
    double (*sum_of_squares)(Team *, const float *x, int64_t n);
    double (*peak)(Team *, bool bf16);
    void (*product_exact)(Team *, const Product *, const ProductExact *);
    void (*exact_to_float)(Team *, float *y, const int64_t *y_64, int64_t n, int exponent);
    void (*exact_wide_to_float)(float *y, const int64_t *sum_64, int64_t n, double factor);
    double (*exact_wide_to_double)(const int64_t *sum_64);
    void (*exact_sum)(Team *, int64_t *sum_64, const float *x, int64_t n);
    void (*exact_sum_of_squares)(Team *, int64_t *sum_64, const float *x, int64_t n);
    void (*exact_bias_backward)(Team *, int64_t *dbias_64, const float *dy, int64_t T, int64_t N,
                                int exponent);
    void (*exact_embedding_backward)(Team *, const Embedding *, int64_t *dwte_64, int64_t *dwpe_64,
                                     const float *dx, int exponent);
    void (*exact_position_backward)(Team *, const Embedding *, int64_t *dwpe_64, int64_t T,
                                    int64_t t0, const float *dx, int exponent);
    void (*exact_norm_sum)(Team *, const Norm *, int64_t *sums_64, const float *x);
    void (*exact_norm_squares)(Team *, const Norm *, int64_t *sums_64, const float *x,
                               const float *mean);
    void (*exact_norm_rstd)(const Norm *, float *rstd, const int64_t *sums_64);
    void (*exact_norm_backward_sums)(Team *, const Norm *, int64_t *sums_64, int64_t *dgamma_64,
                                     int64_t *dbeta_64, const float *dy, const float *x,
                                     const float *mean, const float *rstd);
    void (*exact_classifier_max)(Team *, const Classifier *, float *max, const float *logits);
    void (*exact_classifier_sums)(Team *, const Classifier *, int64_t *sums_64, float *target,
                                  float *logits, const float *max);
    void (*exact_classifier_loss)(const Classifier *, float *loss, float *log_sum,
                                  const int64_t *sums_64, const float *target, const float *max);
    void (*exact_classifier_gradient)(Team *, const Classifier *, float *logits, const float *max,
                                      const float *log_sum);
    void (*zero)(Team *, float *x, int64_t n);
    void (*copy)(Team *, float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
                 int64_t n);
    void (*copy_tokens)(int32_t *to, int64_t T, const int32_t *from, int64_t n, int32_t pad);
    double (*sum_of)(const float *x, int64_t n);
    void (*adamw)(Team *, const AdamW *, float *param, float *m, float *v, const float *grad,
                  int64_t n, bool decay);
} Kernels;

/* Local. The table of an instruction set by name, or NULL when there is none here; NULL or "auto"
 * asks for the best. */
const Kernels *kernels_cpu(const char *set);
/* Local. Names of the sets this processor can run, best first, ended by NULL: "avx512_bf16",
 * "avx512", "avx2", "portable". */
const char *const *kernels_cpu_sets(void);

#endif
