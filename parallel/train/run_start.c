/* A run before its first step: options, mesh, model, memory, weights, data, records. */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/path.h"
#include "data/checkpoint.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/llmc.h"
#include "data/output.h"
#include "data/weights.h"
#include "parallel/plan/quantity.h"
#include "parallel/step/check.h"
#include "parallel/step/memory.h"
#include "parallel/train/run_agree.h"

/* The first rank of a process loads the tokenizer for all ranks of the process. */
static const Tokenizer *load_tokenizer(const char *path) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    static const Tokenizer *t;
    pthread_mutex_lock(&one);
    if (!t && *path) t = tokenizer_load(path);
    pthread_mutex_unlock(&one);
    return t;
}

/* Loads the tokenizer of --tokenizer, else of the checkpoint to resume from, else of the folder of
 * --init. */
static void find_tokenizer(Run *r, const char *checkpoint) {
    bool brings = *r->init && tokenizer_folder_is(r->init);
    r->carried = !*r->o->tokenizer && checkpoint && tokenizer_folder_is(checkpoint);
    r->vocabulary = mem_strdup(r->carried         ? checkpoint
                               : *r->o->tokenizer ? r->o->tokenizer
                               : brings           ? r->init
                                                  : "");
    r->tokenizer = load_tokenizer(r->vocabulary);
    if (r->lead && (*r->o->save || *r->o->export_hf))
        r->tokenizer_files = tokenizer_folder(r->vocabulary);
    if (*r->o->prompt && !(r->tokenizer && tokenizer_can_encode(r->tokenizer)))
        die_usage("--prompt needs a --tokenizer that can encode (vocab.json and merges.txt, or "
                  "tokenizer.json)");
}

/* The model of --init. --model must agree with it, but may change what no weight depends on: eps,
 * the speeds of rotary positions, and their number. */
static void config_from_init(Run *r) {
    Err e;
    Config held, said;
    char in_init[64], in_model[64];
    if (!weights_config(r->init, &held, &e)) die_user("%s", e.text);
    r->config = held;
    if (!run_given(r, "model")) return;
    if (!config_change(&r->config, r->o->model, &e)) {
        char text[512];
        config_print(&held, text, sizeof text);
        die_usage("--%s, and --init %s has %s: leave --model out", e.text, r->o->init, text);
    }
    said = r->config;
    said.norm_eps = held.norm_eps, said.rope_theta = held.rope_theta;
    said.rope_factor = held.rope_factor, said.rope_seq = held.rope_seq;
    if (held.pos == POS_ROPE) said.seq = held.seq;
    if (config_difference(&held, &said, in_init, in_model))
        die_usage("--model says %s, but --init %s has %s: leave --model out, or train a new model "
                  "without --init",
                  in_model, r->o->init, in_init);
}

/* The model of --model; without vocab= the vocabulary of the tokenizer. */
static void config_from_options(Run *r) {
    Err e;
    bool add = r->tokenizer && !strstr(r->o->model, "vocab=");
    char *text = add ? mem_printf("%s,vocab=%d", r->o->model, tokenizer_vocab(r->tokenizer))
                     : mem_strdup(r->o->model);
    if (!config_parse(&r->config, text, &e)) die_usage("--%s", e.text);
    mem_free(text);
}

/* The model of the checkpoint, with which --model must agree. Beside --init, --model is a change of
 * an existing model (config_from_init). */
static void config_from_checkpoint(Run *r, const char *checkpoint) {
    Err e;
    Config held;
    char in_held[64], in_model[64];
    bool given = run_given(r, "model");
    if (!checkpoint_config(checkpoint, &held, &e)) die_user("%s", e.text);
    r->config = held;
    if (given && !*r->o->init)
        config_from_options(r);
    else if (given && !config_change(&r->config, r->o->model, &e))
        die_usage("--%s", e.text);
    if (config_difference(&held, &r->config, in_held, in_model))
        die_user("%s is a checkpoint of another model: it has %s, --model says %s: leave --model "
                 "out, or name another --save",
                 checkpoint, in_held, in_model);
}

/* Takes the ids of the tokens that end and begin documents from the tokenizer, if the model's files
 * do not name them. */
static void ids_of_tokenizer(Run *r) {
    SpecialIds *ids = &r->config.ids;
    int32_t eot = r->tokenizer ? tokenizer_eot(r->tokenizer) : -1;
    if (eot >= 0 && !ids->n_eos)
        *ids = (SpecialIds){.n_eos = 1, .eos = {eot}, .has_bos = true, .bos = eot};
}

