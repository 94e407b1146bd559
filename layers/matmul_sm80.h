/* matmul_sm80 -- matmuls by the tensor cores of Ampere and later (layers/matmul_sm80.cu), as one
 * more way for those of product.cu: bf16 operands, fp32 sums. Its functions are those of
 * matmul_sm90.h, which is preferred where it serves.
 */
#ifndef LAYERS_MATMUL_SM80_H
#define LAYERS_MATMUL_SM80_H

#include "layers/product.h"

/* Local. NULL, or why these kernels do not take p on the calling thread's device; word: bytes of an
 * element of its activations. */
const char *matmul_sm80_refuses(const Product *p, size_t word);
/* Local. The numbers of the ways that there are to compute p, the likely fastest first. How many; p
 * is not refused. */
enum { MATMUL_SM80_WAYS = 4 };
int matmul_sm80_ways(const Product *p, int number[MATMUL_SM80_WAYS]);
/* Local. y = epilogue(a b + bias + addend), and the gradient of a bias, of a p that is not refused,
 * by way `number` or, 0, by the likely fastest. Same bits in every run by the same way with the
 * same number of multiprocessors. The first call of a rank allocates (matmul_flags). */
void matmul_sm80(const Product *p, int number);

#endif
