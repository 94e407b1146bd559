/* shard -- which part of every tensor a rank holds: widths of local blocks, and the table of tensors
 * cut to them.
 *
 * A dimension of N elements on n ranks is cut in blocks of ceil(N / n): the last ones may be partly
 * or wholly padding, zeros that stay zeros (a zero column of a weight makes a zero output, which has
 * a zero gradient). Heads are cut whole. The logical model never sees the padding.
 *
 *   local block of        rows                         columns
 *   wte, head             V/x.y                        C, padded to Y equal blocks
 *   wpe                   S                            C/y
 *   norms, attn_out.b,    1                            C/y
 *     down.b
 *   qkv.w, up.w           C/y                          blocks of heads (q k v) or features (gate up) over x
 *   attn_out.w, down.w    blocks of heads or features  C/y
 *   qkv.b, up.b           1                            as qkv or up is stored
 *
 * With `heads` a rank's QKV columns are the Y blocks that it sums and scatters over y, one after the
 * other; with stay=y columns are cut over y and rows over x.
 */
#ifndef PARALLEL_SHARD_H
#define PARALLEL_SHARD_H

#include "base/tensor.h"
#include "parallel/grid.h"

/* Widths of this rank's blocks, padding included; *_n of them are real, from *_0 on. */
typedef struct Widths {
    int64_t C, C_n, C_0;              // residual stream C/y
    int64_t C_all;                    // C padded: Y blocks
    int64_t V, V_n, V_0;              // V/x.y
    int64_t H, Hkv, D;                // heads of the block in which attention works
    int64_t qkv, att, up, F;          // stored blocks: (H+2Hkv)D, HD, F or 2F, F
    int64_t blocks;                   // of those in the output of a product: Y with heads, else 1
    int64_t rows_C, rows_att, rows_F; // stay=y: rows of a weight held here
    int64_t K_C, K_att, K_F;          // input features of products in blocks, padded
} Widths;

Widths widths_of(const Config *c, const Grid *g);
/* Local, pure. --exact: features of a dimension of n whose products are summed together, a function of n
 * alone; blocks are whole numbers of them. */
int64_t exact_panel(int64_t n);

/* One dimension of a local block: stretches of logical indices, each with its place. */
typedef struct Stretch {
    int64_t global, n, local;
    bool first; // this rank is the first of those that hold it
} Stretch;
typedef struct Side {
    int64_t size; // padded
    int n;
    Stretch *s; // freed by mem_free
} Side;

/* Features of tokens as a rank holds them. */
typedef enum {
    SIDE_STREAM,   // C/y
    SIDE_CHANNELS, // C, padded to Y equal blocks
    SIDE_QKV,      // of the middle, as stored
    SIDE_ATT,
    SIDE_UP,
    SIDE_ACT,
    SIDE_QKV_WIDE, // as a product gives or wants them: with `heads` the Y blocks of its group
    SIDE_ATT_WIDE,
    SIDE_UP_WIDE,
    SIDE_ACT_WIDE,
    SIDE_ONE // one number for each token
} SideKind;
Side shard_side(const Config *c, const Grid *g, SideKind kind);

/* Local. Cuts every tensor of the table for this rank. masters: products read words of their own, so weights are read by
 * AdamW alone, and lie where moments lie: with zero1 and zero2 no rank holds those of others. */
void shard_tensors(TensorTable *t, const Grid *g, bool masters);
/* Local. Is it a matrix of a product, cut flat over z (and d with zero)? Not the positions. */
bool shard_stored(const TensorTable *t, int i);
/* Local. Axes along which a gradient is still to be summed when backward has ended: d; d.z for
 * vectors; d.z.x where the stream is stored by tokens. */
Axes shard_owed(const TensorTable *t, int i, const Layout *l);
/* Local. Floats of the local block, rounded up to the equal flat parts that it is cut in. */
int64_t shard_block(const TensorTable *t, int i, const Grid *g);
/* Local. Share of the parameters in all ranks' blocks that is padding: 0 where all divides. */
double shard_waste(const Config *c, const Grid *g);

#endif
