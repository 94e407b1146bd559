/* embedding -- x[T,C] = wte[token] + wpe[position], and the gradients of wte and wpe, each by a
 * call of its own, summed in token order. */
#ifndef LAYERS_EMBEDDING_H
#define LAYERS_EMBEDDING_H

#include <stdint.h>

#include "base/team.h"
#include "layers/act.h"

typedef struct Embedding {
    int64_t B, S, C, V;
    int64_t first; // position of the first token of each sequence
    // vocabulary index of row 0 of wte; tokens outside token0 .. token0+V-1 count as rows of 0
    int64_t token0;
    const int32_t *tokens; // [T]
    const int32_t *order;  // [T], from embedding_order; for CUDA's embedding_backward
    const Act *wte;        // [V, C]; V may be 0
    const float *wpe;      // [positions, C] or NULL
    float *dwte;           // accumulated by embedding_backward
    float *dwpe;           // accumulated by position_backward
    void *workspace;       // embedding_workspace() bytes, for dwte
} Embedding;

/* Local, pure, on the host. order[T] = the indices of e's tokens, sorted by row of wte and stably
 * within a row; tokens outside token0 .. token0+V-1 come last. Tokens from n on are padding, and
 * count as token 0. begin[V+2]: scratch. */
void embedding_order(int32_t *order, int32_t *begin, const Embedding *e, int64_t n);
size_t embedding_workspace(int64_t T, int64_t C);
void embedding_forward(Team *t, const Embedding *e, Act *x);
/* Local. Deterministic: each thread owns a range of channels and adds tokens in order. */
void embedding_backward(Team *t, const Embedding *e, const Act *dx);

/* The position table alone, also for x sharded by tokens: x[T,C] += wpe[position]; dwpe += dx. Row
 * t of x is token t0 + t of the B*S, at position first + (t0 + t) % S; rows from B*S on are
 * padding, and skipped. Only T, t0, S, B, C, first and wpe or dwpe are used. */
void position_forward(Team *t, const Embedding *e, int64_t T, int64_t t0, Act *x);
void position_backward(Team *t, const Embedding *e, int64_t T, int64_t t0, const Act *dx);

#endif
