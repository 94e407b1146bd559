/* train_gpt -- trains a GPT from token shards. This file is the algorithm; what it calls is in the rooms:
 *
 *     options -> ranks -> mesh -> model of the run -> memory table -> weights (new, --init or --resume) -> data
 *     for each step:   micro-steps add gradients of batch(step); sums over the mesh; norm; clip; AdamW at lr(step)
 *                      replicas that train apart meet (parallel/outer.h); evaluate, sample, save when it is time
 *
 * All ranks run this same program, each on its part of the model and of the batch; rank 0 speaks.
 *
 * Steps count from 1 in everything a person or a file sees: step n is the n-th update, a checkpoint "step n" holds the
 * weights after it, and batch(n-1) made it. A run that resumes from step n therefore continues with batch(n).
 */
#include "train_gpt.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/zscore.h"
#include "data/checkpoint.h"
#include "data/io.h"
#include "data/llmc.h"
#include "data/weights.h"
#include "parallel/audit.h"
#include "parallel/count.h"
#include "parallel/memory.h"
#include "parallel/profile.h"
#include "parallel/ranks.h"
#include "parallel/schedule_lr.h"

Options o;
const Opt *options;
static Outer outer; // as the options say

static const char usage[] = "usage: train_gpt --train GLOB [options]      train\n"
                            "       train_gpt --init DIR --prompt TEXT   sample\n"
                            "       train_gpt --init DIR --val GLOB      evaluate\n";

static _Atomic int caught_signal; // lock-free: handlers and rank threads may both use it

/* The first signal asks for a checkpoint after this step; a second one ends the program as usual. */
static void on_signal(int sig) {
    caught_signal = sig;
    signal(sig, SIG_DFL);
}

int signal_here(void) {
    return caught_signal;
}

bool stopping(void *ctx) {
    Run *r = ctx;
    if (!r->stopping) r->stopping = !group_all(&r->group, !caught_signal);
    return r->stopping;
}

