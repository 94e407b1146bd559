/* options -- the options of train_gpt: one table for the parser, --help, the run header and the
 * record in checkpoints. */
#ifndef PARALLEL_TRAIN_OPTIONS_H
#define PARALLEL_TRAIN_OPTIONS_H

#include "base/opt.h"

typedef struct Options {
    const char *cluster, *explain_matmul, *train, *val, *hellaswag, *model, *init, *tokenizer,
        *save, *prompt, *kernels, *layout, *libraries, *overlap;
    const char *config, *json, *csv, *tensorboard, *trace, *ledger, *export_hf, *export_llmc;
    int64_t batch, micro, seq, steps, warmup, seed, threads, save_every, keep, keep_every,
        eval_every, eval_batches;
    int64_t ranks, timeout, check_tp, audit_every, sample_every, sample_tokens, samples, top_k;
    int64_t sync_every, fragments, refine, log_every;
    double outer_lr, outer_momentum;
    double lr, min_lr, wsd_decay, weight_decay, beta1, beta2, eps, clip, skip_loss_z, skip_norm_z,
        temperature, top_p;
    int backend, graphs, progress, calibrate, dtype, recompute, listing, schedule;
    bool tune, plan, resume, save_best, memory, profile, count, exact, version;
} Options;

/* Names of other programs, for opt_set_foreign: nanoGPT, llm.c, Megatron-LM, torchtitan, Hugging
 * Face's Trainer, and common ones. */
extern const OptForeign options_foreign[];

/* What must be equal on all ranks of a job (run_agree.c). */
typedef enum {
    OPTION_ALIKE, // the value of the option
    OPTION_INPUT, // the contents of the files that it names; paths may differ
    OPTION_OWN    // nothing: only rank 0 uses it, or each rank has its own
} OptionRole;

/* Local. The table; its rows point into o. The next call reuses the same memory. */
const Opt *options_table(Options *o);
/* Local, pure. The role of an option. */
OptionRole options_role(const Opt *row);

#endif
