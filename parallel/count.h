/* count -- every collective of a training step, foretold from the distributions alone, and beside them
 * those that a run has counted (--count).
 *
 *   collective                                along  ranks foretold      bytes measured      bytes     ms
 *   x of qkv                   all_gather     x          2       24   37748736       24   37748736  12.04
 *   dx of qkv                  reduce_scatter x          2       12   18874368       12   18874368   7.31
 *
 * The model is walked as parallel/model.h does, but nothing is allocated and nobody is asked: sizes
 * follow from layout_linear, collectives from dist_path, bytes from the ring volumes of
 * parallel/coll.h. A test holds them equal to the counters of a run, to the byte, on every preset.
 */
#ifndef PARALLEL_COUNT_H
#define PARALLEL_COUNT_H

#include <stdio.h>

#include "parallel/coll.h"
#include "parallel/model.h"

enum { COUNT_ROWS = 128 };

/* One row for each (what, op, group), in the order of first use. */
typedef struct Count {
    CollCount row[COUNT_ROWS];
    char label[COUNT_ROWS][2 * N_AXES + 1]; // rows' labels point here: a Count is not copied
    int n;
} Count;

/* Local, pure. Adds what the rank of s->grid does and receives: forward and backward of one block;
 * of one micro-step; of the end of a step, from the last sums of gradients to the new weights. s->grid
 * needs its layout and mesh only. */
void count_block(Count *c, const ModelShape *s);
void count_micro_step(Count *c, const ModelShape *s);
void count_update(Count *c, const ModelShape *s);
/* Local. Sums over all rows. */
int64_t count_calls(const Count *c);
int64_t count_bytes(const Count *c);

/* Local. now[n] becomes what was counted after before[n_before], both from world_counts; its rows that
 * are left. */
int count_since(CollCount *now, int n, const CollCount *before, int n_before);
/* Local. Prints what a step of `micro_steps` micro-steps is foretold to do beside what was counted in
 * `steps` steps since the last reset (measured[n]), both for one step, with milliseconds; and what was
 * counted but not foretold. */
void count_print(FILE *f, const ModelShape *s, int64_t micro_steps, int64_t steps,
                 const CollCount *measured, int n);

#endif
