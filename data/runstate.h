/* runstate -- what a run remembers besides weights and moments: train_state.json of a checkpoint.
 *
 * Data, learning rate and initial weights are functions of the step, so the step is nearly all
 * there is; the windows of the z-scores are the rest. The options are kept as a record: a resumed
 * run names those that differ.
 */
#ifndef DATA_RUNSTATE_H
#define DATA_RUNSTATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/die.h"
#include "base/opt.h"
#include "base/zscore.h"

typedef struct RunState {
    int64_t step;   // updates made (skipped ones counted)
    int64_t tokens; // trained on
    int64_t batch;  // tokens of a step; 0: not known
    ZScore loss_z, norm_z;
} RunState;

/* Local. JSON text, freed by mem_free; doubles with 17 digits, so that parsing gives the same
 * bits. */
char *runstate_print(const RunState *s, const Opt *options);
/* Local, pure. */
bool runstate_parse(const char *text, RunState *s, Err *e);
/* Local. One line per option whose recorded value is not today's; options not in the record are
 * passed over. */
void runstate_differences(const char *text, const Opt *options, FILE *f);

#endif
