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

/* A sort of T tokens: keys and numbers twice, each list aligned, and what its warps count of each
 * digit. */
enum { SORT_DIGITS = 256, SORT_ITEMS = 256 };
static inline int64_t sort_warps(int64_t T) {
    return (T + SORT_ITEMS - 1) / SORT_ITEMS;
}
static inline int64_t sort_list(int64_t T) {
    return (T + 3) / 4 * 4;
}

/* Gradients of the embedding: a sort, and the ends of the runs of each chunk of sorted tokens, rows
 * of C floats. */
enum { EMBEDDING_CHUNK = 32 };
static inline int64_t embedding_chunks(int64_t T) {
    return (T + EMBEDDING_CHUNK - 1) / EMBEDDING_CHUNK;
}
static inline size_t embedding_bytes(int64_t T, int64_t C) {
    return (size_t)(4 * sort_list(T) + SORT_DIGITS * sort_warps(T)) * sizeof(int32_t) +
           (size_t)(embedding_chunks(T) * 2 * C) * sizeof(float);
}

#endif
