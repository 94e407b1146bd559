/* runstate -- the state of a run besides weights and moments: train_state.json of a checkpoint.
 *
 * Data, learning rate and initial weights are functions of the step. So the state is the step, and
 * the windows of the z-scores. The options are kept as a record: a resumed run names those that
 * differ.
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
    int64_t tokens; // tokens trained on so far
    int64_t batch;  // tokens of a step; 0: not known
    int64_t data;   // tokens in the files of --train; 0: not known
    // of the checkpoint that --save-best keeps; step 0: none
    int64_t best_step;
    double best_loss;
    ZScore loss_z, norm_z;
} RunState;

/* Local. JSON text, freed by mem_free; doubles with 17 digits, so that parsing gives the same
 * bits. */
char *runstate_print(const RunState *s, const Opt *options);
/* Local, pure. */
bool runstate_parse(const char *text, RunState *s, Err *e);
/* Local. The recorded value of an option (mem_free), or NULL. */
char *runstate_option(const char *text, const char *name);
/* Local. Prints a line for each option whose recorded value differs from its present one. Options
 * that are not in the record are skipped, and --tokenizer where the run keeps the checkpoint's. */
void runstate_differences(const char *text, const Opt *options, bool kept_tokenizer, FILE *f);

#endif
