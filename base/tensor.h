/* tensor -- the one table that describes the parameters of the logical model.
 *
 * Sizing, initial weights, AdamW, the gradient norm, checkpoints, reports and tests all walk this
 * table. Matrices are stored w[K, N]: input features first, output features fastest (the embeddings
 * are [V, C] and [S, C]).
 *
 *   name                  shape              GPT-2 file         LLaMA file
 *   wte                   [V, C]             wte.weight         model.embed_tokens.weight
 *   wpe                   [S, C]             wpe.weight         -
 *   h.i.ln1.weight .bias  [C]                h.i.ln_1.*         input_layernorm.weight
 *   h.i.qkv.weight .bias  [C, (H+2Hkv)D]     h.i.attn.c_attn.*  self_attn.{q,k,v}_proj.*
 *   h.i.qk_norm.weight    [2 D]              h.i.attn.*         self_attn.{q,k}_norm.weight
 *   h.i.attn_out.*        [H D, C]           h.i.attn.c_proj.*  self_attn.o_proj.*
 *   h.i.ln2.*             [C]                h.i.ln_2.*         post_attention_layernorm.weight
 *   h.i.up.*              [C, F] or [C, 2F]  h.i.mlp.c_fc.*     mlp.{gate,up}_proj.* (gate first)
 *   h.i.down.*            [F, C]             h.i.mlp.c_proj.*   mlp.down_proj.*
 *   lnf.*                 [C]                ln_f.*             model.norm.weight
 *   head                  [V, C]             (tied: wte)        lm_head.weight
 *
 * LLaMA's names of a block begin with model.layers.i; its matrices are [out, in] in the file, all
 * but the two of [V, C]. A file tensor is a TensorSlice: a range of columns of a table tensor,
 * transposed or not.
 */
#ifndef BASE_TENSOR_H
#define BASE_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/team.h"

/* What a rank holds of a tensor. The rank works on a local block [local_rows, local_cols] of the
 * logical [rows, cols]: row-major, padded with zeros. Rectangles say which logical elements lie in
 * the block. The rank stores a range [begin, end) of the block's elements, counted row by row.
 * Weights, gradients, moments and the bf16 copies that matmuls read have a range each. Ranges are
 * equal parts of the padded block; what lies beyond the block is more padding.
 *
 *   logical      c0 c1 c2 c3 c4      block of x=1 of 2      flat parts over z, 2 ranks
 *          r0    .  .  .  a  b           a b 0              [a b 0 c | d 0 . .]
 *          r1    .  .  .  c  d           c d 0
 *
 * One rank, or a tensor that is not sharded: one rectangle, begin 0, end rows * cols. */
typedef struct TensorRect {
    int64_t row, col, rows, cols; // which logical elements
    int64_t offset;               // index of (row, col) in the block
    bool first;                   // this rank is the first of those that hold these elements
} TensorRect;

typedef enum { PART_PARAM, PART_GRAD, PART_MOMENTS, PART_CAST, N_PARTS } TensorPart;

typedef struct Tensor {
    char name[64];
    int layer;          // -1 outside the blocks
    int64_t rows, cols; // of the logical model; a vector is [1, n]
    bool decay;         // weight decay: 2-D weights only
    bool in_matmuls;    // matmuls read it: all matrices but wpe, and the biases that matmuls add
    float init_std;     // 0: constant init_value instead
    float init_value;
    int64_t local_rows, local_cols;
    TensorRect *rects; // owned by the table
    int n_rects;
    int64_t begin[N_PARTS], end[N_PARTS];
    // this rank is the first of those that hold the same part of the same block
    bool first[N_PARTS];
    // The stored values, end - begin of each, in fp32; NULL where the arena was not made (sampling
    // needs no grad).
    float *param, *grad, *m, *v;
    // param in the dtype of the activations, which matmuls read; param itself where that is fp32
    void *cast;
    float *velocity; // momentum of the outer step over replicas, as param; NULL without outer steps
} Tensor;

/* One tensor of the Hugging Face file: columns [col, col + cols) of table tensor `tensor`. */
typedef struct TensorSlice {
    char name[96];
    int tensor;
    int64_t col, cols;
    bool transposed; // the file holds [cols, rows]
    bool vector;     // the file holds a 1-D tensor of cols elements
} TensorSlice;

typedef struct TensorTable {
    Config config;
    Tensor *t;
    int n;
    TensorSlice *slices;
    int n_slices;
} TensorTable;

/* Local. Describes the parameters of a model; all pointers NULL. Freed by tensors_free (which frees
 * the table, not the arenas). */
TensorTable tensors_describe(const Config *c);
void tensors_free(TensorTable *t);
/* Local. Index of a tensor by name, -1 when there is none. */
int tensors_find(const TensorTable *t, const char *name);
/* Elements of the logical tensor. */
static inline int64_t tensor_size(const Tensor *t) {
    return t->rows * t->cols;
}
/* Elements of the range that this rank stores. */
static inline int64_t tensor_part(const Tensor *t, TensorPart part) {
    return t->end[part] - t->begin[part];
}

/* n elements of one logical row, from (row, col) on, that lie at values[offset], values[offset +
 * 1], ... */
typedef struct TensorRun {
    int64_t row, col, n, offset;
} TensorRun;
typedef struct TensorRuns {
    const Tensor *t;
    TensorPart part;
    // only elements that this rank is the first to hold: over all ranks each element once
    bool first;
    int rect;
    int64_t row;
} TensorRuns;
/* Local. Goes through what this rank stores of a tensor:
 *     for (TensorRuns i = tensor_runs(t, PART_PARAM, false); tensor_next(&i, &run);) ... */
TensorRuns tensor_runs(const Tensor *t, TensorPart part, bool first);
bool tensor_next(TensorRuns *i, TensorRun *run);
/* The same by rectangles, for callers that take several rows at once: row i of a rectangle lies at
 * values[offset + i * local_cols]. A row in which the stored range begins or ends is a rectangle of
 * its own. */
bool tensor_next_rect(TensorRuns *i, TensorRect *rect);

/* Local. Fills what this rank holds of every param with its initial value: a function of (seed,
 * name, logical element index) alone. Padding stays as it is (zero). */
void tensors_init(TensorTable *t, Team *team, uint64_t seed);

#endif
