/* audit -- do the replicas of weights and moments still have the same bits? (--audit-every)
 *
 * Training never compares replicas. When a bit flips in one copy of a weight or a moment, or a
 * collective gives its ranks different sums, the copies drift apart and the loss slowly gets worse.
 * Each rank computes a CRC-32C of every rectangle of weights and moments that it stores. The
 * checksums are all-gathered, and those of the same logical elements are compared. They must be
 * equal bit for bit: equal inputs give equal bits wherever the same instructions run. With local
 * steps (parallel/step/outer.h) weights and moments are compared within each replica only; the
 * anchor and its velocity are compared across all replicas.
 */
#ifndef PARALLEL_STEP_AUDIT_H
#define PARALLEL_STEP_AUDIT_H

#include "parallel/step/model.h"

/* Collective over the mesh, between steps. True if all replicas agree. Else e names, with the same
 * text on all ranks, the first tensor of the table that differs and the ranks that disagree. */
bool audit_replicas(Model *m, Err *e);

#endif
