/* The one name that each instruction set exports; the build renames it to kernels_cpu_<set>. */
#include "layers/table.h"

#include "base/simd_block.h"

#define KERNEL_HERE(name) .name = name,

const Kernels kernels_table = {
    .elem_bytes = sizeof(float), .bf16_units = SIMD_BF16, KERNEL_LIST(KERNEL_HERE)};
