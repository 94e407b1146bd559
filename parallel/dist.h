/* dist -- how a tensor lies on the mesh, as a type: parsed, printed, multiplied, redistributed.
 *
 *   x[T/d.z, C/y]        T is cut over d, then z; C over y; replicated along every axis not named
 *   y[T/d.z, N/x] +y     each rank along y holds a partial sum: the sum over y is owed
 *
 * Three rules make it a type system:
 *   1. a product contracts equal dimensions; both operands must cut them alike, and that cut is
 *      what the result owes;
 *   2. an operand may not owe; an axis appears once only: it cuts one dimension, or is owed;
 *   3. a change of storage is a path of collectives, one axis at a time:
 *
 *      along one axis a              word             ring bytes per rank, of a whole of S bytes on p ranks
 *      X/a -> X                      all_gather       S (p-1)/p
 *      +a  -> X/a                    reduce_scatter   S (p-1)/p
 *      +a  -> X                      all_reduce       2 S (p-1)/p
 *      X   -> X/a                    slice            0
 *
 * The code that runs, --count, error messages and tests all ask this file. The chapter for readers is
 * parallel/README.md. Source: Elemental's distributions (Poulson et al. 2013).
 */
#ifndef PARALLEL_DIST_H
#define PARALLEL_DIST_H

#include "base/die.h"
#include "parallel/mesh.h"

enum { DIST_DIMS = 2, DIST_TEXT = 96, DIST_NAME = 24, DIST_DIM = 16 };

typedef struct Dist {
    char name[DIST_NAME];
    int n_dims;
    char dim[DIST_DIMS][DIST_DIM]; // "T", "C", "4C", ...
    Axes cut[DIST_DIMS];           // outermost first
    Axes owed;                     // sums that are still to be made
} Dist;

/* Local, pure. Reads "x[T/d.z, K/y] +x"; false with the column of the mistake. */
bool dist_parse(Dist *d, const char *text, Err *e);
const char *dist_print(const Dist *d, char buf[DIST_TEXT]);
void dist_name(char to[DIST_NAME], const char *name); // cut off where it is longer
Dist dist_of(const char *text);                       // dist_parse of a constant
bool dist_equal(const Dist *a, const Dist *b);        // but for the name
/* Local, pure. Rule 2. */
bool dist_check(const Dist *d, Err *e);

/* Local, pure. y[M,N] = x[M,K] w[K,N]: rules 1 and 2. The result is called `name`. */
bool dist_product(Dist *y, const char *name, const Dist *x, const Dist *w, Err *e);
/* Local, pure. The same with an operand transposed: x' has the dimensions of x in the other order. */
Dist dist_transposed(const Dist *x);

typedef enum { CHANGE_GATHER, CHANGE_SCATTER, CHANGE_REDUCE, CHANGE_SLICE } ChangeKind;
/* One collective on the way from one storage to another. */
typedef struct Change {
    ChangeKind kind;
    int axis;
    int dim; // the dimension that is gathered or scattered; -1 for CHANGE_REDUCE
} Change;
enum { MAX_CHANGES = 2 * N_AXES };

/* Local, pure. The collectives from `from` to `to`, in order; their number, or -1 with the reason
 * (another shape; a debt that would appear; a cut that would change its outer axis). Debts that `to`
 * cuts are scattered, others reduced. What makes blocks smaller comes first (slice, scatter), then
 * reductions, then gathers, innermost axis first. */
int dist_path(const Dist *from, const Dist *to, Change path[MAX_CHANGES], Err *e);
const char *change_word(ChangeKind k); // "all_gather", ...

#endif
