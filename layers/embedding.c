#include "layers/embedding.h"

#include "base/simd.h"

enum { LINE = 16 }; // floats in a cache line: threads that own channels share no line

typedef struct Rows {
    const Embedding *e;
    float *x;
    const float *dx;
} Rows;

static void forward_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *r = ctx;
    const Embedding *e = r->e;
    int64_t C = e->C;
    for (int64_t t = begin; t < end; t++) {
        const float *token = e->wte + (int64_t)e->tokens[t] * C;
        float *x = r->x + t * C;
        if (!e->wpe) {
            memcpy(x, token, (size_t)C * sizeof *x);
            continue;
        }
        const float *position = e->wpe + (e->first + t % e->S) * C;
        for (int64_t c = 0; c < C; c++) x[c] = token[c] + position[c];
    }
}

void embedding_forward(Team *t, const Embedding *e, float *x) {
    team_for(t, e->B * e->S, 16, forward_rows, &(Rows){.e = e, .x = x});
}

static void backward_channels(void *ctx, int member, int size) {
    const Rows *r = ctx;
    const Embedding *e = r->e;
    int64_t C = e->C, share = ((C + size - 1) / size + LINE - 1) / LINE * LINE;
    int64_t begin = member * share, end = begin + share < C ? begin + share : C;
    for (int64_t t = 0; t < e->B * e->S; t++) {
        const float *dx = r->dx + t * C;
        float *token = e->dwte + (int64_t)e->tokens[t] * C;
        for (int64_t c = begin; c < end; c++) token[c] += dx[c];
        if (!e->dwpe) continue;
        float *position = e->dwpe + (e->first + t % e->S) * C;
        for (int64_t c = begin; c < end; c++) position[c] += dx[c];
    }
}

void embedding_backward(Team *t, const Embedding *e, const float *dx) {
    team_run(t, backward_channels, &(Rows){.e = e, .dx = dx});
}
