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
#include <time.h>

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
static const Opt *options; // the table of o

static const char usage[] = "usage: train_gpt --train GLOB [options]      train\n"
                            "       train_gpt --init DIR --prompt TEXT   sample\n"
                            "       train_gpt --init DIR --val GLOB      evaluate\n";

static Outer outer; // as the options say

static volatile sig_atomic_t caught_signal;

/* The first signal asks for a checkpoint after this step; a second one ends the program as usual. */
static void on_signal(int sig) {
    caught_signal = sig;
    signal(sig, SIG_DFL);
}

bool stopping(void *ctx) {
    Run *r = ctx;
    if (!r->stopping) r->stopping = !group_all(&r->group, !caught_signal);
    return r->stopping;
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* ---- what the run is -------------------------------------------------------------------------------------------- */

/* --model; a vocabulary that it does not name is the tokenizer's. */
static void config_from_options(Run *r) {
    Err e;
    char text[1024];
    snprintf(text, sizeof text, "%s", o.model);
    if (r->tokenizer && !strstr(o.model, "vocab="))
        snprintf(text, sizeof text, "%s,vocab=%d", o.model, tokenizer_vocab(r->tokenizer));
    if (!config_parse(&r->config, text, &e)) die_usage("--%s", e.text);
}

static void choose_config(Run *r, const char *checkpoint) {
    Err e;
    const char *from = checkpoint ? checkpoint : o.init;
    bool named = opt_given(opt_find(options, "model"));
    config_from_options(r);
    if (*from && !named && !(checkpoint ? checkpoint_config : weights_config)(from, &r->config, &e))
        die("%s", e.text);
    if (r->tokenizer && tokenizer_vocab(r->tokenizer) > r->config.vocab)
        die_usage("--tokenizer %s has %d tokens, the model's vocabulary %" PRId64, o.tokenizer,
                  tokenizer_vocab(r->tokenizer), r->config.vocab);
    r->seq = o.seq ? o.seq : r->config.seq;
    if (r->seq > r->config.seq)
        die_usage("--seq %" PRId64 " is more than the model's %" PRId64 " positions (--model seq=)",
                  r->seq, r->config.seq);
}

/* A run that resumes keeps its batch, whatever its mesh is now; otherwise batch(step) would be another one. Where the
 * sequences of a step do not divide, the last coordinates of d x z see padding. */
static void choose_batch(Run *r) {
    int64_t micro_tokens = o.micro * r->seq, before = r->state.batch;
    r->places = mesh_blocks(&r->grid.mesh, axes_of("d.z"));
    r->batch = o.batch ? o.batch : before ? before : micro_tokens * r->places;
    if (r->batch % micro_tokens)
        die_usage("--batch %" PRId64 " tokens is no multiple of a micro-step: --micro %" PRId64
                  " x --seq %" PRId64 " = %" PRId64 "; the nearest are %" PRId64 " and %" PRId64,
                  r->batch, o.micro, r->seq, micro_tokens, r->batch / micro_tokens * micro_tokens,
                  (r->batch / micro_tokens + 1) * micro_tokens);
    int64_t share = (r->batch / r->seq + r->places - 1) / r->places;
    r->micro = o.micro < share ? o.micro : share;
    if (grid_replicas(&r->grid) > 1 && r->batch / r->seq % (r->micro * r->places))
        die_usage("--sync-every %" PRId64 ": replicas need equal shares of a step: %" PRId64
                  " sequences are no multiple of %" PRId64 " places x %" PRId64 " of a micro-step",
                  o.sync_every, r->batch / r->seq, r->places, r->micro);
}

static void make_grid(Run *r) {
    Layout l;
    Err e;
    const char *spec = strcmp(o.layout, "auto") == 0 ? "dp" : o.layout;
    if (!layout_parse(&l, spec, world_size(r->world), &e)) die_usage("--%s", e.text);
    if (r->outer.every > 1 && l.zero && l.size[AXIS_D] > 1)
        die_usage("--layout %s: zero%d cuts the state of one model over d, but with --sync-every "
                  "%" PRId64
                  " each coordinate of d has its own: take z instead of d, or leave it out",
                  o.layout, l.zero, o.sync_every);
    grid_make(&r->grid, r->world, &l, &r->config);
    if (r->outer.every > 1) grid_set_apart(&r->grid);
}

static void plan_model(Run *r) {
    ModelShape s = {.config = r->config,
                    .B = r->micro,
                    .S = r->seq,
                    .grid = &r->grid,
                    .bf16 = o.dtype == 1,
                    .recompute = (Recompute)o.recompute,
                    .training = *o.train || !*o.init, // --memory alone is about training
                    .outer = *o.train || !*o.init ? outer_copies(&r->outer) : 0,
                    .samples = o.sample_every > 0 || *o.prompt};
    model_plan(&r->m, &s, r->kernels, r->team);
    int neighbours = ranks_on_node(r->world);
    r->state.batch = r->batch;
    if (r->lead) o.seq = r->seq, o.batch = r->batch; // for the records; no rank asks for them again
    if (r->lead) memory_require(&r->m, neighbours, stdout);
}

static void read_state(Run *r, const char *checkpoint) {
    Err e;
    char *text = checkpoint_state(checkpoint, &e);
    if (!text) die("%s", e.text);
    if (!runstate_parse(text, &r->state, &e)) die("%s/train_state.json: %s", checkpoint, e.text);
    mem_free(text);
}

/* A checkpoint to continue from (mem_free), or NULL. Refuses to train over someone else's run. */
static char *find_checkpoint(Run *r) {
    r->saved_step = -1;
    if (!*o.save) {
        if (o.resume) die_usage("--resume needs --save DIR");
        return NULL;
    }
    int64_t step;
    char *path = checkpoint_latest(o.save, &step, &r->group);
    if (path && !o.resume)
        die("--save %s holds a run already, up to step %" PRId64
            ": --resume continues it, or name another folder",
            o.save, step);
    if (!path && o.resume && r->lead)
        printf("nothing to resume in %s: starting at step 0\n", o.save);
    if (path) r->saved_step = step, read_state(r, path);
    return path;
}

static void load_weights(Run *r, const char *checkpoint) {
    Err e;
    if (checkpoint) {
        char *text;
        if (!checkpoint_load(checkpoint, &r->m.tensors, &text, &r->group, &e)) die("%s", e.text);
        if (r->lead) printf("resuming from %s\n", checkpoint);
        if (r->lead) runstate_differences(text, options, stdout);
        mem_free(text);
    } else if (*o.init) {
        if (!weights_load(o.init, &r->m.tensors, &r->group, &e)) die("%s", e.text);
    } else {
        tensors_init(&r->m.tensors, r->team, (uint64_t)o.seed);
    }
    outer_begin(&r->outer, &r->m, r->state.step);
}

static void open_data(Run *r) {
    if (*o.train) {
        r->train_set = shards_open(o.train, r->config.vocab, r->team);
        r->train = batches_make(&r->train_set, r->seq, r->batch / r->seq, (uint64_t)o.seed, true);
    }
    if (*o.val) {
        r->val_set = shards_open(o.val, r->config.vocab, r->team);
        r->val = batches_make(&r->val_set, r->seq, 1, 0, false);
    }
    if (*o.hellaswag) r->hellaswag = hellaswag_open(o.hellaswag, r->config.vocab);
    size_t n = (size_t)(r->micro * r->seq);
    r->inputs = mem_calloc(n, sizeof *r->inputs);
    r->targets = mem_calloc(n, sizeof *r->targets);
}

/* What a long run writes at its end must not be found impossible there. */
static void check_outputs(const Run *r) {
    Err e;
    const char *const folders[] = {*o.train ? o.save : "", o.export_hf};
    for (int i = 0; i < 2; i++) {
        char *inside = mem_printf("%s/file", folders[i]);
        if (*folders[i] && (!io_make_dirs(folders[i], &e) || !io_can_write(inside, &e)))
            die("%s", e.text);
        mem_free(inside);
    }
    int lock; // held until the process ends
    if (*folders[0] && !checkpoint_lock(o.save, &r->group, &lock, &e)) die("--save: %s", e.text);
    if (*o.export_llmc && (!llmc_model_fits(&r->config, &e) || !io_can_write(o.export_llmc, &e)))
        die("--export-llmc: %s", e.text);
}

static const char *kernels_name(void) {
    return strcmp(o.kernels, "auto") == 0 ? kernels_cpu_sets()[0] : o.kernels;
}

/* Share of the tokens that the ranks compute and nobody asked for. */
static double batch_waste(const Run *r) {
    int64_t round = r->micro * r->places, n = r->batch / r->seq, rounds = (n + round - 1) / round;
    return 1 - (double)r->batch / (double)(rounds * r->places * r->m.tk.T);
}

static void print_header(const Run *r) {
    char text[512], spec[64];
    config_print(&r->config, text, sizeof text);
    printf("model    %s\n         %.1f M parameters, %.2f GFLOP per token\n", text,
           (double)config_parameters(&r->config) / 1e6,
           config_flops_per_token(&r->config, r->seq) / 1e9);
    if (r->group.size > 1)
        printf("mesh     %d ranks (%s), %s; padding: %.1f %% of the weights, %.1f %% of the "
               "tokens\n",
               r->group.size, world_backend(r->world), layout_print(&r->grid.layout, spec),
               100 * shard_waste(&r->config, &r->grid), 100 * batch_waste(r));
    printf("machine  %d threads%s, %s kernels, %s, peak %.0f GFLOP/s (measured)\n",
           team_size(r->team), r->group.size > 1 ? " a rank" : "", kernels_name(),
           o.dtype ? "bf16" : "fp32", r->peak_flops / 1e9);
    if (*o.train)
        printf("data     %.2f M tokens, %d file(s), %.2f epochs in %" PRId64 " steps of %" PRId64
               " tokens\n",
               (double)r->train_set.n_tokens / 1e6, r->train_set.n,
               batch_epochs(&r->train, o.steps), o.steps, r->batch);
    if (r->m.anchor)
        printf("outer    %d replicas meet every %" PRId64 " steps%s; rate %g, momentum %g\n",
               grid_replicas(&r->grid), o.sync_every,
               o.fragments > 1 ? ", a fragment at a time" : "", o.outer_lr, o.outer_momentum);
    memory_print(&r->m, stdout);
    fflush(stdout);
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
    die("%s is %s at step %" PRId64
        "; first tensor that is not finite: %s%s. A lower --lr or --clip, or fp32, may help",
        what, isnan(value) ? "not a number" : "infinite", r->state.step + 1,
        name[0] ? name : "none (the sum itself overflowed)", last);
}

/* Gradients of batch(step), by micro-steps, and the mean loss. False when a signal came between them: the weights are
 * still those after the last step, and --resume makes this one again. */
static bool accumulate(Run *r, double *loss) {
    int64_t per_step = r->batch / r->seq, round = r->micro * r->places, step = r->state.step;
    int64_t place = mesh_block(&r->grid.mesh, axes_of("d.z")) * r->micro;
    float scale =
        (float)grid_replicas(&r->grid) / (float)r->batch; // mean over a model's own tokens
    double sum = 0;
    model_zero_grads(&r->m);
    for (int64_t first = 0; first < per_step; first += round) {
        if (first && stopping(r)) return false;
        batch_fill_padded(&r->train, step, first + place, r->micro, r->inputs, r->targets);
        int64_t next = first + round < per_step ? first + round + place : place;
        if (next + r->micro <= per_step)
            batch_prefetch(&r->train, first + round < per_step ? step : step + 1, next, r->micro);
        sum += model_step(&r->m, r->inputs, r->targets, scale);
    }
    sum = model_sum(&r->m, sum);
    if (!isfinite(sum)) stop_not_finite(r, "the loss", sum);
    model_reduce_grads(&r->m);
    *loss = sum / (double)r->batch;
    return true;
}

static void update(Run *r, double lr, double norm) {
    double scale = o.clip > 0 && norm > o.clip ? o.clip / (norm + 1e-6)
                                               : 1; // as torch.nn.utils.clip_grad_norm_
    AdamW a = {.lr = (float)lr,
               .beta1 = (float)o.beta1,
               .beta2 = (float)o.beta2,
               .eps = (float)o.eps,
               .weight_decay = (float)o.weight_decay,
               .grad_scale = (float)scale,
               .step = r->state.step + 1};
    model_update(&r->m, &a);
}

/* Bytes that this rank got from others so far. */
static int64_t received(const Run *r) {
    CollCount rows[COUNT_ROWS];
    int n = world_counts(r->world, rows, COUNT_ROWS);
    int64_t sum = 0;
    for (int i = 0; i < n && i < COUNT_ROWS; i++) sum += rows[i].bytes;
    return sum;
}

static void train_step(Run *r) {
    LrSchedule s = {.kind = (LrKind)o.schedule,
                    .lr = o.lr,
                    .min_lr = o.min_lr,
                    .warmup = o.warmup,
                    .steps = o.steps,
                    .wsd_decay = o.wsd_decay};
    double t0 = now_ms(), lr = schedule_lr(&s, r->state.step);
    double loss;
    int64_t before = received(r);
    if (!accumulate(r, &loss)) return;
    double own = model_grad_norm(&r->m), norm = outer_mean(&r->m, own);
    if (!isfinite(norm)) stop_not_finite(r, "the gradient norm", norm);
    double loss_z = zscore_add(&r->state.loss_z, loss), norm_z = zscore_add(&r->state.norm_z, norm);
    bool skip = (o.skip_loss_z > 0 && loss_z > o.skip_loss_z) ||
                (o.skip_norm_z > 0 && norm_z > o.skip_norm_z);
    if (!skip) update(r, lr, own);
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
                      .lr = lr,
                      .ms = ms,
                      .tokens_per_s = rate,
                      .tokens = r->state.tokens,
                      .received = received(r) - before,
                      .skipped = skip,
                      .peak = rate * config_flops_per_token(&r->config, r->seq) / r->peak_flops};
    metrics_step(r->metrics, &rec);
    progress_step(r->progress, &rec);
}

