#include "layers/cpu/sets.h"

#include <cpuid.h>

extern const Kernels kernels_cpu_portable, kernels_cpu_avx2, kernels_cpu_avx512,
    kernels_cpu_avx512_bf16;

static bool always(void) {
    return true;
}
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool has_avx512_bf16(void) { // leaf 7, sub-leaf 1, EAX bit 5
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

const CpuSet cpu_sets[] = {{"avx512_bf16", &kernels_cpu_avx512_bf16, has_avx512_bf16},
                           {"avx512", &kernels_cpu_avx512, has_avx512},
                           {"avx2", &kernels_cpu_avx2, has_avx2},
                           {"portable", &kernels_cpu_portable, always},
                           {0}};
