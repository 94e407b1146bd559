/* layout -- one member of the family of tensor-parallel schemes: a mesh and a few flags.
 *
 *   SPEC     d2.z1.x4.y2+heads+zero1    axes in the order of ranks, outermost first; others: 1
 *            x2.y2.x2.y2                an axis may be repeated: x 4 by y 4 in tiles of 2 by 2
 *   flags    sp       sequence parallel: the residual stream is sharded by tokens over x
 *            heads    QKV, attention and the MLP's hidden tensor are sharded by features over y too
 *            stay=y   output-stationary matmuls (SUMMA): tokens over x, features over y
 *            zero1    optimizer state sharded over d; zero2: gradients too; zero3: weights too
 *   presets  megatron, megatron-sp, fsdp, dp: all ranks on one axis; or
 *            atp:4x2 = x4.y2+heads           tensor3d:2x4x2 = d2.x4.y2+heads
 *            axonn:2x2x4x2 = d2.z2.x4.y2+heads
 *            optimus:2x2 = x2.y2+stay=y      tesseract:2x2x2 = d2.x2.y2+stay=y
 *            cube:2 = z2.x2.y2+sp+heads      flags may follow: fsdp+zero1
 *
 * Axes of size 1 are not written; of all types only that of a sum over all ranks (end.c) names
 * them. stay=y implies sp, which is dropped, and excludes heads.
 *
 * The operands of a linear layer (r: axes of the tokens, a: of the input, b: of the output
 * features; QKV and up are column-parallel over x, attn_out and down row-parallel):
 *
 *                       r      a   b      input stored         weight            output stored
 *   QKV, up             d.z    y   x      [T/d.z, C/y]         [C/y, N/x]        [T/d.z, N/x]
 *   attn_out, down      d.z    x   y      [T/d.z, K/x]         [K/x, C/y]        [T/d.z, C/y]
 *   head (tied: wte)    d.z    -   x.y    [T/d.z, C/y]         [V/x.y, C]        [T/d.z, V/x.y]
 *   sp                                    residual T/d.z.x
 *   heads                                 K/x.y                                  N/x.y
 *   stay=y              d.z.x  -   y      [T/d.z.x, C/y]       [K/x, N/y]        [T/d.z.x, N/y]
 *
 * Weight matrices, their gradients and their moments are sharded over z as well (and over d:
 * moments from zero1 on, gradients from zero2 on, weights with zero3): the local block is split
 * into equal flat parts. Source: parallel/README.md, and the papers cited there.
 */
#ifndef PARALLEL_MESH_LAYOUT_H
#define PARALLEL_MESH_LAYOUT_H

#include "base/die.h"
#include "parallel/mesh/dist.h"
#include "parallel/mesh/mesh.h"

typedef struct Layout {
    int size[N_AXES];     // of axis d, z, x, y
    Factors factors;      // the order of ranks; their products are the sizes
    bool sp, heads, stay; // stay implies a residual stream sharded by tokens over x
    int zero;             // 0 to 3
    bool exact;           // not in the SPEC: blocks end at panels of --exact (exact_panel, shard.h)
} Layout;

typedef enum {
    LINEAR_QKV,
    LINEAR_ATTN_OUT,
    LINEAR_UP,
    LINEAR_DOWN,
    LINEAR_HEAD,
    N_LINEARS
} LinearKind;

/* The tensors of one linear layer: as operands of the local matmul, and as they are stored (w
 * before it is split into flat parts). The head's w is [V, C]: y = x w'. Pending sums follow from
 * the operands (dist_matmul). */
typedef struct LinearDist {
    Dist x, w;
    Dist x_stored, w_stored, y_stored;
} LinearDist;

/* A named scheme. As a preset of --layout its name is followed by a colon and `sizes` sizes,
 * outermost axis first: atp:4x2. One size for several axes is the size of each: cube:2. A scheme of
 * one axis may leave the colon and the size out: all ranks are on this axis. */
typedef struct NamedScheme {
    const char *name, *axes;
    int sizes;
    Layout flags; // only sp, heads and stay are set
} NamedScheme;
enum { N_SCHEMES = 10 };
extern const NamedScheme named_schemes[N_SCHEMES];

/* Local, pure. Reads a SPEC or preset for p ranks; p = 0: for any number of ranks. Errors suggest
 * the nearest flag or preset, or say how many ranks the sizes make and how many there are. */
bool layout_parse(Layout *l, const char *text, int p, Err *e);
/* Local, pure. The canonical SPEC, which layout_parse reads back. */
const char *layout_print(const Layout *l, char buf[64]);
int layout_ranks(const Layout *l);
/* Local. The layout of these sizes without flags, its axes in the order d, z, x, y. */
Layout layout_of_sizes(const int size[N_AXES]);
/* Local. The layout of a single rank. */
Layout layout_one(void);
/* Local, pure. The orders of the layout's ranks that differ in cost on a cluster of nested units:
 * unit[0] ranks share the smallest unit (a socket), unit[1] the next (a node), and so on. A unit
 * that the job does not fill evenly is ignored; at most three others are allowed. A unit may be any
 * tile of the mesh. Returns a new array (mem_free) of *n layouts. */
Layout *layout_orders(const Layout *l, const int *unit, int n_units, int *n);

/* Local, pure. Types of a linear layer's tensors. */
LinearDist layout_linear(const Layout *l, LinearKind kind);
/* Local, pure. The type of the residual stream x[T, C]; and whether its tokens are sharded over x
 * (sp, stay=y). */
Dist layout_residual(const Layout *l);
bool layout_tokens_over_x(const Layout *l);
/* Local, pure. Axes over which flat parts of a matrix's weight, gradient and moments are sharded,
 * outermost first: z, then d as zero1 to zero3 say. */
typedef enum { STORE_PARAM, STORE_GRAD, STORE_MOMENTS } StoreKind;
Axes layout_store(const Layout *l, StoreKind kind);

#endif
