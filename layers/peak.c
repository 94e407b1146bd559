#include "layers/peak.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/simd_block.h"

enum {
    // Chains hide the latency of a multiply-add: at least 10 in AVX2 (5 cycles, 2 units), 14 where
    // it is not fused (7 cycles), 16 in aarch64 (4 cycles, 4 units). With their two operands they
    // fit in the registers: a spilled chain would wait for memory.
    CHAINS = VF_REGISTERS == 32 ? 24 : 14,
    TURNS = 4096 * 24 / CHAINS, // iterations of a burst, about 40 us
    TILE_TURNS = 2048,          // of a burst of tiles, likewise
    LEAST = 64,                 // least bursts of a member
    MOST = 4096,                // most bursts of a member
};
static const double least_s = 10e-3; // least time of a member's bursts

typedef struct PeakJob {
    Team *team;
    float (*spin)(void);
    double flops;     // FLOPs of one call of spin
    double sum;       // of the members' rates
    double cpu_share; // the least Peak.cpu_share of the members so far
} PeakJob;

/* One burst. Returns a number that depends on every chain, so that the compiler removes none. */
static inline __attribute__((always_inline)) float spin(bool pairs) {
    vf acc[CHAINS], sum = vf_zero(), a = vf_set1(0.999f), b = vf_set1(1e-3f);
    // compilers merge equal chains and fold constant ones (that begin at b / (1 - a) = 1)
#pragma GCC unroll 24
    for (int i = 0; i < CHAINS; i++) acc[i] = vf_set1(1.5f + (float)i);
    for (int turn = 0; turn < TURNS; turn++)
#pragma GCC unroll 24
        for (int i = 0; i < CHAINS; i++)
            acc[i] = pairs ? vf_dot2(a, b, acc[i]) : vf_fma(acc[i], a, b);
#pragma GCC unroll 24
    for (int i = 0; i < CHAINS; i++) sum += acc[i];
    return vf_sum(sum);
}
/* The same in tile registers: four chains hide 52 cycles of latency where one tile_dot takes 16. */
static __attribute__((noinline)) float spin_tiles(void) {
    float x[TILE_SIDE * TILE_SIDE];
    for (int i = 0; i < TILE_SIDE * TILE_SIDE; i++) x[i] = 1e-3f * (float)(i + 1);
    tiles_begin();
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_load(4, x, TILE_SIDE);
    tile_load(5, x, TILE_SIDE);
    for (int turn = 0; turn < TILE_TURNS; turn++) {
        tile_dot(0, 4, 5);
        tile_dot(1, 4, 5);
        tile_dot(2, 4, 5);
        tile_dot(3, 4, 5);
    }
    tile_store(0, x, TILE_SIDE);
    tiles_end();
    return x[0];
}
static const double tile_flops = 4.0 * TILE_SIDE * TILE_SIDE * TILE_SIDE; // FLOPs of a tile_dot

static __attribute__((noinline)) float spin_fp32(void) {
    return spin(false);
}
static __attribute__((noinline)) float spin_pairs(void) {
    return spin(true);
}

static int by_size(const void *a, const void *b) {
    const float *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* One member times its bursts, while all others do; then the members add their rates in turn. */
static void member(void *ctx, int me, int size) {
    PeakJob *j = ctx;
    float burst_s[MOST];
    volatile float sink;
    int n = 0;
    team_barrier(j->team);
    double begin = now_s(), computed = clock_s(CLOCK_THREAD_CPUTIME_ID), end = begin;
    while (n < MOST && (n < LEAST || end < begin + least_s)) {
        double start = now_s();
        sink = j->spin();
        end = now_s();
        burst_s[n++] = (float)(end - start);
    }
    (void)sink;
    double cpu_share = (clock_s(CLOCK_THREAD_CPUTIME_ID) - computed) / (end - begin);
    qsort(burst_s, (size_t)n, sizeof *burst_s, by_size);
    for (int i = 0; i < size; i++, team_barrier(j->team)) {
        if (i != me) continue;
        // other programs make bursts longer, perhaps more than half of them: the lower quartile
        j->sum += j->flops / (double)burst_s[n / 4];
        if (cpu_share < j->cpu_share) j->cpu_share = cpu_share;
    }
}

Peak peak(Team *t, bool bf16) {
    bool pairs = bf16 && SIMD_BF16, tiles = bf16 && SIMD_TILES;
    PeakJob j = {.team = t,
                 .spin = tiles   ? spin_tiles
                         : pairs ? spin_pairs
                                 : spin_fp32,
                 .flops = tiles ? 4 * TILE_TURNS * tile_flops
                                : (pairs ? 4.0 : 2.0) * VF * CHAINS * TURNS,
                 .cpu_share = 1};
    team_run(t, member, &j);
    return (Peak){j.sum / team_size(t), j.cpu_share};
}