static bool file_in(const char *dir, const char *name) {
    char *path = mem_printf("%s/%s", dir, name);
    bool yes = io_exists(path);
    mem_free(path);
    return yes;
}

static void save(Run *r) {
    // What makes a checkpoint bring its tokenizer with it; those that exist are copied.
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer.json"};
    char *copies[4] = {0};
    Err e;
    for (int i = 0, n = 0; i < 3 && *o.tokenizer; i++)
        if (file_in(o.tokenizer, names[i]))
            copies[n++] = mem_printf("%s/%s", o.tokenizer, names[i]);
    CheckpointOptions co = {
        .keep_last = (int)o.keep, .keep_every = o.keep_every, .files = (const char *const *)copies};
    char *text = runstate_print(&r->state, options);
    outer_meet(&r->outer, &r->m, r->state.step);
    outer_mean_moments(&r->m);
    if (r->lead) metrics_sync(r->metrics); // a checkpoint never knows more steps than the records
    if (!checkpoint_save(o.save, r->state.step, &r->m.tensors, text, &co, &r->group, &e))
        die("%s", e.text);
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
    CollCount before[COUNT_ROWS], rows[COUNT_ROWS];
    int64_t round = r->micro * r->places, micro_steps = (r->batch / r->seq + round - 1) / round;
    int n = world_counts(r->world, before, COUNT_ROWS);
    train_step(r);
    n = count_since(rows, world_counts(r->world, rows, COUNT_ROWS), before, n);
    if (!r->lead) return;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) die("no memory for the table of --count");
    count_print(f, &r->m.shape, micro_steps, 1, rows, n);
    fclose(f);
    text[size - 1] = 0; // progress_note ends the line
    note(r, "%s", text);
    mem_free(text);
}

