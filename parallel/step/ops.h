/* ops -- the kinds of operations of a step: kernels, collectives, and the ends of collectives.
 * A kind's name, derivative, kernel and properties are its row of ops.c, its cost is a row of
 * parallel/plan/cost.c.
 */
#ifndef PARALLEL_STEP_OPS_H
#define PARALLEL_STEP_OPS_H

typedef enum {
    OP_EMBEDDING,       // x = rows of wte that this rank holds           in: wte
    OP_POSITION,        // x + wpe                                        in: x, wpe
    OP_NORM_STATISTICS, // mean and sum of squared deviations of a part of the features   in: x
    OP_NORM_MERGE,      // mean and 1 / deviation of whole rows            in: all parts' statistics
    OP_NORM,            // in: x, mean_rstd, weight[, bias]
    OP_MATMUL,          // a b
    OP_MATMUL_BT,       // a b': dgrad; the head, whose weight is [V, C]
    OP_MATMUL_AT,       // a' b: wgrad
    OP_BIAS,            // y + b
    OP_ROPE,            // qkv rotated
    OP_ATTENTION,       // in: qkv; also logs of sums of exponentials
    OP_CACHE,           // keys and values of qkv, at the positions of the pass   in: qkv
    OP_ATTENTION_CACHE, // of one token, over all positions so far                in: qkv, cache
    OP_ACT,             // of one number each; in: hidden before the activation
    OP_SWIGLU,          // silu(gate) up; in: [gate, up]
    OP_ADD,             // a + b
    OP_LOSS_STATISTICS, // exp(logit - largest); also the largest, sum of all, the target's logit
    OP_LOSS, // losses; also logs of sums     in: exponentials, statistics, those of all parts
    OP_EMBEDDING_BACKWARD,   // in: dx
    OP_POSITION_BACKWARD,    // in: dx
    OP_NORM_SUMS,            // two sums over features that dx needs   in: dy, x, mean_rstd, weight
    OP_NORM_BACKWARD,        // in: dy, x, mean_rstd, weight, sums
    OP_NORM_WEIGHT_BACKWARD, // in: dy, x, mean_rstd
    OP_BIAS_BACKWARD,        // column sums                                    in: dy
    OP_ROPE_BACKWARD,
    OP_ATTENTION_BACKWARD, // in: datt, qkv, att, logs of sums
    OP_ACT_BACKWARD,       // in: dact, hidden before the activation
    OP_SWIGLU_BACKWARD,
    OP_LOSS_BACKWARD, // in: exponentials, statistics, logs of sums
    OP_ACCUMULATE,    // gradient += a part that a collective has brought
    OP_COPY,          // into rows or columns of a parent
    OP_BUCKET,        // gradients that lie together, as one tensor  in: [those so far,] gradients
    OP_PACK_COPIES,   // of a gradient: key and value heads that other ranks hold copies of
    OP_UNPACK_COPIES, // in: the gradient, their sum
    OP_ROUND,         // --exact: floats of a sum of integers (exact_sums.c)   in: the sum, complete
    // the end of a step (end.c)
    OP_LOSS_TOTAL, // of this rank's tokens, over all micro-batches
    OP_SQUARES,    // of a gradient, where this rank is the first to hold it   in: dw[, sum so far]
    OP_CLIP,       // the factor of gradients                        in: totals of loss and squares
    OP_ADAMW,      // updates a weight and its moments               in: dw, factor, w, m, v
    OP_CAST,       // a copy of a weight in the dtype of matmuls     in: w
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    OP_ALL_REDUCE,
    OP_BROADCAST, // of the rank `root` along the axes                 in: that rank's
    OP_REDUCE,    // to the rank `root`
    OP_SHIFT,     // to the rank `dim` places behind, from the one before: of a ring
    // in: result and operand of a collective, which runs until here (Program.ordered)
    OP_WAIT,
    N_OP_KINDS
} OpKind;

#endif
