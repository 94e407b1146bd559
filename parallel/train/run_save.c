/* Checkpoints, exports, and the end of a run whose numbers are not finite. */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/checkpoint.h"
#include "data/llmc.h"
#include "data/weights.h"
#include "parallel/comm/ranks.h"
#include "parallel/step/audit.h"

void run_stop_not_finite(Run *r, const char *what, double value, int64_t step) {
    char name[160];
    model_first_nonfinite(&r->m, name, sizeof name);
    if (!r->lead) ranks_follow(r->world);
    metrics_close(r->metrics);
    progress_close(r->progress);
    const char *kind = isnan(value) ? "not a number" : "infinite";
    if (!name[0]) strcpy(name, "none (the sum itself overflowed)");
    if (!*r->o->train)
        die_user("%s is %s; first tensor that is not finite: %s, with the weights of %s", what,
                 kind, name, r->o->init);
    char *last =
        *r->o->save && r->saved_step >= 0
            ? mem_printf(r->saved_step == r->state.step
                             ? "; step %" PRId64 " in %s holds these very weights: move "
                               "it away, and --resume continues from an older one, if there is one"
                             : "; step %" PRId64 " in %s is whole: --resume continues from it",
                         r->saved_step, r->o->save)
            : mem_printf("; nothing was saved");
    die_user("%s is %s at step %" PRId64 "; first tensor that is not finite: %s%s. %s", what, kind,
             step, name, last,
             r->o->exact ? "--exact holds sums up to 32768, those of gradients of weights up to "
                           "128: a lower --lr or --clip may help, or leave it out"
                         : "A lower --lr or --clip, or fp32, may help");
}

/* Factor of --timeout while files are read or written: storage that many ranks use at once may be
 * slow although no rank is lost. */
enum { STORAGE_PATIENCE = 10 };

void run_set_limit(const Run *r, bool storage) {
    world_set_limit(r->world, (double)r->o->timeout * (storage ? STORAGE_PATIENCE : 1));
}

void run_save(Run *r) {
    Err e;
    CheckpointOptions co = {.keep_last = (int)r->o->keep,
                            .keep_every = r->o->keep_every,
                            .keep_step = r->state.best_step,
                            .files = r->tokenizer_files.file};
    char *text = runstate_print(&r->state, r->options);
    outer_average(&r->outer, &r->m, r->state.step);
    outer_mean_moments(&r->m);
    run_set_phase(r, "the save of step", r->state.step);
    run_set_limit(r, true);
    if (r->lead) metrics_sync(r->metrics); // records must reach at least as far as the checkpoint
    if (!checkpoint_save(r->o->save, r->state.step, model_pull(&r->m), text, &co, &r->group, &e)) {
        if (r->saved_step < 0) die_user("%s; nothing was saved before", e.text);
        die_user("%s; --resume continues from step %" PRId64, e.text, r->saved_step);
    }
    run_set_limit(r, false);
    r->saved_step = r->state.step;
    run_note(r, "step %" PRId64 ": saved in %s", r->state.step, r->o->save);
    mem_free(text);
}

void run_audit(Run *r) {
    Err e;
    if (audit_replicas(&r->m, &e)) {
        run_note(r, "step %" PRId64 ": audit: %s", r->state.step,
                 r->group.size > 1 ? "all replicas are equal" : "one rank, no replicas");
        return;
    }
    if (!r->lead) ranks_follow(r->world);
    die("after step %" PRId64 ": %s; memory, a link or a collective went wrong: go back to a "
        "checkpoint before it",
        r->state.step, e.text);
}

void run_export(Run *r) {
    Err e;
    run_set_limit(r, true);
    if (*r->o->export_hf &&
        !weights_export(r->o->export_hf, model_pull(&r->m), "F32", &r->group, &e))
        die_user("%s", e.text);
    if (*r->o->export_hf &&
        !group_agree(&r->group,
                     !r->lead || tokenizer_folder_write(&r->tokenizer_files, r->o->export_hf, &e),
                     &e))
        die_user("%s", e.text);
    if (*r->o->export_llmc && !llmc_model_save(r->o->export_llmc, model_pull(&r->m),
                                               r->o->dtype ? LLMC_BF16 : LLMC_FP32, &r->group, &e))
        die_user("%s", e.text);
    run_set_limit(r, false);
    if (run_only_samples(r)) return; // which prints nothing but the sample
    if (*r->o->export_hf) run_note(r, "exported to %s (Hugging Face)", r->o->export_hf);
    if (*r->o->export_llmc) run_note(r, "exported to %s (llm.c)", r->o->export_llmc);
}

void run_end(Run *r) {
    metrics_close(r->metrics);
    progress_close(r->progress);
    if (*r->o->train) batches_free(&r->train), shards_close(&r->train_set);
    if (*r->o->val) batches_free(&r->val), shards_close(&r->val_set);
    if (*r->o->hellaswag) hellaswag_close(&r->hellaswag);
    arena_free(&r->tokens);
    mem_free(r->init), mem_free(r->vocabulary);
    tokenizer_folder_free(&r->tokenizer_files);
    model_free(&r->m);
    run_close_backend(r);
    run_plan_free(r);
    world_set_team(r->world, NULL);
    team_destroy(r->team);
}
