/* kernels -- the computations on one rank's block, as a table of functions. No communication.
 *
 * The training step is written against this table. Every entry is declared with its full contract
 * in the header of its layer (matmul.h, attention.h, norm.h, ...); the table only lists them.
 *
 * Each layer is one plain C file over base/simd.h. The build compiles all of them once per
 * instruction set, joins each set into one object and hides all of its names but its table,
 * `kernels_cpu_<set>`; kernels_cpu.c picks the best that this processor runs. So there is one
 * source, no suffixes, and tests run every set against `portable` through its table.
 *
 * All matrices are row-major, last index fastest; activations have the dtype of the table
 * (layers/act.h), everything else is fp32 unless said otherwise; T = B*S tokens. All calls are
 * local and complete when they return. Buffers come from the caller. Gradients of parameters
 * accumulate (+=); gradients of activations are written (=) unless said otherwise.
 */
#ifndef LAYERS_KERNELS_H
#define LAYERS_KERNELS_H

#include "base/arena.h"
#include "base/team.h"
#include "layers/act.h"
#include "layers/activation.h"
#include "layers/adamw.h"
#include "layers/attention.h"
#include "layers/classifier.h"
#include "layers/device_clock.h"
#include "layers/embedding.h"
#include "layers/exact.h"
#include "layers/matmul.h"
#include "layers/move.h"
#include "layers/norm.h"
#include "layers/peak.h"
#include "layers/rope.h"

