/* piece -- copies between the part of a tensor that a rank holds and the file that all ranks share.
 *
 * A file tensor is a Piece (base/tensor.h): columns of a table tensor, as they are or transposed. A
 * rank holds rectangles of the tensor, and of their block a flat range of elements. In the file
 * these elements are ranges along the rows or, when transposed, along the columns.
 *
 *       the tensor [4, 6],           in the file,               transposed, columns 2 and 3
 *       this rank's elements *       columns 2 to 5             [2, 4]
 *
 *       . . . . . .                  . . . .                    . a c e
 *       . . a b * *                  [a b * *]                  . b d .
 *       . . c d * *                  [c d * *]
 *       . . e . . .                  [e] . . .
 */
#ifndef DATA_PIECE_H
#define DATA_PIECE_H

#include "base/tensor.h"
#include "data/io.h"
#include "data/safetensors.h"

/* What this rank holds of a piece. values is tensor->param, m, v or velocity; `part` is its
 * range. */
typedef struct PieceHeld {
    const Piece *piece;
    const Tensor *tensor;
    TensorPart part;
    float *values;
} PieceHeld;

/* Local. A piece of all columns of a tensor. */
Piece piece_whole(const Tensor *t, bool transposed);
/* Local. The shape of a piece in the file. Returns the number of dimensions: 1 for a vector, else
 * 2. */
int piece_dims(const Piece *p, const Tensor *t, int64_t dims[2]);
/* Local. Writes the elements that this rank is the first to hold: all ranks together write each
 * element once. */
bool piece_put(const PieceHeld *h, IoFile *f, const SafeTensor *to, Err *e);
/* Local. Reads all elements that this rank holds from a file tensor of the piece's shape. Padding
 * is not touched. */
void piece_get(const PieceHeld *h, const SafeTensor *from);

#endif
