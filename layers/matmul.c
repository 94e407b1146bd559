/* The loops of the matmul. From the outside in:
 *
 *     blocks of columns of y        BLOCK_N     a block of y stays in the L3 while K is finished
 *       blocks of rows of y         BLOCK_M
 *         panels of K               PANEL_K     one step
 *           chunks of columns       chunk       each thread packs b for its own part of the step
 *             blocks of rows        rows
 *               panels x tiles      TILE_M, TILE_N   y += a panel times b panel, sums in registers
 *
 * Which of the two innermost loops is the outer one follows from the shape of a tile:
 *
 *     rows stay      14 x 32, AVX-512: a panel of a stays in the L1 for a row of tiles; a chunk of
 *                    b, packed, is in the L2 and streams from there once for each panel of rows
 *     columns stay   6 x 16, 4 x 8: a panel of b stays in the L1 for a column of tiles; a block of
 *                    rows of a is in the L2 and streams from there once for each panel of columns
 *                    (the order of BLIS)
 *
 * Each thread packs the rows of a and the columns of b that it needs, so that threads do not wait
 * for each other. With tile registers (AMX) packing a takes longer than multiplying it by 384
 * columns: there the threads share the work of packing a, and meet at a barrier in each step. Where
 * rows stay, rows of a that are contiguous (forward, dgrad) are packed row by row: transposing them
 * took 4 % of a matmul with 384 columns. Where columns stay they are transposed, once for each
 * chunk of 1,024 columns: tiles that read one stream instead of six are 1 to 2 % faster (Zen 3).
 *
 *            +----+----+----+----+
 *            |    |////|    |    | PANEL_K      ////  panel of b
 *            +----+----+----+----+
 *    a       y
 *   +------+ +----+----+----+----+
 *   |      | |    |    |    |    |
 *   +------+ +----+----+----+----+
 *   |######| |    | 14 |    |    |              ####  panel of a
 *   +------+ +----+-x32+----+----+
 *   |      | |    |    |    |    |
 *   +------+ +----+----+----+----+
 *
 * Order of the sum: over K within a panel from 0 on, panels from first to last, each added to y;
 * then bias and epilogue. It depends on K and PANEL_K alone. Neither threads nor caches nor the
 * extents of y change a bit of the result.
 *
 * The comments below quote what tools/bench_matmul.c measured.
 */
#include "layers/matmul.h"

#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "base/processor.h"
#include "layers/activation.h"
#include "layers/exact_grid.h"
#include "layers/matmul_tile.h"
#include "layers/pointwise.h"

/* Tiles: 14 x 32 (AVX-512) reaches 97 % of the units' peak out of L1 and L2 (Zen 5); it moves 46
 * elements for 448 multiply-adds, a 6 x 64 tile 70 for 384. PANEL_K of 256, 384, 512 are within 1 %
 * there; with 6 x 16 (AVX2) 256 is 2 % slower than 384, because y is read and written more often.
 * In fp32 384 columns leave 40 % of an L2 of 1 MiB to the columns that come next; of an L2 of 2 MiB
 * 768 columns leave as much, and a is packed half as often (3 % of that wgrad). Where columns stay
 * a chunk is read from the L3 once for each block of rows, and a is packed once for each chunk:
 * 1,024 columns are 2 % faster than 384, and as fast as 2,048 (Zen 3). With 6 x 16 (Zen 4) runs of
 * tiles are 2 % faster than single ones. */
enum {
    // elements of K summed in registers: the order of summation, on which results depend
    PANEL_K = A_STEPS,
    // The same in steps where a step is a pair of elements. Tile registers are so fast that loading
    // and storing y between two panels counts: 1,024 tokens of a wgrad are one panel.
    PAIRS_K = SIMD_TILES ? 512 : PANEL_K,
    BLOCK_M = 1024 / TILE_M * TILE_M + TILE_M, // most rows of a packed at a time
    // Most columns of b packed at a time by each thread. a is packed anew for each chunk.
    CHUNK_N = COLUMNS_STAY ? 1024 : 768,
    BLOCK_N = 2048, // columns of y finished over all of K before the next
    // Most tiles of a run: of one call of tile_multiply. With 32 an epilogue would read 192 rows at
    // multiples of 4 KiB, more than an L2 of 512 KiB keeps of them.
    RUN = 16,
    // Floats from a packed panel to the next, with some cache lines between them: at multiples of 4
    // KiB all panels would compete for the same sets of the L1.
    A_PANEL = (TILE_M * (COLUMNS_STAY ? A_STEPS : A_ROW) + 3 * 16 + 15) / 16 * 16,
    B_PANEL = TILE_N * PAIRS_K + 5 * 16,
    PAIRS_PANEL = PAIRS_M * PAIRS_K + 3 * 16, // likewise where tile registers multiply pairs
    // Packed panels of a that each thread has: where columns stay those that its L2 holds; where
    // rows stay about whole cache lines of rows of x (wgrad): 8 x 14 floats.
    OWN_PANELS = COLUMNS_STAY ? (400 << 10) / (int)(A_PANEL * sizeof(float)) + 1 : 8,
    OWN_FLOATS = OWN_PANELS * A_PANEL + CHUNK_N / TILE_N * B_PANEL,
    SHARED_FLOATS = SIMD_TILES ? (BLOCK_M / PAIRS_M + 2) * PAIRS_PANEL : 0,
};

size_t matmul_workspace(int n_threads) {
    return sizeof(float) * ((size_t)2 * SHARED_FLOATS + (size_t)n_threads * OWN_FLOATS);
}

/* Integers [begin, end). part() is the i-th of n nearly equal parts; clip() ends a range at
 * `end`. */