static void check_micro(const Run *r) {
    int64_t batch = r->o->batch ? r->o->batch : r->state.batch, micro = r->o->micro,
            share = batch ? batch / r->seq + 1 : micro;
    if ((micro < share ? micro : share) > MICRO_TOKENS / r->seq)
        die_usage("--micro %" PRId64 " x --seq %" PRId64 ": a micro-batch has at most %d tokens",
                  micro, r->seq, MICRO_TOKENS);
}

static void choose_config(Run *r, const char *checkpoint) {
    if (checkpoint)
        config_from_checkpoint(r, checkpoint);
    else if (*r->init && weights_described(r->init))
        config_from_init(r);
    else
        config_from_options(r);
    if (checkpoint) weights_ids(checkpoint, &r->config);
    ids_of_tokenizer(r);
    if (r->tokenizer && tokenizer_vocab(r->tokenizer) > r->config.vocab)
        die_usage("--tokenizer %s has %d tokens, the model's vocabulary %" PRId64, r->vocabulary,
                  tokenizer_vocab(r->tokenizer), r->config.vocab);
    r->seq = r->o->seq ? r->o->seq : r->config.seq;
    if (r->seq > r->config.seq)
        die_usage("--seq %" PRId64 " is more than the model's %" PRId64 " positions (--model seq=)",
                  r->seq, r->config.seq);
    check_micro(r);
}

/* A resumed run keeps its batch on every mesh; otherwise batch(step) would change. If the sequences
 * of a step do not divide evenly, the last coordinates of d x z compute padding. */
static void choose_batch(Run *r) {
    int64_t micro_tokens = r->o->micro * r->seq, before = r->state.batch, micro = r->o->micro;
    r->data_size = mesh_blocks(&r->grid.mesh, axes_of("d.z"));
    r->batch = r->o->batch ? r->o->batch : before ? before : micro_tokens * r->data_size;
    if (r->plan)
        micro = r->plan->best[0].micro, r->batch = r->plan->space.shape.batch;
    else
        run_check_batch(r, r->batch);
    int64_t share = div_up(r->batch / r->seq, r->data_size);
    r->micro = micro < share ? micro : share;
    if (grid_replicas(&r->grid) > 1 && r->batch / r->seq % (r->micro * r->data_size))
        die_usage("--sync-every %" PRId64 ": replicas need equal shares of a step: %" PRId64
                  " sequence%s no multiple of %" PRId64 " data-parallel ranks x %" PRId64
                  " of a micro-batch",
                  r->o->sync_every, r->batch / r->seq, r->batch / r->seq > 1 ? "s are" : " is",
                  r->data_size, r->micro);
    if (r->lead) run_warn_micro(r, r->batch, r->data_size);
}

/* The layout of --listing --cluster, which may use fewer ranks than the cluster has. */
static Layout described_layout(const Run *r, const char *spec) {
    Layout l;
    Err e;
    int ranks = r->described.ranks;
    if (!layout_parse(&l, spec, 0, &e) && !layout_parse(&l, spec, ranks, &e))
        die_usage("--%s", e.text);
    if (layout_ranks(&l) > ranks)
        die_usage("--cluster %s has %d rank%s, --layout %s needs %d", r->o->cluster, ranks,
                  ranks > 1 ? "s" : "", spec, layout_ranks(&l));
    return l;
}

static void make_grid(Run *r) {
    Layout l;
    Err e;
    const char *spec = strcmp(r->o->layout, "auto") == 0 ? "dp" : r->o->layout;
    bool described = run_lists_cluster(r);
    if (r->plan)
        l = r->plan->best[0].layout;
    else if (described)
        l = described_layout(r, spec);
    else if (!layout_parse(&l, spec, world_size(r->world), &e))
        die_usage("--%s", e.text);
    if (r->outer.every > 1 && l.zero && l.size[AXIS_D] > 1)
        die_usage("--layout %s: zero%d shards the state of one model over d, but with --sync-every "
                  "%" PRId64
                  " each coordinate of d has its own: take z instead of d, or leave it out",
                  r->o->layout, l.zero, r->o->sync_every);
    l.exact = r->o->exact;
    if (described) {
        r->grid = grid_described(&l, r->outer.every > 1);
        return;
    }
    grid_make(&r->grid, r->world, &l, &r->config);
    if (r->outer.every > 1) grid_set_local_steps(&r->grid);
}

/* --graphs; with --profile never. Equal on all ranks, although only rank 0 profiles its kernels. */
static ReplayWhere replay_where(const Run *r) {
    return r->o->profile
               ? REPLAY_NEVER
               : (const ReplayWhere[]){REPLAY_AUTO, REPLAY_NEVER, REPLAY_ALWAYS}[r->o->graphs];
}

