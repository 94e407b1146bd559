/* move -- clear, copy and add memory between the kernels of a step. These functions are entries of
 * the table of kernels, too, so they are measured and priced like the others.
 */
#ifndef LAYERS_MOVE_H
#define LAYERS_MOVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/team.h"
#include "layers/act.h"

/* Local. Sets bytes to 0. */
void zero(Team *t, void *x, size_t n_bytes);
/* Local. Copies rows of n elements of `elem_bytes` bytes; rows are to_ld and from_ld elements
 * apart. */
void copy(Team *t, void *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows,
          int64_t n, size_t elem_bytes);
/* Local. y[n] += x[n]. */
void add_to(Team *t, float *y, const float *x, int64_t n);
/* Local. Copies activations to host memory as floats. */
void to_floats(float *to, const Act *from, int64_t n);
/* Local. to[T] = from[n], then `pad`. Does nothing if from is NULL. */
void copy_tokens(int32_t *to, int64_t T, const int32_t *from, int64_t n, int32_t pad);
/* Local. The sum of x[n] in double, on the CPU in order. */
double sum_of(const float *x, int64_t n);

#endif
