/* options_foreign -- options of other trainers and their names here. */
#ifndef PARALLEL_TRAIN_OPTIONS_FOREIGN_H
#define PARALLEL_TRAIN_OPTIONS_FOREIGN_H

#include "base/opt.h"

/* Rows for opt_set_foreign: nanoGPT, llm.c, Megatron-LM, torchtitan, Hugging Face's Trainer, and
 * common names. */
extern const OptForeign options_foreign[];

#endif
