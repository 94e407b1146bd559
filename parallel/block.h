/* block -- one transformer block and the head, forward and backward. Used by model.c and
 * generate.c. */
#ifndef PARALLEL_BLOCK_H
#define PARALLEL_BLOCK_H

#include "parallel/model.h"

/* Local. x_next[T,C] = block l of acts->x, for B sequences of S positions that begin at position
 * `first`. Fills acts. */
void block_forward(Model *m, int l, BlockActs *a, float *x_next, int64_t B, int64_t S,
                   int64_t first);
/* Local. The part before attention: qkv, rotated, of B x S tokens from position `first` on. */
void block_forward_qkv(Model *m, int l, BlockActs *a, int64_t B, int64_t S, int64_t first);
/* Local. The part in between, of one token at position pos: att = attention of qkv's queries over
 * cache[S, 2 Hkv D]. */
void block_attend_cache(Model *m, BlockActs *a, const float *cache, int64_t pos);
/* Local. The part of a block behind attention: x_next = x2 + MLP(norm(x2)), x2 = x + att Wo. T
 * tokens. */
void block_forward_mlp(Model *m, int l, BlockActs *a, float *x_next, int64_t T);
/* Local. m->dx[T,C]: gradient of the block's output in, of its input out. Adds the gradients of the
 * block's weights. */
void block_backward(Model *m, int l, BlockActs *a);

/* Local. Norm with weight w and bias b of the table; mean and rstd may be NULL. */
void norm_of(Model *m, int w, int b, int64_t T, float *y, float *mean, float *rstd, const float *x);
/* Local. dx += gradient. */
void norm_of_backward(Model *m, int w, int b, int64_t T, float *dx, const float *dy, const float *x,
                      const float *mean, const float *rstd);

/* Local. Sum of the losses of h[T,C], by chunks of head_rows tokens. backward: also dh[T,C] and the
 * head's gradient. */
double head_loss(Model *m, const float *h, float *dh, const int32_t *targets, int64_t T,
                 float scale, bool backward);
/* Local. logits[T, ld] of h[T,C]. */
void head_logits(Model *m, float *logits, int64_t ld, const float *h, int64_t T);

#endif
