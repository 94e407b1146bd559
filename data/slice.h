/* slice -- copies between the part of a tensor that a rank holds and the file that all ranks share.
 *
 * A file tensor is a TensorSlice (base/tensor.h): columns of a table tensor, as they are or
 * transposed. A rank holds rectangles of the tensor, and of their block a flat range of elements.
 * In the file these elements are ranges along the rows or, when transposed, along the columns.
 *
 *       the tensor [4, 6],           in the file,               transposed, columns 2 and 3
 *       this rank's elements *       columns 2 to 5             [2, 4]
 *
 *       . . . . . .                  . . . .                    . a c e
 *       . . a b * *                  [a b * *]                  . b d .
 *       . . c d * *                  [c d * *]
 *       . . e . . .                  [e] . . .
 */
#ifndef DATA_SLICE_H
#define DATA_SLICE_H

#include "base/tensor.h"
#include "data/io.h"
#include "data/safetensors.h"

/* What this rank holds of a slice. values is tensor->param, m, v or velocity; `part` is its
 * range. */
typedef struct LocalSlice {
    const TensorSlice *slice;
    const Tensor *tensor;
    TensorPart part;
    float *values;
} LocalSlice;

/* Local. A slice of all columns of a tensor. */
TensorSlice slice_whole(const Tensor *t, bool transposed);
/* Local. The shape of a slice in the file. Returns the number of dimensions: 1 for a vector, else
 * 2. */
int slice_dims(const TensorSlice *p, const Tensor *t, int64_t dims[2]);
/* Local. Writes the elements that this rank is the first to hold: all ranks together write each
 * element once. */
bool slice_put(const LocalSlice *h, IoFile *f, const SafeTensor *to, Err *e);
/* Local. Reads all elements that this rank holds from a file tensor of the slice's shape. Padding
 * is not touched. */
void slice_get(const LocalSlice *h, const SafeTensor *from);

#endif
