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
        // rows that follow one another in the file and in memory are one range
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

/* values[rows, n], ld apart, and panel[n, rows]: their transpose. */
static void transpose(float *values, float *panel, int64_t rows, int64_t n, int64_t ld,
                      bool to_panel) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            float *value = &values[i * ld + j], *slot = &panel[j * rows + i];
            *(to_panel ? slot : value) = *(to_panel ? value : slot);
        }
}

/* The same for a piece that is transposed. */
static bool columns(const PieceHeld *h, IoFile *f, const SafeTensor *s, Err *e) {
    enum { TILE = 16 }; // columns: 16 streams in step, each line of memory touched once
    const Piece *p = h->piece;
    const Tensor *t = h->tensor;
    TensorRect r;
    bool ok = true;
    for (TensorRuns i = tensor_runs(t, h->part, f != NULL); ok && tensor_next_rect(&i, &r);) {
        float *panel = mem_alloc((size_t)(TILE * r.rows) * sizeof *panel);
        int64_t end = least(r.cols, p->col + p->cols - r.col);
        for (int64_t j = most(0, p->col - r.col); j < end && ok; j += TILE) {
            int64_t n = least(TILE, end - j), first = (r.col + j - p->col) * t->rows + r.row;
            float *values = h->values + r.at + j;
            if (f) transpose(values, panel, r.rows, n, t->local_cols, true);
            for (int64_t k = 0; k < n && ok; k++)
                if (f)
                    ok = safetensors_put(f, s, first + k * t->rows, r.rows, panel + k * r.rows, e);
                else
                    safetensors_get(s, first + k * t->rows, r.rows, panel + k * r.rows);
            if (!f) transpose(values, panel, r.rows, n, t->local_cols, false);
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
