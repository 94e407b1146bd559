/* sort -- numbers sorted by keys of some bits, equal keys in the order in which they came: so sums
 * over equal keys have one order. A pass of a radix sort for each 8 bits (LeGrand 2007; Satish,
 * Harris, Garland 2009):
 *
 *     count     each warp counts the digits of its 256 items        counts[digit][warp]
 *     scan      exclusive sums: offsets of a digit follow all smaller digits, those of a warp all
 *               earlier warps
 *     scatter   each warp writes its items, 32 at a time; lanes of one digit in order
 */
#ifndef LAYERS_CUDA_SORT_CUH
#define LAYERS_CUDA_SORT_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/sizes.h"
#include "layers/cuda/vec.cuh"

enum { DIGITS = SORT_DIGITS, SORT_WARPS = 8, SCAN_THREADS = 1024 };

struct SortDigits {
    int of[SORT_WARPS][DIGITS];
};
struct ScanWarps {
    int of[WARP];
};

__device__ __forceinline__ int digit_of(int key, int shift) {
    return key >> shift & (DIGITS - 1);
}

/* A warp's items: 256 from `begin` on, those below n. */
__device__ __forceinline__ int sort_warp() {
    return static_cast<int>(blockIdx.x) * SORT_WARPS + this_warp();
}

static __global__ void sort_count(int *counts, const int *keys, int n, int warps, int shift) {
    auto &count = shared<SortDigits>().of[this_warp()];
    int begin = sort_warp() * SORT_ITEMS;
    for (int d = this_lane(); d < DIGITS; d += WARP) count[d] = 0;
    __syncwarp();
    for (int i = begin + this_lane(); i < begin + SORT_ITEMS && i < n; i += WARP)
        atomicAdd(&count[digit_of(keys[i], shift)], 1);
    __syncwarp();
    for (int d = this_lane(); d < DIGITS && sort_warp() < warps; d += WARP)
        counts[d * warps + sort_warp()] = count[d];
}

/* Each number becomes the sum of those before it. One block: each thread a piece, then the pieces'
 * sums. */
static __global__ void __launch_bounds__(SCAN_THREADS) sort_scan(int *x, int n) {
    auto &sums = shared<ScanWarps>();
    int each = (n + SCAN_THREADS - 1) / SCAN_THREADS, begin = static_cast<int>(threadIdx.x) * each;
    int end = begin + each < n ? begin + each : n, own = 0, lane = this_lane(), before;
    for (int i = begin; i < end; i++) own += x[i];
    int sum = own; // of this thread and those before it in its warp
    for (int d = 1; d < WARP; d *= 2) {
        int other = __shfl_up_sync(static_cast<unsigned>(FULL), sum, static_cast<unsigned>(d));
        if (lane >= d) sum += other;
    }
    if (lane == WARP - 1) sums.of[this_warp()] = sum;
    __syncthreads();
    before = sum - own;
    for (int w = 0; w < this_warp(); w++) before += sums.of[w];
    for (int i = begin; i < end; i++) {
        int here = x[i];
        x[i] = before;
        before += here;
    }
}

static __global__ void sort_scatter(int *keys_to, int *to, const int *places, const int *keys,
                                    const int *from, int n, int warps, int shift) {
    auto &place = shared<SortDigits>().of[this_warp()];
    int begin = sort_warp() * SORT_ITEMS, lane = this_lane();
    for (int d = lane; d < DIGITS && sort_warp() < warps; d += WARP)
        place[d] = places[d * warps + sort_warp()];
    __syncwarp();
    for (int i = begin; i < begin + SORT_ITEMS && i < n; i += WARP) {
        bool there = i + lane < n;
        int key = there ? keys[i + lane] : 0, digit = there ? digit_of(key, shift) : DIGITS;
        unsigned same = __match_any_sync(static_cast<unsigned>(FULL), digit);
        int in_line = __popc(same & ((1u << lane) - 1)), at = there ? place[digit] + in_line : 0;
        if (there) keys_to[at] = key, to[at] = from[i + lane];
        __syncwarp(); // all have read their places
        if (there && in_line == 0) place[digit] += __popc(same);
        __syncwarp();
    }
}

/* Two lists of keys and numbers, of which the first holds what is to be sorted and, afterwards,
 * what is sorted; and counts[DIGITS * warps]. */
struct Sort {
    int *keys[2], *numbers[2], *counts;
    int n, warps;
};

/* The lists change places after each pass, so that what is sorted is in keys[0], numbers[0]. */
inline void launch_sort(Sort &s, int bits) {
    for (int shift = 0; shift < bits; shift += 8) {
        unsigned blocks = blocks_for(s.warps, SORT_WARPS);
        LAUNCH(sort_count, blocks, SORT_WARPS * WARP, 0, s.counts, s.keys[0], s.n, s.warps, shift);
        LAUNCH(sort_scan, 1, SCAN_THREADS, 0, s.counts, DIGITS * s.warps);
        LAUNCH(sort_scatter, blocks, SORT_WARPS * WARP, 0, s.keys[1], s.numbers[1], s.counts,
               s.keys[0], s.numbers[0], s.n, s.warps, shift);
        int *k = s.keys[0], *v = s.numbers[0];
        s.keys[0] = s.keys[1], s.numbers[0] = s.numbers[1];
        s.keys[1] = k, s.numbers[1] = v;
    }
}

#endif
