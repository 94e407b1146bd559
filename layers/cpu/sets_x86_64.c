#include "layers/cpu/sets.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const Kernels kernels_cpu_portable, kernels_cpu_avx2, kernels_cpu_avx512,
    kernels_cpu_avx512_bf16, kernels_cpu_avx512_amx;

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
static bool has_avx512_bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
/* CPUID leaf 7, EDX: bit 22 bf16 dot products of tiles, bit 24 tiles. The system saves tiles (bits
 * 17 and 18 of XCR0) only for processes that asked for it: once, before any thread uses tiles. */
static bool has_avx512_amx(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, OSXSAVE = 1 << 27, XCR0_TILES = 3 << 17 };
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; // asm/prctl.h
    static _Thread_local int known;                                 // 0: not yet, 1: no, 2: yes
    unsigned a, b, c, d, low, high;
    if (known) return known == 2;
    known = 1;
    if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & AMX_BF16) || !(d & AMX_TILE)) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & XCR0_TILES) != XCR0_TILES) return false;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0) return false;
    known = 2;
    return true;
}

const CpuSet cpu_sets[] = {{"avx512_amx", &kernels_cpu_avx512_amx, has_avx512_amx},
                           {"avx512_bf16", &kernels_cpu_avx512_bf16, has_avx512_bf16},
                           {"avx512", &kernels_cpu_avx512, has_avx512},
                           {"avx2", &kernels_cpu_avx2, has_avx2},
                           {"portable", &kernels_cpu_portable, always},
                           {0}};
