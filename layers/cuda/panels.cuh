/* panels -- the second half of a sum over tokens: blocks have left sums of their panels of tokens,
 * sums[panels, n], and these are added in an order that depends on their number alone.
 *
 *     warp w of 32 adds panels w, w + 32, ... of 32 columns; then the 32 warps are added in order
 *
 * The panels are some percent of what was summed, so this is short; it must only not be one long
 * chain of loads. */
#ifndef LAYERS_CUDA_PANELS_CUH
#define LAYERS_CUDA_PANELS_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/vec.cuh"

struct PanelColumns {
    float of[WARP][WARP];
};

enum { PANELS_AT_ONCE = 16 }; // panels of a warp: all there are of norm's

/* a[0 .. n_a) += the first n_a columns, b[0 .. n - n_a) += the others; b may be NULL. */
static __global__ void __launch_bounds__(1024)
    add_panels(float *a, float *b, const float *sums, int panels, int64_t n, int64_t n_a) {
    auto &columns = shared<PanelColumns>();
    int lane = this_lane(), warp = this_warp();
    int64_t i = static_cast<int64_t>(blockIdx.x) * WARP + lane;
    float s = 0;
    for (int p0 = warp; p0 < panels; p0 += PANELS_AT_ONCE * WARP) {
        float v[PANELS_AT_ONCE]; // all on their way at once, 0 behind the last panel
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