static void train(Run *r) {
    int64_t measured =
        0; // steps of the profile: the first one pays for page faults and does not count
    double t0 = 0;
    if (r->state.step >= o.steps) {
        note(r, "step %" PRId64 " of --steps %" PRId64 " is done already", r->state.step, o.steps);
        if (*o.save && r->saved_step != r->state.step) save(r);
    }
    while (r->state.step < o.steps && !stopping(r)) {
        if (o.profile && measured++ == 1) profile_reset(), t0 = now_ms();
        if (o.count && r->state.step + 1 == o.steps)
            train_step_counted(r);
        else
            train_step(r);
        if (!o.profile) after_step(r);
    }
    if (o.profile && r->lead)
        profile_print(stdout, measured - 1, (now_ms() - t0) / (double)(measured - 1),
                      r->peak_flops);
}

static void export_weights(Run *r) {
    Err e;
    if (*o.export_hf && !weights_export(o.export_hf, &r->m.tensors, "F32", &r->group, &e))
        die("%s", e.text);
    if (*o.export_llmc && !llmc_model_save(o.export_llmc, &r->m.tensors,
                                           o.dtype ? LLMC_BF16 : LLMC_FP32, &r->group, &e))
        die("%s", e.text);
}

static void start_records(Run *r) {
    char text[512], spec[64];
    MetricsFiles files = {o.json, o.csv, o.tensorboard, o.llmc_log};
    config_print(&r->config, text, sizeof text);
    RunRecord run = {.options = options,
                     .model = text,
                     .kernels = kernels_name(),
                     .ranks = r->group.size,
                     .layout = layout_print(&r->grid.layout, spec),
                     .parameters = config_parameters(&r->config),
                     .tokens_per_step = r->batch,
                     .steps = o.steps,
                     .threads = team_size(r->team),
                     .flops_per_token = config_flops_per_token(&r->config, r->seq),
                     .peak_flops = r->peak_flops};
    r->metrics = metrics_open(&files, r->state.step);
    metrics_run(r->metrics, &run);
    r->progress = progress_open(stdout, o.steps);
}

