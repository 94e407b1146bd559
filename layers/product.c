/* The loops of the product. */
#include "layers/product.h"

#include "layers/gelu.h"
#include "layers/product_tile.h"

enum {
    PANEL_K = 384, // steps of K summed in registers; part of the result: the order of summation
    BLOCK_M = 1024 / TILE_M * TILE_M, // rows of a packed at a time
    CHUNK_N = 384,                    // columns of b packed at a time by each thread
    BLOCK_N = 2048,                   // columns of y finished over all of K before the next
    // A packed panel, with some lines between panels: at a multiple of 4 KiB all would want the same sets of the L1.
    A_PANEL = TILE_M * PANEL_K + 3 * 16,
    B_PANEL = TILE_N * PANEL_K + 5 * 16,
    A_FLOATS = (BLOCK_M / TILE_M + 1) * A_PANEL,
    B_FLOATS = CHUNK_N / TILE_N * B_PANEL,
};

size_t product_workspace(int n_threads) {
    return sizeof(float) * ((size_t)2 * A_FLOATS + (size_t)n_threads * B_FLOATS);
}

/* A run of whole numbers [begin, end); part i of n nearly equal ones. */
typedef struct Range {
    int64_t begin, end;
} Range;
static Range part(Range r, int64_t i, int64_t n) {
    int64_t len = r.end - r.begin;
    return (Range){r.begin + len * i / n, r.begin + len * (i + 1) / n};
}
static int64_t length(Range r) {
    return r.end - r.begin;
}
static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* n <= VF finished sums of one row of a tile go to y(m, n0..). */
static inline void finish_vector(const Product *p, int64_t m, int64_t n0, int n, vf sum, bool first,
                                 bool last) {
    int64_t at = m * p->ldy + n0;
    const float *before = first ? p->addend : p->y;
    if (before) sum = vf_load_n(before + at, n) + sum;
    if (last) {
        if (p->bias) sum += vf_load_n(p->bias + n0, n);
        if (p->epilogue == EPI_GELU) {
            if (p->aux) vf_store_n(p->aux + at, sum, n);
            sum = gelu(sum);
        } else if (p->epilogue == EPI_DGELU) {
            sum *= gelu_slope(vf_load_n(p->aux + at, n));
        }
    }
    vf_store_n(p->y + at, sum, n);
}

/* One step of the loops: a block of rows by a block of columns over one panel of K. */
typedef struct Step {
    const Product *p;
    PackKind kind;
    Range m, n; // rows and columns of y; n begins at a multiple of TILE_N
    Range k;    // elements of K
    bool first, last;
    const float *a; // the packed rows: panel i at i * A_PANEL
    int64_t panels;
} Step;

static void pack_a(const Step *s, Range panels, float *to) {
    enum { GROUP = 8 };
    const Product *p = s->p;
    Pack pack = {s->kind,  TILE_M,   A_PANEL, p->a + s->k.begin * p->a_col,
                 p->a_row, p->a_col, length(s->k)};
    for (int64_t i = panels.begin; i < panels.end; i += GROUP) {
        int64_t edge[GROUP + 1], n = panels.end - i < GROUP ? panels.end - i : GROUP;
        for (int64_t j = 0; j < n; j++) edge[j] = part(s->m, i + j, s->panels).begin;
        edge[n] = part(s->m, i + n - 1, s->panels).end;
        pack_panels(&pack, to + i * A_PANEL, edge, (int)n);
    }
}

static void pack_b(const Step *s, Range columns, float *to) {
    const Product *p = s->p;
    int64_t edge[CHUNK_N / TILE_N + 1];
    int n = 0;
    Pack pack = {s->kind,  TILE_N,   B_PANEL, p->b + s->k.begin * p->b_row,
                 p->b_col, p->b_row, length(s->k)};
    for (int64_t at = columns.begin; at < columns.end; at += TILE_N) edge[n++] = at;
    edge[n] = columns.end;
    pack_panels(&pack, to, edge, n);
}

/* Tiles that are whole and need no more than adding go straight to y; others through a buffer. */
static void tile_at(const Step *s, Range m, Range n, const float *a, const float *b) {
    const Product *p = s->p;
    bool direct = length(n) == TILE_N && (!s->last || (!p->bias && p->epilogue == EPI_NONE));
    const float *before = s->first ? p->addend : p->y;
    int64_t at = m.begin * p->ldy + n.begin;
    float buffer[TILE_M * TILE_N] __attribute__((aligned(64)));
    Tile t = {.pairs = s->kind == PACK_PAIR, .rows = (int)length(m), .a = a, .b = b};
    t.steps = pack_steps(s->kind, length(s->k));
    t.ld = direct ? p->ldy : TILE_N, t.y = direct ? p->y + at : buffer,
    t.before = direct && before ? before + at : NULL;
    for (int64_t i = 0; i < length(m); i++) // y comes from far away while the tile is summed
        for (int j = 0; j < TILE_N; j += 16) __builtin_prefetch(p->y + at + i * p->ldy + j, 1);
    tile_multiply(&t);
    for (int64_t i = 0; !direct && i < length(m); i++)
        for (int64_t j = 0; j < length(n); j += VF) {
            int lanes = length(n) - j < VF ? (int)(length(n) - j) : VF;
            finish_vector(p, m.begin + i, n.begin + j, lanes, vf_load(buffer + i * TILE_N + j),
                          s->first, s->last);
        }
}

