/* overlap -- what a rank computes while its collectives are under way: the flags of --overlap,
 * joined by '+'.
 *
 *   none      every collective is waited for where it is started
 *   bulk      what is independent goes side by side: dx is reduced under wgrad, in the head as
 *             well, x gathered again under dgrad; sharded weights are gathered
 *             ahead, their gradients scattered late; the gradients of a layer are summed over d
 *             while the layers before it go backward; panels of stay=y come ahead; recompute begins
 *             before the gradient is there
 *   chunk=n   matmuls are split along tokens into n chunks: one is reduced (or gathered) under
 *             the matmul of the next; not where a rank would have tokens of more than MAX_STRIPES
 *             others, for a kernel for each of them would be all call, no work
 *   ring      with sp: the matmul of the block at hand runs while the next rank's block comes, or
 *             goes to its owner; not among more than MAX_RING ranks: a gather along the same axis
 *             is under way all the time
 *   fused     a matmul and its collective are one kernel: it reads rows of x where the ranks have
 *             them, on devices as they come, and stores rows of y where they are summed. Where
 *             ranks share memory, and tokens are sharded along the axis of the collective (sp)
 *   halves    both halves of a micro-batch are in one list: while one waits, the other computes
 *
 * None of them changes a sum, so none changes a bit of a loss, but halves: its sums over tokens are
 * those of micro-batches half as long, added before they are reduced; with --exact not even
 * these. Sources: parallel/README.md, section 9; ATP (chunk), Megatron-LM and
 * AxoNN (bulk), Wang et al. 2023 (ring), FLUX (fused), Tensor3D and Oases
 * (halves).
 */
#ifndef PARALLEL_STEP_OVERLAP_H
#define PARALLEL_STEP_OVERLAP_H

#include <stdbool.h>

#include "base/die.h"
#include "parallel/comm/coll.h"
#include "parallel/mesh/layout.h"

enum { MAX_CHUNKS = 8, MAX_RING = COLL_IN_FLIGHT / 2 - 1, MAX_STRIPES = 256, OVERLAP_TEXT = 32 };

typedef struct Overlap {
    bool bulk, ring, fused, halves;
    int chunks; // 2 to MAX_CHUNKS; 0: matmuls are whole
} Overlap;

/* Local, pure. Reads "none" or flags; false with the nearest flag. ring, chunk and fused exclude
 * each other. */
bool overlap_parse(Overlap *o, const char *text, Err *e);
/* Local, pure. The canonical text, which overlap_parse reads back. */
const char *overlap_print(const Overlap *o, char buf[OVERLAP_TEXT]);
/* Local, pure. Why chunks, a ring or fused matmuls do nothing on a layout; NULL: there are none, or
 * they do something. */
const char *overlap_idle(const Overlap *o, const Layout *l);
bool overlap_equal(const Overlap *a, const Overlap *b);

#endif