typedef struct Range {
    int64_t begin, end;
} Range;
static Range part(Range r, int64_t i, int64_t n) {
    int64_t len = r.end - r.begin;
    return (Range){r.begin + len * i / n, r.begin + len * (i + 1) / n};
}
static Range clip(Range r, int64_t end) {
    return (Range){r.begin, r.end < end ? r.end : end};
}
static int64_t length(Range r) {
    return r.end - r.begin;
}
static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* One step of the loops: some rows by a block of columns over one panel of K. Its rows are whole
 * row blocks (RowBlocks), or a part of one row block. */
typedef struct Step {
    Range blocks;     // row blocks, in the order in which they are multiplied
    Range m, n;       // rows of each row block, and columns of y; n begins at a multiple of TILE_N
    Range k;          // elements of K
    bool first, last; // is this the first panel of K, the last one?
    bool ends;        // is this the last step with these row blocks?
    int64_t panels;   // panels of rows, in all row blocks
    // panels of each row block; rows of each panel; the first `more` panels have one row more
    int64_t per, each, more;
} Step;

/* A panel of rows: its first row, its number of rows, and the addresses of its rows of a and y. */
typedef struct RowPanel {
    int64_t row, rows;
    const float *a;
    float *y;
} RowPanel;
enum { MOST_PANELS = BLOCK_M / (TILE_M < PAIRS_M ? TILE_M : PAIRS_M) + 1 };

/* The sizes of blocks, which follow from the size of the L2. They change no order of a sum.
 *
 *     rows stay      a chunk of b in the L2, from which tiles read 9.1 bytes of b per cycle
 *     columns stay   a block of a in the L2: 4 bytes of a per cycle with a tile of 6 x 16. Blocks
 *                    of 0.3 to 0.6 MB are 2 to 4 % faster than larger ones where the L2 has 2 MB
 *                    (Xeon); where it has 1 MB (Zen 4) one of 0.4 MB leaves room for panels of
 *                    b, of which a chunk is in the L3. */
typedef struct Blocking {
    int64_t rows, chunk; // panels of rows of a, and columns of b, that are packed at a time
} Blocking;

static int64_t a_panel(PackKind kind) {
    return tile_registers(kind) ? PAIRS_PANEL : A_PANEL;
}

static Blocking blocking_of(int64_t l2, PackKind kind) {
    const int64_t a = A_PANEL * sizeof(float), fit = l2 * 5 / 8,
                  b = TILE_N * sizeof(float) * (kind == PACK_PAIR ? PAIRS_K : PANEL_K);
    if (COLUMNS_STAY) {
        int64_t rows = fit / a < OWN_PANELS ? fit / a : OWN_PANELS;
        return (Blocking){.rows = rows > 0 ? rows : 1, .chunk = CHUNK_N};
    }
    int64_t chunk = CHUNK_N, fits = fit / b * TILE_N;
    if (fits < chunk) chunk /= 2; // and more room for the columns that come next
    // half of it for dot products of pairs (VDPBF16PS)
    if (kind == PACK_PAIR && !SIMD_TILES) chunk /= 2;
    if (fits < chunk) chunk = fits;
    return (Blocking){.rows = BLOCK_M, .chunk = chunk > TILE_N ? chunk : TILE_N};
}

/* The state of one thread while it computes its part of a matmul. */
typedef struct Member {
    const Matmul *p;
    const double *share;      // cumulative shares of the threads (team_shares)
    const MatmulExact *exact; // or NULL
    Team *polled;             // member 0: the team, for team_poll; others: NULL
    ExactGrid grid;
    int64_t unit, first; // exact: elements of K in a unit, offset of k = 0 in its unit
    PackKind kind;
    int me, size;                                  // this thread's number, number of threads
    int64_t blocks_m, blocks_n, panels_k, panel_k; // steps along M, N, K; elements of a panel of K
    // with tile registers: packed rows of this step and of the next, which the threads share
    float *shared[2];
    float *a, *b; // this thread's packed rows of a and columns of b
    bool by_rows; // a is packed row by row (pack_by_rows)
    bool raw_a;   // the tiles of the first column read a unpacked, and pack it
    Blocking blocking;
    RowBlocks rows;            // row blocks of a or y; without any, all rows are one block
    const RowBlocks *k_blocks; // row blocks of x or dy along K; or NULL
    int64_t blocks, parts;     // row blocks of a step; or 1, and each block makes `parts` steps
    RowPanel *panel;           // [MOST_PANELS] of the current step
} Member;

/* Panels of K begin at the start of every unit, and have as many elements as whole small panels
 * fit. panel_at: the number of the panel that has element k. panel_range: the elements of the
 * matmul's i-th panel. */
static int64_t panel_at(const Member *w, int64_t k) {
    int64_t offset = w->first + k;
    return offset / w->unit * ceil_div(w->unit, w->panel_k) + offset % w->unit / w->panel_k;
}
static Range panel_range(const Member *w, int64_t i) {
    int64_t per_unit = ceil_div(w->unit, w->panel_k), n = panel_at(w, 0) + i;
    int64_t unit = n / per_unit * w->unit, begin = unit + n % per_unit * w->panel_k - w->first;
    Range r = clip((Range){begin, begin + w->panel_k}, unit + w->unit - w->first);
    return clip((Range){r.begin > 0 ? r.begin : 0, r.end}, w->p->K);
}

/* Step i. Successive steps are successive panels of K, then blocks of rows, then blocks of
 * columns. */
