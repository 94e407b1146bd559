/* sizes -- what kernels on CUDA need besides their operands: for their launchers, and for plans made where there is no CUDA.
 */
#ifndef LAYERS_CUDA_SIZES_H
#define LAYERS_CUDA_SIZES_H

#include <stdint.h>

/* Of the workspace of a product: what the library may use, and room to align it. */
enum { PRODUCT_WORKSPACE = 32 << 20, WORKSPACE_ALIGN = 256 };

/* Sums over tokens of a norm's backward go by panels of them: enough for every multiprocessor, few enough that their sums
 * are some percent of the rows. */
enum { NORM_PANEL = 16, NORM_PANELS = 512 };
static inline int64_t norm_panel_rows(int64_t T) {
    int64_t rows = (T + NORM_PANELS - 1) / NORM_PANELS;
    if (rows < NORM_PANEL) rows = NORM_PANEL;
    return rows;
}
static inline int64_t norm_panels(int64_t T) {
    return (T + norm_panel_rows(T) - 1) / norm_panel_rows(T);
}

#endif
