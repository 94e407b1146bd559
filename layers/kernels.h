/* kernels -- the computations on one rank's block, as a table of functions. No communication.
 *
 * The training step is written against this table. Every entry is declared with its full contract
 * in the header of its layer (matmul.h, attention.h, norm.h, ...); KERNEL_LIST only names them.
 *
 * Each layer is plain C over base/simd.h. The build compiles all of them once per
 * instruction set, joins each set into one object and hides all of its names but its table,
 * `kernels_cpu_<set>`; kernels_cpu.c picks the best that this processor runs. So there is one
 * source, no suffixes, and tests run every set against `portable` through its table.
 *
 * All matrices are row-major, last index fastest; activations have the dtype of the table
 * (layers/act.h), everything else is fp32 unless said otherwise; T = B*S tokens. All calls are
 * local, and on the CPU complete when they return. Buffers come from the caller. Gradients of
 * parameters accumulate (+=); gradients of activations are written (=) unless said otherwise.
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

/* The kernels of every instruction set; the contract of each is in the header before it. CUDA has
 * those that layers/NAME.cu fills in; the others are NULL there. */
// clang-format off
#define KERNEL_LIST(X) \
    /* matmul.h */     X(matmul) X(matmul_workspace) \
    /* attention.h */  X(attention_forward) X(attention_backward) X(attention_decode) \
                       X(attention_workspace) \
    /* embedding.h */  X(embedding_forward) X(embedding_backward) X(embedding_workspace) \
                       X(position_forward) X(position_backward) \
    /* norm.h */       X(norm_forward) X(residual_norm) X(norm_backward) X(norm_workspace) \
                       X(norm_statistics) X(norm_merge) X(norm_apply) X(norm_backward_sums) \
                       X(norm_backward_apply) X(qk_norm) X(qk_norm_backward) \
                       X(qk_norm_weight_backward) \
    /* activation.h */ X(act_forward) X(act_backward) X(swiglu_forward) X(swiglu_backward) \
                       X(bias_backward) X(bias_residual) \
    /* rope.h */       X(rope) \
    /* classifier.h */ X(classifier) X(classifier_statistics) X(classifier_merge) \
                       X(classifier_gradient) \
    /* adamw.h */      X(adamw) X(sum_of_squares) \
    /* move.h */       X(zero) X(copy) X(copy_tokens) X(add_to) X(to_floats) X(sum_of) \
    /* peak.h */       X(peak) \
    /* exact.h */      X(matmul_exact) X(exact_to_float) X(exact_wide_to_double) X(exact_add) \
                       X(exact_sum) X(exact_bias_backward) X(exact_embedding_backward) \
                       X(exact_position_backward) X(exact_norm_weight_backward) \
                       X(exact_qk_norm_weight_backward)
// clang-format on

// A pointer type for each of them; struct Kernels has a pointer to each, with the function's name.
#define KERNEL_TYPE(name) typedef __typeof__(name) *name##_kernel;
KERNEL_LIST(KERNEL_TYPE)

typedef struct Kernels {
    size_t elem_bytes;         // bytes of an element of an activation
    const ArenaMemory *memory; // allocator of all buffers; NULL: host memory
    // host memory for asynchronous copies of tokens and totals; NULL: any
    const ArenaMemory *pinned;
    bool bf16_units;   // CPU: has the instruction set a bf16 dot product?
    bool bias_with_dw; // is Matmul.bias_grad never slower than bias_backward?
#define KERNEL_MEMBER(name) name##_kernel name;
    KERNEL_LIST(KERNEL_MEMBER)
    void (*to_bf16)(Act *to, const float *from, int64_t n); // NULL in tables of fp32
    // CUDA only (else NULL), so that the host does not wait: sums that stay on the device, the
    // update that reads them, a copy of a few bytes to pinned memory, and the wait for that copy
    // alone.
    void (*sum_to)(double *sum, const float *x, int64_t n, bool add);
    void (*squares_to)(double *sum, const float *x, int64_t ld, int64_t rows, int64_t n, bool add);
    void (*adamw_begin)(AdamWNow *now, const Totals *totals, double clip);
    // one kernel for up to ADAMW_TENSORS of them
    void (*adamw_list)(const AdamW *, const AdamWTensor *, int n);
    void (*copy_out)(void *to, const void *from, size_t n_bytes);
    void (*wait_out)(void);
    // CUDA graphs (else NULL): calls between record and recorded are not run but recorded, for
    // replay; they neither wait nor allocate. matmul_choose: measures which algorithm of a matmul
    // is the fastest, and keeps it for later calls; overwrites the results, waits.
    void (*record)(void);
    void *(*recorded)(void);
    void (*replay)(void *recording);
    void (*free_recording)(void *recording);
    void (*matmul_choose)(const Matmul *);
    const DeviceClock *clock; // times of calls; NULL: calls run when they are made
} Kernels;

/* Local. The table of instruction set `set`; NULL if this processor or build does not have the
 * set. "auto" or a NULL name: the best set, or with TRAIN_GPT_KERNELS (environment) none above
 * that one. */
const Kernels *kernels_cpu(const char *set);
/* Local. Names of the sets that this processor runs, best first, ended by NULL: "avx512_amx" ...
 * "portable". */
const char *const *kernels_cpu_sets(void);
/* Local. The CUDA kernels with fp32 or bf16 activations (layers/cuda/families.h); NULL: built
 * without CUDA. */
const Kernels *kernels_cuda(bool bf16);
/* Local, in every build. The same table without kernels, for plans: element size and workspaces;
 * memory is not NULL, which marks a device's table. */
const Kernels *kernels_cuda_sizes(bool bf16);
/* Local, pure. Do these kernels compute in the memory of a device? No for NULL (not known). */
static inline bool kernels_on_device(const Kernels *k) {
    return k && k->memory;
}

#endif
