/* train_gpt -- trains a GPT from token shards. This file is the algorithm; what it calls is in the rooms:
 *
 *     options -> model of the run -> memory table -> weights (new, --init or --resume) -> data
 *     for each step:   evaluate, sample, save when it is time
 *                      micro-steps add gradients of batch(step); norm; clip; AdamW at lr(step)
 *
 * Steps count from 1 in everything a person or a file sees: step n is the n-th update, a checkpoint "step n" holds the
 * weights after it, and batch(n-1) made it. A run that resumes from step n therefore continues with batch(n).
 */
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
#include "data/batch.h"
#include "data/checkpoint.h"
#include "data/hellaswag.h"
#include "data/io.h"
#include "data/llmc.h"
#include "data/metrics.h"
#include "data/progress.h"
#include "data/runstate.h"
#include "data/tokenizer.h"
#include "data/weights.h"
#include "parallel/generate.h"
#include "parallel/memory.h"
#include "parallel/model.h"
#include "parallel/options.h"
#include "parallel/profile.h"
#include "parallel/schedule_lr.h"

static const Group alone = {.size = 1};
static Options o;
static const Opt *options; // the table of o

static const char usage[] = "usage: train_gpt --train GLOB [options]      train\n"
                            "       train_gpt --init DIR --prompt TEXT   sample\n"
                            "       train_gpt --init DIR --val GLOB      evaluate\n";

/* Everything that lives as long as the run. */
typedef struct Run {
    Team *team;
    const Kernels *kernels;
    Config config;
    Model m;
    Tokenizer *tokenizer; // NULL: samples are printed as ids
    ShardSet train_set, val_set;
    Batches train, val;
    HellaSwag hellaswag;
    RunState state;
    Metrics *metrics;
    Progress *progress;
    double peak_flops;
    int64_t saved_step;        // of the newest checkpoint, -1 when there is none
    int32_t *inputs, *targets; // [micro, S]
    float *losses;             // [micro, S]
} Run;

static volatile sig_atomic_t caught_signal;

/* The first signal asks for a checkpoint after this step; a second one ends the program as usual. */
static void on_signal(int sig) {
    caught_signal = sig;
    signal(sig, SIG_DFL);
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
    if (o.seq == 0) o.seq = r->config.seq;
    if (o.seq > r->config.seq)
        die_usage("--seq %" PRId64 " is more than the model's %" PRId64 " positions (--model seq=)",
                  o.seq, r->config.seq);
}

static void choose_batch(void) {
    int64_t micro_tokens = o.micro * o.seq;
    if (o.batch == 0) o.batch = micro_tokens;
    if (o.batch % micro_tokens)
        die_usage("--batch %" PRId64 " tokens is no multiple of a micro-step: --micro %" PRId64
                  " x --seq %" PRId64 " = %" PRId64 "; the nearest are %" PRId64 " and %" PRId64,
                  o.batch, o.micro, o.seq, micro_tokens, o.batch / micro_tokens * micro_tokens,
                  (o.batch / micro_tokens + 1) * micro_tokens);
}

static void plan_model(Run *r) {
    ModelShape s = {.config = r->config,
                    .B = o.micro,
                    .S = o.seq,
                    .bf16 = o.dtype == 1,
                    .recompute = (Recompute)o.recompute,
                    .training = *o.train || !*o.init, // --memory alone is about training
                    .samples = o.sample_every > 0 || *o.prompt};
    model_plan(&r->m, &s, r->kernels, r->team);
    memory_require(&r->m, stdout);
    if (o.memory) {
        memory_print(&r->m, stdout);
        exit(0);
    }
}

/* A checkpoint to continue from (mem_free), or NULL. Refuses to train over someone else's run. */
static char *find_checkpoint(Run *r) {
    r->saved_step = -1;
    if (!*o.save) {
        if (o.resume) die_usage("--resume needs --save DIR");
        return NULL;
    }
    int64_t step;
    char *path = checkpoint_latest(o.save, &step, &alone);
    if (path && !o.resume)
        die("--save %s holds a run already, up to step %" PRId64
            ": --resume continues it, or name another folder",
            o.save, step);
    if (!path && o.resume) printf("nothing to resume in %s: starting at step 0\n", o.save);
    if (path) r->saved_step = step;
    return path;
}

