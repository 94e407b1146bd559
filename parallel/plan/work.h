/* work -- one kernel call as numbers, for the planner to price and the calibration to measure.
 * (PyTorch's Work, a collective under way, is a Ticket here.)
 *
 * The cost of a call is affine in `rows` (tokens, sequences or elements). So two measurements are
 * enough for each (kind, flags, size).
 */
#ifndef PARALLEL_PLAN_WORK_H
#define PARALLEL_PLAN_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layers/kernels.h"

/* Kinds stand in groups (matmuls, attention, norms, ...): cost.c and work.c compare a kind with the
 * first and last of its group. */
typedef enum {
    WORK_MATMUL, // y = x w
    WORK_DGRAD,  // dx = dy w', and the logits = x wte'
    WORK_WGRAD,  // dw = x' dy
    WORK_ATTENTION,
    WORK_ATTENTION_BACKWARD,
    WORK_NORM,
    WORK_RESIDUAL_NORM,
    WORK_NORM_BACKWARD,
    WORK_NORM_STATISTICS,
    WORK_NORM_MERGE,
    WORK_NORM_APPLY,
    WORK_NORM_BACKWARD_SUMS,
    WORK_NORM_BACKWARD_APPLY,
    WORK_ACT,
    WORK_ACT_BACKWARD,
    WORK_SWIGLU,
    WORK_SWIGLU_BACKWARD,
    WORK_BIAS_RESIDUAL,
    WORK_BIAS_BACKWARD,
    WORK_LOSS,
    WORK_LOSS_STATISTICS,
    WORK_LOSS_MERGE,
    WORK_LOSS_BACKWARD,
    WORK_EMBEDDING,
    WORK_EMBEDDING_BACKWARD,
    WORK_POSITION,
    WORK_POSITION_BACKWARD,
    WORK_ROPE,
    WORK_SQUARES,
    WORK_ADAMW,
    WORK_ZERO,
    WORK_COPY,
    WORK_QK_NORM,
    WORK_QK_NORM_BACKWARD,
    WORK_QK_NORM_WEIGHT_BACKWARD,
    N_WORKS
} WorkKind;

/* flags */
enum {
    WORK_BF16 = 1,   // matmul or attention in bf16
    WORK_ADDEND = 2, // with an addend
    WORK_BIAS = 4,   // of dw: with the gradient of the bias
    WORK_EPI_ACT = 8,
    WORK_EPI_DACT = 16,
    WORK_RMS = 32,         // a norm without mean
    WORK_BACKWARD = 64,    // of a loss: with its gradient
    WORK_BF16_STORED = 128 // activations in bf16; of AdamW: with the bf16 copy of the weights
};

typedef struct Work {
    WorkKind kind;
    uint32_t flags;
    int64_t rows; // T tokens; of attention B sequences, of elementwise kernels n elements
    union {
        int64_t size[4]; // the sizes below, by kind; 0 where a kind has fewer
        // matmuls: y[T,N] = x[T,K] w, and the ActKind of the epilogue. Activations: act alone. none
        // is not used
        struct {
            int64_t K, N, none, act;
        };
        struct { // attention; rope and QK-norm: S = 1
            int64_t S, H, Hkv, D;
        };
        // norm, swiglu, bias, loss, copy: elements of a row (C, F, N or V). A MERGE: its parts, too
        struct {
            int64_t width, parts;
        };
        struct { // embedding, position
            int64_t C, V;
        };
    };
} Work;

/* Local, pure. Multiplications and additions of matmuls and attention (0 of others); bytes that a
 * call must at least read and write in memory; a name for tables: "matmul 768x2304". */
double work_flops(const Work *w);
double work_bytes(const Work *w);
const char *work_name(const Work *w, char buf[64]);
static inline bool work_is_attention(const Work *w) {
    return w->kind == WORK_ATTENTION || w->kind == WORK_ATTENTION_BACKWARD;
}
/* Local, pure. Equal but for rows? */
bool work_alike(const Work *a, const Work *b);

/* Local. work_run runs the kernel for timing. operands: any finite floats; workspace: several works
 * may share one. work_memory: the bytes of both, which are aligned to 128. */
typedef struct WorkMemory {
    size_t operands, workspace;
} WorkMemory;
WorkMemory work_memory(const Work *w, const Kernels *k, int threads);
void work_run(const Work *w, const Kernels *k, Team *team, void *operands, void *workspace);
/* Local. The least seconds of a call, of `times` calls. Allocates the memory. */
double work_seconds(const Work *w, const Kernels *k, Team *team, int times);

#endif
