/* theory -- derives every collective of a training step from the distributions alone: layout_linear
 * says how tensors are sharded, dist_path which collectives lie between two distributions, ring
 * volumes how many bytes they move. It runs no code of the step. So tests compare it with the
 * recorded step (parallel/plan/price.h) and with the counters of a run.
 */
#ifndef TESTS_THEORY_H
#define TESTS_THEORY_H

#include "parallel/comm/coll.h"
#include "parallel/step/model.h"

enum { COUNT_ROWS_OF_THEORY = 128 };

/* One row for each (what, op, group), in the order of first use. */
typedef struct Theory {
    CollCount row[COUNT_ROWS_OF_THEORY];
    int n;
    int elem_bytes; // bytes of an element of activations; 0: 4
} Theory;

/* Add the calls and received bytes of the rank of s->grid: theory_block, forward and backward of
 * one block; theory_micro_batch, one micro-batch; theory_update, the end of a step from the last
 * sums of gradients to the new weights. Of s->grid only layout and mesh are used. */
void theory_block(Theory *c, const ModelShape *s);
void theory_micro_batch(Theory *c, const ModelShape *s);
void theory_update(Theory *c, const ModelShape *s);
/* Sums over all rows. */
int64_t theory_calls(const Theory *c);
int64_t theory_bytes(const Theory *c);

#endif
