#include <string.h>

#include "layers/embedding.h"

/* The row of wte of token t; V where another rank has it. */
static int64_t row_of(const Embedding *e, int64_t t, int64_t n) {
    int64_t row = (t < n ? e->tokens[t] : 0) - e->token0;
    return row >= 0 && row < e->V ? row : e->V;
}

void embedding_order(int32_t *order, int32_t *begin, const Embedding *e, int64_t n) {
    int64_t T = e->B * e->S;
    memset(begin, 0, (size_t)(e->V + 2) * sizeof *begin);
    for (int64_t t = 0; t < T; t++) begin[row_of(e, t, n) + 1]++;
    for (int64_t v = 0; v < e->V; v++) begin[v + 1] += begin[v];
    for (int64_t t = 0; t < T; t++) order[begin[row_of(e, t, n)]++] = (int32_t)t;
}