static void load_weights(Run *r, const char *checkpoint) {
    Err e;
    if (checkpoint) {
        char *text;
        if (!checkpoint_load(checkpoint, &r->m.tensors, &text, &alone, &e)) die("%s", e.text);
        if (!runstate_parse(text, &r->state, &e))
            die("%s/train_state.json: %s", checkpoint, e.text);
        printf("resuming from %s\n", checkpoint);
        runstate_differences(text, options, stdout);
        mem_free(text);
    } else if (*o.init) {
        if (!weights_load(o.init, &r->m.tensors, &alone, &e)) die("%s", e.text);
    } else {
        tensors_init(&r->m.tensors, r->team, (uint64_t)o.seed);
    }
}

static void open_data(Run *r) {
    int64_t sequences = o.batch / o.seq;
    if (*o.train) {
        r->train_set = shards_open(o.train, r->config.vocab, r->team);
        r->train = batches_make(&r->train_set, o.seq, sequences, (uint64_t)o.seed, true);
    }
    if (*o.val) {
        r->val_set = shards_open(o.val, r->config.vocab, r->team);
        r->val = batches_make(&r->val_set, o.seq, o.micro, 0, false);
    }
    if (*o.hellaswag) r->hellaswag = hellaswag_open(o.hellaswag, r->config.vocab);
    size_t n = (size_t)(o.micro * o.seq);
    r->inputs = mem_calloc(n, sizeof *r->inputs);
    r->targets = mem_calloc(n, sizeof *r->targets);
    r->losses = mem_calloc(n, sizeof *r->losses);
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
    if (*o.export_llmc && (!llmc_model_fits(&r->config, &e) || !io_can_write(o.export_llmc, &e)))
        die("--export-llmc: %s", e.text);
}

static const char *kernels_name(void) {
    return strcmp(o.kernels, "auto") == 0 ? kernels_cpu_sets()[0] : o.kernels;
}

static void print_header(const Run *r) {
    char text[512];
    config_print(&r->config, text, sizeof text);
    printf("model    %s\n         %.1f M parameters, %.2f GFLOP per token\n", text,
           (double)config_parameters(&r->config) / 1e6,
           config_flops_per_token(&r->config, o.seq) / 1e9);
    printf("machine  %d threads, %s kernels, %s, peak %.0f GFLOP/s (measured)\n",
           team_size(r->team), kernels_name(), o.dtype ? "bf16" : "fp32", r->peak_flops / 1e9);
    if (*o.train)
        printf("data     %.2f M tokens, %d file(s), %.2f epochs in %" PRId64 " steps of %" PRId64
               " tokens\n",
               (double)r->train_set.n_tokens / 1e6, r->train_set.n,
               batch_epochs(&r->train, o.steps), o.steps, o.batch);
    memory_print(&r->m, stdout);
    fflush(stdout);
}

/* ---- evaluation and sampling ------------------------------------------------------------------------------------ */

/* Mean loss over the first micro-batches of the validation shards; the last one may be partly filled. */
static double validate(Run *r) {
    int64_t n_batches = batch_steps(&r->val), n_targets = 0;
    double sum = 0;
    if (o.eval_batches && o.eval_batches < n_batches) n_batches = o.eval_batches;
    for (int64_t i = 0; i < n_batches && !caught_signal; i++) {
        int64_t n = batch_sequences(&r->val, i);
        batch_fill(&r->val, i, 0, n, r->inputs, r->targets);
        for (int64_t t = n * o.seq; t < o.micro * o.seq; t++) r->inputs[t] = 0, r->targets[t] = -1;
        sum += model_loss(&r->m, r->inputs, r->targets, NULL);
        n_targets += n * o.seq;
    }
    return sum / (double)n_targets;
}

