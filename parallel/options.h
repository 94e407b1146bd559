/* options -- every option of train_gpt: one table for --help, the run header, the record in checkpoints and the parser. */
#ifndef PARALLEL_OPTIONS_H
#define PARALLEL_OPTIONS_H

#include "base/opt.h"

typedef struct Options {
    const char *cluster, *train, *val, *hellaswag, *model, *init, *tokenizer, *save, *prompt,
        *kernels, *layout, *overlap;
    const char *json, *csv, *tensorboard, *llmc_log, *trace, *ledger, *export_hf, *export_llmc;
    int64_t batch, micro, seq, steps, warmup, seed, threads, save_every, keep, keep_every,
        eval_every, eval_batches;
    int64_t ranks, timeout, check_tp, audit_every, sample_every, sample_tokens, top_k;
    int64_t sync_every, fragments, refine;
    double outer_lr, outer_momentum;
    double lr, min_lr, wsd_decay, weight_decay, beta1, beta2, eps, clip, skip_loss_z, skip_norm_z,
        temperature, top_p;
    int backend, graphs, calibrate, wait, dtype, recompute, schedule;
    bool tune, stochastic_rounding, plan, resume, memory, matrix, profile, count, exact;
} Options;

/* Local. The table whose rows point into o. One at a time: the next call returns the same memory. */
const Opt *options_table(Options *o);

#endif
