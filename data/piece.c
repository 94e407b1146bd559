#include "data/piece.h"

#include "base/mem.h"

Piece piece_whole(const Tensor *t, bool transposed) {
    return (Piece){.cols = t->cols, .transposed = transposed};
}

int piece_dims(const Piece *p, const Tensor *t, int64_t dims[2]) {
    dims[0] = p->vector || p->transposed ? p->cols : t->rows;
    dims[1] = p->vector ? 1 : p->transposed ? t->rows : p->cols;
    return p->vector ? 1 : 2;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- along the rows ---- */

/* All rows of a piece: put to f, or, where f is NULL, got. */
static bool rows(const PieceHeld *h, IoFile *f, const SafeTensor *s, Err *e) {
    const Piece *p = h->piece;
    TensorRect r;
    for (TensorRuns i = tensor_runs(h->tensor, h->part, f != NULL); tensor_next_rect(&i, &r);) {
        int64_t from = most(r.col, p->col), n = least(r.col + r.cols, p->col + p->cols) - from;
        int64_t first = r.row * p->cols + from - p->col, at = r.at + from - r.col;
        int64_t ld = h->tensor->local_cols;
        // rows that follow one another in the file and in memory are one stretch
        if (n == p->cols && n == ld) n *= r.rows, r.rows = 1;
        for (int64_t k = 0; k < r.rows && n > 0; k++) {
            float *values = h->values + at + k * ld;
            if (!f)
                safetensors_get(s, first + k * p->cols, n, values);
            else if (!safetensors_put(f, s, first + k * p->cols, n, values, e))
                return false;
        }
    }
    return true;
}

/* ---- along the columns ---- */

/* Tiles of 16 columns: 16 streams in step, each line of memory touched once. */
enum { TILE = 16 };

/* Columns [col, col + n) of a rectangle, counted in it, and a panel[n, rect->rows] for their
 * transpose. */
typedef struct Tile {
    const PieceHeld *held;
    const TensorRect *rect;
    int64_t col, n;
    float *panel;
} Tile;

/* Column j of the tile: its rows [*begin, *end) of the rectangle are in this rank's part, which is
 * flat. */
static void stored_rows(const Tile *x, int64_t j, int64_t *begin, int64_t *end) {
    const Tensor *t = x->held->tensor;
    int64_t at = x->rect->at + x->col + j, step = t->local_cols, up = step - 1;
    *begin = most(t->begin[x->held->part] - at + up, 0) / step;
    *end = least(most(t->end[x->held->part] - at + up, 0) / step, x->rect->rows);
}

/* Where the stored rows of column j are in the file. */
static int64_t file_index(const Tile *x, int64_t j, int64_t row) {
    const Piece *p = x->held->piece;
    return (x->rect->col + x->col + j - p->col) * x->held->tensor->rows + x->rect->row + row;
}

static void transpose(const Tile *x, bool to_panel) {
    const Tensor *t = x->held->tensor;
    TensorPart part = x->held->part;
    int64_t begin, end, none;
    stored_rows(x, x->n - 1, &begin, &none); // the last column begins first,
    stored_rows(x, 0, &none, &end);          // the first one ends last
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < x->n; j++) {
            int64_t at = x->rect->at + i * t->local_cols + x->col + j;
            if (at < t->begin[part] || at >= t->end[part]) continue;
            float *value = &x->held->values[at - t->begin[part]];
            float *slot = &x->panel[j * x->rect->rows + i];
            *(to_panel ? slot : value) = *(to_panel ? value : slot);
        }
}

static bool put_tile(const Tile *x, IoFile *f, const SafeTensor *to, Err *e) {
    transpose(x, true);
    for (int64_t j = 0, begin, end; j < x->n; j++) {
        stored_rows(x, j, &begin, &end);
        const float *from = x->panel + j * x->rect->rows + begin;
        if (begin < end && !safetensors_put(f, to, file_index(x, j, begin), end - begin, from, e))
            return false;
    }
    return true;
}

static void get_tile(const Tile *x, const SafeTensor *from) {
    for (int64_t j = 0, begin, end; j < x->n; j++) {
        stored_rows(x, j, &begin, &end);
        float *to = x->panel + j * x->rect->rows + begin;
        if (begin < end) safetensors_get(from, file_index(x, j, begin), end - begin, to);
    }
    transpose(x, false);
}

/* All tiles of a piece: put to f, or, where f is NULL, got. */
static bool columns(const PieceHeld *h, IoFile *f, const SafeTensor *s, Err *e) {
    const Piece *p = h->piece;
    const Tensor *t = h->tensor;
    bool ok = true;
    for (int k = 0; k < t->n_rects && ok; k++) {
        const TensorRect *r = &t->rects[k];
        if (f && !(r->first && t->first[h->part])) continue;
        float *panel = mem_alloc((size_t)(TILE * r->rows) * sizeof *panel);
        int64_t end = least(r->cols, p->col + p->cols - r->col);
        for (int64_t j = most(0, p->col - r->col); j < end && ok; j += TILE) {
            Tile x = {h, r, j, least(TILE, end - j), panel};
            if (f)
                ok = put_tile(&x, f, s, e);
            else
                get_tile(&x, s);
        }
        mem_free(panel);
    }
    return ok;
}

/* ---- both ---- */

bool piece_put(const PieceHeld *h, IoFile *f, const SafeTensor *to, Err *e) {
    return (h->piece->transposed ? columns : rows)(h, f, to, e);
}

void piece_get(const PieceHeld *h, const SafeTensor *from) {
    (h->piece->transposed ? columns : rows)(h, NULL, from, NULL);
}
