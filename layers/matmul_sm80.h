/* matmul_sm80 -- matmuls by the tensor cores of Ampere and later (layers/matmul_sm80.cu). The
 * functions have the contracts of those of matmul_sm90.h, which are preferred where they take p.
 */
#ifndef LAYERS_MATMUL_SM80_H
#define LAYERS_MATMUL_SM80_H

#include "layers/cuda/matmul_configs.h"

const char *matmul_sm80_refuses(const Matmul *p, size_t elem_bytes);
int matmul_sm80_configs(const Matmul *p, int number[MATMUL_CONFIGS]);
void matmul_sm80(const Matmul *p, int number);

#endif