static Step step_at(const Member *w, int64_t i) {
    const Matmul *p = w->p;
    int64_t k = i % w->panels_k, m = i / w->panels_k % w->blocks_m,
            n = i / w->panels_k / w->blocks_m;
    Step s = {.m = part((Range){0, w->rows.rows}, m % w->parts, w->parts)};
    s.blocks = clip((Range){m / w->parts * w->blocks, (m / w->parts + 1) * w->blocks}, w->rows.n);
    Range tiles = part((Range){0, ceil_div(p->N, TILE_N)}, n, w->blocks_n);
    s.n = clip((Range){tiles.begin * TILE_N, tiles.end * TILE_N}, p->N);
    s.k = panel_range(w, k);
    s.first = k == 0, s.last = k == w->panels_k - 1;
    s.ends = s.last && n == w->blocks_n - 1 && m % w->parts == w->parts - 1;
    s.per = ceil_div(length(s.m), tile_rows(w->kind)), s.panels = s.per * length(s.blocks);
    s.each = length(s.m) / s.per, s.more = length(s.m) % s.per;
    return s;
}

/* Cuts the rows of a matmul into steps. */
static void set_rows(Member *w) {
    const Matmul *p = w->p;
    int64_t most = BLOCK_M / tile_rows(w->kind);
    bool of_rows = p->blocks && p->blocks->matrix <= BLOCKS_OF_Y;
    w->rows = of_rows ? *p->blocks : (RowBlocks){.rows = p->M, .n = 1};
    w->k_blocks = of_rows ? NULL : p->blocks;
    w->parts = ceil_div(w->rows.rows, BLOCK_M);
    w->blocks = most / ceil_div(w->rows.rows, tile_rows(w->kind));
    if (w->blocks < 1) w->blocks = 1; // such as a row block that takes several steps
    w->blocks_m = w->parts * ceil_div(w->rows.n, w->blocks);
}

/* Fills w->panel with the row panels of a step; `begin` may wait for their row blocks.
 * Rows are cut into even panels: 256 rows are 19 panels of 13 or 14, never 18 full ones and a rest
 * of 4. */
static void set_row_panels(Member *w, const Step *s) {
    const Matmul *p = w->p;
    const RowBlocks *r = &w->rows;
    RowPanel *to = w->panel;
    for (int64_t i = s->blocks.begin; i < s->blocks.end; i++) {
        int block = (int)((i + r->first) % r->n);
        int64_t row = block * r->rows + s->m.begin;
        const float *a = p->a;
        float *y = p->y;
        if (a) a += row * p->a_row;
        if (y) y += row * p->ldy;
        if (r->begin && r->matrix == BLOCKS_OF_Y)
            y = (float *)r->begin(r->ctx, block) + s->m.begin * p->ldy;
        if (r->begin && r->matrix == BLOCKS_OF_A)
            a = (const float *)r->begin(r->ctx, block) + s->m.begin * p->a_row;
        for (int64_t j = 0, n; j < s->per; j++, row += n, y += n * p->ldy) {
            n = s->each + (j < s->more);
            *to++ = (RowPanel){row, n, a, y};
            if (a) a += n * p->a_row;
        }
    }
}

/* The address of row k of x (BLOCKS_OF_AT) or b (BLOCKS_OF_B; dy of a wgrad), of which K is the
 * number of rows. *n: rows from k on that lie at a constant distance. */
static const float *row_of(const Member *w, BlocksOf of, int64_t k, int64_t *n) {
    const Matmul *p = w->p;
    const RowBlocks *r = w->k_blocks;
    int64_t stride = of == BLOCKS_OF_AT ? p->a_col : p->b_row;
    *n = p->K - k;
    if (!r || r->matrix != of)
        return (const float *)(of == BLOCKS_OF_AT ? p->a : p->b) + k * stride;
    int64_t block = k / r->rows;
    *n = (block + 1) * r->rows - k;
    return (const float *)r->begin(r->ctx, (int)block) + (k - block * r->rows) * stride;
}

/* After the last step with some row blocks: says that they are done. */
static void blocks_done(const Member *w, const Step *s) {
    for (int64_t i = s->blocks.begin; w->rows.done && s->ends && i < s->blocks.end; i++)
        w->rows.done(w->rows.ctx, (int)((i + w->rows.first) % w->rows.n));
}

/* The threads form a grid of rows x columns over the block of y. Returns the columns of the grid
 * whose busiest thread has the least work. Packing a tile's columns of b costs about as much as one
 * tile; so does packing a panel of rows that is not shared. */
static int grid_columns(int size, int64_t panels, int64_t tiles, bool shared) {
    int best = 1;
    int64_t least = INT64_MAX;
    for (int c = 1; c <= size; c++) {
        if (size % c) continue;
        int64_t work = (ceil_div(tiles, c) + !shared) * (ceil_div(panels, size / c) + 1);
        if (work < least) least = work, best = c;
    }
    return best;
}

/* This thread's share of a step: panels of rows, and tiles of columns in chunks. */
typedef struct Share {
    Range panels, tiles;
    int64_t chunks;
} Share;

/* Divides n items among the threads [all.begin, all.end), and returns those of the threads
 * [some.begin, some.end).
 *
 * Threads get columns and rows in proportion to their speed in the matmuls before (team_shares).
 * With equal shares all threads wait for the slowest core: with another program on one of two cores
 * 102 GFLOP/s instead of 146 (AVX2, 1,024 tokens); on idle equal cores there is no difference. */
static Range share_items(const Member *w, int64_t n, Range all, Range some) {
    double first = w->share[all.begin], each = (double)n / (w->share[all.end] - first);
    return (Range){llround((w->share[some.begin] - first) * each),
                   llround((w->share[some.end] - first) * each)};
}

static Share share_of(const Member *w, const Step *s) {
    int64_t tiles = ceil_div(length(s->n), TILE_N);
    int columns = grid_columns(w->size, s->panels, tiles, tile_registers(w->kind));
    Range row = {w->me - w->me % columns, w->me - w->me % columns + columns};
    Share h = {.panels = share_items(w, s->panels, (Range){0, w->size}, row),
               .tiles = share_items(w, tiles, row, (Range){w->me, w->me + 1})};
    h.chunks = length(h.panels) ? ceil_div(length(h.tiles), w->blocking.chunk / TILE_N) : 0;
    return h;
}

