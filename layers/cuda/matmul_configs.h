/* matmul_configs -- the common part of matmul_sm80.cu and matmul_sm90.cu on the host: which matmuls
 * they take, and the order in which configs for a matmul are tried.
 */
#ifndef LAYERS_CUDA_MATMUL_CONFIGS_H
#define LAYERS_CUDA_MATMUL_CONFIGS_H

#include "layers/cuda/matmul_cost.h"

/* Local, pure. Why neither kernel takes p, or NULL; elem_bytes: bytes of an activation. */
const char *matmul_refuses(const Matmul *p, size_t elem_bytes);

/* Local, pure. Writes the numbers of a kernel's configs for p, the fastest by matmul_cost first:
 * widths of tiles, each kind of schedule, on sm_90 single blocks or clusters of two. Returns how
 * many. p must not be refused. */
enum { MATMUL_CONFIGS = 18 };
int matmul_configs(const Matmul *p, MatmulKernel kernel, const MatmulGpu *g,
                   int number[MATMUL_CONFIGS]);
/* Local. The config `number`, or with 0 the first one of matmul_configs, and its schedule. Dies
 * where the kernel has no such config. */
MatmulSchedule matmul_schedule_of(const Matmul *p, MatmulKernel kernel, const MatmulGpu *g,
                                  int number, MatmulConfig *config);

#endif
