/* What a run is before its first step: options, mesh, model, memory, weights, data, records. */
#include "train_gpt.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/checkpoint.h"
#include "data/io.h"
#include "data/llmc.h"
#include "data/weights.h"
#include "parallel/check.h"
#include "parallel/detect.h"
#include "parallel/memory.h"
#include "parallel/ranks.h"

bool file_in(const char *dir, const char *name) {
    char *path = mem_printf("%s/%s", dir, name);
    bool yes = io_exists(path);
    mem_free(path);
    return yes;
}

/* A --save folder given as --init stands for its newest checkpoint, as rank 0 sees it. */
static void find_init(Run *r) {
    bool model = group_all(&r->group, !*o.init || file_in(o.init, "config.json"));
    char *newest = model ? NULL : checkpoint_latest(o.init, NULL, &r->group);
    r->init = newest ? newest : mem_printf("%s", o.init);
}

/* The first rank of a process that comes here loads it for all of them. */
static const Tokenizer *load_tokenizer(const char *path) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    static const Tokenizer *t;
    pthread_mutex_lock(&one);
    if (!t && *path) t = tokenizer_load(path);
    pthread_mutex_unlock(&one);
    return t;
}

/* --tokenizer, or what the folder of --init brings with it. */
static void find_tokenizer(Run *r) {
    bool brings = file_in(r->init, "vocab.json") || file_in(r->init, "tokenizer.json");
    r->vocabulary = *o.tokenizer ? o.tokenizer : *r->init && brings ? r->init : "";
    r->tokenizer = load_tokenizer(r->vocabulary);
    if (*o.prompt && !(r->tokenizer && tokenizer_can_encode(r->tokenizer)))
        die_usage("--prompt needs a --tokenizer that can encode (vocab.json and merges.txt, or "
                  "tokenizer.json)");
}

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
    const char *from = checkpoint ? checkpoint : r->init;
    bool named = opt_given(opt_find(options, "model"));
    config_from_options(r);
    if (*from && !named && !(checkpoint ? checkpoint_config : weights_config)(from, &r->config, &e))
        die_user("%s", e.text);
    if (r->tokenizer && tokenizer_vocab(r->tokenizer) > r->config.vocab)
        die_usage("--tokenizer %s has %d tokens, the model's vocabulary %" PRId64, r->vocabulary,
                  tokenizer_vocab(r->tokenizer), r->config.vocab);
    r->seq = o.seq ? o.seq : r->config.seq;
    if (r->seq > r->config.seq)
        die_usage("--seq %" PRId64 " is more than the model's %" PRId64 " positions (--model seq=)",
                  r->seq, r->config.seq);
}

/* A run that resumes keeps its batch, whatever its mesh is now; otherwise batch(step) would be another one. Where the
 * sequences of a step do not divide, the last coordinates of d x z see padding. */
static void choose_batch(Run *r) {
    int64_t micro_tokens = o.micro * r->seq, before = r->state.batch, micro = o.micro;
    r->places = mesh_blocks(&r->grid.mesh, axes_of("d.z"));
    r->batch = o.batch ? o.batch : before ? before : micro_tokens * r->places;
    if (r->plan)
        micro = r->plan->best[0].micro, r->batch = r->plan->space.shape.batch;
    else
        check_batch(r->batch, r->seq);
    int64_t share = (r->batch / r->seq + r->places - 1) / r->places;
    r->micro = micro < share ? micro : share;
    if (r->lead) warn_micro(r->batch, r->seq, r->places);
    if (grid_replicas(&r->grid) > 1 && r->batch / r->seq % (r->micro * r->places))
        die_usage("--sync-every %" PRId64 ": replicas need equal shares of a step: %" PRId64
                  " sequence%s no multiple of %" PRId64 " places x %" PRId64 " of a micro-step",
                  o.sync_every, r->batch / r->seq, r->batch / r->seq > 1 ? "s are" : " is",
                  r->places, r->micro);
}