static Range chunk_columns(const Step *s, const Share *h, int64_t i) {
    Range tiles = part(h->tiles, i, h->chunks);
    return clip((Range){s->n.begin + tiles.begin * TILE_N, s->n.begin + tiles.end * TILE_N},
                s->n.end);
}

/* Packs the elements `k` of K, which may lie in several row blocks, of n panels from `lane` on. */
static void pack_steps_of(const Member *w, Pack *pack, BlocksOf of, Range k, int64_t lane,
                          float *to, const int64_t *edge, int n) {
    for (int64_t at = k.begin, rows; at < k.end; at += rows) {
        pack->src = row_of(w, of, at, &rows) + lane * pack->lane_stride;
        if (rows > k.end - at) rows = k.end - at;
        pack->K = rows;
        float *dst = to + pack_steps(w->kind, at - k.begin) * pack->width;
        if (of == BLOCKS_OF_AT && tile_registers(w->kind))
            pack_tiles(pack, dst, edge, n);
        else
            pack_panels(pack, dst, edge, n);
    }
}

static void pack_a(const Member *w, const Step *s, Range panels, float *to) {
    enum { GROUP = 16 };
    const Matmul *p = w->p;
    Pack pack = {w->kind,  tile_rows(w->kind), a_panel(w->kind), NULL,
                 p->a_row, p->a_col,           length(s->k)};
    for (int64_t i = panels.begin, n; i < panels.end; i += n) {
        int64_t edge[GROUP + 1] = {0}, alike = s->per - i % s->per; // panels left in the row block
        for (n = 0; n < GROUP && n < alike && i + n < panels.end; n++)
            edge[n + 1] = edge[n] + w->panel[i + n].rows;
        float *dst = to + (i - panels.begin) * pack.panel_floats;
        if (w->k_blocks) {
            pack_steps_of(w, &pack, BLOCKS_OF_AT, s->k, w->panel[i].row, dst, edge, (int)n);
            continue;
        }
        pack.src = w->panel[i].a + s->k.begin * p->a_col;
        (tile_registers(w->kind) ? pack_tiles
         : w->by_rows            ? pack_by_rows
                                 : pack_panels)(&pack, dst, edge, (int)n);
    }
}

static void pack_b(const Member *w, const Step *s, Range columns, float *to) {
    const Matmul *p = w->p;
    int64_t edge[CHUNK_N / TILE_N + 1];
    int n = 0;
    Pack pack = {w->kind, TILE_N, B_PANEL, NULL, p->b_col, p->b_row, length(s->k)};
    for (int64_t at = columns.begin; at < columns.end; at += TILE_N) edge[n++] = at;
    edge[n] = columns.end;
    pack_steps_of(w, &pack, BLOCKS_OF_B, s->k, 0, to, edge, n);
}

/* ---- prefetches ----
 *
 * Prefetches hide the latency of memory. A tile prefetches the rows of y, addend and aux that it
 * will finish, one by one: all at once they delay the loads of panels, by 10 % of a matmul with
 * K = 384. Where rows stay, each step of a tile prefetches one cache line of the next chunk's
 * columns (after the last chunk, of the next panel of K); not on Intel's processors, where matmuls
 * are 1.7 % faster without. Where columns stay, every tile of a column prefetches a few lines of
 * the next panel of b, unless that panel is packed already. One line with each step of few tiles
 * was 5 % slower (Xeon, AVX2), a line of a with each step 2 % (Zen 4), lines of the next block of a
 * together with those of b 3 % (Xeon). Packing prefetches its own source; where rows are packed as
 * they lie, to the L2: those that are a multiple of 4 KiB apart compete for one set of the L1. */

/* A part of b that is read next: `lines` columns of `rows` cache lines. Each tile prefetches a
 * piece of it. */
typedef struct Ahead {
    const float *from;
    int64_t stride, rows, lines; // stride: floats from a line to the one under it
    int64_t row, line;           // where the next piece begins
} Ahead;

/* The part of b that packing these columns of step s will read. */
static Ahead ahead_of(const Member *w, const Step *s, Range columns) {
    const Matmul *p = w->p;
    bool rows = p->b_col == 1;
    // a row block of b may not have arrived yet
    if (w->k_blocks && w->k_blocks->matrix == BLOCKS_OF_B) return (Ahead){0};
    int64_t all;
    Ahead f = {.from = row_of(w, BLOCKS_OF_B, s->k.begin, &all) + columns.begin * p->b_col};
    f.stride = rows ? p->b_row : p->b_col;
    f.rows = rows ? length(s->k) : length(columns);
    f.lines = (rows ? length(columns) : length(s->k)) / 16;
    return f;
}

/* The columns of a chunk that are packed before its first tile: all, or only a panel where columns
 * stay. */
static Range packed_first(Range columns) {
    return clip(columns, COLUMNS_STAY ? columns.begin + TILE_N : columns.end);
}

/* The next piece of f: at most n lines of one column; none when all lines were taken. */
static Fetch ahead_take(Ahead *f, int64_t n) {
    if (f->line >= f->lines) return (Fetch){0};
    Fetch next = {f->from + 16 * f->line + f->row * f->stride, f->stride,
                  n < f->rows - f->row ? n : f->rows - f->row};
    f->row += next.n;
    if (f->row >= f->rows) f->row = 0, f->line++;
    return next;
}

/* Can tile_multiply write the sums of whole tiles to y or aux, without a buffer? Yes, unless tile
 * registers multiply and bias or an epilogue follows. */
static bool needs_no_buffer(const Member *w, const Step *s) {
    const Matmul *p = w->p;
    return !s->last || !tile_registers(w->kind) || (p->epilogue == EPI_NONE && !p->bias);
}

