/* piece -- between what a rank holds of a tensor and the file that all ranks share.
 *
 * A file tensor is a Piece (base/tensor.h): columns of a table tensor, as they are or transposed. A
 * rank holds rectangles of the tensor, cut to a flat part of its block; in the file these are
 * ranges: along the rows, or, transposed, along the columns.
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

/* What this rank holds of a piece. values: tensor->param, m or v as `part` says. */
typedef struct PieceHeld {
    const Piece *piece;
    const Tensor *tensor;
    TensorPart part;
    float *values;
} PieceHeld;

/* Local. All columns of a tensor, as one piece. */
Piece piece_whole(const Tensor *t, bool transposed);
/* Local. The shape of a piece in the file: 1 dimension for a vector, else 2. Returns their
 * number. */
int piece_dims(const Piece *p, const Tensor *t, int64_t dims[2]);
/* Local. Writes, of what this rank holds, what it is the first to hold: all ranks together write
 * each element once. */
bool piece_put(const PieceHeld *h, IoFile *f, const SafeTensor *to, Err *e);
/* Local. Reads all that this rank holds, from a file tensor of the piece's shape; padding stays. */
void piece_get(const PieceHeld *h, const SafeTensor *from);

#endif
