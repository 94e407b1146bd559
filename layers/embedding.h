/* embedding -- x[T,C] = wte[token] + wpe[position], and the two gradients, summed in token order.
 */
#ifndef LAYERS_EMBEDDING_H
#define LAYERS_EMBEDDING_H

#include <stdint.h>

#include "base/team.h"

typedef struct Embedding {
    int64_t B, S, C, V;
    int64_t first;         // position of the first token of each sequence
    const int32_t *tokens; // [T], each in 0 .. V-1
    const float *wte;      // [V, C]
    const float *wpe;      // [positions, C] or NULL
    float *dwte, *dwpe;    // accumulated by backward; dwpe may be NULL
} Embedding;

void embedding_forward(Team *t, const Embedding *e, float *x);
/* Local. Deterministic: each thread owns a range of channels and goes through the tokens in order.
 */
void embedding_backward(Team *t, const Embedding *e, const float *dx);

#endif