static void make_grid(Run *r) {
    Layout l;
    Err e;
    const char *spec = strcmp(o.layout, "auto") == 0 ? "dp" : o.layout;
    if (r->plan)
        l = r->plan->best[0].layout;
    else if (!layout_parse(&l, spec, world_size(r->world), &e))
        die_usage("--%s", e.text);
    if (r->outer.every > 1 && l.zero && l.size[AXIS_D] > 1)
        die_usage("--layout %s: zero%d cuts the state of one model over d, but with --sync-every "
                  "%" PRId64
                  " each coordinate of d has its own: take z instead of d, or leave it out",
                  o.layout, l.zero, o.sync_every);
    l.exact = o.exact;
    grid_make(&r->grid, r->world, &l, &r->config);
    if (r->outer.every > 1) grid_set_apart(&r->grid);
}

/* Alike on all ranks, of which but one may look at its kernels. */
static ReplayWhere replay_where(void) {
    return o.profile ? REPLAY_NEVER
                     : (const ReplayWhere[]){REPLAY_AUTO, REPLAY_NEVER, REPLAY_ALWAYS}[o.graphs];
}

static void plan_model(Run *r) {
    Overlap overlap = run_overlap(r);
    if (overlap.halves) check_halves(r->micro);
    if (r->lead && !r->plan) warn_overlap(&overlap, &r->grid.layout);
    ModelShape s = {.config = r->config,
                    .B = r->micro,
                    .S = r->seq,
                    .grid = &r->grid,
                    .bf16 = o.dtype == 1,
                    .recompute = r->plan ? r->plan->best[0].recompute : (Recompute)o.recompute,
                    .overlap = overlap,
                    .training = *o.train || !*o.init, // --memory alone is about training
                    .replay = replay_where(),
                    .stochastic = o.stochastic_rounding,
                    .seed = (uint64_t)o.seed,
                    .outer = *o.train || !*o.init ? outer_copies(&r->outer) : 0,
                    .samples = o.sample_every > 0 || *o.prompt};
    model_plan(&r->m, &s, r->kernels, r->team);
    int neighbours = r->device.used ? r->device.ranks : ranks_on_node(r->world);
    r->state.batch = r->batch;
    if (r->lead) memory_require(&r->m, neighbours, stdout);
    if (r->lead && o.check_tp) check_memory(&r->m, neighbours, stdout);
    group_barrier(&r->group); // nobody allocates before rank 0 has found that it fits
    if (r->lead) o.seq = r->seq, o.batch = r->batch; // for the records; no rank asks for them again
}

static void read_state(Run *r, const char *checkpoint) {
    Err e;
    char *text = checkpoint_state(checkpoint, &e);
    if (!text) die_user("%s", e.text);
    if (!runstate_parse(text, &r->state, &e))
        die_user("%s/train_state.json: %s", checkpoint, e.text);
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
        die_user("--save %s holds a run already, up to step %" PRId64
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
        if (!checkpoint_load(checkpoint, model_host(&r->m), &text, &r->group, &e))
            die_user("%s", e.text);
        if (r->lead) printf("resuming from %s\n", checkpoint);
        if (r->lead) runstate_differences(text, options, stdout);
        mem_free(text);
    } else if (*r->init) {
        if (!weights_load(r->init, model_host(&r->m), &r->group, &e)) die_user("%s", e.text);
    } else {
        tensors_init(model_host(&r->m), r->team, (uint64_t)o.seed);
    }
    r->m.rounding.step = r->state.step;
    model_push(&r->m);
    outer_begin(&r->outer, &r->m, r->state.step);
}

int64_t micro_steps(const Run *r) {
    int64_t per_step = r->batch / r->seq, round = r->micro * r->places;
    return (per_step + round - 1) / round;
}

/* Of all micro-steps: a device may still be copying those of the first when the host fills in those of the last. */
void make_room_for_tokens(Run *r) {
    size_t n = (size_t)(micro_steps(r) * r->micro * r->seq) * sizeof *r->inputs;
    arena_free(&r->tokens);
    r->tokens = arena_measure("tokens of a step");
    r->tokens.memory = r->kernels->pinned;
    arena_take(&r->tokens, n), arena_take(&r->tokens, n);
    arena_commit(&r->tokens);
    r->inputs = arena_take(&r->tokens, n), r->targets = arena_take(&r->tokens, n);
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
    make_room_for_tokens(r);
}

