/* count -- the table of --count: every collective of a training step, predicted
 * (parallel/plan/price.h) and counted.
 *
 *   collective                           along  ranks predicted    bytes measured    bytes     ms
 *   x of qkv              all_gather     x          2        24 37748736       24 37748736  12.04
 *   dx of qkv             reduce_scatter x          2        12 18874368       12 18874368   7.31
 */
#ifndef PARALLEL_PLAN_COUNT_H
#define PARALLEL_PLAN_COUNT_H

#include <stdio.h>

#include "parallel/comm/coll.h"

enum { COUNT_ROWS = 128 };

/* Local, pure. The index of the row that counts the same collective (op, what, along) as `like`; n:
 * none does. */
int count_find(const CollCount *rows, int n, const CollCount *like);
/* Local. Prints a row for each predicted collective of a step (predicted[n_predicted],
 * price_counts) beside the counted one (measured[n], world_counts) with its milliseconds; then
 * collectives that were counted and not predicted; then the sums. */
void count_print(FILE *f, int ranks, const CollCount *predicted, int n_predicted,
                 const CollCount *measured, int n);

#endif
