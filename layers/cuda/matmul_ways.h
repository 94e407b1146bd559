/* matmul_ways -- what matmul_sm80.cu and matmul_sm90.cu have in common on the host: which matmuls
 * they take, the order of the ways to compute one.
 */
#ifndef LAYERS_CUDA_MATMUL_WAYS_H
#define LAYERS_CUDA_MATMUL_WAYS_H

#include "layers/cuda/matmul_cost.h"

/* Local, pure. NULL, or why none of them takes p; elem_bytes: bytes of an element of its
 * activations. */
const char *matmul_refuses(const Product *p, size_t elem_bytes);

/* Local, pure. The numbers of the ways of a kernel to compute p, the likely fastest first: widths
 * of tiles, each kind of schedule, on sm_90 alone or in clusters of two. How many; p is not
 * refused. */
enum { MATMUL_WAYS = 18 };
int matmul_ways(const Product *p, MatmulKernel kernel, const MatmulGpu *g, int number[MATMUL_WAYS]);
/* Local. The schedule of way `number` or, 0, of the likely fastest, and the way. Dies where the
 * kernel has no such way. */
MatmulSchedule matmul_schedule_of(const Product *p, MatmulKernel kernel, const MatmulGpu *g,
                                  int number, MatmulWay *way);

#endif
