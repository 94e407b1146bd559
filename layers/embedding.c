#include "layers/embedding.h"

#include <stdbool.h>

#include "layers/exact_grid.h"

enum { LINE = 16 }; // floats in a cache line: threads that own channels share no line

typedef struct Rows {
    Team *team;
    const Embedding *e;
    float *x, *table;  // table: dwte or dwpe
    int64_t *table_64; // --exact: sums of integers, instead of table
    const float *dx;
    int64_t T, t0; // rows of dx; the token of its first row, for positions
    bool positions;
    ExactGrid grid;
} Rows;

/* The row of wte of token t, or -1 where another rank has it. */
static inline int64_t token_row(const Embedding *e, int64_t t) {
    int64_t row = (int64_t)e->tokens[t] - e->token0;
    return row >= 0 && row < e->V ? row : -1;
}

static inline int64_t position_row(const Rows *r, int64_t t) {
    return r->e->first + (r->t0 + t) % r->e->S;
}

static void forward_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *r = ctx;
    const Embedding *e = r->e;
    int64_t C = e->C;
    for (int64_t t = begin; t < end; t++) {
        int64_t row = token_row(e, t);
        float *x = r->x + t * C;
        const float *position = e->wpe ? e->wpe + position_row(r, t) * C : NULL;
        if (row < 0) {
            for (int64_t c = 0; c < C; c++) x[c] = position ? position[c] : 0;
            continue;
        }
        const float *token = (const float *)e->wte + row * C;
        for (int64_t c = 0; c < C && !position; c++) x[c] = token[c];
        for (int64_t c = 0; c < C && position; c++) x[c] = token[c] + position[c];
    }
}

size_t embedding_workspace(int64_t T, int64_t C) {
    (void)T, (void)C;
    return 0;
}

void embedding_forward(Team *t, const Embedding *e, Act *x) {
    team_for(t, e->B * e->S, 16, forward_rows, &(Rows){.e = e, .x = x});
}

/* The channels that a member of the team sums. */
typedef struct Channels {
    int64_t begin, end;
} Channels;

static Channels member_channels(int64_t C, int member, int size) {
    int64_t share = ((C + size - 1) / size + LINE - 1) / LINE * LINE, begin = member * share;
    return (Channels){begin, begin + share < C ? begin + share : C};
}

static inline void add_channels(float *sum, const float *x, Channels own) {
    for (int64_t c = own.begin; c < own.end; c++) sum[c] += x[c];
}

/* One member's channels of the gradient, summed over the tokens in their order. */
static void backward_channels(void *ctx, int member, int size) {
    const Rows *r = ctx;
    int64_t C = r->e->C;
    Channels own = member_channels(C, member, size);
    Team *polled = member == 0 ? r->team : NULL;
    for (int64_t t = 0; t < r->T && own.begin < own.end; t++, team_poll(polled)) {
        int64_t row = r->positions ? position_row(r, t) : token_row(r->e, t);
        if (row >= 0 && r->table) add_channels(r->table + row * C, r->dx + t * C, own);
        if (row >= 0 && r->table_64)
            exact_add_row(r->table_64 + row * C + own.begin, r->dx + t * C + own.begin,
                          own.end - own.begin, &r->grid);
    }
}

void embedding_backward(Team *t, const Embedding *e, const Act *dx) {
    Rows r = {.team = t, .e = e, .table = e->dwte, .dx = dx, .T = e->B * e->S};
    team_run(t, backward_channels, &r);
}

void exact_embedding_backward(Team *t, const Embedding *e, int64_t *dwte_64, const float *dx,
                              int exponent) {
    Rows r = {.team = t, .e = e, .table_64 = dwte_64, .dx = dx, .T = e->B * e->S};
    r.grid = exact_grid_of(exponent);
    team_run(t, backward_channels, &r);
}

/* The number of rows of x that are tokens of the batch: later ones are padding. */
static int64_t token_rows(const Embedding *e, int64_t T, int64_t t0) {
    int64_t left = e->B * e->S - t0;
    return left < 0 ? 0 : left < T ? left : T;
}

static void position_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *r = ctx;
    int64_t C = r->e->C;
    for (int64_t t = begin; t < end; t++)
        add_channels(r->x + t * C, r->e->wpe + position_row(r, t) * C, (Channels){0, C});
}

void position_forward(Team *t, const Embedding *e, int64_t T, int64_t t0, Act *x) {
    team_for(t, token_rows(e, T, t0), 16, position_rows, &(Rows){.e = e, .x = x, .t0 = t0});
}

void position_backward(Team *t, const Embedding *e, int64_t T, int64_t t0, const Act *dx) {
    Rows r = {.team = t, .e = e, .table = e->dwpe, .dx = dx, .t0 = t0, .positions = true};
    r.T = token_rows(e, T, t0);
    team_run(t, backward_channels, &r);
}

void exact_position_backward(Team *t, const Embedding *e, int64_t *dwpe_64, int64_t T, int64_t t0,
                             const float *dx, int exponent) {
    Rows r = {.team = t, .e = e, .table_64 = dwpe_64, .dx = dx, .t0 = t0, .positions = true};
    r.T = token_rows(e, T, t0), r.grid = exact_grid_of(exponent);
    team_run(t, backward_channels, &r);
}
