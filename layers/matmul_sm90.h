/* matmul_sm90 -- matmuls by the tensor cores of Hopper (layers/matmul_sm90.cu), as one more way for
 * those of product.cu: bf16 operands, fp32 sums.
 */
#ifndef LAYERS_MATMUL_SM90_H
#define LAYERS_MATMUL_SM90_H

#include "layers/product.h"

/* Local. NULL, or why these kernels do not take p on the calling thread's device; word: bytes of an
 * element of its activations. */
const char *matmul_sm90_refuses(const Product *p, size_t word);
/* Local. y = epilogue(a b + bias + addend) of a p that is not refused; bias_grad is left to the
 * caller. Same bits in every run with the same number of multiprocessors. */
void matmul_sm90(const Product *p);

#endif
