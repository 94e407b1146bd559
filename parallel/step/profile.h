/* profile -- where a step's time goes (--profile).
 *
 * Rows are operations of the lists (StepHook of run.h) that make tensors of one name and type,
 * so the table shows which matmuls run below the others.
 */
#ifndef PARALLEL_STEP_PROFILE_H
#define PARALLEL_STEP_PROFILE_H

#include <stdio.h>

#include "parallel/step/model.h"

/* Local, around each step; the first, with its page faults, does not count. One model at a time in
 * a process. Where kernels run on a device while the host goes on, profile_end waits once, for all
 * of the step. */
void profile_begin(Model *m);
void profile_end(Model *m);
/* Local. The table: calls and ms per step, share, GFLOP/s and share of the rank's peak (FLOP/s)
 * where the work is counted in FLOPs. A row that is faster than the peak shows that the peak was
 * measured too low; the shares are then of the fastest row, and a line says so. */
void profile_print(FILE *f, double peak_flops);

#endif
