#include "layers/embedding.h"

void embedding_forward(Team *t, const Embedding *e, float *x) {
    (void)t;
    for (int64_t i = 0; i < e->B * e->S; i++)
        for (int64_t c = 0; c < e->C; c++)
            x[i * e->C + c] = e->wte[e->tokens[i] * e->C + c] +
                              (e->wpe ? e->wpe[(e->first + i % e->S) * e->C + c] : 0);
}

void embedding_backward(Team *t, const Embedding *e, const float *dx) {
    (void)t;
    for (int64_t i = 0; i < e->B * e->S; i++)
        for (int64_t c = 0; c < e->C; c++) {
            e->dwte[e->tokens[i] * e->C + c] += dx[i * e->C + c];
            if (e->dwpe) e->dwpe[(e->first + i % e->S) * e->C + c] += dx[i * e->C + c];
        }
}
