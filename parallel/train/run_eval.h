/* run_eval -- evaluation, samples and checks of a run. Part of train.h. */
#ifndef PARALLEL_TRAIN_RUN_EVAL_H
#define PARALLEL_TRAIN_RUN_EVAL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Run Run;

/* Collective. Prints and records validation loss and HellaSwag. A signal ends the evaluation early,
 * without results. */
void run_evaluate(Run *r);
/* Collective. --check-tp: trains the same on this mesh and on one rank, compares all tensors; rank
 * 0 prints. False: they differ. */
bool run_check_tp(Run *r);
/* Collective. run_sample: prompt and continuation (mem_free); live: printed token by token.
 * run_show_sample: a sample between steps, recorded. */
char *run_sample(Run *r, bool live);
void run_show_sample(Run *r);
/* Collective. Ends the run because a loss, norm or logit is not finite at this step; names the
 * first tensor that is not finite. */
_Noreturn void run_stop_not_finite(Run *r, const char *what, double value, int64_t step);

#endif
