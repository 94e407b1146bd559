/* shard -- the part of every tensor that a rank holds: widths of the local blocks, and the table of
 * tensors sharded to them.
 *
 * A dimension of `size` elements is sharded over p ranks in blocks of ceil(size / p). The last
 * blocks may be partly or wholly padding: zeros, which stay zero in training (a zero column of a
 * weight makes a zero output, whose gradient is zero). Heads are never split. Checkpoints contain
 * no padding.
 *
 *   local block of        rows                         columns
 *   wte, head             V/x.y                        C, padded to Y equal blocks
 *   wpe                   S                            C/y
 *   norms, attn_out.b,    1                            C/y
 *     down.b
 *   qkv.w, up.w           C/y                          blocks over x: q k v, or gate up
 *   attn_out.w, down.w    blocks over x                C/y
 *   qkv.b, up.b           1                            as qkv or up is stored
 *
 * With `heads` a rank's QKV columns are the Y blocks that it reduce-scatters over y, one after the
 * other. With stay=y columns are sharded over y and rows over x.
 */
#ifndef PARALLEL_MESH_SHARD_H
#define PARALLEL_MESH_SHARD_H

#include "base/tensor.h"
#include "parallel/mesh/grid.h"

/* Widths of this rank's blocks, padding included. NAME_n elements are real, the first of them is
 * element NAME_0 of the whole. */
typedef struct Widths {
    int64_t C, C_n, C_0;     // residual stream C/y
    int64_t C_all;           // Y blocks of C
    int64_t V, V_n, V_0;     // V/x.y
    int64_t H, Hkv, D;       // heads of the local block; head size
    int64_t qkv, att, up, F; // stored blocks: (H+2Hkv)D, HD, F or 2F, F
    int64_t blocks;          // blocks in the output of a local matmul: Y with heads, else 1
    int64_t rows_C, rows_att, rows_F; // stay=y: local rows of a weight
    // parts of a whole row, each with its own statistics: the blocks of all ranks; --exact: panels
    int64_t parts_C, parts_V;
} Widths;

Widths widths_of(const Config *c, const Grid *g);
/* Local, pure. --exact: length of a panel of a contracted dimension of n, a function of n alone.
 * Partial sums end at panels, and blocks are whole numbers of panels: so no sum depends on the
 * mesh. */
int64_t exact_panel(int64_t n);

/* One dimension of a local block: ranges of global indices, each with its local offset. */
typedef struct DimRange {
    int64_t global, n, local;
    bool first; // this rank is the first of the ranks that hold a copy
} DimRange;
typedef struct DimShard {
    int64_t size; // with padding
    int n;
    DimRange *s; // freed by mem_free
} DimShard;

/* Feature dimensions of local activations. */
typedef enum {
    FEATURES_RESIDUAL, // C/y: the residual stream
    FEATURES_QKV,      // hidden tensors
    FEATURES_ATT,
    FEATURES_UP,
    FEATURES_ACT,
    FEATURES_ONE // one number per token
} FeatureKind;
/* Local, pure. The features of a local activation: as it is stored, or wide, as an operand of a
 * matmul. Wide, the residual stream has all channels, and a hidden tensor has with `heads` the Y
 * blocks of the group along y. */
DimShard shard_features(const Config *c, const Grid *g, FeatureKind kind, bool wide);

/* Local. Shards every tensor of the table for this rank. bf16_copies: matmuls read a bf16 copy, so
 * only AdamW reads the fp32 weights. These master weights are then sharded as the moments are: with
 * zero1 and zero2 a rank holds the master weights that it updates, and no others. */
void shard_tensors(TensorTable *t, const Grid *g, bool bf16_copies);
/* Local. Is tensor i a matmul weight, whose block is split into flat parts over z (and d with
 * zero)? wpe is not. */
bool shard_has_flat_parts(const TensorTable *t, int i);
/* Local. Axes over which the gradient of tensor i is partial after backward: d for matmul weights;
 * d.z for vectors; d.z.x with stay=y for all vectors, with sp for all but qkv.bias and up.bias;
 * those of tokens and of heads for qk_norm.weight, which all heads share.
 * Gradients lie in memory in the order of the number of these axes. */
Axes shard_partial_axes(const TensorTable *t, int i, const Layout *l);
/* Local. Fraction of the matmul weights' blocks that is padding: 0 if everything divides. */
double shard_waste(const Config *c, const Grid *g);

#endif
