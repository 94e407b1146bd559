/* train_gpt -- trains a GPT from token shards. This file is the algorithm; the functions that it
 * calls are in parallel/train/:
 *
 *     options -> ranks -> mesh -> model of the run -> memory table -> data -> weights
 *     for each step:   micro-batches add gradients of batch(step); sums over the mesh; norm; clip;
 *                      AdamW at lr(step); after local steps an outer step (parallel/step/outer.h);
 *                      evaluate, sample, save when it is time
 *
 * All ranks run this same program, each on its part of the model and of the batch; rank 0 prints.
 *
 * Steps count from 1 in everything a person or a file sees: step n is the n-th update, a checkpoint
 * "step n" holds the weights after it, and batch(n-1) made it. A run that resumes from step n
 * therefore continues with batch(n).
 */
#include "parallel/train/train.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/die.h"
#include "base/library.h"
#include "base/mem.h"
#include "base/zscore.h"
#include "data/io.h"
#include "data/io_map.h"
#include "layers/cpu/sets.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/count.h"
#include "parallel/plan/detect.h"
#include "parallel/step/profile.h"
#include "parallel/train/run_agree.h"

static const char usage[] = "train_gpt: trains, samples and evaluates GPTs on any mesh of ranks\n"
                            "\n"
                            "    train_gpt --train GLOB [options]      train\n"
                            "    train_gpt --init DIR --prompt TEXT    sample\n"
                            "    train_gpt --init DIR --val GLOB       evaluate\n";

static _Atomic int caught_signal; // lock-free: handlers and rank threads may both use it

static _Atomic bool begun; // the run computes: a signal lets it finish the step, and save
static bool watched;       // the standard error is a terminal, and no launcher started this process

/* The first signal asks for a checkpoint after this step; a second one ends the program as usual,
 * except SIGUSR1 and SIGUSR2: timeout(1) sends them to the program and to its process group.
 * Ctrl-C prints a line at once: a micro-batch may take a minute, and a second Ctrl-C before its end
 * would lose the checkpoint. */
static void on_signal(int sig) {
    if (!begun) die_in_handler(128 + sig, "stopped by a signal", " before anything was computed");
    static const char heard[] =
        "\ntrain_gpt: stopping soon; Ctrl-C again ends at once, without saving\n";
    if (sig == SIGINT && watched) {
        int was = errno;
        ssize_t done = write(STDERR_FILENO, heard, sizeof heard - 1);
        (void)done, errno = was;
    }
    caught_signal = sig;
    if (sig != SIGUSR1 && sig != SIGUSR2) signal(sig, SIG_DFL); // these may be sent twice
}

/* SIGUSR1 and SIGUSR2 are what a batch system is asked to send before the time is over (sbatch
 * --signal). */
