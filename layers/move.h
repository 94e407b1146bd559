/* move -- memory that is cleared, copied or added up between the kernels of a step. As entries of the table they
 * are measured and priced like everything else.
 */
#ifndef LAYERS_MOVE_H
#define LAYERS_MOVE_H

#include <stdint.h>

#include "base/team.h"

/* Local. x[n] = 0. */
void zero(Team *t, float *x, int64_t n);
/* Local. Rows of n floats from one matrix to another; rows lie to_ld and from_ld floats apart. */
void copy(Team *t, float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
          int64_t n);
/* Local. to[T] = from[n], then `pad`. Nothing when from is NULL. */
void copy_tokens(int32_t *to, int64_t T, const int32_t *from, int64_t n, int32_t pad);
/* Local. The sum of x[n] in double, in order. */
double sum_of(const float *x, int64_t n);

#endif
