/* sums -- a sum of many floats in double, in two steps whose order depends on the number of terms
 * and their alignment: one block per panel of terms, then one block for all panels. Bound by
 * memory: 4 bytes per term. */
#ifndef LAYERS_CUDA_SUMS_CUH
#define LAYERS_CUDA_SUMS_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/vec.cuh"

enum { SUM_THREADS = 256, SUM_PANELS = 1024 };

struct SumWarps {
    double of[SUM_THREADS / WARP];
};

/* The sum over the block; only thread 0 gets it. */
static __device__ double block_sum_double(double x) {
    auto &s = shared<SumWarps>();
    for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(static_cast<unsigned>(FULL), x, d);
    if (this_lane() == 0) s.of[this_warp()] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < SUM_THREADS / WARP && threadIdx.x == 0; w++) x += s.of[w];
    return x;
}

struct Itself {
    __device__ static double of(float x) { return static_cast<double>(x); }
};
struct Squared {
    __device__ static double of(float x) { return static_cast<double>(x) * static_cast<double>(x); }
};

/* Terms that are contiguous, or lie in rows of `cols` floats, `ld` apart: the division for W terms
 * overlaps with their loads. */
struct Terms {
    const float *x;
    __device__ const float *at(int64_t i) const { return x + i; }
};
struct TermRows {
    const float *x;
    int64_t ld, cols;
    __device__ const float *at(int64_t i) const { return x + i / cols * ld + i % cols; }
};

/* The sums of the panels. Threads take W terms at a time, in turn. A panel is a multiple of W *
 * SUM_THREADS terms, and a row a multiple of W. */
template <class Term, int W, class Where>
__global__ void sum_panels(double *sums, Where x, int64_t n, int64_t panel) {
    int64_t begin = blockIdx.x * panel, end = begin + panel < n ? begin + panel : n;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x * W; i < end; i += SUM_THREADS * W) {
        if (i + W <= end) {
            float v[W];
            load<float, W>(v, x.at(i));
#pragma unroll
            for (int j = 0; j < W; j++) sum += Term::of(v[j]);
        } else {
            for (int64_t j = i; j < end; j++) sum += Term::of(*x.at(j));
        }
    }
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

static __global__ void sum_of_panels(double *sum, const double *sums, int panels, bool add) {
    double s = 0;
    for (int p = static_cast<int>(threadIdx.x); p < panels; p += SUM_THREADS) s += sums[p];
    s = block_sum_double(s);
    if (threadIdx.x == 0) *sum = add ? *sum + s : s;
}

/* *sum, in device memory, = the sum over n terms; with add +=. whole: terms may be loaded four at a
 * time. */
template <class Term, class Where>
void launch_sum_of(double *sum, Where x, int64_t n, bool whole, bool add) {
    const int64_t grain = 4 * SUM_THREADS * 4;
    int64_t panel = ((n + SUM_PANELS - 1) / SUM_PANELS + grain - 1) / grain * grain;
    unsigned panels = n > 0 ? blocks_for(n, panel) : 0;
    auto *sums = static_cast<double *>(device_scratch(SUM_PANELS * sizeof(double)));
    if (panels)
        by_words<float>(whole, [&](auto w) {
            LAUNCH((sum_panels<Term, w, Where>), panels, SUM_THREADS, 0, sums, x, n, panel);
        });
    LAUNCH(sum_of_panels, 1, SUM_THREADS, 0, sum, sums, static_cast<int>(panels), add);
}
template <class Term> void launch_sum(double *sum, const float *x, int64_t n, bool add) {
    launch_sum_of<Term>(sum, Terms{x}, n, whole_words<float>(x, 0), add);
}

/* The sum for the host, which waits for it. */
template <class Term> double wait_for_sum(const float *x, int64_t n) {
    double sum;
    auto *on_device =
        static_cast<double *>(device_scratch((SUM_PANELS + 1) * sizeof(double))) + SUM_PANELS;
    launch_sum<Term>(on_device, x, n, false);
    device_get(&sum, on_device, sizeof sum);
    device_wait();
    return sum;
}

#endif
