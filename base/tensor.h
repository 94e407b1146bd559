/* tensor -- the one table that describes the parameters of the logical model.
 *
 * Sizing, initial weights, AdamW, the gradient norm, checkpoints, reports and tests all walk this
 * table. Matrices are stored w[K, N]: input features first, output features fastest (the embeddings
 * are [V, C] and [S, C]).
 *
 *   name                     shape               GPT-2 file              LLaMA file
 *   wte                      [V, C]              wte.weight              model.embed_tokens.weight
 *   wpe                      [S, C]              wpe.weight              -
 *   h.i.ln1.weight .bias     [C]                 h.i.ln_1.*              input_layernorm.weight
 *   h.i.qkv.weight .bias     [C, (H+2Hkv)D]      h.i.attn.c_attn.*       self_attn.{q,k,v}_proj.*
 *   h.i.attn_out.*           [H D, C]            h.i.attn.c_proj.*       self_attn.o_proj.*
 *   h.i.ln2.*                [C]                 h.i.ln_2.*              post_attention_layernorm.weight
 *   h.i.up.*                 [C, F] or [C, 2F]   h.i.mlp.c_fc.*          mlp.{gate,up}_proj.* (gate first)
 *   h.i.down.*               [F, C]              h.i.mlp.c_proj.*        mlp.down_proj.*
 *   lnf.*                    [C]                 ln_f.*                  model.norm.weight
 *   head                     [V, C]              (tied: wte)             lm_head.weight
 *
 * LLaMA's names of a block begin with model.layers.i; its matrices are [out, in] in the file, all
 * but the two of [V, C]. A file tensor is a Piece: a range of columns of a table tensor, transposed
 * or not.
 */
#ifndef BASE_TENSOR_H
#define BASE_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/team.h"

typedef struct Tensor {
    char name[64];
    int layer;          // -1 outside the blocks
    int64_t rows, cols; // a vector is [1, n]
    bool decay;         // weight decay: 2-D weights only
    float init_std;     // 0: constant init_value instead
    float init_value;
    // Where the values are, rows*cols floats each, row-major; NULL where the arena was not made
    // (sampling needs no grad).
    float *param, *grad, *m, *v;
} Tensor;

/* One tensor of the Hugging Face file: columns [col, col + cols) of table tensor `tensor`. */
typedef struct Piece {
    char name[96];
    int tensor;
    int64_t col, cols;
    bool transposed; // the file holds [cols, rows]
    bool vector;     // the file holds a 1-D tensor of cols elements
} Piece;

typedef struct TensorTable {
    Config config;
    Tensor *t;
    int n;
    Piece *pieces;
    int n_pieces;
} TensorTable;

/* Local. Describes the parameters of a model; all pointers NULL. Freed by tensors_free (which frees
 * the table, not the arenas). */
TensorTable tensors_describe(const Config *c);
void tensors_free(TensorTable *t);
/* Local. Index of a tensor by name, -1 when there is none. */
int tensors_find(const TensorTable *t, const char *name);
static inline int64_t tensor_size(const Tensor *t) {
    return t->rows * t->cols;
}
/* Local. Fills every param with its initial value: a function of (seed, name, element index) alone.
 */
void tensors_init(TensorTable *t, Team *team, uint64_t seed);

#endif