typedef struct Kernels {
    size_t elem_bytes;         // bytes of an element of an activation
    const ArenaMemory *memory; // allocator of all buffers; NULL: host memory
    // host memory for asynchronous copies of tokens and totals; NULL: any
    const ArenaMemory *pinned;
    bool bf16_units;   // CPU: has the instruction set a bf16 dot product?
    bool bias_with_dw; // is Matmul.bias_grad never slower than bias_backward?
    void (*matmul)(Team *, const Matmul *);
    size_t (*matmul_workspace)(int n_threads);
    size_t (*attention_workspace)(int n_threads, int64_t B, int64_t S, int64_t H, int64_t Hkv,
                                  int64_t D);
    size_t (*embedding_workspace)(int64_t T, int64_t C);
    size_t (*norm_workspace)(int64_t T, int64_t C);
    void (*embedding_forward)(Team *, const Embedding *, Act *x);
    void (*embedding_backward)(Team *, const Embedding *, const Act *dx);
    void (*norm_forward)(Team *, const Norm *, Act *y, float *mean, float *rstd, const Act *x);
    void (*residual_norm)(Team *, const Norm *, Act *stream, const Act *addend, const float *bias,
                          Act *y, float *mean, float *rstd);
    void (*norm_backward)(Team *, const Norm *, Act *dx, const Act *dy, const Act *x,
                          const float *mean, const float *rstd);
    void (*norm_statistics)(Team *, const Norm *, float *stats, const Act *x);
    void (*norm_merge)(const Norm *, float *mean, float *rstd, const float *parts,
                       const int64_t *counts, int n_parts);
    void (*norm_apply)(Team *, const Norm *, Act *y, const Act *x, const float *mean,
                       const float *rstd);
    void (*norm_backward_sums)(Team *, const Norm *, float *sums, const Act *dy, const Act *x,
                               const float *mean, const float *rstd);
    void (*norm_backward_apply)(Team *, const Norm *, Act *dx, const Act *dy, const Act *x,
                                const float *mean, const float *rstd, const float *sums);
    void (*position_forward)(Team *, const Embedding *, int64_t T, int64_t t0, Act *x);
    void (*position_backward)(Team *, const Embedding *, int64_t T, int64_t t0, const Act *dx);
    void (*bias_residual)(Team *, Act *y, const Act *addend, const float *bias, int64_t T,
                          int64_t N);
    void (*classifier_statistics)(Team *, const Classifier *, float *stats, Act *logits);
    void (*classifier_merge)(const Classifier *, float *loss, float *log_sum, const float *parts,
                             int n_parts);
    void (*classifier_gradient)(Team *, const Classifier *, const float *stats,
                                const float *log_sum, Act *logits);
    void (*rope)(Team *, const Rope *, Act *qkv, int direction);
    void (*attention_forward)(Team *, const Attention *, Act *out, float *lse, const Act *qkv);
    void (*attention_backward)(Team *, const Attention *, Act *dqkv, const Act *dout,
                               const Act *qkv, const Act *out, const float *lse);
    void (*attention_decode)(Team *, const Attention *, Act *out, const Act *q, const Act *cache,
                             int64_t pos);
    void (*act_forward)(Team *, ActKind, Act *y, const Act *x, int64_t n);
    void (*act_backward)(Team *, ActKind, Act *dx, const Act *dy, const Act *x, int64_t n);
    void (*swiglu_forward)(Team *, Act *y, const Act *x, int64_t T, int64_t F);
    void (*swiglu_backward)(Team *, Act *dx, const Act *dy, const Act *x, int64_t T, int64_t F);
    void (*bias_backward)(Team *, float *dbias, const Act *dy, int64_t T, int64_t N);
    void (*classifier)(Team *, const Classifier *, float *loss, Act *logits);
    double (*sum_of_squares)(Team *, const float *x, int64_t n);
    Peak (*peak)(Team *, bool bf16);
    void (*matmul_exact)(Team *, const Matmul *, const MatmulExact *);
    void (*exact_to_float)(Team *, float *y, const int64_t *y_64, int64_t n, int exponent);
    void (*exact_wide_to_float)(float *y, const int64_t *sum_64, int64_t n, double factor);
    double (*exact_wide_to_double)(const int64_t *sum_64);
    void (*exact_add)(Team *, int64_t *to_64, const int64_t *from_64, int64_t n);
    void (*exact_sum)(Team *, int64_t *sum_64, const float *x, int64_t n);
    void (*exact_sum_of_squares)(Team *, int64_t *sum_64, const float *x, int64_t n);
    void (*exact_bias_backward)(Team *, int64_t *dbias_64, const float *dy, int64_t T, int64_t N,
                                int exponent);
    void (*exact_embedding_backward)(Team *, const Embedding *, int64_t *dwte_64, const float *dx,
                                     int exponent);
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
    void (*zero)(Team *, void *x, size_t n_bytes);
    void (*copy)(Team *, void *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows,
                 int64_t n, size_t elem_bytes);
    void (*add_to)(Team *, float *y, const float *x, int64_t n);
    void (*to_floats)(float *to, const Act *from, int64_t n);
    void (*to_bf16)(Act *to, const float *from, int64_t n); // NULL in tables of fp32
    void (*copy_tokens)(int32_t *to, int64_t T, const int32_t *from, int64_t n, int32_t pad);
    double (*sum_of)(const float *x, int64_t n);
    void (*adamw)(Team *, const AdamW *, float *param, float *m, float *v, const float *grad,
                  int64_t n, bool decay);
    // CUDA only (else NULL), so that the host does not wait: sums that stay on the device, the
    // update that reads them, a copy of a few bytes to pinned memory, and the wait for that copy
    // alone.
    void (*sum_to)(double *sum, const float *x, int64_t n, bool add);
    void (*squares_to)(double *sum, const float *x, int64_t ld, int64_t rows, int64_t n, bool add);
    void (*adamw_begin)(AdamWNow *now, const Totals *totals, double clip);
    void (*adamw_list)(const AdamW *, const AdamWTensor *, int n); // up to ADAMW_TENSORS: a kernel
    void (*copy_out)(void *to, const void *from, size_t n_bytes);
    void (*wait_out)(void);
    // CUDA graphs (else NULL): calls between record and recorded are not run but recorded, for
    // replay; they neither wait nor allocate. tune: chooses the fastest algorithm of a matmul;
    // overwrites its results, waits.
    void (*record)(void);
    void *(*recorded)(void);
    void (*replay)(void *recording);
    void (*forget)(void *recording);
    void (*matmul_choose)(const Matmul *);
    const DeviceClock *clock; // times of calls; NULL: calls run when they are made
} Kernels;

/* Local. A set's table by name, NULL when it is not here; NULL or "auto": the best up to
 * TRAIN_GPT_KERNELS (environment). */
const Kernels *kernels_cpu(const char *set);
/* Local. Names of the sets that this processor runs, best first, ended by NULL: "avx512_amx" ...
 * "portable". */
const char *const *kernels_cpu_sets(void);
/* Local. The CUDA kernels with fp32 or bf16 activations (layers/cuda/families.h); NULL: built
 * without CUDA. */
const Kernels *kernels_cuda(bool bf16);
/* Local, in every build. The same table without kernels: element size and workspaces, for plans;
 * memory marks it as a device's. */
const Kernels *kernels_cuda_sizes(bool bf16);
/* Local, pure. Do these kernels compute in the memory of a device? NULL, not known: no. */
static inline bool kernels_on_device(const Kernels *k) {
    return k && k->memory;
}

#endif
