/* panels -- the second half of a sum over tokens: blocks have written the sums of their panels of
 * tokens, sums[panels, n]. Here the panels are added, in an order that depends on their number
 * alone.
 *
 *     warp w of 32 adds panels w, w + 32, ... of 32 columns; then the 32 warps are added in order
 *
 * The panels are some percent of the bytes of the summands, so the time is short as long as the
 * loads do not form one long chain.
 */
#ifndef LAYERS_CUDA_PANELS_CUH
#define LAYERS_CUDA_PANELS_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/vec.cuh"

struct PanelColumns {
    float of[WARP][WARP];
};

enum { PANELS_AT_ONCE = 16 }; // panels that a warp loads at once: all of norm's

/* a[0 .. n_a) += the sums of the first n_a columns, b[0 .. n - n_a) += those of the others; b may
 * be NULL. */
static __global__ void __launch_bounds__(1024)
    add_panels(float *a, float *b, const float *sums, int panels, int64_t n, int64_t n_a) {
    auto &columns = shared<PanelColumns>();
    int lane = this_lane(), warp = this_warp();
    int64_t i = static_cast<int64_t>(blockIdx.x) * WARP + lane;
    float s = 0;
    for (int p0 = warp; p0 < panels; p0 += PANELS_AT_ONCE * WARP) {
        float v[PANELS_AT_ONCE]; // all loads are in flight at once; 0 beyond the last panel
#pragma unroll
        for (int j = 0; j < PANELS_AT_ONCE; j++) {
            int p = p0 + j * WARP;
            v[j] = i < n && p < panels ? sums[p * n + i] : 0;
        }
#pragma unroll
        for (int j = 0; j < PANELS_AT_ONCE; j++) s += v[j];
    }
    columns.of[warp][lane] = s;
    __syncthreads();
    if (warp > 0 || i >= n) return;
    s = 0;
    for (int w = 0; w < WARP; w++) s += columns.of[w][lane];
    if (i < n_a)
        a[i] += s;
    else if (b)
        b[i - n_a] += s;
}

inline void launch_add_panels(float *a, float *b, const float *sums, unsigned panels, int64_t n,
                              int64_t n_a) {
    LAUNCH(add_panels, blocks_for(n, WARP), WARP * WARP, 0, a, b, sums, static_cast<int>(panels), n,
           n_a);
}

#endif
