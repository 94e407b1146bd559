/* dist -- how a tensor is distributed over the mesh, as a type: parsed, printed, multiplied,
 * changed.
 *
 *   x[T/d.z, C/y]        T is sharded over d, then z; C over y; replicated along all other axes
 *   y[T/d.z, N/x] +y     partial over y: each rank along y holds one summand of the pending sum
 *
 * Three rules make it a type system:
 *   1. a matmul contracts equal dimensions, sharded alike in both operands; the result is partial
 *      over the axes of that sharding;
 *   2. an operand may not be partial; an axis appears at most once: it shards one dimension or is
 *      pending;
 *   3. a change of distribution is a list of collectives, each along one axis:
 *
 *      along one axis a    collective        bytes per rank (ring), S: whole tensor, p ranks
 *      X/a -> X            all_gather        S (p-1)/p
 *      +a  -> X/a          reduce_scatter    S (p-1)/p
 *      +a  -> X            all_reduce        2 S (p-1)/p
 *
 * The code that runs, --count, error messages and tests use this one description. The chapter for
 * readers is parallel/README.md. Source: Elemental's distributions (Poulson et al. 2013); `+a` is
 * Partial in PyTorch's DTensor.
 */
#ifndef PARALLEL_MESH_DIST_H
#define PARALLEL_MESH_DIST_H

#include "base/die.h"
#include "parallel/mesh/mesh.h"

enum { DIST_DIMS = 2, DIST_TEXT = 96, DIST_NAME = 24, DIST_DIM = 24 };

typedef struct Dist {
    char name[DIST_NAME];
    int n_dims;
    char dim[DIST_DIMS][DIST_DIM]; // "T", "C", "4C", ...
    Axes shard[DIST_DIMS];         // axes that shard each dimension, outermost first
    Axes partial;                  // axes of the pending sum; none: the values are complete
} Dist;

/* Local, pure. A type without pending sums; dim1: NULL of a vector. */
Dist dist_make(const char *name, const char *dim0, Axes over0, const char *dim1, Axes over1);
/* Local, pure. "x[T/d.z, K/y] +x". */
const char *dist_print(const Dist *d, char buf[DIST_TEXT]);
void dist_name(char to[DIST_NAME], const char *name);             // truncated to DIST_NAME - 1
void dist_join(char to[DIST_NAME], const char *a, const char *b); // a and b, likewise
/* Local, pure. `other` up to its first dot, then `name`: "ln1.mean_rstd" and "sums" make
 * "ln1.sums". Truncated likewise. */
void dist_beside(char to[DIST_NAME], const char *other, const char *name);
bool dist_equal(const Dist *a, const Dist *b); // all but the name

/* Local, pure. Type of y[M,N] = x[M,K] w[K,N] by rules 1 and 2; the result is called `name`.
 * False, with the reason, if a rule is broken. */
bool dist_matmul(Dist *y, const char *name, const Dist *x, const Dist *w, Err *e);
/* Local, pure. The type of x', x transposed: the two dimensions exchanged. */
Dist dist_transposed(const Dist *x);

typedef enum { CHANGE_GATHER, CHANGE_SCATTER, CHANGE_REDUCE } ChangeKind;
/* One collective of a change of distribution. */
typedef struct Change {
    ChangeKind kind;
    int axis;
    int dim; // dimension that is gathered or scattered; -1 for CHANGE_REDUCE
    Dist to; // the type after it
} Change;
enum { MAX_CHANGES = 2 * N_AXES };

/* Local, pure. The collectives that change `from` into `to`, in order. Returns their number.
 * Returns -1 with the reason if collectives alone cannot make the change: it would slice a
 * replicated dimension, or add a pending sum. A pending axis over which `to` is sharded becomes a
 * reduce_scatter, any other an all_reduce. The order moves the fewest bytes: first
 * reduce_scatters, which shrink the block, then all_reduces, then all_gathers, innermost axis
 * first. */
int dist_path(const Dist *from, const Dist *to, Change path[MAX_CHANGES], Err *e);

#endif
