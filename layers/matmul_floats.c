#include "layers/matmul_rows.h"

static inline __attribute__((always_inline)) void multiply_any(int rows, const Tile *t) {
    // a constant where columns stay: the compiler then leaves those loops out
    bool by_rows = !COLUMNS_STAY && t->a_by_rows;
    if (t->raw && by_rows)
        multiply_rows(false, true, A_BY_ROWS, rows, t);
    else if (t->raw)
        multiply_rows(false, true, A_BY_STEPS, rows, t);
    else if (t->raw_a)
        multiply_rows(false, false, A_RAW, rows, t);
    else if (by_rows)
        multiply_rows(false, false, A_BY_ROWS, rows, t);
    else
        multiply_rows(false, false, A_BY_STEPS, rows, t);
}

EACH_ROWS(multiply_any);

void tile_multiply_floats(const Tile *t) {
    MULTIPLY(multiply_any, t);
}