static void end(Run *r) {
    metrics_close(r->metrics);
    progress_close(r->progress);
    if (*o.train) batches_free(&r->train), shards_close(&r->train_set);
    if (*o.val) batches_free(&r->val), shards_close(&r->val_set);
    if (*o.hellaswag) hellaswag_close(&r->hellaswag);
    mem_free(r->inputs), mem_free(r->targets);
    model_free(&r->m);
    world_set_team(r->world, NULL);
    team_destroy(r->team);
}

/* A --save folder given as --init stands for its newest checkpoint; a folder may bring its tokenizer with it. */
static Tokenizer *find_tokenizer(void) {
    Group alone = group_alone();
    char *newest =
        *o.init && !file_in(o.init, "config.json") ? checkpoint_latest(o.init, NULL, &alone) : NULL;
    if (newest) o.init = newest;
    if (!*o.tokenizer && *o.init &&
        (file_in(o.init, "vocab.json") || file_in(o.init, "tokenizer.json")))
        o.tokenizer = o.init;
    Tokenizer *t = *o.tokenizer ? tokenizer_load(o.tokenizer) : NULL;
    if (*o.prompt && !(t && tokenizer_can_encode(t)))
        die_usage("--prompt needs a --tokenizer that can encode (vocab.json and merges.txt, or "
                  "tokenizer.json)");
    return t;
}

