/* profile -- where a step's time goes (--profile).
 *
 * profile_kernels watches a table of kernels (parallel/step/watch.h). Rows are kinds of work;
 * products are told apart by their shape and form, so the table shows which of them run below the
 * others.
 */
#ifndef PARALLEL_STEP_PROFILE_H
#define PARALLEL_STEP_PROFILE_H

#include <stdio.h>

#include "layers/kernels.h"

/* Local. The watched table; one at a time in a process. */
const Kernels *profile_kernels(const Kernels *inner);
/* Local, around each step that is measured, where kernels run on a device while the host goes on;
 * elsewhere nothing. Waits once, at the end, for all of the step. */
void profile_begin(void);
void profile_end(void);
/* Local. Forgets what was measured, e.g. after a first step with its page faults. */
void profile_reset(void);
/* Local. The table: calls and ms per step, share, GFLOP/s and share of the rank's peak (FLOP/s)
 * where the work is counted in FLOPs. A row that is faster than the peak shows that the peak was
 * measured too low; the shares are then of the fastest row, and a line says so. */
void profile_print(FILE *f, int64_t steps, double step_ms, double peak_flops);

#endif
