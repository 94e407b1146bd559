/* attention -- causal softmax(q k' / sqrt(D)) v by tiles, forward and backward; no S x S matrix is
 * kept.
 *
 * qkv[T, (H + 2 Hkv) D]: a row has H query heads, then Hkv key heads, then Hkv value heads, D
 * elements each; query head h reads key and value head h / (H / Hkv). out[T, H D]. lse[B, H, S] =
 * log of the sum of exponentials of each query: backward needs only lse, qkv and out. Source: Dao,
 * "FlashAttention-2", 2023, algorithms 1 and 2.
 */
#ifndef LAYERS_ATTENTION_H
#define LAYERS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"
#include "layers/act.h"

typedef struct Attention {
    int64_t B, S, H, Hkv, D;
    bool bf16;       // matmuls of tiles in bf16 with fp32 sums
    void *workspace; // attention_workspace() bytes
} Attention;

size_t attention_workspace(int n_threads, int64_t B, int64_t S, int64_t H, int64_t Hkv, int64_t D);
/* Local. Any B, S, H, D >= 1; Hkv divides H. The result does not depend on the number of threads.
 */
void attention_forward(Team *t, const Attention *a, Act *out, float *lse, const Act *qkv);
/* Local. dqkv[T, (H + 2 Hkv) D] is written. */
void attention_backward(Team *t, const Attention *a, Act *dqkv, const Act *dout, const Act *qkv,
                        const Act *out, const float *lse);
/* Local. Attention of one new position `pos` in each of B sequences: q[B, H D], out[B, H D]. Rows 0
 * to pos of cache[B, S, 2 Hkv D] hold the keys, then the values, of each position. */
void attention_decode(Team *t, const Attention *a, Act *out, const Act *q, const Act *cache,
                      int64_t pos);

#endif