static ModelShape shape_of(const Run *r) {
    Overlap overlap = run_overlap(r, layout_ranks(&r->grid.layout));
    Err e;
    if (!overlap_check_micro(&overlap, r->o->overlap, r->micro, &e)) die_usage("--%s", e.text);
    if (r->lead && !r->plan) run_warn_overlap(r, &overlap, &r->grid.layout);
    return (ModelShape){.config = r->config,
                        .B = r->micro,
                        .S = r->seq,
                        .grid = &r->grid,
                        .bf16 = r->o->dtype == 1,
                        .recompute =
                            r->plan ? r->plan->best[0].recompute : (Recompute)r->o->recompute,
                        .overlap = overlap,
                        // --memory without --train is about training
                        .training = *r->o->train || !*r->o->init,
                        .replay = replay_where(r),
                        .outer = *r->o->train || !*r->o->init ? outer_copies(&r->outer) : 0,
                        .samples = run_samples(r)};
}

static void plan_model(Run *r) {
    ModelShape s = shape_of(r);
    int neighbours = r->device.used ? r->device.ranks : r->node.local_size; // share this memory
    model_plan(&r->m, &s, r->kernels, r->team);
    r->state.batch = r->batch;
    if (!r->o->listing) memory_require(&r->m, neighbours, &r->group, stdout);
    if (r->lead && r->o->check_tp) check_memory(&r->m, neighbours, stdout);
    group_barrier(&r->group); // no rank allocates before rank 0 has found that it fits everywhere
    if (r->lead) r->o->seq = r->seq, r->o->batch = r->batch; // for the records; not read again
}

static void read_state(Run *r, const char *checkpoint) {
    Err e;
    char *text = checkpoint_state(checkpoint, &e);
    if (!text) die_user("%s", e.text);
    if (!runstate_parse(text, &r->state, &e))
        die_user("%s/train_state.json: %s", checkpoint, e.text);
    // such a folder would stay the newest, and every --resume would go back to its step
    if (r->state.step != r->saved_step)
        die_user("%s holds step %" PRId64 ": name it step_%08" PRId64 " again, or move it away",
                 checkpoint, r->state.step, r->state.step);
    mem_free(text);
}

/* The checkpoint to resume from (mem_free), or NULL, as rank 0 sees it. Ends the program instead of
 * overwriting another run. */
static char *find_checkpoint(Run *r) {
    r->saved_step = -1;
    if (!*r->o->save) {
        if (r->o->resume) die_usage("--resume needs --save DIR");
        return NULL;
    }
    if (io_exists_in(r->o->save, "checkpoint.json"))
        die_usage("--save %s is a checkpoint: name the folder that holds it; --resume takes the "
                  "newest one there",
                  r->o->save);
    bool asks = r->o->memory || r->o->listing || r->o->plan; // prints and exits, writes nothing
    if (asks && !r->o->resume) return NULL;
    int64_t step;
    char *path = checkpoint_latest(r->o->save, &step, &r->group);
    if (path && !r->o->resume)
        die_user("--save %s holds a run already, up to step %" PRId64
                 ": --resume continues it, or name another folder",
                 r->o->save, step);
    if (!path && step >= 0)
        die_user("--save %s: none of its checkpoints can be read (the newest is of step %" PRId64
                 "): mend the storage, or move the step_* folders away to start at step 0",
                 r->o->save, step);
    if (!path && run_continues_record(r->o))
        die_usage("--json %s: that file is an input (--config), and --save %s has nothing to "
                  "resume; name another one",
                  r->o->json, r->o->save);
    if (!path && r->o->resume && r->lead)
        printf("nothing to resume in %s: starting at step 0\n", r->o->save);
    if (path) r->saved_step = step;
    return path;
}

static void take_recorded(const char **option, const char *state, const char *name) {
    char *then = runstate_option(state, name); // until the process ends, as all options
    if (then) *option = then;
}

/* Rank 0. Records of a resumed run name the model and the tokenizer that come from its checkpoint:
 * --config reads these records. */
static void record_from_checkpoint(const Run *r, const char *state) {
    if (!run_given(r, "model")) take_recorded(&r->o->model, state, "model");
    if (r->carried) take_recorded(&r->o->tokenizer, state, "tokenizer");
}

