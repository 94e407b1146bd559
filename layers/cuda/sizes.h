/* sizes -- sizes of workspaces of CUDA kernels: for their launchers, and for plans that are made
 * without CUDA.
 */
#ifndef LAYERS_CUDA_SIZES_H
#define LAYERS_CUDA_SIZES_H

#include <stddef.h>
#include <stdint.h>

/* The workspace of a matmul: bytes that the library may use, and its alignment. */
enum { MATMUL_WORKSPACE = 32 << 20, WORKSPACE_ALIGN = 256 };

/* Backward of a norm sums over tokens by panels. The panels are enough for every multiprocessor,
 * and so few that their sums are some percent of the bytes of the rows. */
enum { NORM_PANEL = 16, NORM_PANELS = 512 };
static inline int64_t norm_panel_rows(int64_t T) {
    int64_t rows = (T + NORM_PANELS - 1) / NORM_PANELS;
    if (rows < NORM_PANEL) rows = NORM_PANEL;
    return rows;
}
static inline int64_t norm_panels(int64_t T) {
    return (T + norm_panel_rows(T) - 1) / norm_panel_rows(T);
}

/* Rows of the statistics that backward of attention keeps, two numbers per row: whole tiles. */
enum { ATTENTION_ROWS = 64 };
static inline int64_t attention_rows(int64_t S) {
    return (S + ATTENTION_ROWS - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
}

/* Workspace of the embedding's backward: for each chunk of sorted tokens two partial sums of C
 * floats (embedding.cu). */
enum { EMBEDDING_CHUNK = 32 };
static inline size_t embedding_bytes(int64_t T, int64_t C) {
    int64_t chunks = (T + EMBEDDING_CHUNK - 1) / EMBEDDING_CHUNK;
    return (size_t)(chunks * 2 * C) * sizeof(float);
}

#endif
