#include "layers/move.h"

#include <string.h>

enum { GRAIN = 1 << 16 }; // floats: less is not worth another thread

typedef struct Move {
    float *to;
    const float *from;
    int64_t to_ld, from_ld, n;
} Move;

static void zero_part(void *ctx, int64_t begin, int64_t end) {
    memset((float *)ctx + begin, 0, (size_t)(end - begin) * sizeof(float));
}

void zero(Team *t, float *x, int64_t n) {
    team_for(t, n, GRAIN, zero_part, x);
}

static void copy_rows(void *ctx, int64_t begin, int64_t end) {
    const Move *m = ctx;
    for (int64_t i = begin; i < end; i++)
        memcpy(m->to + i * m->to_ld, m->from + i * m->from_ld, (size_t)m->n * sizeof(float));
}

void copy(Team *t, float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
          int64_t n) {
    Move m = {to, from, to_ld, from_ld, n};
    if (n > 0) team_for(t, rows, n < GRAIN ? GRAIN / n : 1, copy_rows, &m);
}

void copy_tokens(int32_t *to, int64_t T, const int32_t *from, int64_t n, int32_t pad) {
    if (!from) return;
    memcpy(to, from, (size_t)n * sizeof *to);
    for (int64_t i = n; i < T; i++) to[i] = pad;
}

double sum_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}
