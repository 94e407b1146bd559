/* families -- each layers/NAME.cu fills its entries of a table of kernels, for float or for bf16 words of storage.
 *
 * What an entry does is said in layers/NAME.h. On CUDA:
 *   - Act is float or bf16 words, and strides count words (layers/act.h); float * is float in both. Sums are float or
 *     better.
 *   - A call is complete in the order of the rank's stream, not when it returns (device.h). It allocates nothing and
 *     waits for nothing, but for those that return a number (sum_of, sum_of_squares: a step takes sum_to, squares_to) and
 *     told, once in a step.
 *     The Team is ignored; it may be NULL.
 *   - No sum depends on the order in which threads run: two runs give the same bits.
 */
#ifndef LAYERS_CUDA_FAMILIES_H
#define LAYERS_CUDA_FAMILIES_H

#include "layers/kernels.h"

void activation_cuda(Kernels *k, bool bf16);
void adamw_cuda(Kernels *k, bool bf16);
void attention_cuda(Kernels *k, bool bf16);
void classifier_cuda(Kernels *k, bool bf16);
void embedding_cuda(Kernels *k, bool bf16);
void move_cuda(Kernels *k, bool bf16);
void norm_cuda(Kernels *k, bool bf16);
void product_cuda(Kernels *k, bool bf16);
void rope_cuda(Kernels *k, bool bf16);

#endif
