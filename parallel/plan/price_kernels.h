/* price_kernels -- the table of kernels that do nothing but write on a tape what they were
 * asked. */
#ifndef PARALLEL_PLAN_PRICE_KERNELS_H
#define PARALLEL_PLAN_PRICE_KERNELS_H

#include "parallel/plan/tape.h"

/* Local. The table, for one tape at a time in each thread: the model's pointers are never followed.
 * Element sizes and workspaces are those of `like`; NULL: of the portable set, which is the same in
 * every build. */
const Kernels *price_kernels(Tape *t, const Kernels *like);
/* Local. Writes one entry. */
void tape_work(Tape *t, const Work *w);
void tape_event(Tape *t, EventKind kind, int index, int slot);
int tape_send(Tape *t, const Send *s); // index

#endif