/* Share of examples whose right ending has the lowest mean loss. Rows go through the model --micro at a time. */
static double score_hellaswag(Run *r) {
    int64_t S = o.seq, right = 0, scored = 0;
    size_t rows = HELLASWAG_CHOICES * (size_t)S;
    int32_t *in = mem_alloc(rows * sizeof *in), *target = mem_alloc(rows * sizeof *target);
    float *loss = mem_alloc(rows * sizeof *loss);
    for (int64_t i = 0; i < r->hellaswag.n && !caught_signal; i++) {
        if (!hellaswag_rows(&r->hellaswag, i, S, in, target)) continue;
        for (int64_t row = 0; row < HELLASWAG_CHOICES; row += o.micro) {
            int64_t n = HELLASWAG_CHOICES - row < o.micro ? HELLASWAG_CHOICES - row : o.micro;
            for (int64_t t = 0; t < o.micro * S; t++) {
                r->inputs[t] = t < n * S ? in[row * S + t] : 0;
                r->targets[t] = t < n * S ? target[row * S + t] : -1;
            }
            model_loss(&r->m, r->inputs, r->targets, r->losses);
            memcpy(loss + row * S, r->losses, (size_t)(n * S) * sizeof *loss);
        }
        right += hellaswag_pick(loss, target, S) == hellaswag_label(&r->hellaswag, i);
        scored++;
    }
    mem_free(in), mem_free(target), mem_free(loss);
    if (scored < r->hellaswag.n && !caught_signal)
        progress_note(r->progress,
                      "hellaswag: %" PRId64 " of %" PRId64
                      " examples are longer than --seq %" PRId64 " and were left out",
                      r->hellaswag.n - scored, r->hellaswag.n, S);
    return scored ? (double)right / (double)scored : NAN;
}

/* A signal ends it without a result: whoever sent it may not wait. */
static void evaluate(Run *r) {
    if (*o.val) {
        double loss = validate(r);
        if (caught_signal) return;
        progress_note(r->progress, "step %" PRId64 ": val loss %.6f", r->state.step, loss);
        metrics_eval(r->metrics, r->state.step, "val_loss", loss);
    }
    if (*o.hellaswag) {
        double share = score_hellaswag(r);
        if (caught_signal) return;
        progress_note(r->progress, "step %" PRId64 ": HellaSwag %.4f", r->state.step, share);
        metrics_eval(r->metrics, r->state.step, "hellaswag", share);
    }
}

/* Text of n ids (mem_free): bytes of the tokens, or the numbers themselves without a tokenizer. */
static char *text_of(const Run *r, const int32_t *ids, int64_t n) {
    size_t used = 0, room = 64;
    char *text = mem_alloc(room);
    for (int64_t i = 0; i < n; i++) {
        char number[16];
        size_t len = (size_t)snprintf(number, sizeof number, "%d ", ids[i]);
        const uint8_t *bytes = r->tokenizer ? tokenizer_token(r->tokenizer, ids[i], &len) : NULL;
        if (r->tokenizer && !bytes) len = 0; // rows of the embedding that no token uses
        if (used + len + 1 > room) text = mem_realloc(text, 1, room = 2 * (used + len + 1));
        memcpy(text + used, bytes ? (const void *)bytes : number, len);
        used += len;
    }
    text[used] = 0;
    return text;
}

/* The prompt's ids (mem_free), shortened to what the model can see; end-of-text alone when there is no prompt. */
static int64_t prompt_ids(const Run *r, int32_t **ids) {
    int64_t n = 0, S = r->config.seq;
    if (*o.prompt)
        n = tokenizer_encode(r->tokenizer, (const uint8_t *)o.prompt, strlen(o.prompt), ids);
    if (n == 0) {
        int32_t eot = r->tokenizer ? tokenizer_eot(r->tokenizer) : -1;
        *ids = mem_alloc(sizeof **ids);
        (*ids)[0] = eot >= 0 && eot < r->config.vocab ? eot : 0;
        return 1;
    }
    if (n > S) memmove(*ids, *ids + n - S, (size_t)S * sizeof **ids);
    return n < S ? n : S;
}