/* A run of whole tiles. The sums go to y, or to aux where an activation keeps its operand. The
 * epilogue follows while they are in the caches: after single tiles in a buffer, a matmul with GELU
 * and K = 384 took 4 % longer (Zen 5). */
static void tiles_at(const Member *w, const Step *s, const RowPanel *m, Range n, Tile *t) {
    const Matmul *p = w->p;
    const Epilogue epilogue = s->last ? p->epilogue : EPI_NONE;
    const ActKind act = p->act;
    int64_t ld = p->ldy, at = m->row * ld + n.begin;
    const float *addend = p->addend, *before = addend ? addend + at : NULL;
    float *y = m->y + n.begin, *aux = p->aux ? (float *)p->aux + at : NULL;
    if (s->last && p->bias) t->bias = (const float *)p->bias + n.begin;
    t->ld = ld, t->y = epilogue == EPI_ACT && aux ? aux : y, t->addend = s->first ? before : y;
    t->wanted[0] = y, t->wanted[1] = t->addend != y ? t->addend : NULL, t->ld_wanted = ld;
    if (epilogue != EPI_NONE && aux) t->wanted[1] = aux;
    tile_multiply(t);
    if (epilogue == EPI_NONE) return;
    for (int tile = 0; tile < t->n; tile++)
        for (int64_t i = 0; i < m->rows; i++)
            for (int j = 0; j < TILE_N; j += VF) {
                int64_t e = tile * t->next_y + i * ld + j;
                vf x = vf_load(t->y + e);
                vf_store(y + e, epilogue == EPI_ACT ? pointwise(act, x)
                                                    : x * pointwise_slope(act, vf_load(aux + e)));
            }
}

/* Adds addend or y and bias to the first `width` columns of a tile's sums, applies the epilogue,
 * and writes y. */
static inline __attribute__((always_inline)) void finish_columns(const Matmul *p, const Step *s,
                                                                 const RowPanel *m, int64_t n0,
                                                                 int width, const float *sum) {
    const float *addend = p->addend, *bias = s->last ? p->bias : NULL;
    float *y = m->y + n0, *aux = p->aux;
    int64_t ldy = p->ldy, at = m->row * ldy + n0;
    const float *before = !s->first ? y : addend ? addend + at : NULL;
    const Epilogue epilogue = s->last ? p->epilogue : EPI_NONE;
    const ActKind act = p->act;
    if (aux) aux += at;
    if (bias) bias += n0;
    for (int64_t i = 0; i < m->rows; i++)
        for (int j = 0; j < width; j += VF) {
            int64_t e = i * ldy + j;
            int lanes = width - j < VF ? width - j : VF;
            vf x = vf_load(sum + i * TILE_N + j);
            if (before) x = vf_load_n(before + e, lanes) + x;
            if (bias) x += vf_load_n(bias + j, lanes);
            if (epilogue == EPI_ACT && aux) vf_store_n(aux + e, x, lanes);
            if (epilogue == EPI_ACT) x = pointwise(act, x);
            if (epilogue == EPI_DACT) x *= pointwise_slope(act, vf_load_n(aux + e, lanes));
            vf_store_n(y + e, x, lanes);
        }
}
static void finish_tile(const Matmul *p, const Step *s, const RowPanel *m, Range n,
                        const float *sum) {
    if (length(n) == TILE_N)
        finish_columns(p, s, m, n.begin, TILE_N, sum);
    else
        finish_columns(p, s, m, n.begin, (int)length(n), sum);
}

/* A tile that is summed in a buffer first: it is not whole, or needs_no_buffer says no. */
static void finished_tile_at(const Member *w, const Step *s, const RowPanel *m, Range n, Tile *t) {
    const Matmul *p = w->p;
    const float *addend = p->addend, *aux = p->aux;
    float *y = m->y + n.begin;
    int64_t at = m->row * p->ldy + n.begin;
    float buffer[MOST_M * TILE_N] __attribute__((aligned(64)));
    t->ld = TILE_N, t->y = buffer, t->addend = NULL;
    t->wanted[0] = y, t->ld_wanted = p->ldy;
    if (s->first && addend && addend + at != y) t->wanted[1] = addend + at;
    if (s->last && aux) t->wanted[1] = aux + at;
    tile_multiply(t);
    finish_tile(p, s, m, n, buffer);
}

/* ---- exact ----
 *
 * Exact matmuls (exact.h) run the same loops. A tile adds its sums over each small panel of K
 * (k_panel elements) to a buffer of integers in the L1, and the buffer to y_64 once per panel of K,
 * which has as many whole small panels as fit in PANEL_K. */

/* sum[rows, TILE_N] += part, rounded to whole numbers of grid steps; `first` overwrites the old
 * sum. False if an element is out of range. */
static bool tile_steps(uint64_t *sum, const float *part, int rows, const ExactGrid *grid,
                       bool first) {
    vb over = {0};
    ExactGrid g = *grid;
    for (int i = 0; i < rows * TILE_N; i += VF) {
        vf x = vf_load(part + i);
        vu low = (vu)(vd_low(x) + g.magic) - double_bits(g.magic),
           high = (vu)(vd_high(x) + g.magic) - double_bits(g.magic);
        over |= exact_grid_over(&g, x);
        vu_store(sum + i, first ? low : vu_load(sum + i) + low);
        vu_store(sum + i + VD, first ? high : vu_load(sum + i + VD) + high);
    }
    return !vb_any(over);
}

