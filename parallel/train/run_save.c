/* Checkpoints, exports, and the end of a run whose numbers are not finite. */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/checkpoint.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/output.h"
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

enum { TOKENIZER_FILES = 4 };

/* Paths of the tokenizer's files, which are copied into every checkpoint and export; NULL after the
 * last. Returns the text of tokenizer_config.json if vocab.json and merges.txt are alone, else
 * NULL. */
static const char *find_tokenizer_files(const Run *r, char *paths[TOKENIZER_FILES + 1]) {
    static const char *const names[TOKENIZER_FILES] = {"vocab.json", "merges.txt", "tokenizer.json",
                                                       "tokenizer_config.json"};
    bool there[TOKENIZER_FILES] = {0};
    int n = 0;
    for (int i = 0; i < TOKENIZER_FILES && *r->vocabulary; i++) {
        there[i] = io_exists_in(r->vocabulary, names[i]);
        if (there[i]) paths[n++] = mem_printf("%s/%s", r->vocabulary, names[i]);
    }
    while (n <= TOKENIZER_FILES) paths[n++] = NULL;
    return there[0] && there[1] && !there[2] && !there[3] ? TOKENIZER_CONFIG : NULL;
}

void run_save(Run *r) {
    char *copies[TOKENIZER_FILES + 1];
    Err e;
    const char *tokenizer_config = find_tokenizer_files(r, copies);
    CheckpointOptions co = {.keep_last = (int)r->o->keep,
                            .keep_every = r->o->keep_every,
                            .keep_step = r->state.best_step,
                            .tokenizer_config = tokenizer_config,
                            .files = (const char *const *)copies};
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
    if (r->carried) { // the next save may remove the older checkpoint with its tokenizer
        mem_free(r->vocabulary);
        r->vocabulary = checkpoint_path(r->o->save, r->state.step);
    }
    run_note(r, "step %" PRId64 ": saved in %s", r->state.step, r->o->save);
    mem_free(text);
    for (int i = 0; i < TOKENIZER_FILES; i++) mem_free(copies[i]);
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

static bool write_file(const char *to, const void *p, size_t n, Err *e) {
    Output out = {0};
    bool ok = output_open(&out, to, true, e) && io_write_file(out.part, p, n, NULL, e) &&
              output_commit(&out, e);
    output_abandon(&out);
    return ok;
}

/* Rank 0. Copies a file. A target that has these bytes already is left alone: this process may have
 * it mapped. */
static bool copy_file(const char *from, const char *to, Err *e) {
    IoMap source, there = {0};
    if (!io_map(&source, from, e)) return false;
    bool same = io_exists(to) && io_map(&there, to, e) && there.n == source.n &&
                memcmp(there.p, source.p, source.n) == 0;
    bool ok = same || write_file(to, source.p, source.n, e);
    io_unmap(&there), io_unmap(&source);
    return ok;
}

/* Rank 0. Copies the tokenizer's files to --export-hf. */
static bool export_tokenizer(const Run *r, Err *e) {
    char *files[TOKENIZER_FILES + 1];
    const char *config = find_tokenizer_files(r, files);
    char *config_path = mem_printf("%s/tokenizer_config.json", r->o->export_hf);
    bool ok = !config || write_file(config_path, config, strlen(config), e);
    mem_free(config_path);
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        char *to = files[i] ? mem_printf("%s%s", r->o->export_hf, strrchr(files[i], '/')) : NULL;
        ok = ok && (!to || copy_file(files[i], to, e));
        mem_free(to), mem_free(files[i]);
    }
    return ok;
}

void run_export(Run *r) {
    Err e;
    run_set_limit(r, true);
    if (*r->o->export_hf &&
        !weights_export(r->o->export_hf, model_pull(&r->m), "F32", &r->group, &e))
        die_user("%s", e.text);
    if (*r->o->export_hf && !group_agree(&r->group, !r->lead || export_tokenizer(r, &e), &e))
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
    model_free(&r->m);
    run_close_backend(r);
    run_plan_free(r);
    world_set_team(r->world, NULL);
    team_destroy(r->team);
}
