#include "layers/move.h"

#include <string.h>

enum { GRAIN = 1 << 18 }; // bytes of a piece: less is not worth another thread

typedef struct Move {
    char *to;
    const char *from;
    int64_t to_step, from_step, n_bytes; // of a row
} Move;

typedef struct Sum {
    float *y;
    const float *x;
} Sum;

static void zero_part(void *ctx, int64_t begin, int64_t end) {
    memset((char *)ctx + begin, 0, (size_t)(end - begin));
}

void zero(Team *t, void *x, size_t n_bytes) {
    team_for(t, (int64_t)n_bytes, GRAIN, zero_part, x);
}

static void copy_rows(void *ctx, int64_t begin, int64_t end) {
    const Move *m = ctx;
    for (int64_t i = begin; i < end; i++)
        memcpy(m->to + i * m->to_step, m->from + i * m->from_step, (size_t)m->n_bytes);
}

void copy(Team *t, void *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows,
          int64_t n, size_t elem_bytes) {
    int64_t w = (int64_t)elem_bytes, n_bytes = n * w;
    Move m = {to, from, to_ld * w, from_ld * w, n_bytes};
    if (n > 0) team_for(t, rows, n_bytes < GRAIN ? GRAIN / n_bytes : 1, copy_rows, &m);
}

static void add_part(void *ctx, int64_t begin, int64_t end) {
    const Sum *s = ctx;
    for (int64_t i = begin; i < end; i++) s->y[i] += s->x[i];
}

void add_to(Team *t, float *y, const float *x, int64_t n) {
    team_for(t, n, GRAIN / (int64_t)sizeof *y, add_part, &(Sum){y, x});
}

void to_floats(float *to, const Act *from, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
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