enum { ENDS = 5 };
static const int ends[ENDS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
static bool ignored[ENDS]; // by the caller: nohup, or a shell that outlives its terminal

/* With glibc it runs before the constructors of libraries: the UCX that Open MPI 5 is linked with
 * replaces the handler of SIGHUP. */
static void find_ignored(void) {
    struct sigaction old;
    for (int i = 0; i < ENDS; i++)
        ignored[i] = !sigaction(ends[i], NULL, &old) && old.sa_handler == SIG_IGN;
}
__attribute__((section(".preinit_array"), used)) static void (*const at_first)(void) = find_ignored;

/* A signal that the caller has set to be ignored stays ignored. */
static void catch_signals(void) {
    watched = isatty(STDERR_FILENO) && !ranks_under_launcher();
    for (int i = 0; i < ENDS; i++)
        if (signal(ends[i], on_signal) == SIG_IGN || ignored[i]) signal(ends[i], SIG_IGN);
    signal(SIGPIPE, SIG_IGN); // a write to a pipe without a reader fails, and ends nothing
}

bool run_stopping(void *ctx) {
    Run *r = ctx;
    bool go_on = !caught_signal && !io_map_truncated(NULL);
    if (!r->stopping) r->stopping = !group_all(&r->group, go_on);
    return r->stopping;
}

/* ---- the step -------------------------------------------------------------------- */

/* Losses and gradients of batch(step), by micro-batches. False when a signal came between them: the
 * weights are still those after the last step, and --resume repeats this step. */
static bool accumulate(Run *r) {
    int64_t n = run_micro_batches(r), tokens = r->micro * r->seq;
    model_zero_grads(&r->m, n);
    for (int64_t i = 0; i < n; i++) {
        if (i && run_stopping(r)) return false;
        model_step(&r->m, r->inputs + i * tokens, r->targets + i * tokens, run_loss_scale(r));
    }
    return true;
}

static void train_step(Run *r) {
    run_set_phase(r, "step", r->state.step + 1);
    double begin = now_s();
    AdamW rule = run_update_rule(r, r->state.step);
    // false: a device need not wait until the host knows the norm
    bool may_skip = r->o->skip_loss_z > 0 || r->o->skip_norm_z > 0;
    if (!accumulate(r)) return;
    model_sums_begin(&r->m);
    if (!may_skip) model_update_clipped(&r->m, &rule, r->o->clip);
    StepSums sums = model_sums_end(&r->m);
    double loss = sums.loss / (double)r->batch, norm = outer_mean(&r->m, sums.norm);
    if (!isfinite(loss)) run_stop_not_finite(r, "the loss", loss, r->state.step + 1);
    if (!isfinite(norm)) run_stop_not_finite(r, "the gradient norm", norm, r->state.step + 1);
    double loss_z = zscore_add(&r->state.loss_z, loss), norm_z = zscore_add(&r->state.norm_z, norm);
    bool skip = (r->o->skip_loss_z > 0 && loss_z > r->o->skip_loss_z) ||
                (r->o->skip_norm_z > 0 && norm_z > r->o->skip_norm_z);
    if (may_skip && !skip) model_update_clipped(&r->m, &rule, r->o->clip);
    r->state.step++;
    outer_step(&r->outer, &r->m, r->state.step);
    if (r->state.step == r->o->steps) outer_average(&r->outer, &r->m, r->state.step);
    r->state.tokens += r->batch;
    if (!r->lead) return;
    double ms = 1e3 * (now_s() - begin), rate = 1e3 * (double)r->batch / ms;
    StepRecord rec = {.step = r->state.step,
                      .loss = loss,
                      .loss_z = loss_z,
                      .norm = norm,
                      .norm_z = norm_z,
                      .lr = run_learning_rate(r, r->state.step - 1),
                      .ms = ms,
                      .tokens_per_s = rate,
                      .tokens = r->state.tokens,
                      .received = run_received(r),
                      .skipped = skip,
                      .peak =
                          run_share_of_peak(r, rate * config_flops_per_token(&r->config, r->seq))};
    run_note_step(r, &rec);
    metrics_step(r->metrics, &rec);
    progress_step(r->progress, &rec);
}

static bool due(int64_t step, int64_t every, bool last) {
    return last || (every > 0 && step > 0 && step % every == 0);
}

/* Everything that happens between steps. */
static void after_step(Run *r) {
    int64_t step = r->state.step;
    bool last = step >= r->o->steps, eval = due(step, r->o->eval_every, last),
         show = due(step, r->o->sample_every, last && r->o->sample_every > 0);
    if (due(step, r->o->audit_every, last && r->o->audit_every > 0)) run_audit(r);
    // the weights of the last outer step, equal on all replicas
    if (eval || show) outer_swap(&r->m);
    if (eval && !r->stopping) run_evaluate(r);
    if (show && !r->stopping) run_sample(r, false);
    if (eval || show) outer_swap(&r->m);
    bool best = r->o->save_best && r->state.best_step == step,
         save = best || due(step, r->o->save_every, last || (run_stopping(r) && step > 0));
    if (*r->o->save && save && r->saved_step != step) run_save(r);
}

bool run_train_on(Run *r) {
    int64_t before = r->state.step;
    if (before >= r->o->steps) return false;
    run_read_step(r); // before run_stopping: no update is made of tokens that a rank could not read
    if (!run_stopping(r)) {
        run_trace_before(r);
        if (r->o->profile && r->lead) profile_begin(&r->m);
        world_count_reset(r->world);
        train_step(r);
        if (r->o->count && r->state.step == r->o->steps) run_print_counts(r);
        if (r->o->profile && r->lead) profile_end(&r->m, r->state.step > before);
        run_trace_after(r);
    }
    after_step(r);
    return r->state.step > before;
}

static void train(Run *r) {
    if (r->state.step >= r->o->steps) {
        run_note(r,
                 "step %" PRId64 " of --steps %" PRId64
                 " is done: none is left; a larger --steps trains on",
                 r->state.step, r->o->steps);
        if (*r->o->trace)
            run_note(r, "note     --trace %s is not written: no step was run", r->o->trace);
        after_step(r);
        return;
    }
    run_predict(r), run_warm_up(r);
    if (r->lead) run_remark(r);
    if (r->plan && !r->o->profile) run_refine(r);
    run_trace_prepare(r);
    while (run_train_on(r)) continue;
    if (r->o->profile && r->lead) profile_print(stdout, r->peak_rank);
}

/* Collective. Does what the options ask for; returns the exit status. */
static int run_as_asked(Run *r) {
    bool only_sample = run_only_samples(r);
    begun = true;
    if (!only_sample && r->lead) run_print_header(r);
    if (r->lead && *r->digest) printf("weights  hash %s\n", r->digest);
    if (r->o->check_tp) return run_check_tp(r) ? 0 : 1;
    if (r->lead) run_open_records(r);
    if (*r->o->train) {
        train(r);
        if (r->lead) run_write_ledger(r);
    } else if (*r->o->val || *r->o->hellaswag)
        run_evaluate(r);
    if (only_sample) run_sample(r, true);
    if (!r->stopping) run_export(r);
    return 0;
}

/* All that one rank does; returns the exit status. */
static int rank_main(World *w, void *ctx) {
    Run run = *(const Run *)ctx, *r = &run; // a copy of main's; this rank fills in the rest
    r->world = w, r->group = comm_group(world_comm(w)), r->lead = world_rank(w) == 0;
    r->node = ranks_on_node(w); // collective: also on ranks with --threads
    if (!r->o->threads && ranks_under_launcher()) detect_use_cores(r->node.sharing);
    r->node = ranks_on_node(w);
    r->nodes = (int)lround(group_sum(&r->group, 1.0 / r->node.local_size));
    int threads = ranks_threads(&r->node, detect_quota(w, ""));
    r->team = team_create(r->o->threads ? (int)r->o->threads : threads);
    bool named = strcmp(r->o->kernels, "auto") != 0; // perhaps on this rank only
    r->set =
        kernels_cpu_of_ranks(&r->group, named ? r->o->kernels : NULL, r->team, r->o->dtype == 1);
    run_agree_on_options(r);
    world_set_team(w, r->team);
    run_set_limit(r, false);
    run_open_backend(r);
    run_set_limit(r, true);
    bool ready = run_prepare(r);
    run_set_limit(r, false);
    int status = ready ? run_as_asked(r) : 0;
    int64_t step = r->state.step;
    Err e;
    bool whole = group_agree(&r->group, !io_map_truncated(&e), &e);
    // of any rank: a signal may reach one rank only, or that rank first
    int sig = (int)group_max(&r->group, caught_signal);
    const char *saved = r->saved_step == step ? "; --resume continues"
                        : *r->o->save         ? "; nothing was saved"
                                              : "; nothing was saved (no --save)";
    run_end(r);
    if (!whole && !r->lead) ranks_follow(w);
    if (!whole) die_user("%s; stopped after step %" PRId64 "%s", e.text, step, saved);
    if (!r->stopping) return status;
    if (r->lead)
        fprintf(stderr, "train_gpt: stopped by signal %d after step %" PRId64 "%s\n", sig, step,
                saved);
    return 128 + sig;
}

int main(int argc, char **argv) {
    static Options o;
    die_set_program(argv[0]);
    ranks_share_usage();
    const Opt *options = options_table(&o);
    opt_set_foreign(options_foreign);
    opt_parse(options, argc, argv, usage);
    if (o.version) return run_print_version();
    ranks_choose((int)o.ranks);
    progress_set(o.progress == 1 || (o.progress == 0 && !ranks_under_launcher()), o.log_every);
    if (strcmp(o.json, "-") == 0 || strcmp(o.csv, "-") == 0 || strcmp(o.trace, "-") == 0)
        io_keep_stdout();
    Run run = {.o = &o, .options = options};
    run_check_options(&run);
    library_folders(o.libraries);
    if (*o.explain_matmul) return run_explain_matmul(&o);
    run_check_backend(&run);
    if (!o.plan) catch_signals();
    io_map_fill_truncated(); // a file that gets shorter makes run_stopping() true
    if (!o.threads && !ranks_under_launcher()) detect_use_cores(o.ranks ? (int)o.ranks : 1);
    // a launcher may start ranks one by one; a --timeout below 60 s is meant for steps, not for the
    // start
    ranks_set_start_limit(o.timeout == 0 || o.timeout > 60 ? (double)o.timeout : 60);
    return ranks_run((int)o.ranks, rank_main, &run);
}
