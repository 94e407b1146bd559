/* overlap -- what a rank computes while its collectives are under way: the flags of --overlap,
 * joined by '+'.
 *
 *   none      every collective is waited for where it is started
 *   bulk      independent operations run side by side: dx is reduced under the wgrad, also in the
 *             head, and x is gathered again under the dgrad; sharded weights are gathered before
 *             they are read, their gradients scattered after; the gradients of a layer are reduced
 *             over d during the backward of the layers before it; panels of stay=y are broadcast
 *             ahead; recompute of a layer begins before the layer's gradient has arrived
 *   chunk=n   matmuls are split along tokens into n chunks: one chunk is reduced (or gathered)
 *             under the matmul of the next. Not where tokens are sharded over more than MAX_STRIPES
 *             ranks: a chunk has rows of every rank's block, and a kernel call for each block would
 *             cost more than the work in it
 *   ring      with sp: the matmul of one rank's block of tokens runs while the next block arrives,
 *             or while the block before is sent to its owner. Not among more than MAX_RING ranks:
 *             the collectives in flight are limited, and a gather along the same axis may be one of
 *             them all the time
 *   fused     a matmul and its collective are one kernel. The kernel reads rows of x in the memory
 *             of the rank that holds them, on devices as they are copied, and stores rows of y in
 *             the memory of the rank that sums them. Needs ranks that share memory, and tokens that
 *             are sharded along the axis of the collective (sp)
 *   halves    both halves of a micro-batch are in one list: while one half waits for a collective,
 *             the other computes
 *
 * chunk, ring and halves include bulk. All flags but halves leave every sum as it is, so losses are
 * equal to the bit. With halves a sum over tokens is the sum of those of two micro-batches half as
 * long, added before they are reduced; with --exact the bits are equal with halves, too.
 *
 * Sources: parallel/README.md, section 9; ATP (chunk), Megatron-LM and AxoNN (bulk), Wang et al.
 * 2023 (ring), FLUX (fused), Tensor3D and Oases (halves).
 */
#ifndef PARALLEL_STEP_OVERLAP_H
#define PARALLEL_STEP_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/die.h"
#include "parallel/comm/coll.h"
#include "parallel/mesh/layout.h"

enum { MAX_CHUNKS = 8, MAX_RING = COLL_IN_FLIGHT / 2 - 1, MAX_STRIPES = 256, OVERLAP_TEXT = 32 };

typedef struct Overlap {
    bool bulk; // overlap_parse sets it with ring, halves and chunks, too
    bool ring, fused, halves;
    int chunks; // 2 to MAX_CHUNKS; 0: matmuls are whole
} Overlap;

/* Local, pure. Reads "none" or flags joined by '+'. False with the reason; of an unknown flag the
 * reason names the nearest known one. ring, chunk and fused exclude each other. */
bool overlap_parse(Overlap *o, const char *text, Err *e);
/* Local, pure. False with the reason if o, which was read from text, has halves and `micro`, the
 * sequences of a micro-batch, is odd. */
bool overlap_check_micro(const Overlap *o, const char *text, int64_t micro, Err *e);
/* Local, pure. The canonical text, which overlap_parse reads back. */
const char *overlap_print(const Overlap *o, char buf[OVERLAP_TEXT]);
/* Local, pure. The reason why the flag chunk, ring or fused has no effect on a layout; NULL: the
 * flag has an effect, or is not given. */
const char *overlap_idle(const Overlap *o, const Layout *l);
bool overlap_equal(const Overlap *a, const Overlap *b);

#endif
