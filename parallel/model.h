/* model -- one GPT on this rank: the table of tensors, five arenas, and the training step.
 *
 *   tokens[B,S] -> embedding -> x[T,C] -> L blocks -> norm -> head (chunks of tokens) -> loss
 *
 *   block   h1 = norm(x)          qkv = h1 Wqkv + b     (rope)     att = attention(qkv)
 *           x2 = x + att Wo + b
 *           h2 = norm(x2)         pre = h2 Wup + b                 act = gelu(pre) or silu(gate) up
 *           x' = x2 + act Wdown + b
 *
 * What forward keeps for backward is a question of memory (--recompute):
 *
 *                 kept per block                                    computed again in backward
 *   none          x h1 qkv att lse x2 h2 pre act, statistics        -
 *   selective     x qkv att lse x2 pre, statistics                  h1 h2 act: no product twice
 *   full          x                                                 the whole block
 *
 * The step is written against the Kernels table alone. Life: model_plan (sizes, nothing big is
 * allocated) -> the memory table is printed and judged -> model_allocate -> model_step, model_loss,
 * ... -> model_free.
 */
#ifndef PARALLEL_MODEL_H
#define PARALLEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/tensor.h"
#include "layers/kernels.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;

/* What the memory depends on. */
typedef struct ModelShape {
    Config config;
    int64_t B, S; // sequences of a micro-step and positions: S <= config.seq
    bool bf16;    // products in bf16 with fp32 sums; weights, sums and everything else stay fp32
    Recompute recompute;
    bool training;             // false: no gradients, no optimizer state, nothing kept for backward
    bool samples;              // a Generator will be made beside it: counted by memory_needed
    const TensorTable *borrow; // weights of another model of the same config; NULL: own ones
} ModelShape;

/* Tensors of a block that lie between its stages; see the table above. */
typedef struct BlockActs {
    float *x;                                   // [T,C] input of the block
    float *h1, *qkv, *att, *x2, *h2;            // [T,C] [T,(H+2Hkv)D] [T,HD] [T,C] [T,C]
    float *pre, *act;                           // [T,F] or [T,2F] for swiglu; [T,F]
    float *mean1, *rstd1, *mean2, *rstd2, *lse; // [T] ..., [B,H,S]
} BlockActs;

/* Weights and gradients of a block, as indices into the table of tensors; -1 where there is none.
 */
typedef struct BlockTensors {
    int ln1_w, ln1_b, qkv_w, qkv_b, attn_out_w, attn_out_b, ln2_w, ln2_b, up_w, up_b, down_w,
        down_b;
} BlockTensors;

enum { ARENA_PARAMS, ARENA_GRADS, ARENA_OPTIMIZER, ARENA_ACTS, ARENA_WORK, N_ARENAS };

typedef struct Model {
    ModelShape shape;
    const Kernels *k;
    Team *team;
    TensorTable tensors;
    Arena arena[N_ARENAS];
    int wte, wpe, lnf_w, lnf_b,
        head;             // indices into the table; -1 where there is none; head == wte when tied
    BlockTensors *blocks; // [L]
    BlockActs *acts;      // [L]
    float *x_last, *h_last, *mean_last, *rstd_last; // input and output of the last norm
    float *dx, *dh, *dwide, *dact, *dqkv, *datt;    // workspace of backward
    float *logits, *losses;                         // [head_rows, ld_logits], [T]
    float *rope_table;
    int64_t head_rows,
        ld_logits; // tokens per chunk of the head; vocabulary rounded up to whole vectors
    void *product_work, *attention_work, *norm_work;
    bool grads_fresh; // no gradient of this step exists yet: matrices are overwritten, not added to
} Model;

/* Local. Describes the model and measures its arenas; allocates nothing big. team and k stay the
 * caller's. */
void model_plan(Model *m, const ModelShape *shape, const Kernels *k, Team *team);
/* Local. Maps the arenas and cuts them. Parameters are zero until tensors_init or a checkpoint
 * fills them. */
void model_allocate(Model *m);
void model_free(Model *m);

/* Local. Starts a new step: gradients count as zero. */
void model_zero_grads(Model *m);
/* Local. Forward and backward of one micro-step: inputs, targets [B,S]; gradients are added for a
 * loss of sum(losses) * scale. Returns the sum of losses over the targets (a target of -1 is not
 * counted). */
double model_step(Model *m, const int32_t *inputs, const int32_t *targets, float scale);
/* Local. Forward only; the sum of losses; when losses is not NULL each token's loss is left there
 * ([B,S]). */
double model_loss(Model *m, const int32_t *inputs, const int32_t *targets, float *losses);
/* Local. Forward only; logits[B*S, V] of every token (for tests and tools: big). */
void model_logits(Model *m, const int32_t *inputs, float *logits);
/* Local. x[B*S, C] = embedding of tokens[B,S] at positions first, first+1, ... */
void model_embed(Model *m, const int32_t *tokens, int64_t B, int64_t S, int64_t first, float *x);
/* Local. Square root of the sum of squares of all gradients. */
double model_grad_norm(Model *m);
/* Local. One AdamW step on every tensor. */
void model_update(Model *m, const AdamW *o);
/* Local. Name of the first tensor that holds a value that is not finite, in the order in which a
 * step computes them: parameters, activations of the last micro-step, gradients from the head back
 * to the embedding. "" when all are finite. */
void model_first_nonfinite(Model *m, char *name, size_t n);

#endif
