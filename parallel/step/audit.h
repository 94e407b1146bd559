/* audit -- do the ranks that hold the same still hold the same? (--audit-every)
 *
 * What a mesh replicates is never compared by training itself: a bit that flips in one copy of a
 * weight or of a moment, or a collective that gave its ranks different sums, lets the copies drift
 * apart and the loss get slowly worse. The audit takes a CRC-32C of every rectangle that a rank
 * stores of weights and moments, shows it to all, and compares those of the same logical elements:
 * bit for bit, for equal inputs give equal bits wherever the same instructions run. Replicas that
 * take local steps (parallel/step/outer.h) are compared each within itself, and all of them by
 * the anchor and its velocity.
 */
#ifndef PARALLEL_STEP_AUDIT_H
#define PARALLEL_STEP_AUDIT_H

#include "parallel/step/model.h"

/* Collective over the mesh, between steps. True when all replicas agree; else e says, alike on all
 * ranks, which tensor differs first in the order of the table, and on which ranks. */
bool audit_replicas(Model *m, Err *e);

#endif