/* What a long run writes at its end must not be found impossible there. */
static void check_outputs(const Run *r) {
    Err e;
    const char *const folders[] = {*o.train ? o.save : "", o.export_hf};
    for (int i = 0; i < 2; i++) {
        char *inside = mem_printf("%s/file", folders[i]);
        if (*folders[i] && (!io_make_dirs(folders[i], &e) || !io_can_write(inside, &e)))
            die_user("%s", e.text);
        mem_free(inside);
    }
    int lock; // held until the process ends
    if (*folders[0] && !checkpoint_lock(o.save, &r->group, &lock, &e))
        die_user("--save: %s", e.text);
    if (*o.export_llmc && (!llmc_model_fits(&r->config, &e) || !io_can_write(o.export_llmc, &e)))
        die_user("--export-llmc: %s", e.text);
    if (*o.trace && !io_can_write(o.trace, &e)) die_user("--trace: %s", e.text);
}

/* Share of the tokens that the ranks compute and nobody asked for. */
static double batch_waste(const Run *r) {
    int64_t round = r->micro * r->places, n = r->batch / r->seq, rounds = (n + round - 1) / round,
            tokens = r->m.tk.T * (r->m.twin ? 2 : 1); // of a micro-step
    return 1 - (double)r->batch / (double)(rounds * r->places * tokens);
}

void print_header(const Run *r) {
    char text[512], spec[64], words[OVERLAP_TEXT];
    config_print(&r->config, text, sizeof text);
    printf("model    %s\n         %.1f M parameters, %.2f GFLOP per token\n", text,
           (double)config_parameters(&r->config) / 1e6,
           config_flops_per_token(&r->config, r->seq) / 1e9);
    bool unasked = !r->plan && strcmp(o.overlap, "auto") == 0;
    if (r->group.size > 1)
        printf(
            "mesh     %d ranks (%s), %s, overlap %s%s; padding: %.1f %% of the weights, %.1f %% of "
            "the tokens\n",
            r->group.size, world_backend(r->world), layout_print(&r->grid.layout, spec),
            overlap_print(&r->m.shape.overlap, words),
            unasked ? " (auto of a given layout; --plan prices others)" : "",
            100 * shard_waste(&r->config, &r->grid), 100 * batch_waste(r));
    print_machine(r);
    if (*o.train)
        printf("data     %.2f M tokens, %d file(s), %.2f epochs in %" PRId64 " steps of %" PRId64
               " tokens\n",
               (double)r->train_set.n_tokens / 1e6, r->train_set.n,
               batch_epochs(&r->train, o.steps), o.steps, r->batch);
    if (r->m.anchor)
        printf("outer    %d replicas meet every %" PRId64 " steps%s; rate %g, momentum %g\n",
               grid_replicas(&r->grid), o.sync_every,
               o.fragments > 1 ? ", a fragment at a time" : "", o.outer_lr, o.outer_momentum);
    if (r->plan) plan_say(r);
    if (*r->digest) printf("weights  sha256 %s\n", r->digest);
    memory_print(&r->m, stdout);
    fflush(stdout);
}

void start_records(Run *r) {
    char text[512], spec[64], words[OVERLAP_TEXT];
    MetricsFiles files = {o.json, o.csv, o.tensorboard, o.llmc_log};
    config_print(&r->config, text, sizeof text);
    RunRecord run = {.options = options,
                     .model = text,
                     .kernels = kernels_name(r),
                     .device = r->device.used ? r->device.facts.name : NULL,
                     .ranks = r->group.size,
                     .layout = layout_print(&r->grid.layout, spec),
                     .overlap = overlap_print(&r->m.shape.overlap, words),
                     .digest = *r->digest ? r->digest : NULL,
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

/* The same on every mesh: what a run starts from can be compared without its files. */
static void digest_weights(Run *r) {
    uint8_t digest[SHA256_BYTES];
    weights_digest(model_pull(&r->m), &r->group, digest);
    sha256_print(digest, r->digest);
}

bool prepare(Run *r) {
    find_init(r);
    find_tokenizer(r);
    char *checkpoint = find_checkpoint(r);
    choose_config(r, checkpoint);
    if (!plan_run(r)) {
        mem_free(checkpoint);
        return false;
    }
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
    if (o.count) digest_weights(r);
    find_peak(r);
    return true;
}

void show_machine(Run *r) {
    Detected d;
    detect(&d, r->world, kernels_cpu(o.kernels), r->team, o.dtype == 1);
    if (r->lead) detect_print(&d, stdout);
    detect_free(&d);
    detect_matrix(r->world, stdout);
    fflush(stdout);
}