/* y_64[n] += sum[n]; false if an old or a new element is out of range. */
static bool join_row(int64_t *y_64, const uint64_t *sum, int64_t n, bool overwrite) {
    vu out = {0};
    uint64_t last = 0;
    int64_t j = 0;
    for (; j + VD <= n; j += VD) {
        vu old = overwrite ? (vu){0} : vu_load(y_64 + j), v = old + vu_load(sum + j);
        vu_store(y_64 + j, v);
        out |= vu_out_of_range(old) | vu_out_of_range(v);
    }
    for (; j < n; j++) {
        uint64_t old = overwrite ? 0 : (uint64_t)y_64[j], v = old + sum[j];
        y_64[j] = (int64_t)v;
        last |= out_of_range(old) | out_of_range(v);
    }
    return !vu_any_out(out) && last >> (EXACT_BITS + 1) == 0;
}

/* One tile of an exact matmul over a panel of K. The fp32 sums over each small panel are rounded to
 * the grid and added to `sum`; at the end `sum` is added to y_64. Elements of y_64 with a term or a
 * sum out of range become EXACT_POISON. */
static void exact_tile_at(const Member *w, const Step *s, const RowPanel *m, Range n, Tile *t) {
    const MatmulExact *x = w->exact;
    float part[TILE_M * TILE_N] __attribute__((aligned(64)));
    uint64_t sum[TILE_M * TILE_N] __attribute__((aligned(64)));
    bool bad[TILE_M * TILE_N], any_bad = false, overwrite = s->first && x->overwrite;
    int64_t *y_64 = x->y_64 + m->row * w->p->ldy + n.begin, begin = s->k.begin;
    int rows = (int)m->rows;
    Fetch fetch = *t->fetch;
    t->ld = TILE_N, t->y = part, t->addend = NULL, t->fetch = &fetch;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 2; j++) fetch_row((const float *)(y_64 + i * w->p->ldy) + j * TILE_N);
    do { // at least once: K = 0 writes 0
        Range k = clip((Range){begin, begin + x->k_panel}, s->k.end);
        t->steps = length(k);
        tile_multiply(t);
        if (!tile_steps(sum, part, rows, &w->grid, begin == s->k.begin)) {
            if (!any_bad) memset(bad, 0, sizeof bad);
            for (int i = 0; i < rows * TILE_N; i++) bad[i] |= !exact_grid_good(&w->grid, part[i]);
            any_bad = true;
        }
        t->a += t->a_by_rows ? length(k) : length(k) * TILE_M, t->b += length(k) * TILE_N;
        if (t->raw) t->raw += length(k) * t->raw_stride;
        fetch.from += length(k) * fetch.stride, fetch.n = 0;
        begin = k.end;
    } while (begin < s->k.end);
    for (int i = 0; i < rows; i++, y_64 += w->p->ldy) {
        if (join_row(y_64, sum + i * TILE_N, length(n), overwrite) && !any_bad) continue;
        for (int64_t j = 0; j < length(n); j++) {
            int64_t v = (int64_t)sum[i * TILE_N + j],
                    old = (int64_t)((uint64_t)y_64[j] - (uint64_t)v);
            y_64[j] = any_bad && bad[i * TILE_N + j] ? EXACT_POISON : exact_join(old, v);
        }
    }
}

/* A chunk of columns while it is multiplied. Its tiles prefetch the part of b that is read next. */
typedef struct Chunk {
    const Member *w;
    const Step *s;
    Range columns;
    float *a;   // packed panels of rows, from number `from` on
    bool raw_a; // the tiles of the first column read a unpacked, and pack it
    int64_t from;
    int64_t first;     // the panel of rows whose tiles read b unpacked, and pack it
    const float *b;    // the first row of the step, unpacked
    int64_t raw;       // tiles of columns that are packed so
    bool once;         // this is the only panel of rows
    Ahead *ahead;      // the part of b that is read after this chunk
    int64_t all, done; // where rows stay: tiles of the chunk, tiles begun
    int64_t fetched;   // where rows stay: pieces of `ahead` that tiles have taken
    Ahead panel;       // where columns stay: the next panel of b
    int64_t share;     // where columns stay: lines of `panel` for each tile
} Chunk;

/* Where rows stay: what the next tile prefetches. Pieces of `ahead` are spread evenly over the
 * tiles. */
static Fetch rows_fetch(Chunk *c) {
    Ahead *f = c->ahead;
    int64_t done = c->done++, pieces = f->lines * ceil_div(f->rows, PANEL_K);
    if (c->fetched >= pieces || c->fetched * c->all > pieces * done) return (Fetch){c->a, 0, 0};
    c->fetched++;
    return ahead_take(f, PANEL_K);
}

/* Where columns stay: sets what the tiles of column x of a block of rows prefetch, the next panel
 * of b unless it is packed. A packed panel is read from its first line to its last, as hardware
 * prefetchers expect; prefetching it here, too, was 0.5 to 1 % slower (Zen 3). */
static void set_panel_ahead(Chunk *c, bool first, bool last, int64_t x, Range rows) {
    int64_t tiles = ceil_div(length(c->columns), TILE_N), next = (x + 1) % tiles;
    int64_t begin = c->columns.begin + next * TILE_N;
    c->panel = (Ahead){0};
    if (next == 0 && last)
        c->panel = *c->ahead;
    else if (first && next)
        c->panel = ahead_of(c->w, c->s, clip((Range){begin, begin + TILE_N}, c->columns.end));
    c->share = ceil_div(c->panel.rows * c->panel.lines, length(rows));
}

/* How many tiles make one run, from panel i of the rows and panel j of the columns on, at most
 * `most`. The tiles of a run need no buffer, have the same number of rows, and all pack b or none
 * does. */
static int64_t run_length(const Chunk *c, int64_t i, int64_t j, int64_t most) {
    const Step *s = c->s;
    int64_t whole = length(c->columns) / TILE_N, n = most < RUN ? most : RUN;
    bool raw = i == c->first && j < c->raw;
    if (c->w->exact || j >= whole || !needs_no_buffer(c->w, s)) return 1;
    if (COLUMNS_STAY ? raw : c->raw_a && j == 0 && !raw) return 1;
    int64_t in_block = i % s->per, left = in_block < s->more ? s->more : s->per;
    int64_t alike = COLUMNS_STAY ? left - in_block : whole - j;
    return alike < n ? alike : n;
}