static double now_ms(void) {
    return 1e3 * now_s();
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

static _Noreturn void stop_not_finite(Run *r, const char *what, double value) {
    char name[160];
    model_first_nonfinite(&r->m, name, sizeof name);
    if (!r->lead) ranks_follow(r->world);
    metrics_close(r->metrics);
    progress_close(r->progress);
    char *last =
        *o.save && r->saved_step >= 0
            ? mem_printf(r->saved_step == r->state.step
                             ? "; step %" PRId64 " in %s holds these very weights: move "
                               "it away, and --resume continues from the one before"
                             : "; step %" PRId64 " in %s is whole: --resume continues from it",
                         r->saved_step, o.save)
            : mem_printf("; nothing was saved");
    die_user(
        "%s is %s at step %" PRId64 "; first tensor that is not finite: %s%s. %s", what,
        isnan(value) ? "not a number" : "infinite", r->state.step + 1,
        name[0] ? name : "none (the sum itself overflowed)", last,
        o.exact
            ? "--exact holds sums up to 32768, those of gradients of weights up to 128: a lower "
              "--lr or --clip may help, or leave it out"
            : "A lower --lr or --clip, or fp32, may help");
}

/* Mean over a model's own tokens. */
static float loss_scale(const Run *r) {
    return (float)grid_replicas(&r->grid) / (float)r->batch;
}

/* The place of this rank's sequences among those of a round of micro-steps. */
static int64_t place_of(const Run *r) {
    return mesh_block(&r->grid.mesh, axes_of("d.z")) * r->micro;
}

void rehearse(Run *r) {
    if (!r->device.used) return; // a processor makes nothing at first use
    batch_fill_padded(&r->train, r->state.step, place_of(r), r->micro, r->inputs, r->targets);
    replay_prepare(&r->m, r->inputs, r->targets, loss_scale(r), micro_steps(r), o.tune);
}

/* Losses and gradients of batch(step), by micro-steps. False when a signal came between them: the weights are still those
 * after the last step, and --resume makes this one again. */
static bool accumulate(Run *r) {
    int64_t per_step = r->batch / r->seq, round = r->micro * r->places, step = r->state.step;
    int64_t at = 0, place = place_of(r);
    model_zero_grads(&r->m);
    model_expect(&r->m, micro_steps(r));
    for (int64_t first = 0; first < per_step; first += round, at += r->micro * r->seq) {
        if (first && stopping(r)) return false;
        batch_fill_padded(&r->train, step, first + place, r->micro, r->inputs + at,
                          r->targets + at);
        int64_t next = first + round < per_step ? first + round + place : place;
        if (next + r->micro <= per_step)
            batch_prefetch(&r->train, first + round < per_step ? step : step + 1, next, r->micro);
        model_step(&r->m, r->inputs + at, r->targets + at, loss_scale(r));
    }
    model_reduce_grads(&r->m);
    return true;
}

static double learning_rate(int64_t step) {
    LrSchedule s = {.kind = (LrKind)o.schedule,
                    .lr = o.lr,
                    .min_lr = o.min_lr,
                    .warmup = o.warmup,
                    .steps = o.steps,
                    .wsd_decay = o.wsd_decay};
    return schedule_lr(&s, step);
}

AdamW update_rule(int64_t step) {
    return (AdamW){.lr = (float)learning_rate(step),
                   .beta1 = (float)o.beta1,
                   .beta2 = (float)o.beta2,
                   .eps = (float)o.eps,
                   .weight_decay = (float)o.weight_decay,
                   .grad_scale = 1,
                   .step = step + 1};
}

/* Bytes that this rank got from others so far. */
static int64_t received(const Run *r) {
    CollCount rows[COUNT_ROWS];
    int n = world_counts(r->world, rows, COUNT_ROWS);
    int64_t sum = 0;
    for (int i = 0; i < n && i < COUNT_ROWS;
         i++) // votes (did a signal come?) are no part of a step
        if (strcmp(rows[i].what, "group") != 0) sum += rows[i].bytes;
    return sum;
}

static void train_step(Run *r) {
    char phase[96], saved[64] = "";
    if (*o.save && r->saved_step >= 0)
        snprintf(saved, sizeof saved, " (--resume goes on from %" PRId64 ")", r->saved_step);
    snprintf(phase, sizeof phase, "step %" PRId64 "%s", r->state.step + 1, saved);
    world_set_phase(r->world, phase); // for the line of a rank that waits in vain
    double t0 = now_ms();
    AdamW rule = update_rule(r->state.step);
    bool may_skip = o.skip_loss_z > 0 || o.skip_norm_z > 0; // else a device need not wait for us
    int64_t before = received(r);
    if (!accumulate(r)) return;
    model_sums_begin(&r->m);
    if (!may_skip) model_update_clipped(&r->m, &rule, o.clip);
    StepSums sums = model_sums_end(&r->m);
    double loss = sums.loss / (double)r->batch, norm = outer_mean(&r->m, sums.norm);
    if (!isfinite(loss)) stop_not_finite(r, "the loss", loss);
    if (!isfinite(norm)) stop_not_finite(r, "the gradient norm", norm);
    double loss_z = zscore_add(&r->state.loss_z, loss), norm_z = zscore_add(&r->state.norm_z, norm);
    bool skip = (o.skip_loss_z > 0 && loss_z > o.skip_loss_z) ||
                (o.skip_norm_z > 0 && norm_z > o.skip_norm_z);
    if (may_skip && !skip) model_update_clipped(&r->m, &rule, o.clip);
    if (skip) model_skip(&r->m, rule.step);
    r->state.step++;
    outer_step(&r->outer, &r->m, r->state.step);
    if (r->state.step == o.steps) outer_meet(&r->outer, &r->m, r->state.step);
    r->state.tokens += r->batch;
    if (!r->lead) return;
    double ms = now_ms() - t0, rate = 1e3 * (double)r->batch / ms;
    StepRecord rec = {.step = r->state.step,
                      .loss = loss,
                      .loss_z = loss_z,
                      .norm = norm,
                      .norm_z = norm_z,
                      .lr = learning_rate(r->state.step - 1),
                      .ms = ms,
                      .tokens_per_s = rate,
                      .tokens = r->state.tokens,
                      .received = received(r) - before,
                      .skipped = skip,
                      .peak = rate * config_flops_per_token(&r->config, r->seq) / r->peak_flops};
    measure_step(r, &rec);
    metrics_step(r->metrics, &rec);
    progress_step(r->progress, &rec);
}

static void save(Run *r) {
    // What makes a checkpoint bring its tokenizer with it; those that exist are copied.
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer.json"};
    char *copies[4] = {0};
    Err e;
    for (int i = 0, n = 0; i < 3 && *r->vocabulary; i++)
        if (file_in(r->vocabulary, names[i]))
            copies[n++] = mem_printf("%s/%s", r->vocabulary, names[i]);
    CheckpointOptions co = {
        .keep_last = (int)o.keep, .keep_every = o.keep_every, .files = (const char *const *)copies};
    char *text = runstate_print(&r->state, options);
    outer_meet(&r->outer, &r->m, r->state.step);
    outer_mean_moments(&r->m);
    if (r->lead) metrics_sync(r->metrics); // a checkpoint never knows more steps than the records
    if (!checkpoint_save(o.save, r->state.step, model_pull(&r->m), text, &co, &r->group, &e))
        die_user("%s", e.text);
    r->saved_step = r->state.step;
    note(r, "step %" PRId64 ": saved in %s", r->state.step, o.save);
    mem_free(text);
    for (int i = 0; i < 3; i++) mem_free(copies[i]);
}

static bool due(int64_t step, int64_t every, bool last) {
    return last || (every > 0 && step > 0 && step % every == 0);
}

/* Before anything is saved: a checkpoint never holds weights that an audit would have refused. */
static void audit(Run *r) {
    Err e;
    if (audit_replicas(&r->m, &e)) return;
    if (!r->lead) ranks_follow(r->world);
    die("after step %" PRId64 ": %s; memory, a link or a collective went wrong: go back to a "
        "checkpoint before it",
        r->state.step, e.text);
}

/* Everything that happens between steps. */
static void after_step(Run *r) {
    int64_t step = r->state.step;
    bool last = step >= o.steps, eval = due(step, o.eval_every, last),
         show = due(step, o.sample_every, last && o.sample_every > 0);
    if (due(step, o.audit_every, last && o.audit_every > 0)) audit(r);
    if (eval || show) outer_swap(&r->m); // what all replicas last agreed on
    if (eval && !r->stopping) evaluate_all(r);
    if (show && !r->stopping) show_sample(r);
    if (eval || show) outer_swap(&r->m);
    if (*o.save && due(step, o.save_every, last || (stopping(r) && step > 0)) &&
        r->saved_step != step)
        save(r);
}

/* --count: a step, and what it sent beside what was foretold. */
static void train_step_counted(Run *r) {
    CollCount before[COUNT_ROWS], rows[COUNT_ROWS], told[COUNT_ROWS];
    int n = world_counts(r->world, before, COUNT_ROWS);
    train_step(r);
    n = count_since(rows, world_counts(r->world, rows, COUNT_ROWS), before, n);
    if (!r->lead) return;
    char *text = NULL;
    size_t size = 0;
    Tape t = {0};
    FILE *f = open_memstream(&text, &size);
    if (!f) die("no memory for the table of --count");
    record_step(r, &t);
    count_print(f, r->group.size, told, price_counts(&t, told, COUNT_ROWS), rows, n, 1);
    if (o.exact)
        fprintf(f, "--exact sums integers of 8 bytes, and statistics in other ways: what is "
                   "foretold is the step without it\n");
    fclose(f);
    text[size - 1] = 0; // progress_note ends the line
    note(r, "%s", text);
    mem_free(text);
    tape_free(&t);
}

/* What --exact costs: the faster of two micro-steps with it and without. */
static void price_exact(Run *r) {
    double ms[2];
    batch_fill_padded(&r->train, 0, 0, r->micro, r->inputs, r->targets);
    for (int exact = 0; exact < 2; exact++)
        for (int i = 0; i < 2; i++) {
            r->m.exact = exact;
            group_barrier(&r->group);
            double t0 = now_ms();
            model_zero_grads(&r->m);
            model_step(&r->m, r->inputs, r->targets, 1);
            group_barrier(&r->group);
            if (i == 0 || now_ms() - t0 < ms[exact]) ms[exact] = now_ms() - t0;
        }
    note(
        r,
        "exact: a micro-step takes %.2f ms instead of %.2f: the price is %.0f %% of the throughput",
        ms[1], ms[0], 100 * (1 - ms[0] / ms[1]));
}

bool train_on(Run *r) {
    int64_t before = r->state.step;
    if (before >= o.steps || stopping(r)) return false;
    trace_before(r);
    if (o.profile && r->lead) profile_begin();
    if (o.count && before + 1 == o.steps)
        train_step_counted(r);
    else
        train_step(r);
    if (o.profile && r->lead) profile_end();
    trace_after(r);
    if (!o.profile) after_step(r);
    return r->state.step > before;
}

static void train(Run *r) {
    int64_t measured = 0;
    double t0 = now_ms();
    if (r->state.step >= o.steps) {
        note(r, "step %" PRId64 " of --steps %" PRId64 " is done already", r->state.step, o.steps);
        if (*o.save && r->saved_step != r->state.step) save(r);
    }
    if (r->state.step < o.steps) foretell(r), rehearse(r);
    if (r->plan && !o.profile) refine(r);
    trace_prepare(r);
    while (train_on(r)) // the first step of a profile pays for page faults and does not count
        if (o.profile && measured++ == 0) profile_reset(), t0 = now_ms();
    if (o.profile && r->lead)
        profile_print(stdout, measured - 1, (now_ms() - t0) / (double)(measured - 1),
                      r->peak_flops);
}

static void export_weights(Run *r) {
    Err e;
    if (*o.export_hf && !weights_export(o.export_hf, model_pull(&r->m), "F32", &r->group, &e))
        die_user("%s", e.text);
    if (*o.export_llmc && !llmc_model_save(o.export_llmc, model_pull(&r->m),
                                           o.dtype ? LLMC_BF16 : LLMC_FP32, &r->group, &e))
        die_user("%s", e.text);
}

static void end(Run *r) {
    metrics_close(r->metrics);
    progress_close(r->progress);
    if (*o.train) batches_free(&r->train), shards_close(&r->train_set);
    if (*o.val) batches_free(&r->val), shards_close(&r->val_set);
    if (*o.hellaswag) hellaswag_close(&r->hellaswag);
    arena_free(&r->tokens);
    mem_free(r->init);
    model_free(&r->m);
    close_backend(r);
    plan_free(r);
    if (r->trace) trace_free(r->trace), mem_free(r->trace);
    world_set_team(r->world, NULL);
    team_destroy(r->team);
}

/* Collective. The exit status. */
static int run_as_asked(Run *r) {
    bool only_sample = !*o.train && *o.prompt;
    if (!only_sample && r->lead) print_header(r);
    if (o.check_tp) return check(r) ? 0 : 1;
    if (r->lead) start_records(r);
    if (*o.train && o.exact) price_exact(r);
    if (*o.train) {
        train(r);
        if (r->lead) write_ledger(r);
    } else if (*o.val || *o.hellaswag)
        evaluate_all(r);
    if (only_sample) mem_free(sample(r, true));
    if (!r->stopping) export_weights(r);
    return 0;
}

/* The life of one rank. */
static int rank_main(World *w, void *ctx) {
    (void)ctx;
    Run run = {
        .world = w, .group = comm_group(world_comm(w)), .lead = world_rank(w) == 0, .outer = outer};
    Run *r = &run;
    r->cores = ranks_cores(w);
    r->nodes = (int)lround(group_sum(&r->group, 1.0 / ranks_on_node(w)));
    r->team = team_create(o.threads ? (int)o.threads : ranks_threads(w));
    world_set_team(w, r->team);
    world_set_limit(w, (double)o.timeout);
    world_set_wait(w, (WaitHow)o.wait);
    if (o.matrix) {
        show_machine(r);
        world_set_team(w, NULL);
        team_destroy(r->team);
        return 0;
    }
    open_backend(r);
    int status = prepare(r) ? run_as_asked(r) : 0;
    int64_t step = r->state.step;
    end(r);
    if (!r->stopping) return status;
    if (r->lead)
        fprintf(stderr, "train_gpt: stopped by signal %d after step %" PRId64 "%s\n",
                (int)(caught_signal ? caught_signal : SIGTERM), step,
                *o.save ? "; --resume continues" : "; nothing was saved (no --save)");
    return 128 + (caught_signal ? caught_signal : SIGTERM);
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    ranks_share_usage();
    options = options_table(&o);
    opt_parse(options, argc, argv, usage);
    if (strcmp(o.json, "-") == 0 || strcmp(o.csv, "-") == 0 || strcmp(o.llmc_log, "-") == 0)
        io_keep_stdout();
    if (*o.cluster && !o.plan) die_usage("--cluster describes where to plan for: it needs --plan");
    if (!*o.train && !*o.init && !o.memory && !o.matrix && !o.plan)
        die_usage("nothing to do: --train GLOB trains, --init DIR with --prompt or --val uses a "
                  "model (--help lists all)");
    if (o.check_tp && (!*o.train || *o.save || o.sync_every > 1 || o.exact))
        die_usage("--check-tp compares a few steps of --train and keeps nothing: leave --save, "
                  "--sync-every and --exact away");
    if (*o.trace && (!*o.train || o.profile))
        die_usage("--trace is of steps of --train, without --profile");
    outer = outer_of(&o);
    check_backend();
    if (!kernels_cpu(o.kernels))
        die_usage("--kernels %s: this processor or build has no such set", o.kernels);
    if (o.exact && o.dtype == 1)
        die_usage("--exact needs --dtype fp32: products in bf16 round too early");
    if (!o.plan) { // there is something to finish, and perhaps to save
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
    }
    // a launcher may start ranks one by one: a short --timeout is meant for steps
    ranks_set_start_limit(o.timeout == 0 || o.timeout > 60 ? (double)o.timeout : 60);
    return ranks_run((int)o.ranks, rank_main, NULL);
}
