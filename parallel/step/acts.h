/* acts -- the tokens of a pass as a rank sees them, and what lies between the stages of a block.
 * Shapes in the notation of parallel/mesh/dist.h; the table of model.h says what is kept for
 * backward.
 */
#ifndef PARALLEL_STEP_ACTS_H
#define PARALLEL_STEP_ACTS_H

#include <stdint.h>

#include "layers/act.h"

/* The tokens of one pass as this rank sees them. T/d.z of them belong to this coordinate of d x z;
 * where the residual stream is stored by tokens, T is padded to X equal parts (whole sequences for
 * stay=y). */
typedef struct Tokens {
    int64_t B, S;  // sequences whose attention runs here
    int64_t T;     // T/d.z
    int64_t T_x;   // T/d.z.x where the stream is stored by tokens, else T: rows of the stream here
    int64_t t0;    // the first of them
    int64_t rows;  // of products, qkv, att, pre, act: T, or T_x for stay=y
    int64_t first; // position of the first token of every sequence
} Tokens;

/* Tensors of a block that lie between its stages; see the table above. Stream: [T_x, C/y]; in the
 * middle [rows, stored widths]. */
typedef struct BlockActs {
    Act *x;                                     // input of the block: stream
    Act *h1, *qkv, *att, *x2, *h2;              // h1, x2, h2: stream
    Act *pre, *act;                             // [rows, up] (gate and up for swiglu), [rows, F]
    float *mean1, *rstd1, *mean2, *rstd2, *lse; // [T_x] ..., [B,H,S]
} BlockActs;

/* Weights and gradients of a block, as indices into the table of tensors; -1 where there is none.
 */
typedef struct BlockTensors {
    int ln1_w, ln1_b, qkv_w, qkv_b, attn_out_w, attn_out_b, ln2_w, ln2_b, up_w, up_b, down_w,
        down_b;
} BlockTensors;

#endif
