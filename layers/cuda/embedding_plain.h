/* embedding_plain -- dwte of layers/embedding.cu as its formula has it, for the tests: no sort, no
 * pieces. */
#ifndef LAYERS_CUDA_EMBEDDING_PLAIN_H
#define LAYERS_CUDA_EMBEDDING_PLAIN_H

#include <stdbool.h>

#include "layers/embedding.h"

/* Local. e->dwte[V,C] += rows of dx[T,C], each at its token; in the order of the rank's stream. */
void embedding_backward_plain(const Embedding *e, const Act *dx, bool is_bf16);

#endif