static void load_weights(Run *r, const char *checkpoint) {
    Err e;
    if (checkpoint) {
        char *text;
        if (!checkpoint_load(checkpoint, model_host(&r->m), &text, &r->group, &e))
            die_user("%s", e.text);
        if (r->lead && *r->o->init)
            printf("resuming from %s, whose weights replace --init %s\n", checkpoint, r->o->init);
        else if (r->lead)
            printf("resuming from %s\n", checkpoint);
        if (r->lead) runstate_differences(text, r->options, r->carried, stdout);
        if (r->lead) record_from_checkpoint(r, text);
        // as after a shard was added under the same pattern: batch(step) is of all files together
        int64_t was = r->state.data, is = r->train_set.n_tokens;
        if (r->lead && was && *r->o->train && was != is)
            printf("  the files of --train had %" PRId64 " tokens, have %" PRId64
                   ": another order of the data from here on\n",
                   was, is);
        mem_free(text);
    } else if (*r->init) {
        if (!weights_load(r->init, model_host(&r->m), &r->group, &e)) {
            if (weights_described(r->init)) die_user("%s", e.text);
            die_user("%s; %s has no config.json, so the shape is that of --model", e.text, r->init);
        }
    } else {
        tensors_init(model_host(&r->m), r->team, (uint64_t)r->o->seed);
    }
    r->state.data = r->train_set.n_tokens;
    model_push(&r->m);
    outer_begin(&r->outer, &r->m, r->state.step);
}

int64_t run_micro_batches(const Run *r) {
    int64_t per_step = r->batch / r->seq, round = r->micro * r->data_size;
    return div_up(per_step, round);
}

/* The buffers hold the tokens of all micro-batches of a step: a device may still be copying those
 * of the first micro-batch when the host fills in those of the last. */
void run_allocate_tokens(Run *r) {
    size_t n = (size_t)(run_micro_batches(r) * r->micro * r->seq);
    arena_free(&r->tokens);
    r->tokens = arena_block("tokens of a step", r->kernels->pinned, 2 * n * sizeof *r->inputs);
    r->inputs = (void *)r->tokens.base, r->targets = r->inputs + n;
}

static void open_data(Run *r) {
    if (*r->o->train) {
        r->train_set = shards_open(r->o->train, r->config.vocab, r->team);
        r->train =
            batches_make(&r->train_set, r->seq, r->batch / r->seq, (uint64_t)r->o->seed, true);
    }
    if (*r->o->val) {
        r->val_set = shards_open(r->o->val, r->config.vocab, r->team);
        r->val = batches_make(&r->val_set, r->seq, 1, 0, false);
    }
    if (*r->o->hellaswag) r->hellaswag = hellaswag_open(r->o->hellaswag, r->config.vocab);
    run_allocate_tokens(r);
}

/* Warns where the disk of --save has no room for a checkpoint. The size is that of weights and
 * moments; --sync-every may save more. */
static void warn_full(const Run *r) {
    char size[64], room[64];
    double bytes = 3.0 * (double)sizeof(float) * (double)config_parameters(&r->config),
           free = io_free_bytes(r->o->save);
    if (bytes <= free) return;
    warn("--save %s: a checkpoint takes %s, and %s are free there: make room for it", r->o->save,
         quantity_short(bytes, AS_BYTES, "GiB", size), quantity_short(free, AS_BYTES, "GiB", room));
}

/* Ends the run before training if an output of its end could not be written. All ranks check each
 * output together; only rank 0 checks the trace. */
static void check_outputs(const Run *r) {
    Err e;
    const char *save = *r->o->train ? r->o->save : "", *hf = r->o->export_hf;
    char *files[1 + EXPORT_FILES] = {mem_printf("%s/file", save)};
    weights_export_paths(hf, files + 1);
    for (int i = 0; i < 1 + EXPORT_FILES; i++) {
        const char *dir = i ? hf : save;
        if (*dir && (!group_agree(&r->group, !r->lead || io_make_dirs(dir, &e), &e) ||
                     !output_possible(files[i], true, &r->group, &e)))
            die_user("%s", e.text);
        mem_free(files[i]);
    }
    int lock; // held until the process ends
    if (*save && !checkpoint_lock(save, &r->group, &lock, &e)) die_user("%s", e.text);
    if (*save && r->lead) warn_full(r);
    if (*r->o->export_llmc && !llmc_model_fits(&r->config, &e))
        die_user("--export-llmc: %s", e.text);
    if (*r->o->export_llmc && !output_possible(r->o->export_llmc, true, &r->group, &e))
        die_user("%s", e.text);
    if (r->lead && *r->o->trace && !output_possible(r->o->trace, false, &group_alone, &e))
        die_user("--trace: %s", e.text);
}

/* Fraction of the computed tokens that is padding. */
static double batch_waste(const Run *r) {
    int64_t tokens = r->m.tk.T * r->m.halves; // of a micro-batch
    return 1 - (double)r->batch / (double)(run_micro_batches(r) * r->data_size * tokens);
}

