/* Checks of options before ranks start: contradictory options, and files named twice. */
#include <inttypes.h>
#include <string.h>

#include "base/claim.h"
#include "base/die.h"
#include "base/mem.h"
#include "data/weights.h"
#include "layers/kernels.h"
#include "parallel/train/train.h"

bool run_continues_record(const Options *o) {
    struct stat record, config;
    return o->resume && stat(o->json, &record) == 0 && stat(o->config, &config) == 0 &&
           record.st_dev == config.st_dev && record.st_ino == config.st_ino;
}

/* Before any input is opened: no input may be an output, and no two outputs the same file. */
static void claim_outputs(const Options *o) {
    Err e;
    char *hf[EXPORT_FILES];
    weights_export_paths(o->export_hf, hf);
    const struct {
        const char *what, *path;
    } outputs[] = {{"--json", run_continues_record(o) ? "" : o->json},
                   {"--csv", o->csv},
                   {"--trace", o->trace},
                   {"--export-llmc", o->export_llmc},
                   {"--export-hf", *o->export_hf ? hf[0] : ""},
                   {"--export-hf", *o->export_hf ? hf[1] : ""},
                   {"--export-hf", *o->export_hf ? hf[2] : ""},
                   {"--ledger", strcmp(o->ledger, "none") ? o->ledger : ""}};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        if (!claim_output(outputs[i].what, outputs[i].path, &e)) die_usage("%s", e.text);
    for (int i = 0; i < EXPORT_FILES; i++) mem_free(hf[i]);
}

/* The settings of the outer loop. Contradictory ones end the program (usage). Rounds save_every up
 * to a multiple of sync_every. */
static Outer outer_of(Options *o) {
    if (o->fragments > o->sync_every)
        die_usage("--fragments %" PRId64
                  " needs --sync-every of at least as many steps, not %" PRId64
                  ": one fragment a step at most",
                  o->fragments, o->sync_every);
    if (o->sync_every == 1 && (o->outer_lr != 1 || o->outer_momentum > 0))
        die_usage("--outer-lr and --outer-momentum require --sync-every of 2 or more steps");
    o->save_every = div_up(o->save_every, o->sync_every) * o->sync_every;
    return (Outer){.every = o->sync_every,
                   .fragments = (int)o->fragments,
                   .rate = (float)o->outer_lr,
                   .momentum = (float)o->outer_momentum};
}

bool run_given(const Run *r, const char *option) {
    return opt_given(opt_find(r->options, option));
}

bool run_samples(const Run *r) {
    return r->o->sample_every > 0 || run_given(r, "prompt");
}

bool run_only_samples(const Run *r) {
    return !*r->o->train && run_given(r, "prompt");
}

static void check_of_check_tp(const Options *o, const Opt *table) {
    static const char *const files[] = {"save", "export-hf",   "export-llmc", "json",
                                        "csv",  "tensorboard", "trace"};
    char given[128] = "";
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (**(char **)opt_find(table, files[i])->value) strcat(strcat(given, " --"), files[i]);
    if (!*o->train || o->sync_every > 1 || o->exact)
        die_usage("--check-tp requires --train and excludes --sync-every and --exact");
    if (*given)
        die_usage("--check-tp writes no files: leave out%s (an empty value, as in --json '', takes "
                  "back what a file of --config says)",
                  given);
}

void run_check_options(Run *r) {
    Options *o = r->o;
    claim_outputs(o);
    if (strcmp(o->ledger, "-") == 0)
        die_usage("--ledger: - is the standard output, and a ledger is a file of many runs");
    bool explains = *o->explain_matmul;
    if (*o->cluster && !o->plan && !o->listing && !explains)
        die_usage("--cluster requires --plan, --listing or --explain-matmul");
    if (*o->cluster && o->memory)
        die_usage("--memory shows the memory of the ranks of this job: leave out --cluster");
    bool asks = o->memory || o->listing || o->plan || explains; // needs no model
    bool uses = run_only_samples(r) || *o->val || *o->hellaswag || *o->export_hf ||
                *o->export_llmc || o->count;
    if (!*o->train && !asks && !*o->init)
        die_usage("nothing to do: --train GLOB trains, --init DIR with --prompt or --val uses a "
                  "model (--help lists all)");
    if (!*o->train && !asks && !uses)
        die_usage("nothing to do with --init %s: --train GLOB trains it further, --prompt TEXT "
                  "samples, --val GLOB evaluates",
                  o->init);
    if (o->plan + (o->memory || o->listing) + explains > 1)
        die_usage(
            "--plan, --explain-matmul and --memory or --listing each print and exit: give one");
    if (o->check_tp) check_of_check_tp(o, r->options);
    // a save between two outer steps would average the replicas
    if (o->save_best && (!*o->save || !*o->val || o->sync_every > 1))
        die_usage("--save-best requires --save and --val, and excludes --sync-every");
    if (*o->trace && (!*o->train || o->profile))
        die_usage("--trace requires --train and excludes --profile");
    if (!kernels_cpu(o->kernels))
        die_usage("--kernels %s: this processor or build has no such set", o->kernels);
    if (o->exact && o->dtype == 1)
        die_usage("--exact requires --dtype fp32: matmuls in bf16 round too early");
    r->outer = outer_of(o);
}
