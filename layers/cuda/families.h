/* families -- each layers/NAME.cu fills its entries of a table of kernels, for fp32 or bf16
 * activations.
 *
 * The contract of an entry is in layers/NAME.h. On CUDA:
 *   - Act is fp32 or bf16, and strides count elements (layers/act.h); float * is fp32 in both. Sums
 *     are fp32 or better.
 *   - A call is complete in the order of the rank's stream, not when it returns (device.h). It does
 *     not allocate, but for the first matmul of a shape (matmuls.h). It does not wait, except for
 *     sum_of, sum_of_squares and to_floats, whose results are on the host (a step uses sum_to and
 *     squares_to), matmul_choose, and wait_out, once per step. The Team is ignored and may
 *     be NULL.
 *   - No sum depends on the order in which threads run: two runs give the same bits.
 */
#ifndef LAYERS_CUDA_FAMILIES_H
#define LAYERS_CUDA_FAMILIES_H

#include "layers/kernels.h"

/* The families: X(NAME) for each NAME_cuda, which kernels_cuda.c calls. */
#define CUDA_FAMILIES(X)                                                                           \
    X(activation) X(adamw) X(attention) X(classifier) X(embedding) X(move) X(norm) X(matmul) X(rope)
#define CUDA_FAMILY(name) void name##_cuda(Kernels *k, bool bf16);
CUDA_FAMILIES(CUDA_FAMILY)

#endif
