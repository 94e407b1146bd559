#include "data/slice.h"

#include "base/mem.h"
#include "base/minmax.h"

TensorSlice slice_whole(const Tensor *t, bool transposed) {
    return (TensorSlice){.cols = t->cols, .transposed = transposed};
}

int slice_dims(const TensorSlice *p, const Tensor *t, int64_t dims[2]) {
    dims[0] = p->vector || p->transposed ? p->cols : t->rows;
    dims[1] = p->vector ? 1 : p->transposed ? t->rows : p->cols;
    return p->vector ? 1 : 2;
}

/* ---- along the rows ---- */

/* Moves a slice that is not transposed between values and the file: writes to f; where f is NULL,
 * reads s. */
static bool move_rows(const LocalSlice *h, IoFile *f, const SafeTensor *s, Err *e) {
    const TensorSlice *p = h->slice;
    TensorRect r;
    for (TensorRuns i = tensor_runs(h->tensor, h->part, f != NULL); tensor_next_rect(&i, &r);) {
        // columns [from, from + n) are those of both the rectangle and the slice; `first` is their
        // element in the file, `at` in values
        int64_t from = max_i64(r.col, p->col), n = min_i64(r.col + r.cols, p->col + p->cols) - from;
        int64_t first = r.row * p->cols + from - p->col, at = r.offset + from - r.col;
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

/* Transposes values[rows, n], rows ld apart, into panel[n, rows] (to_panel), or back. */
static void transpose(float *values, float *panel, int64_t rows, int64_t n, int64_t ld,
                      bool to_panel) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            float *value = &values[i * ld + j], *slot = &panel[j * rows + i];
            *(to_panel ? slot : value) = *(to_panel ? value : slot);
        }
}

/* As move_rows, for a transposed slice: through a panel of TILE columns. */
static bool move_columns(const LocalSlice *h, IoFile *f, const SafeTensor *s, Err *e) {
    // columns of a panel: 16 floats are one cache line of a row, so each line is touched once
    enum { TILE = 16 };
    const TensorSlice *p = h->slice;
    const Tensor *t = h->tensor;
    TensorRect r;
    bool ok = true;
    for (TensorRuns i = tensor_runs(t, h->part, f != NULL); ok && tensor_next_rect(&i, &r);) {
        float *panel = mem_alloc((size_t)(TILE * r.rows) * sizeof *panel);
        int64_t end = min_i64(r.cols, p->col + p->cols - r.col);
        for (int64_t j = max_i64(0, p->col - r.col); j < end && ok; j += TILE) {
            int64_t n = min_i64(TILE, end - j), first = (r.col + j - p->col) * t->rows + r.row;
            float *values = h->values + r.offset + j;
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

bool slice_put(const LocalSlice *h, IoFile *f, const SafeTensor *to, Err *e) {
    return (h->slice->transposed ? move_columns : move_rows)(h, f, to, e);
}

void slice_get(const LocalSlice *h, const SafeTensor *from) {
    (h->slice->transposed ? move_columns : move_rows)(h, NULL, from, NULL);
}
