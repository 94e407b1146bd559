/* run_agree -- the ranks of a run compare their options and files. A difference ends the run,
 * before anything is trained or written, with a line that names the difference and the ranks.
 *
 *   train_gpt: ranks 2-3 were started with --seed 7, rank 0 with 5
 *
 * Ranks on several nodes are separate processes, whose options, programs and files may differ.
 * Ranks that are threads share them: nothing is compared.
 */
#ifndef PARALLEL_TRAIN_RUN_AGREE_H
#define PARALLEL_TRAIN_RUN_AGREE_H

#include "parallel/train/train.h"

/* A name and a value. Values are compared. Names are only for the message and may differ: the path
 * of a file may differ between nodes. */
typedef struct Fact {
    char *name, *value;
} Fact;

typedef struct Facts {
    Fact *at;
    int n;
} Facts;

/* Local. Appends a fact. Takes ownership of both strings (mem.h). The value must not be empty. */
void facts_add(Facts *f, char *name, char *value);
/* Collective. Empties f. False: values differ; e names the first such fact, its values, and the
 * ranks that have them. */
bool facts_agree(Facts *f, const Group *g, Err *e);

/* Collective. Compares the program's commit, the options of OPTION_ALIKE, the kernel set and the
 * program's file. Other kernels (but with --exact or --audit-every) and another file of the same
 * commit (but with --exact) only cause a warning: machines of several kinds may need both. */
void run_agree_on_options(Run *r);
/* Collective. Compares sizes and contents of the files that options name, of r->init, and of the
 * checkpoint to resume from (NULL: none). */
void run_agree_on_inputs(Run *r, const char *checkpoint);

#endif