static void multiply(const Step *s, Range panels, Range columns, float *b) {
    pack_b(s, columns, b);
    int64_t tiles = ceil_div(length(columns), TILE_N);
    int64_t fetch = ceil_div(pack_steps(s->kind, length(s->k)) * TILE_M, 16 * tiles);
    for (int64_t i = panels.begin; i < panels.end; i++) {
        Range m = part(s->m, i, s->panels);
        const float *a = s->a + i * A_PANEL, *next = a + A_PANEL;
        for (int64_t j = 0; j < tiles; j++) {
            Range n = {columns.begin + j * TILE_N, columns.begin + (j + 1) * TILE_N};
            if (n.end > columns.end) n.end = columns.end;
            for (int64_t l = 0; l < fetch && i + 1 < panels.end; l++, next += 16)
                __builtin_prefetch(next, 0, 2);
            tile_at(s, m, n, a, b + j * B_PANEL);
        }
    }
}

/* The threads stand in a grid of rows x columns over a block of y. Of all grids the one whose
 * busiest thread does least; packing a tile's columns costs about as much as one tile. */
static int grid_columns(int size, int64_t panels, int64_t tiles) {
    int best = 1;
    int64_t least = INT64_MAX;
    for (int c = 1; c <= size; c++) {
        if (size % c) continue;
        int64_t work = ceil_div(tiles, c) * (ceil_div(panels, size / c) + 1);
        if (work < least) least = work, best = c;
    }
    return best;
}

static void work(const Step *s, int me, int size, float *b) {
    int64_t tiles = ceil_div(length(s->n), TILE_N);
    int columns = grid_columns(size, s->panels, tiles);
    Range panels = part((Range){0, s->panels}, me / columns, size / columns);
    Range mine = part((Range){0, tiles}, me % columns, columns);
    int64_t chunks = ceil_div(length(mine) * TILE_N, CHUNK_N);
    if (length(panels) == 0) return;
    for (int64_t c = 0; c < chunks; c++) {
        Range chunk = part(mine, c, chunks);
        Range n = {s->n.begin + chunk.begin * TILE_N, s->n.begin + chunk.end * TILE_N};
        if (n.end > s->n.end) n.end = s->n.end;
        multiply(s, panels, n, b);
    }
}

typedef struct Job {
    Team *team;
    const Product *p;
} Job;

static void member(void *ctx, int me, int size) {
    const Job *job = ctx;
    const Product *p = job->p;
    PackKind kind = !p->bf16 ? PACK_FLOAT : SIMD_BF16 ? PACK_PAIR : PACK_ROUND;
    int64_t panel_k = kind == PACK_PAIR ? 2 * PANEL_K : PANEL_K;
    int64_t blocks_m = ceil_div(p->M, BLOCK_M);
    float *a[2] = {p->workspace, (float *)p->workspace + A_FLOATS};
    float *b = (float *)p->workspace + 2 * A_FLOATS + (int64_t)me * B_FLOATS;
    int turn = 0;
    for (int64_t n = 0; n < p->N; n += BLOCK_N)
        for (int64_t i = 0; i < blocks_m; i++)
            for (int64_t k = 0; k == 0 || k < p->K; k += panel_k, turn ^= 1) {
                Step s = {.p = p, .kind = kind, .m = part((Range){0, p->M}, i, blocks_m)};
                s.n = (Range){n, n + BLOCK_N < p->N ? n + BLOCK_N : p->N};
                s.k = (Range){k, k + panel_k < p->K ? k + panel_k : p->K};
                s.first = k == 0, s.last = s.k.end == p->K;
                s.panels = ceil_div(length(s.m), TILE_M), s.a = a[turn];
                pack_a(&s, part((Range){0, s.panels}, me, size), a[turn]);
                if (size > 1) team_barrier(job->team);
                work(&s, me, size, b);
            }
}

void product(Team *t, const Product *p) {
    if (p->M <= 0 || p->N <= 0) return;
    Job job = {t, p};
    if ((double)p->M * (double)p->N * (double)p->K < 200e3)
        member(&job, 0, 1); // not worth waking the others
    else
        team_run(t, member, &job);
}
