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
enum { SORT_STEPS = SORT_ITEMS / WARP, SCAN_STEP = 4 * WARP }; // items of a lane; of a warp at once

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
    int key[SORT_STEPS]; // all on their way at once
#pragma unroll
    for (int j = 0; j < SORT_STEPS; j++) {
        int i = begin + j * WARP + this_lane();
        key[j] = i < n ? keys[i] : 0;
    }
#pragma unroll
    for (int j = 0; j < SORT_STEPS; j++)
        if (begin + j * WARP + this_lane() < n) atomicAdd(&count[digit_of(key[j], shift)], 1);
    __syncwarp();
    for (int d = this_lane(); d < DIGITS && sort_warp() < warps; d += WARP)
        counts[d * warps + sort_warp()] = count[d];
}

/* The sum over the lanes up to this one. */
static __device__ __forceinline__ int scan_warp(int x) {
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) {
        int other = __shfl_up_sync(static_cast<unsigned>(FULL), x, static_cast<unsigned>(d));
        if (this_lane() >= d) x += other;
    }
    return x;
}

/* Each number becomes the sum of those before it. One block: each warp a piece, twice over it, four
 * numbers of a lane beside those of the next. n is a multiple of SCAN_STEP. */
static __global__ void __launch_bounds__(SCAN_THREADS) sort_scan(int *x, int n) {
    auto &sums = shared<ScanWarps>();
    int steps = n / SCAN_STEP, each = (steps + WARP - 1) / WARP, begin = this_warp() * each;
    int end = begin + each < steps ? begin + each : steps, own = 0, before = 0;
    auto *words = reinterpret_cast<Words<int, 4> *>(x) + this_lane();
#pragma unroll 8
    for (int i = begin; i < end; i++) {
        Words<int, 4> w = words[i * WARP];
        own += w.at[0] + w.at[1] + w.at[2] + w.at[3];
    }
    own = scan_warp(own);
    if (this_lane() == WARP - 1) sums.of[this_warp()] = own;
    __syncthreads();
    for (int w = 0; w < this_warp(); w++) before += sums.of[w];
#pragma unroll 4
    for (int i = begin; i < end; i++) {
        Words<int, 4> w = words[i * WARP];
        int of_lane = w.at[0] + w.at[1] + w.at[2] + w.at[3], upto = scan_warp(of_lane);
        int at = before + upto - of_lane;
        before += __shfl_sync(static_cast<unsigned>(FULL), upto, WARP - 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int here = w.at[j];
            w.at[j] = at;
            at += here;
        }
        words[i * WARP] = w;
    }
}

static __global__ void sort_scatter(int *keys_to, int *to, const int *places, const int *keys,
                                    const int *from, int n, int warps, int shift) {
    auto &place = shared<SortDigits>().of[this_warp()];
    int begin = sort_warp() * SORT_ITEMS, lane = this_lane();
    for (int d = lane; d < DIGITS && sort_warp() < warps; d += WARP)
        place[d] = places[d * warps + sort_warp()];
    __syncwarp();
    int key[SORT_STEPS], number[SORT_STEPS]; // all on their way at once
#pragma unroll
    for (int j = 0; j < SORT_STEPS; j++) {
        int i = begin + j * WARP + lane;
        key[j] = i < n ? keys[i] : 0, number[j] = i < n ? from[i] : 0;
    }
#pragma unroll
    for (int j = 0; j < SORT_STEPS; j++) {
        bool there = begin + j * WARP + lane < n;
        int digit = there ? digit_of(key[j], shift) : DIGITS;
        unsigned same = __match_any_sync(static_cast<unsigned>(FULL), digit);
        int in_line = __popc(same & ((1u << lane) - 1)), at = there ? place[digit] + in_line : 0;
        if (there) keys_to[at] = key[j], to[at] = number[j];
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
