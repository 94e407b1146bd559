/* sizes -- what kernels on CUDA need besides their operands: for their launchers, and for plans
 * made where there is no CUDA.
 */
#ifndef LAYERS_CUDA_SIZES_H
#define LAYERS_CUDA_SIZES_H

#include <stddef.h>
#include <stdint.h>

/* Of the workspace of a matmul: what the library may use, and room to align it. */
enum { MATMUL_WORKSPACE = 32 << 20, WORKSPACE_ALIGN = 256 };

/* Sums over tokens of a norm's backward go by panels of them: enough for every multiprocessor, few
 * enough that their sums are some percent of the rows. */
enum { NORM_PANEL = 16, NORM_PANELS = 512 };
static inline int64_t norm_panel_rows(int64_t T) {
    int64_t rows = (T + NORM_PANELS - 1) / NORM_PANELS;
    if (rows < NORM_PANEL) rows = NORM_PANEL;
    return rows;
}
static inline int64_t norm_panels(int64_t T) {
    return (T + norm_panel_rows(T) - 1) / norm_panel_rows(T);
}

/* Backward of attention knows two numbers of each row, in whole tiles; at least one where there are
 * no tiles. */
enum { ATTENTION_ROWS = 64 };
static inline int64_t attention_rows(int64_t S) {
    return (S + ATTENTION_ROWS - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
}

/* Gradients of the embedding: the ends of the runs of each chunk of sorted tokens, rows of C
 * floats. */
enum { EMBEDDING_CHUNK = 32 };
static inline size_t embedding_bytes(int64_t T, int64_t C) {
    int64_t chunks = (T + EMBEDDING_CHUNK - 1) / EMBEDDING_CHUNK;
    return (size_t)(chunks * 2 * C) * sizeof(float);
}

#endif
