/* ops -- the kinds of operations of a step: kernels, collectives, and the ends of collectives.
 * A kind's name, derivative, kernel and properties are its row of ops.c, its cost is a row of
 * parallel/plan/cost.c.
 */
#ifndef PARALLEL_STEP_OPS_H
#define PARALLEL_STEP_OPS_H

typedef enum {
    OP_EMBEDDING,       // x = wte[token], 0 for tokens of other ranks    in: wte
    OP_POSITION,        // x + wpe[position]                              in: x, wpe
    OP_NORM_STATISTICS, // mean and sum of squared deviations of this rank's features   in: x
    OP_NORM_MERGE, // mean and 1 / deviation of all features  in: statistics of all ranks along y
    OP_NORM,       // (x - mean) rstd weight + bias           in: x, mean_rstd, weight[, bias]
    OP_MATMUL,     // a b
    OP_MATMUL_BT,  // a b': dgrad; the head, whose weight is [V, C]
    OP_MATMUL_AT,  // a' b: wgrad
    OP_BIAS,       // y + b
    OP_QK_NORM,    // RMS norm of each query and key head            in: qkv, weight
    OP_ROPE,       // queries and keys rotated by their position     in: qkv
    OP_ATTENTION,  // softmax(q k') v; also lse, logs of sums of exponentials        in: qkv
    OP_CACHE,      // stores keys and values at the positions of the pass            in: qkv
    OP_ATTENTION_CACHE, // attention of one token over all positions so far        in: qkv, cache
    OP_ACT,             // elementwise activation                in: hidden before the activation
    OP_SWIGLU,          // silu(gate) up                         in: [gate | up]
    OP_ADD,             // a + b
    // exp(logit - largest); also three numbers of each token: the largest logit, the sum of the
    // exponentials, the target's logit, of this rank's vocabulary        in: logits
    OP_LOSS_STATISTICS,
    OP_LOSS, // losses; also logs of sums     in: exponentials, own statistics, those of all ranks
    OP_EMBEDDING_BACKWARD,   // in: dx
    OP_POSITION_BACKWARD,    // in: dx
    OP_NORM_SUMS,            // the two sums over C in dx              in: dy, x, mean_rstd, weight
    OP_NORM_BACKWARD,        // in: dy, x, mean_rstd, weight, sums
    OP_NORM_WEIGHT_BACKWARD, // dweight or dbias                               in: dy, x, mean_rstd
    OP_BIAS_BACKWARD,        // sums of the columns of dy                      in: dy
    OP_QK_NORM_BACKWARD,     // dqkv                                       in: dy, qkv, weight
    OP_QK_NORM_WEIGHT_BACKWARD, // dweight                                            in: dy, qkv
    OP_ROPE_BACKWARD,
    OP_ATTENTION_BACKWARD, // dqkv                   in: datt, qkv, att, lse
    OP_ACT_BACKWARD,       // in: dact, hidden before the activation
    OP_SWIGLU_BACKWARD,
    OP_LOSS_BACKWARD, // in: exponentials, statistics, logs of sums
    OP_ACCUMULATE,    // stored gradient += the result of a collective
    OP_COPY,          // into rows or columns of a parent
    OP_PACK_COPIES,   // key and value heads that other ranks hold copies of    in: dqkv.*
    OP_UNPACK_COPIES, // puts their sum back                               in: dqkv.*, the sum
    OP_ROUND,         // --exact: integers to floats (exact_sums.c)   in: a complete sum of integers
    // the end of a step (end.c)
    OP_LOSS_TOTAL, // sum of the losses of this rank's tokens, of all micro-batches of the step
    OP_SQUARES,    // sum of squares of the elements that no rank before holds  in: dw[, sum so far]
    OP_CLIP,       // factor of the gradients; are totals finite?    in: totals of loss and squares
    OP_ADAMW,      // updates a weight and its moments               in: dw, clip, w, m, v
    OP_CAST,       // a copy of a weight in the dtype of matmuls     in: w
    // collectives, along Op.axes
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    OP_ALL_REDUCE,
    OP_BROADCAST, // from rank Op.root                                 in: that rank's block
    OP_REDUCE,    // to rank Op.root
    OP_SHIFT,     // of a ring: sends to the rank Op.distance behind, receives from the one before
    // waits for the end of a collective (Program.ordered)             in: its result, its operand
    OP_WAIT,
    N_OP_KINDS
} OpKind;

#endif