/* From options to a model with weights and data; --memory ends after the table. */
static bool prepare(Run *r) {
    char *checkpoint = find_checkpoint(r);
    choose_config(r, checkpoint);
    make_grid(r);
    choose_batch(r);
    plan_model(r);
    if (o.memory) {
        if (r->lead) memory_print(&r->m, stdout);
        return false;
    }
    open_data(r);
    check_outputs(r);
    model_allocate(&r->m);
    load_weights(r, checkpoint);
    mem_free(checkpoint);
    r->peak_flops = group_sum(&r->group, r->kernels->peak(r->team, o.dtype == 1));
    return true;
}

/* The life of one rank. */
static int rank_main(World *w, void *tokenizer) {
    Run run = {.world = w,
               .group = comm_group(world_comm(w)),
               .lead = world_rank(w) == 0,
               .outer = outer,
               .tokenizer = tokenizer};
    Run *r = &run;
    r->kernels = kernels_cpu(o.kernels);
    if (o.profile && r->lead) r->kernels = profile_kernels(r->kernels);
    r->team = team_create(o.threads ? (int)o.threads : ranks_threads(w));
    world_set_team(w, r->team);
    world_set_limit(w, (double)o.timeout);
    if (prepare(r)) {
        bool only_sample = !*o.train && *o.prompt;
        if (!only_sample && r->lead) print_header(r);
        if (r->lead) start_records(r);
        if (*o.train)
            train(r);
        else if (*o.val || *o.hellaswag)
            evaluate_all(r);
        if (only_sample) mem_free(sample(r, true));
        if (!r->stopping) export_weights(r);
    }
    int64_t step = r->state.step;
    end(r);
    if (!r->stopping) return 0;
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
    if (!*o.train && !*o.init && !o.memory)
        die_usage("nothing to do: --train GLOB trains, --init DIR with --prompt or --val uses a "
                  "model (--help lists all)");
    outer = outer_of(&o);
    if (!kernels_cpu(o.kernels))
        die_usage("--kernels %s: this processor or build has no such set", o.kernels);
    Tokenizer *tokenizer = find_tokenizer();
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    int status = ranks_run((int)o.ranks, rank_main, tokenizer);
    tokenizer_free(tokenizer);
    return status;
}
