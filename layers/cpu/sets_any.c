#include "layers/cpu/sets.h"

extern const Kernels kernels_cpu_portable;

static bool always(void) {
    return true;
}

const CpuSet cpu_sets[] = {{"portable", &kernels_cpu_portable, always}, {0}};