/* A run of n tiles: panel i of the rows times panel j of the columns is the first. */
static void chunk_run(Chunk *c, int64_t i, int64_t j, int64_t n) {
    const Member *w = c->w;
    const Matmul *p = w->p;
    Fetch fetch[RUN];
    Range columns = {c->columns.begin + j * TILE_N, c->columns.begin + (j + 1) * TILE_N};
    const RowPanel *m = &w->panel[i];
    Tile t = {.pairs = w->kind == PACK_PAIR, .steps = pack_steps(w->kind, length(c->s->k))};
    t.a_by_rows = w->by_rows, t.rows = (int)m->rows, t.n = (int)n, t.fetch = fetch,
    t.raw_stride = p->b_row;
    t.a = c->a + (i - c->from) * a_panel(w->kind), t.b = w->b + j * B_PANEL;
    if (i == c->first && j < c->raw)
        t.raw = c->b + columns.begin, t.raw_once = c->once;
    else if (c->raw_a && j == 0)
        t.raw_a = m->a + c->s->k.begin * p->a_col, t.raw_a_stride = p->a_col;
    if (COLUMNS_STAY)
        t.next_a = a_panel(w->kind), t.next_y = m->rows * p->ldy, t.next_raw_a = m->rows * p->a_row;
    else
        t.next_b = B_PANEL, t.next_y = t.next_bias = t.next_raw = TILE_N;
    for (int64_t at = 0; at < n; at++)
        fetch[at] = COLUMNS_STAY ? ahead_take(&c->panel, c->share) : rows_fetch(c);
    Range whole = clip(columns, c->columns.end);
    (w->exact ? exact_tile_at
     : length(whole) == TILE_N && needs_no_buffer(w, c->s)
         ? tiles_at
         : finished_tile_at)(w, c->s, m, whole, &t);
}

/* Packs some panels of rows, unless the tiles of the first column will. In the first panel of a
 * chunk tiles may pack b: that panel is then packed here, as a tile packs either a or b. */
static void begin_rows(Chunk *c, Range panels) {
    c->from = panels.begin, c->raw_a = c->w->raw_a;
    if (!c->raw_a)
        pack_a(c->w, c->s, panels, c->a);
    else if (panels.begin == c->first && c->raw)
        pack_a(c->w, c->s, (Range){panels.begin, panels.begin + 1}, c->a);
}

/* One column of tiles, where columns stay. */
static void multiply_column(Chunk *c, Range rows, int64_t j, bool first, bool last) {
    const Member *w = c->w;
    int64_t from = c->columns.begin + j * TILE_N;
    if (first && j >= c->raw)
        pack_b(w, c->s, clip((Range){from, from + TILE_N}, c->columns.end), w->b + j * B_PANEL);
    set_panel_ahead(c, first, last, j, rows);
    for (int64_t i = rows.begin, n; i < rows.end; i += n) {
        n = run_length(c, i, j, rows.end - i);
        chunk_run(c, i, j, n);
    }
    team_poll(w->polled);
}

/* Packs one chunk of columns of b and multiplies all panels of rows by it. packed: the chunk before
 * has packed these rows, which are still there if they are one block of rows. */
static void multiply(const Member *w, const Step *s, Range panels, Range columns, float *a,
                     bool packed, Ahead *ahead) {
    const Matmul *p = w->p;
    bool shared = tile_registers(w->kind);
    int64_t together;
    const float *b = row_of(w, BLOCKS_OF_B, s->k.begin, &together);
    bool raw = p->b_col == 1 && together >= length(s->k) && w->kind != PACK_ROUND && !shared &&
               (w->kind != PACK_PAIR || length(s->k) % 2 == 0);
    int64_t tiles = ceil_div(length(columns), TILE_N),
            blocks = ceil_div(length(panels), w->blocking.rows);
    Chunk c = {.w = w, .s = s, .columns = columns, .a = a, .b = b, .first = panels.begin};
    c.ahead = ahead, c.once = length(panels) == 1;
    c.all = length(panels) * tiles, c.raw = raw ? length(columns) / TILE_N : 0;
    if (COLUMNS_STAY) {
        for (int64_t block = 0; block < blocks; block++) {
            Range rows = part(panels, block, blocks);
            c.raw_a = false, c.from = rows.begin;
            if (!packed || blocks > 1) begin_rows(&c, rows);
            for (int64_t j = 0; j < tiles; j++)
                multiply_column(&c, rows, j, block == 0, block == blocks - 1);
        }
        return;
    }
    if (c.raw < tiles)
        pack_b(w, s, (Range){columns.begin + c.raw * TILE_N, columns.end}, w->b + c.raw * B_PANEL);
    int64_t at_once = w->by_rows || w->raw_a ? 1 : OWN_PANELS;
    for (int64_t i = panels.begin; i < panels.end; i++, team_poll(w->polled)) {
        if (!shared && (i - panels.begin) % at_once == 0)
            begin_rows(&c, clip((Range){i, i + at_once}, panels.end));
        for (int64_t j = 0, n; j < tiles; j += n) {
            n = run_length(&c, i, j, tiles - j);
            chunk_run(&c, i, j, n);
        }
    }
}

typedef struct Job {
    Team *team;
    const double *share;
    const Matmul *p;
    const MatmulExact *exact;
} Job;

