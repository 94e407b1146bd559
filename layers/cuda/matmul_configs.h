/* matmul_configs -- what matmul_sm80.cu and matmul_sm90.cu have in common on the host: which
 * matmuls they take, the order of the configs to compute one.
 */
#ifndef LAYERS_CUDA_MATMUL_CONFIGS_H
#define LAYERS_CUDA_MATMUL_CONFIGS_H

#include "layers/cuda/matmul_cost.h"

/* Local, pure. NULL, or why none of them takes p; elem_bytes: bytes of an element of its
 * activations. */
const char *matmul_refuses(const Matmul *p, size_t elem_bytes);

/* Local, pure. The numbers of the configs of a kernel to compute p, the likely fastest first:
 * widths of tiles, each kind of schedule, on sm_90 alone or in clusters of two. How many; p is not
 * refused. */
enum { MATMUL_CONFIGS = 18 };
int matmul_configs(const Matmul *p, MatmulKernel kernel, const MatmulGpu *g,
                   int number[MATMUL_CONFIGS]);
/* Local. The schedule of config `number` or, 0, of the likely fastest, and the config. Dies where
 * the kernel has no such config. */
MatmulSchedule matmul_schedule_of(const Matmul *p, MatmulKernel kernel, const MatmulGpu *g,
                                  int number, MatmulConfig *config);

#endif
