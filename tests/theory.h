/* theory -- every collective of a training step, from the distributions alone: layout_linear says
 * what is where, dist_path which collectives lie between, ring volumes how many bytes. Nothing of
 * the step's code is run, so that tests can hold against it what the step is recorded to do
 * (parallel/plan/price.h) and what a run counts.
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
    int elem_bytes; // bytes of an activation; 0: of a float
} Theory;

/* Adds what the rank of s->grid does and receives: forward and backward of one block; of one
 * micro-batch; of the end of a step, from the last sums of gradients to the new weights. s->grid
 * needs its layout and mesh only. */
void theory_block(Theory *c, const ModelShape *s);
void theory_micro_batch(Theory *c, const ModelShape *s);
void theory_update(Theory *c, const ModelShape *s);
/* Sums over all rows. */
int64_t theory_calls(const Theory *c);
int64_t theory_bytes(const Theory *c);

#endif
