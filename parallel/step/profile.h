/* profile -- where a step's time goes (--profile).
 *
 * A row of the table adds up the operations of the lists (StepHook of run.h) that have one kind and
 * produce tensors of one name and type. So the table shows which matmuls are slower than others.
 */
#ifndef PARALLEL_STEP_PROFILE_H
#define PARALLEL_STEP_PROFILE_H

#include <stdio.h>

#include "parallel/step/model.h"

/* Local. Called before and after each step. The first step, with its page faults, is not counted;
 * nor is one that is not whole, which a signal has cut short. A process profiles one model at a
 * time. On a device profile_end waits once, for the end of the step. */
void profile_begin(Model *m);
void profile_end(Model *m, bool whole);
/* Local. Prints the table: calls and ms per step, share of the step, and for work that is counted
 * in FLOPs GFLOP/s and share of the rank's peak (peak_flops, FLOP/s). If a row is faster than the
 * peak, the peak was measured too low. Then the shares are relative to the fastest row, and a line
 * says so. */
void profile_print(FILE *f, double peak_flops);

#endif
