/* matmul_ways -- what matmul_sm80.cu and matmul_sm90.cu have in common on the host: which matmuls
 * they take, the order of the ways to compute one.
 */
#ifndef LAYERS_CUDA_MATMUL_WAYS_H
#define LAYERS_CUDA_MATMUL_WAYS_H

#include "layers/cuda/matmul_schedule.h"
#include "layers/product.h"

/* Local, pure. NULL, or why none of them takes p; word: bytes of an element of its activations. */
const char *matmul_refuses(const Product *p, size_t word);

/* Local, pure. The cheapest first. */
void matmul_sort_ways(int n, double cost[], int number[]);

#endif