/* One sample: prompt and continuation (mem_free). live: printed token by token. */
static char *sample(Run *r, bool live) {
    Sampling s = {
        .temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .seed = (uint64_t)o.seed};
    int32_t *prompt, eot = r->tokenizer ? tokenizer_eot(r->tokenizer) : -1, *out;
    int64_t n_prompt = prompt_ids(r, &prompt), n = 0;
    out = mem_alloc((size_t)o.sample_tokens * sizeof *out);
    Generator *g = generator_create(&r->m);
    const float *logits = generator_prompt(g, prompt, n_prompt);
    if (live) printf("%s", o.prompt);
    while (n < o.sample_tokens && !caught_signal) {
        uint64_t draw = (uint64_t)r->state.step << 32 | (uint64_t)n;
        int32_t id = sample_token(logits, r->config.vocab, &s, draw);
        if (id == eot) break;
        out[n++] = id;
        if (live) {
            char *piece = text_of(r, &id, 1);
            printf("%s", piece);
            fflush(stdout);
            mem_free(piece);
        }
        if (n < o.sample_tokens) logits = generator_next(g, id);
    }
    if (live) printf("\n");
    generator_free(g);
    char *text = text_of(r, out, n), *whole = mem_printf("%s%s", o.prompt, text);
    mem_free(text), mem_free(prompt), mem_free(out);
    return whole;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

static _Noreturn void stop_not_finite(Run *r, const char *what, double value) {
    char name[160];
    model_first_nonfinite(&r->m, name, sizeof name);
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
    int64_t per_step = o.batch / o.seq, step = r->state.step;
    double sum = 0;
    model_zero_grads(&r->m);
    for (int64_t first = 0; first < per_step; first += o.micro) {
        if (first && caught_signal) return false;
        batch_fill(&r->train, step, first, o.micro, r->inputs, r->targets);
        if (first + o.micro < per_step)
            batch_prefetch(&r->train, step, first + o.micro, o.micro);
        else
            batch_prefetch(&r->train, step + 1, 0, o.micro);
        double part = model_step(&r->m, r->inputs, r->targets, 1.0f / (float)o.batch);
        if (!isfinite(part)) stop_not_finite(r, "the loss", part);
        sum += part;
    }
    *loss = sum / (double)o.batch;
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

static void train_step(Run *r) {
    LrSchedule s = {.kind = (LrKind)o.schedule,
                    .lr = o.lr,
                    .min_lr = o.min_lr,
                    .warmup = o.warmup,
                    .steps = o.steps,
                    .wsd_decay = o.wsd_decay};
    double t0 = now_ms(), lr = schedule_lr(&s, r->state.step);
    double loss;
    if (!accumulate(r, &loss)) return;
    double norm = model_grad_norm(&r->m);
    if (!isfinite(norm)) stop_not_finite(r, "the gradient norm", norm);
    double loss_z = zscore_add(&r->state.loss_z, loss), norm_z = zscore_add(&r->state.norm_z, norm);
    bool skip = (o.skip_loss_z > 0 && loss_z > o.skip_loss_z) ||
                (o.skip_norm_z > 0 && norm_z > o.skip_norm_z);
    if (!skip) update(r, lr, norm);
    r->state.step++;
    r->state.tokens += o.batch;
    double ms = now_ms() - t0, rate = 1e3 * (double)o.batch / ms;
    StepRecord rec = {.step = r->state.step,
                      .loss = loss,
                      .loss_z = loss_z,
                      .norm = norm,
                      .norm_z = norm_z,
                      .lr = lr,
                      .ms = ms,
                      .tokens_per_s = rate,
                      .tokens = r->state.tokens,
                      .skipped = skip,
                      .peak = rate * config_flops_per_token(&r->config, o.seq) / r->peak_flops};
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
    metrics_sync(r->metrics); // a checkpoint never knows more steps than the records
    if (!checkpoint_save(o.save, r->state.step, &r->m.tensors, text, &co, &alone, &e))
        die("%s", e.text);
    r->saved_step = r->state.step;
    progress_note(r->progress, "step %" PRId64 ": saved in %s", r->state.step, o.save);
    mem_free(text);
    for (int i = 0; i < 3; i++) mem_free(copies[i]);
}

static bool due(int64_t step, int64_t every, bool last) {
    return last || (every > 0 && step > 0 && step % every == 0);
}

/* Everything that happens between steps. */
static void after_step(Run *r) {
    int64_t step = r->state.step;
    bool last = step >= o.steps;
    if (due(step, o.eval_every, last) && !caught_signal) evaluate(r);
    if (due(step, o.sample_every, last && o.sample_every > 0) && !caught_signal) {
        char *text = sample(r, false);
        if (!caught_signal) {
            progress_note(r->progress, "---\n%s\n---", text);
            metrics_sample(r->metrics, step, text);
        }
        mem_free(text);
    }
    if (*o.save && due(step, o.save_every, last || (caught_signal && step > 0)) &&
        r->saved_step != step)
        save(r);
}

static void train(Run *r) {
    int64_t measured =
        0; // steps of the profile: the first one pays for page faults and does not count
    double t0 = 0;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    if (r->state.step >= o.steps)
        progress_note(r->progress, "step %" PRId64 " of --steps %" PRId64 " is done already",
                      r->state.step, o.steps);
    while (r->state.step < o.steps && !caught_signal) {
        if (o.profile && measured++ == 1) profile_reset(), t0 = now_ms();
        train_step(r);
        if (!o.profile) after_step(r);
    }
    if (o.profile)
        profile_print(stdout, measured - 1, (now_ms() - t0) / (double)(measured - 1),
                      r->peak_flops);
}

static void export_weights(Run *r) {
    Err e;
    if (*o.export_hf && !weights_export(o.export_hf, &r->m.tensors, "F32", &alone, &e))
        die("%s", e.text);
    if (*o.export_llmc &&
        !llmc_model_save(o.export_llmc, &r->m.tensors, o.dtype ? LLMC_BF16 : LLMC_FP32, &alone, &e))
        die("%s", e.text);
}

static void start_records(Run *r) {
    char text[512];
    MetricsFiles files = {o.json, o.csv, o.tensorboard, o.llmc_log};
    config_print(&r->config, text, sizeof text);
    RunRecord run = {.options = options,
                     .model = text,
                     .kernels = kernels_name(),
                     .parameters = config_parameters(&r->config),
                     .tokens_per_step = o.batch,
                     .steps = o.steps,
                     .threads = team_size(r->team),
                     .flops_per_token = config_flops_per_token(&r->config, o.seq),
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
    mem_free(r->inputs), mem_free(r->targets), mem_free(r->losses);
    model_free(&r->m);
    tokenizer_free(r->tokenizer);
    team_destroy(r->team);
}

/* A --save folder given as --init stands for its newest checkpoint; a folder may bring its tokenizer with it. */
static void find_tokenizer(Run *r) {
    char *newest =
        *o.init && !file_in(o.init, "config.json") ? checkpoint_latest(o.init, NULL, &alone) : NULL;
    if (newest) o.init = newest;
    if (!*o.tokenizer && *o.init &&
        (file_in(o.init, "vocab.json") || file_in(o.init, "tokenizer.json")))
        o.tokenizer = o.init;
    if (*o.tokenizer) r->tokenizer = tokenizer_load(o.tokenizer);
    if (*o.prompt && !(r->tokenizer && tokenizer_can_encode(r->tokenizer)))
        die_usage("--prompt needs a --tokenizer that can encode (vocab.json and merges.txt, or "
                  "tokenizer.json)");
}

int main(int argc, char **argv) {
    static Run r;
    die_set_program(argv[0]);
    options = options_table(&o);
    opt_parse(options, argc, argv, usage);
    if (!*o.train && !*o.init && !o.memory)
        die_usage("nothing to do: --train GLOB trains, --init DIR with --prompt or --val uses a "
                  "model (--help lists all)");
    r.kernels = kernels_cpu(o.kernels);
    if (!r.kernels) die_usage("--kernels %s: this processor or build has no such set", o.kernels);
    if (o.profile) r.kernels = profile_kernels(r.kernels);
    r.team = team_create((int)o.threads);
    find_tokenizer(&r);
    char *checkpoint = find_checkpoint(&r);
    choose_config(&r, checkpoint);
    choose_batch();
    plan_model(&r);
    open_data(&r);
    check_outputs(&r);
    model_allocate(&r.m);
    load_weights(&r, checkpoint);
    mem_free(checkpoint);
    r.peak_flops = r.kernels->peak(r.team, o.dtype == 1);
    bool only_sample = !*o.train && *o.prompt;
    if (!only_sample) print_header(&r);
    start_records(&r);
    if (*o.train)
        train(&r);
    else if (*o.val || *o.hellaswag)
        evaluate(&r);
    if (only_sample) mem_free(sample(&r, true));
    if (!caught_signal) export_weights(&r);
    int64_t step = r.state.step;
    end(&r);
    if (!caught_signal) return 0;
    fprintf(stderr, "train_gpt: stopped by signal %d after step %" PRId64 "%s\n",
            (int)caught_signal, step,
            *o.save ? "; --resume continues" : "; nothing was saved (no --save)");
    return 128 + caught_signal;
}
