/* count -- the table of --count: every collective of a training step, as it was foretold (parallel/price.h) and as it
 * was counted.
 *
 *   collective                                along  ranks foretold      bytes measured      bytes     ms
 *   x of qkv                   all_gather     x          2       24   37748736       24   37748736  12.04
 *   dx of qkv                  reduce_scatter x          2       12   18874368       12   18874368   7.31
 */
#ifndef PARALLEL_COUNT_H
#define PARALLEL_COUNT_H

#include <stdio.h>

#include "parallel/coll.h"

enum { COUNT_ROWS = 128 };

/* Local, pure. Do two rows count the same: op, what and along? */
bool count_same(const CollCount *a, const CollCount *b);
/* Local. now[n] becomes what was counted after before[n_before], both from world_counts; its rows that
 * are left. */
int count_since(CollCount *now, int n, const CollCount *before, int n_before);
/* Local. Prints what is foretold of a step (told[n_told], price_counts) beside what was counted in `steps` steps (met[n]),
 * both for one step, with milliseconds; and what was counted but not foretold. */
void count_print(FILE *f, int ranks, const CollCount *told, int n_told, const CollCount *met, int n,
                 int64_t steps);

#endif
