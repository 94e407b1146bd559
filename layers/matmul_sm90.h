/* matmul_sm90 -- matmuls by the tensor cores of Hopper (layers/matmul_sm90.cu), one more backend of
 * matmul.cu: bf16 operands, fp32 sums.
 */
#ifndef LAYERS_MATMUL_SM90_H
#define LAYERS_MATMUL_SM90_H

#include "layers/cuda/matmul_configs.h"

/* Local. NULL, or the reason why these kernels do not take p on the calling thread's device.
 * elem_bytes: bytes of an element of the activations. */
const char *matmul_sm90_refuses(const Matmul *p, size_t elem_bytes);
/* Local. Writes the numbers of the configs that can compute p, the likely fastest first
 * (cuda/matmul_configs.h), and returns how many. p is not refused. */
int matmul_sm90_configs(const Matmul *p, int number[MATMUL_CONFIGS]);
/* Local. Computes y = epilogue(a b + bias + addend) and bias_grad of a p that is not refused, by
 * config `number`; 0: by the likely fastest. Equal bits in every run with the same config and the
 * same number of multiprocessors. */
void matmul_sm90(const Matmul *p, int number);

#endif
