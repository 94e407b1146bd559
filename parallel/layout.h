/* layout -- one member of the family of all tensor-parallel schemes: a mesh and a few words.
 *
 *   SPEC     d2.z1.x4.y2+heads+zero1     axes in the order of ranks, outermost first; missing ones are 1
 *            x2.y2.x2.y2                 an axis may come again: x 4 by y 4, in tiles of 2 by 2 ranks
 *   words    sp       residual stream stored by tokens over x between the tensor-parallel parts
 *            heads    QKV, attention and the MLP's hidden tensor cut by features over y as well
 *            stay=y   the output of a product stays where it is: tokens over x, features over y (SUMMA)
 *            zero1    optimizer state cut over d; zero2: gradients too; zero3: weights too
 *   presets  megatron, megatron-sp, fsdp, dp: all ranks on one axis; or
 *            atp:4x2 = x4.y2+heads           tensor3d:2x4x2 = d2.x4.y2+heads
 *            axonn:2x2x4x2 = d2.z2.x4.y2+heads
 *            optimus:2x2 = x2.y2+stay=y      tesseract:2x2x2 = d2.x2.y2+stay=y
 *            cube:2 = z2.x2.y2+sp+heads      more words may follow: fsdp+zero1
 *
 * Axes of size 1 are no factors, and no Dist names them. With stay=y, sp says nothing more and is dropped,
 * and heads is refused.
 *
 * A linear layer's three products on it (r: tokens, a: input features, b: output features):
 *
 *                       r      a   b      input stored         weight            output stored
 *   QKV, up             d.z    y   x      [T/d.z, C/y]         [C/y, N/x]        [T/d.z, N/x]
 *   attn_out, down      d.z    x   y      [T/d.z, K/x]         [K/x, C/y]        [T/d.z, C/y]
 *   head (tied: wte)    d.z    -   x.y    [T/d.z, C/y]         [V/x.y, C]        [T/d.z, V/x.y]
 *   sp                                    residual T/d.z.x
 *   heads                                 K/x.y                                  N/x.y
 *   stay=y, in blocks   d.z.x  -   y      [T/d.z.x, C/y]       [K/x, N/y]        [T/d.z.x, N/y]
 *
 * Matrices are stored cut over z as well (and over d with zero3), in equal flat parts of the local
 * block; with their gradients and moments. Source: parallel/README.md, and the papers it names.
 */
#ifndef PARALLEL_LAYOUT_H
#define PARALLEL_LAYOUT_H

#include "base/die.h"
#include "parallel/dist.h"
#include "parallel/mesh.h"

typedef struct Layout {
    int size[N_AXES];     // of axis d, z, x, y
    Factors factors;      // the order of ranks, which makes these sizes: layout_add
    bool sp, heads, stay; // stay implies that the residual is stored by tokens over x
    int zero;             // 0 to 3
    bool exact; // no word of a SPEC: blocks end where panels of --exact do (parallel/exact.h)
} Layout;

typedef enum {
    LINEAR_QKV,
    LINEAR_ATTN_OUT,
    LINEAR_UP,
    LINEAR_DOWN,
    LINEAR_HEAD,
    N_LINEARS
} LinearKind;

/* The tensors of one linear layer: as the local product wants them, and as they are stored (w before
 * its flat parts). The head's w is [V, C]: y = x w'. */
typedef struct LinearDist {
    Dist x, w, y; // y = x w, with what it owes
    Dist dx, dw;  // dx = dy w', dw = x' dy, with what they owe
    Dist x_stored, w_stored, y_stored;
} LinearDist;

/* Local, pure. Reads a SPEC or preset for p ranks (p = 0: as many as it says). Errors name the
 * nearest word or preset, or what the sizes make and what p is. */
bool layout_parse(Layout *l, const char *text, int p, Err *e);
/* Local, pure. The canonical SPEC, which layout_parse reads back. */
const char *layout_print(const Layout *l, char buf[64]);
int layout_ranks(const Layout *l);
/* Local. A layout of these sizes without words, its axes in the order d, z, x, y. */
Layout layout_of_sizes(const int size[N_AXES]);
/* Local. The layout of one rank. */
Layout layout_one(void);
/* Local. One more factor of an axis, inside the others; false when there are too many. */
bool layout_add(Layout *l, int axis, int size);
/* Local, pure. The layout in every order of its ranks that a cluster can tell apart, whatever its own is: units hold
 * unit[0] ranks, larger ones unit[1], ... (a socket, a node; those that the job does not fill evenly count for
 * nothing; of the others there are three at most), and a unit may be any tile of the mesh. All of them, fresh (mem_free);
 * n: how many. */
Layout *layout_orders(const Layout *l, const int *unit, int n_units, int *n);

/* Local, pure. Derived by dist_product: wrong products cannot be named here. */
LinearDist layout_linear(const Layout *l, LinearKind kind);
/* Local, pure. The residual stream x[T, C]. */
Dist layout_residual(const Layout *l);
/* Local, pure. Axes over which flat parts of a matrix's weight, gradient and moments are cut, outermost
 * first (z, then d as zero1 to zero3 say). */
typedef enum { STORE_PARAM, STORE_GRAD, STORE_MOMENTS } StoreKind;
Axes layout_store(const Layout *l, StoreKind kind);

#endif
