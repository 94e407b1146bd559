/* A build without CUDA. */
#include "layers/kernels.h"

const Kernels *kernels_cuda(bool bf16) {
    (void)bf16;
    return NULL;
}
