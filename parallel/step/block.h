/* block -- one transformer block and the head, forward and backward. Used by model.c. */
#ifndef PARALLEL_STEP_BLOCK_H
#define PARALLEL_STEP_BLOCK_H

#include "parallel/step/model.h"

/* Collective over x and y, as everything here. Of block l and the tokens tk: h1, the norm of its
 * input x, which is there. */
void block_norm(Model *m, int l, const Tokens *tk);
/* From x and h1 to the next block's, or behind the last one to x_last and h_last. Fills
 * m->acts[l]. */
void block_forward(Model *m, int l, const Tokens *tk);
/* m->dx: gradient of the output of block l in, of its input out. Adds the gradients of the block's
 * weights. With full recompute and bulk the block before it is made again while the last sum of
 * this one is on its way. */
void block_backward(Model *m, int l);

/* Norm with weight w and bias b of the table over rows [T_x, C/y] of the stream; mean and rstd are
 * kept. */
void norm_of(Model *m, int w, int b, const Tokens *tk, Act *y, float *mean, float *rstd,
             const Act *x);
/* dx += gradient. */
void norm_of_backward(Model *m, int w, int b, const Tokens *tk, Act *dx, const Act *dy,
                      const Act *x, const float *mean, const float *rstd);

/* For those who look (parallel/step/probe.h): the output of a norm, or the stream's gradient behind
 * it. */
void probe_norm(Model *m, const char *name, int l, const Act *at, bool backward);

/* ---- parallel/step/head.c ---- */

/* x = embedding of tokens[T] (padded), at positions first, first+1, ... of every sequence: the
 * stream. */
void embed(Model *m, const Tokens *tk, const int32_t *tokens, Act *x);
/* Adds the gradients of the tables, of dx: the stream's gradient. */
void embed_backward(Model *m, const Tokens *tk, const int32_t *tokens, const Act *dx);
/* m->losses[T] of h (the stream, after the last norm), by chunks of head_rows tokens.
 * backward: also dh and the head's gradient. targets[T]. */
void head_loss(Model *m, const Tokens *tk, const Act *h, Act *dh, const int32_t *targets,
               float scale, bool backward);
/* Local. Of a head of V columns here: floats between rows of logits; tokens in one chunk of T, on
 * the host or a device. */
int64_t head_ld(int64_t V);
int64_t head_chunk(int64_t T, int64_t V, bool device);

#endif
