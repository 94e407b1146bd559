#include "layers/peak.h"

#include <stdint.h>

#include "base/clock.h"
#include "base/simd_block.h"

enum {
    CHAINS = 24,
    TURNS = 1 << 19,
    ROUNDS = 3
}; // chains hide the latency of 4 to 5 cycles on two units

typedef struct PeakJob {
    volatile float sink; // keeps the loops
} PeakJob;

static void spin_fp32(void *ctx, int member, int size) {
    PeakJob *j = ctx;
    vf acc[CHAINS], sum = vf_zero(), a = vf_set1(0.999f), b = vf_set1(1e-3f);
    (void)size;
    for (int i = 0; i < CHAINS; i++) acc[i] = vf_set1((float)i); // equal chains would be merged
    for (int turn = 0; turn < TURNS; turn++)
#pragma GCC unroll 24
        for (int i = 0; i < CHAINS; i++) acc[i] = vf_fma(acc[i], a, b);
    for (int i = 0; i < CHAINS; i++) sum += acc[i];
    if (member == 0) j->sink = vf_sum(sum);
}

static void spin_bf16(void *ctx, int member, int size) {
    PeakJob *j = ctx;
    vf acc[CHAINS], sum = vf_zero(), a = vf_set1(0.999f), b = vf_set1(1e-3f);
    (void)size;
    for (int i = 0; i < CHAINS; i++) acc[i] = vf_set1((float)i); // equal chains would be merged
    for (int turn = 0; turn < TURNS; turn++)
#pragma GCC unroll 24
        for (int i = 0; i < CHAINS; i++) acc[i] = vf_dot2(a, b, acc[i]);
    for (int i = 0; i < CHAINS; i++) sum += acc[i];
    if (member == 0) j->sink = vf_sum(sum);
}

double peak(Team *t, bool bf16) {
    PeakJob j = {0};
    bool pairs = bf16 && SIMD_BF16;
    double best = 0, flops = (pairs ? 4.0 : 2.0) * VF * CHAINS * (double)TURNS * team_size(t);
    for (int round = 0; round < ROUNDS; round++) {
        double t0 = now_s();
        team_run(t, pairs ? spin_bf16 : spin_fp32, &j);
        double rate = flops / (now_s() - t0);
        if (rate > best) best = rate;
    }
    return best;
}
