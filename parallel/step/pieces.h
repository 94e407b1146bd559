/* pieces -- one product of a linear layer with what its operand and its result travel through, whole or cut along tokens:
 * what one piece gathers or owes is on its way under the product of another.
 *
 *   whole      [gather ........][product .............][sum ...........]
 *   chunk=3    [gather][gather][gather]
 *                      [product][product][product]
 *                               [sum.][sum.][sum.]
 *   ring       [product of the block at hand][of rank r-1's][of rank r-2's]        a gather of tokens
 *              [   block of r-1 comes   ]  [ block of r-2 comes ]
 *              [product for rank r+1][for r+2][for this rank][sum]                 a scatter of tokens
 *                                    [goes to r+1][goes to r+2]
 *
 * Rows are tokens. Where a path gathers or scatters blocks of tokens, each piece takes a stripe of rows out of every
 * rank's block, so that all that comes lies where it belongs. Sums are those of the whole product, in the same order:
 * the tree of coll_fold.h. A ring of more than MAX_RING ranks is none: a gather along the same axis is under way all the
 * time. Nor is a product cut where tokens lie on more than MAX_STRIPES ranks: a kernel for each of them would be all call, no
 * work. Sources: ATP (2023) section 4.1 for chunks; Wang et al. (ASPLOS 2023) for rings.
 */
#ifndef PARALLEL_STEP_PIECES_H
#define PARALLEL_STEP_PIECES_H

#include "layers/product.h"
#include "parallel/mesh/path.h"
#include "parallel/step/overlap.h"

typedef struct Model Model;

enum { MAX_RING = COLL_IN_FLIGHT / 2 - 1, MAX_STRIPES = 256 }; // MAX_RING: of two halves

typedef struct Pieces {
    Model *m;
    const Path *in, *out;
    Product p;      // of all rows; a is found here
    const Act *src; // [src_rows, src_cols] the operand as it is stored
    int64_t src_rows, src_cols;
    Act *whole; // [M, K] where it is gathered; untouched when `in` is empty
    Act *dst;   // where `out` takes p.y; untouched when it is empty
    // kept between begin and end
    int64_t stripes, rows; // rows of each
    int n;
    bool cut_in, cut_out, ring;
    PathRun run; // of a result that is not cut
    Ticket ticket[MAX_CHUNKS];
} Pieces;

/* Collective over the axes of both paths. Runs the product and starts what its result owes; the operand as the
 * product used it. */
const Act *pieces_begin(Pieces *c);
/* Collective. Returns when the result is in dst. */
void pieces_end(Pieces *c);
/* Local, pure. Elements of the place that its collectives want, as path_place: of a product that has no operands yet. */
int64_t pieces_place(Pieces c);
/* Local. Floats that a ring keeps of a layer's result [rows, cols] until they are summed; 0: it has none. */
int64_t pieces_room(const Model *m, const Path *out, int64_t rows, int64_t cols);

#endif