void run_print_header(const Run *r) {
    char text[512], spec[64], flags[OVERLAP_TEXT];
    config_print(&r->config, text, sizeof text);
    printf("model    %s\n         %.1f M parameters, %.2f GFLOP per token\n", text,
           (double)config_parameters(&r->config) / 1e6,
           config_flops_per_token(&r->config, r->seq) / 1e9);
    bool unasked = !r->plan && strcmp(r->o->overlap, "auto") == 0;
    if (r->group.size > 1)
        printf("mesh     %d ranks (%s), %s, overlap %s%s; padding: %.1f %% of the weights, %.1f %% "
               "of the tokens\n",
               r->group.size, world_backend(r->world), layout_print(&r->grid.layout, spec),
               overlap_print(&r->m.shape.overlap, flags),
               unasked ? " (auto of a given layout; --plan prices others)" : "",
               100 * shard_waste(&r->config, &r->grid), 100 * batch_waste(r));
    run_print_machine(r);
    if (*r->o->train)
        printf("data     %.2f M tokens, %d file(s), %.2f epochs in %" PRId64 " steps of %" PRId64
               " tokens\n",
               (double)r->train_set.n_tokens / 1e6, r->train_set.n,
               batch_epochs(&r->train, r->o->steps), r->o->steps, r->batch);
    if (r->m.anchor)
        printf("outer    %d replica%s, outer step every %" PRId64
               " steps%s; rate %g, momentum %g\n",
               grid_replicas(&r->grid), grid_replicas(&r->grid) == 1 ? "" : "s", r->o->sync_every,
               r->o->fragments > 1 ? ", a fragment at a time" : "", r->o->outer_lr,
               r->o->outer_momentum);
    if (r->plan) run_print_plan(r);
    memory_print(&r->m, stdout);
    fflush(stdout);
}

void run_open_records(Run *r) {
    char text[512], spec[64], flags[OVERLAP_TEXT];
    MetricsFiles files = {r->o->json, r->o->csv, r->o->tensorboard};
    config_print(&r->config, text, sizeof text);
    RunRecord run = {.options = r->options,
                     .model = text,
                     .kernels = run_kernels_name(r),
                     .device = r->device.used ? r->device.facts.name : NULL,
                     .ranks = r->group.size,
                     .layout = layout_print(&r->grid.layout, spec),
                     .overlap = overlap_print(&r->m.shape.overlap, flags),
                     .digest = *r->digest ? r->digest : NULL,
                     .parameters = config_parameters(&r->config),
                     .tokens_per_step = r->batch,
                     .steps = r->o->steps,
                     .cores = r->node.cores,
                     .threads = team_size(r->team),
                     .flops_per_token = config_flops_per_token(&r->config, r->seq),
                     .peak_flops = r->peak_flops};
    r->metrics = metrics_open(&files, r->state.step);
    metrics_run(r->metrics, &run);
    r->progress = progress_open(stdout, r->o->steps);
}

bool run_prepare(Run *r) {
    Err e;
    char *checkpoint = find_checkpoint(r);
    r->init = checkpoint_find_model(checkpoint ? "" : r->o->init, &r->group, &e);
    if (!r->init) die_user("%s", e.text);
    run_agree_on_inputs(r, checkpoint);
    if (checkpoint) read_state(r, checkpoint);
    find_tokenizer(r, checkpoint);
    choose_config(r, checkpoint);
    if (!run_choose_layout(r)) {
        mem_free(checkpoint);
        return false;
    }
    if (run_lists_cluster(r) && !machine_open(&r->described, r->o->cluster, &e))
        die_usage("--cluster: %s", e.text);
    make_grid(r);
    choose_batch(r);
    bool described = run_lists_cluster(r);
    if (described) r->m.shape = shape_of(r);
    if (!described) plan_model(r);
    if (r->o->memory && r->lead) memory_print(&r->m, stdout);
    if (r->o->listing) run_print_listing(r);
    if (r->o->memory || r->o->listing) {
        mem_free(checkpoint);
        return false;
    }
    open_data(r);
    check_outputs(r);
    model_allocate(&r->m);
    load_weights(r, checkpoint);
    mem_free(checkpoint);
    if (!group_agree(&r->group, !io_map_truncated(&e), &e)) die_user("%s", e.text);
    if (r->o->count) // equal on every mesh: initial weights can be compared without files
        snprintf(r->digest, sizeof r->digest, "%016" PRIx64,
                 weights_digest(model_pull(&r->m), &r->group));
    run_find_peak(r);
    return true;
}