/* Divides K into panels. */
static void set_panels(Member *w) {
    const MatmulExact *x = w->exact;
    int64_t K = w->p->K;
    w->panel_k = w->kind == PACK_PAIR ? 2 * PAIRS_K : PANEL_K;
    w->unit = K > 0 ? K : 1;
    if (x) {
        assert(x->k_panel >= 1 && x->k_panel <= PANEL_K);
        assert((x->k_unit ? x->k_first % x->k_unit : x->k_first) % x->k_panel == 0);
        w->grid = exact_grid_of(x->exponent);
        w->panel_k = PANEL_K / x->k_panel * x->k_panel;
        // units that are whole numbers of small panels change nothing: K is treated as one unit
        bool one = x->k_unit == 0 || x->k_unit % x->k_panel == 0;
        w->unit = one ? w->panel_k * ceil_div(K + 1, w->panel_k) : x->k_unit;
        w->first = one ? 0 : x->k_first % x->k_unit;
    }
    w->panels_k = K > 0 ? panel_at(w, K - 1) - panel_at(w, 0) + 1 : 1;
}

/* May the tiles of the first column read a unpacked?
 *
 * Where rows of b are contiguous, the first panel of rows reads b unpacked and packs it. Where
 * columns of a are contiguous (wgrad), the first column of tiles reads a unpacked and packs it: up
 * to 9 % of small matmuls (Zen 4). Not on Intel's processors: panels would read each line of a two
 * or three times, the L2 keeps such lines longer than packed panels, and all other columns took 6 %
 * longer (Xeon, AVX2). With AVX-512 eight panels are packed at once instead, from whole lines: 8 %
 * of a wgrad with 3,072 rows. */
static bool may_read_raw_a(const Member *w) {
    bool blocks = w->k_blocks && w->k_blocks->matrix == BLOCKS_OF_AT;
    return w->p->a_row == 1 && w->kind == PACK_FLOAT && !w->exact && !blocks &&
           !processor_keeps_reread();
}

/* One thread's part of a matmul: its share of every step. */
static void member(void *ctx, int me, int size) {
    const Job *job = ctx;
    double begin = now_s(), work_done = 0;
    const Matmul *p = job->p;
    float *work = p->workspace;
    Member w = {.p = p,
                .share = job->share,
                .exact = job->exact,
                .polled = me == 0 ? job->team : NULL,
                .kind = !p->bf16 || job->exact ? PACK_FLOAT
                        : SIMD_BF16            ? PACK_PAIR
                                               : PACK_ROUND,
                .me = me,
                .size = size};
    RowPanel panel[MOST_PANELS];
    w.panel = panel;
    set_panels(&w);
    set_rows(&w);
    w.blocking = blocking_of(processor_l2(), w.kind);
    w.blocks_n = ceil_div(p->N, BLOCK_N);
    bool shared = tile_registers(w.kind);
    w.shared[0] = work, w.shared[1] = work + SHARED_FLOATS;
    w.a = work + 2 * SHARED_FLOATS + (int64_t)me * OWN_FLOATS, w.b = w.a + OWN_PANELS * A_PANEL;
    w.by_rows = !COLUMNS_STAY && p->a_col == 1 && p->a_row != 1 && !shared;
    w.raw_a = may_read_raw_a(&w);
    // where rows stay an L2 that keeps lines that were read more often drops those of `ahead`
    bool fetch_b = COLUMNS_STAY || !processor_keeps_reread();
    int64_t steps = w.panels_k * w.blocks_m * w.blocks_n;
    Step next = step_at(&w, 0), before = next;
    if (shared) tiles_begin();
    for (int64_t i = 0; i < steps; i++) {
        Step s = next;
        Share h = share_of(&w, &s), h_next = {0};
        if (i + 1 < steps) next = step_at(&w, i + 1), h_next = share_of(&w, &next);
        set_row_panels(&w, &s);
        work_done += (double)(length(h.panels) * length(h.tiles) * length(s.k));
        float *a = shared ? w.shared[i % 2] : w.a;
        Range mine = part((Range){0, s.panels}, me, size);
        if (shared) pack_a(&w, &s, mine, a + mine.begin * a_panel(w.kind));
        if (size > 1 && (shared || p->blocks)) team_barrier(job->team);
        // all threads have finished that step
        if (size > 1 && me == 0 && i > 0) blocks_done(&w, &before);
        for (int64_t c = 0; c < h.chunks; c++) {
            Ahead ahead = {0};
            if (fetch_b && c + 1 < h.chunks)
                ahead = ahead_of(&w, &s, packed_first(chunk_columns(&s, &h, c + 1)));
            else if (fetch_b && h_next.chunks)
                ahead = ahead_of(&w, &next, packed_first(chunk_columns(&next, &h_next, 0)));
            multiply(&w, &s, h.panels, chunk_columns(&s, &h, c), a, c > 0, &ahead);
        }
        if (size == 1) blocks_done(&w, &s);
        before = s;
    }
    if (size > 1 && p->blocks) team_barrier(job->team);
    if (size > 1 && me == 0) blocks_done(&w, &before);
    for (int i = 0; me == 0 && w.k_blocks && w.k_blocks->done && i < w.k_blocks->n; i++)
        w.k_blocks->done(w.k_blocks->ctx, i);
    if (shared) tiles_end();
    // threads that wait for each other or for row blocks take equally long, however fast they are
    if (size > 1 && !shared && !p->blocks) team_report(job->team, me, work_done, now_s() - begin);
}

static void run(Job *job) {
    const Matmul *p = job->p;
    if (p->M <= 0 || p->N <= 0) return;
    job->share = team_shares(job->team);
    if ((double)p->M * (double)p->N * (double)p->K < 200e3)
        member(job, 0, 1); // not worth waking the others
    else
        team_run(job->team, member, job);
}

void matmul(Team *t, const Matmul *p) {
    run(&(Job){.team = t, .p = p});
    if (p->bias_grad) bias_backward(t, p->bias_grad, p->b, p->K, p->N);
}
void matmul_exact(Team *t, const Matmul *p, const MatmulExact *x) {
    run(&(Job){.team = t, .p = p, .exact = x});
}
