/* The search at the start of a run. Rank 0 searches and broadcasts its choices. --layout auto
 * trains with the first choice, --plan prints the choices. --refine may replace the first choice
 * after some steps (run_refine.c). */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/output.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/detect.h"

void run_check_batch(const Run *r, int64_t batch) {
    if (batch % r->seq)
        die_usage("--batch %" PRId64 " tokens is no multiple of --seq %" PRId64, batch, r->seq);
}

void run_warn_micro(const Run *r, int64_t batch, int64_t data_size) {
    int64_t micro = r->o->micro, n = batch / r->seq, share = div_up(n, data_size),
            round = micro * data_size;
    bool by_user = run_given(r, "micro");
    if (!by_user && r->plan) return; // the search has chosen it
    if (by_user && micro > share)
        warn("--micro %" PRId64 ": a step is %" PRId64 " sequences for %" PRId64
             " data-parallel ranks (d x z), so its only micro-batch is of %" PRId64,
             micro, n, data_size, share);
    if (micro < share && share % micro)
        warn("%s--micro %" PRId64 ": a step is %" PRId64 " sequences for %" PRId64
             " data-parallel rank%s (d x z), so %" PRId64 " of the %" PRId64
             " sequences of the last micro-batch are padding",
             by_user ? "" : "the default ", micro, n, data_size, data_size > 1 ? "s" : "",
             div_up(n, round) * round - n, round);
}

bool run_asks_for_fused(const Run *r) {
    Overlap flags;
    return overlap_parse(&flags, r->o->overlap, NULL) && flags.fused;
}

/* Why no matmul can be fused with a collective on these ranks; NULL: fusing is possible. */
static const char *fusing_obstacle(const Run *r) {
    bool described = *r->o->cluster;
    if (r->o->exact) return "ranks sum the integers of --exact, which no matmul makes";
    if (described || !r->world || r->group.size == 1 || world_shares_memory(r->world)) return NULL;
    if (strcmp(world_backend(r->world), "threads") == 0)
        return "its GPUs do not reach each other's memory";
    return r->device.used
               ? r->device.unshared.text
               : "its ranks are processes, which share no memory (threads do: --ranks N)";
}

void run_warn_overlap(const Run *r, const Overlap *flags, const Layout *l) {
    const char *why = overlap_idle(flags, l);
    char spec[64];
    if (run_asks_for_fused(r) && fusing_obstacle(r))
        warn("--overlap fused does nothing: %s", fusing_obstacle(r));
    else if (why)
        warn("--overlap %s does nothing on %s: %s",
             flags->fused  ? "fused"
             : flags->ring ? "ring"
                           : "chunk",
             layout_print(l, spec), why);
}

Overlap run_overlap(const Run *r, int ranks) {
    Overlap flags = {.bulk = true}; // the default, since bulk changes no result
    Err e;
    if (r->plan && r->plan->n_best > 0) return r->plan->best[0].overlap;
    if (strcmp(r->o->overlap, "auto") == 0) return ranks > 1 ? flags : (Overlap){0};
    if (!overlap_parse(&flags, r->o->overlap, &e)) die_usage("--%s", e.text);
    flags.fused &= !fusing_obstacle(r);
    return flags;
}

/* The search space: everything that the command line leaves open. */
static Space space_of(const Run *r, int ranks, int threads, Layout *fixed) {
    Space s = {.p = ranks,
               .shape = {.model.config = r->config,
                         .model.S = r->seq,
                         .model.B = r->o->micro,
                         .model.bf16 = r->o->dtype == 1,
                         .model.samples = run_samples(r),
                         .model.recompute = (Recompute)r->o->recompute,
                         .model.threads = threads,
                         .model.outer = outer_copies(&r->outer),
                         .local_steps = r->outer.every > 1,
                         .kernels = r->kernels,
                         .every = r->outer.every > 1 ? r->outer.every : 0,
                         .fragments = r->outer.fragments},
               .exact = r->o->exact,
               .free_micro = !run_given(r, "micro"),
               .free_recompute = !run_given(r, "recompute"),
               .free_overlap = strcmp(r->o->overlap, "auto") == 0};
    if (!s.free_overlap) s.shape.model.overlap = run_overlap(r, ranks);
    Err e;
    if (!s.free_micro &&
        !overlap_check_micro(&s.shape.model.overlap, r->o->overlap, r->o->micro, &e))
        die_usage("--%s", e.text);
    int64_t batch = r->o->batch ? r->o->batch : r->state.batch;
    s.shape.batch = batch ? batch : r->o->micro * r->seq * ranks; // as with pure data parallelism
    run_check_batch(r, s.shape.batch);
    if (strcmp(r->o->layout, "auto") != 0) {
        if (!layout_parse(fixed, r->o->layout, ranks, &e)) die_usage("--%s", e.text);
        s.only = fixed;
    }
    return s;
}

void run_step_lists(const Run *r, StepLists *s) {
    PriceShape shape = {.model = r->m.shape,
                        .batch = r->batch,
                        .local_steps = r->grid.local_steps,
                        .whole = true,
                        .kernels = r->m.k};
    shape.model.threads = team_size(r->team);
    price_lists(s, &shape, &r->grid.layout, world_rank(r->world), 0);
}

/* ---- costs of the machine at hand */

typedef struct Measuring {
    Progress *progress; // NULL: nothing was printed
    double run;         // estimated seconds of the whole training
    double now;         // seconds of measuring so far
} Measuring;

static void begin_measuring(Measuring *m, const char *path) {
    m->progress = progress_open(stdout, 0);
    printf("measuring kernels and collectives of this machine: %d s at most, once%s%s\n",
           PLAN_MEASURE_S, path ? "; to be kept in " : "", path ? path : "");
    if (m->run < PLAN_MEASURE_S)
        printf("(the whole run may take less: --calibrate none does not measure, --layout SPEC "
               "does not plan)\n");
    fflush(stdout);
}

static void show_measuring(void *ctx, const char *path, const char *what, double seconds) {
    Measuring *m = ctx;
    if (!m->progress) begin_measuring(m, path);
    m->now = seconds;
    char text[128];
    snprintf(text, sizeof text, "measuring %s", what);
    progress_part(m->progress, text, m->now / PLAN_MEASURE_S, m->now);
}

/* Collective. Measures the kernels and collectives of the plan's candidates on this machine, or
 * reads earlier measurements: r->calibration. Rank 0 shows progress. */
static void calibrate_candidates(Run *r, Plan *p, Detected *d) {
    double flops = d->flops[r->o->dtype == 1] * r->group.size,
           tokens = (double)p->space.shape.batch;
    double a_step = tokens * config_flops_per_token(&r->config, r->seq) / flops;
    Measuring m = {.run = r->o->plan || !(flops > 0) ? INFINITY : (double)r->o->steps * a_step};
    CalibrateWhere where = {.world = r->world,
                            .kernels = r->kernels,
                            .team = r->team,
                            .node = r->node,
                            .again = r->o->calibrate == 1,
                            .progress = show_measuring,
                            .ctx = &m};
    r->calibration = plan_measure(p, &where, d);
    progress_close(m.progress);
    double took = r->calibration ? r->calibration->seconds : 0;
    if (r->lead && took > 0.05) printf("measured them in %.1f s\n", m.now);
}

/* ---- the plan */

/* Collective. Rank 0 searches and broadcasts the choices. Ends the run if nothing fits. */
static void search(Run *r, Plan *p) {
    Err e;
    bool found = !r->lead || plan_search(p, &e);
    group_broadcast(&r->group, &p->count, sizeof p->count);
    if (!group_agree(&r->group, found, &e)) {
        int64_t sequences = p->space.shape.batch / p->space.shape.model.S;
        if (p->count.candidates == 0 && r->outer.every > 1)
            die_usage("--sync-every %" PRId64
                      ": replicas need equal shares of a step, and no layout of "
                      "%d ranks divides %" PRId64 " sequence%s equally",
                      r->o->sync_every, p->space.p, sequences, sequences > 1 ? "s" : "");
        if (!r->lead) ranks_follow(r->world);
        die_user("%s", e.text);
    }
    group_broadcast(&r->group, p->best, sizeof p->best);
    group_broadcast(&r->group, &p->n_best, sizeof p->n_best);
    group_broadcast(&r->group, p->preset, sizeof p->preset); // plan_trials reads it
    group_broadcast(&r->group, &p->n_presets, sizeof p->n_presets);
    group_broadcast(&r->group, &p->error, sizeof p->error);
}

/* Collective. Facts of the slowest GPU, for which all others wait. One whose peak is unknown counts
 * as the slowest. Equal on all ranks. */
static DeviceFacts slowest_gpu(const Run *r, bool bf16) {
    int slowest;
    DeviceFacts *all = mem_calloc((size_t)r->group.size, sizeof *all);
    group_min(&r->group, gpu_peak(&r->device.facts, bf16, NULL), &slowest);
    group_all_gather(&r->group, &r->device.facts, sizeof *all, all);
    DeviceFacts facts = all[slowest];
    mem_free(all);
    return facts;
}

void run_detect(const Run *r, Detected *d) {
    detect(d, r->world, r->device.used ? NULL : r->kernels, r->team, r->o->dtype == 1);
}

/* GPUs are priced by a preset and data sheets. Where a GPU's peak is unknown, matmuls are timed. */
void run_machine(const Run *r, const Detected *d, Machine *m) {
    if (!r->device.used) {
        detect_machine(d, m);
        return;
    }
    double free_bytes = (double)r->kernels->memory->available() / r->device.ranks;
    bool bf16 = r->o->dtype == 1;
    Gpus g = {.facts = slowest_gpu(r, bf16),
              .memory = (int64_t)group_min(&r->group, free_bytes, NULL) * r->device.ranks,
              .sharing = r->device.ranks};
    if (gpu_peak(&g.facts, bf16, NULL) == 0)
        g.measured[bf16] = group_min(&r->group, gpu_measure(r->kernels, bf16), NULL);
    group_broadcast(&r->group, &g, sizeof g); // equal on all ranks
    detect_gpu_machine(d, &g, m);
}

/* Collective. Describes this machine in p->machine. On CPUs measures kernels and collectives,
 * unless --calibrate none. */
static void measure(Run *r, Plan *p) {
    Detected d;
    run_detect(r, &d);
    if (r->lead && r->o->plan) detect_print(&d, stdout);
    for (int i = 0; i < d.n_warnings && r->lead && !r->o->plan; i++)
        fprintf(stderr, "train_gpt: warning: %s\n", d.warning[i]);
    run_machine(r, &d, &p->machine);
    if (r->device.used) {
        if (r->lead && r->o->calibrate == 1)
            warn("--calibrate measures CPUs only: costs on GPUs are those of the presets of "
                 "--cluster");
        detect_free(&d);
        return;
    }
    // nothing fits in memory: search() ends the run with the reason
    if (!group_all(&r->group, !r->lead || plan_may_fit(p))) search(r, p);
    if (r->o->calibrate != 2) calibrate_candidates(r, p, &d);
    detect_free(&d);
}

/* Prints the options that a run of --layout needs to follow the plan, and what prices of --exact
 * leave out. */
static void print_hints(const Run *r, const Plan *p) {
    const Choice *c = &p->best[0];
    char spec[64], flags[OVERLAP_TEXT];
    // without --batch, space_of takes a micro-batch for each rank, a run one for each of d x z
    char batch[64] = "";
    int64_t data_size = (int64_t)c->layout.size[AXIS_D] * c->layout.size[AXIS_Z];
    bool batch_given = r->o->batch || r->state.batch;
    if (!batch_given) snprintf(batch, sizeof batch, " --batch %" PRId64, p->space.shape.batch);
    bool bulk = overlap_equal(&c->overlap, &(Overlap){.bulk = p->space.p > 1});
    bool by_default = (batch_given || r->o->micro * r->seq * data_size == p->space.shape.batch) &&
                      (!p->space.free_micro || c->micro == r->o->micro) &&
                      c->recompute == (Recompute)r->o->recompute &&
                      (!p->space.free_overlap || bulk);
    if (p->space.only && !by_default)
        printf(
            "A run of --layout %s chooses nothing else by itself; this plan is%s --micro %" PRId64
            " --recompute %s --overlap %s.\n",
            layout_print(&c->layout, spec), batch, c->micro, recompute_name(c->recompute),
            overlap_print(&c->overlap, flags));
    if (r->o->exact)
        printf("Kernels of --exact are priced as those of floats that touch as many bytes: they "
               "take longer.\n");
}

static void print_plan(const Run *r, const Plan *p) {
    plan_print(p, stdout);
    print_hints(r, p);
    if (!*r->o->json) return;
    ReplaceText text;
    replace_text_begin(&text);
    plan_json(p, text.f);
    replace_text_end(&text, "--json", r->o->json);
}

bool run_choose_layout(Run *r) {
    Err e;
    bool described = *r->o->cluster,
         wanted = strcmp(r->o->layout, "auto") == 0 && r->group.size > 1;
    if (!r->o->plan && r->o->listing) return true;
    if (!r->o->plan && (!wanted || (!*r->o->train && *r->o->init))) return true;
    Plan *p = r->plan = mem_calloc(1, sizeof *p);
    if (described && (run_given(r, "ranks") || run_given(r, "threads")))
        die_usage("--cluster %s says how many ranks there are, and threads of each: leave --%s out",
                  r->o->cluster, run_given(r, "ranks") ? "ranks" : "threads");
    if (described && !machine_open(&p->machine, r->o->cluster, &e))
        die_usage("--cluster: %s", e.text);
    int ranks = described ? p->machine.ranks : r->group.size;
    int threads = described ? p->machine.threads : team_size(r->team);
    p->space = space_of(r, ranks, threads, &r->fixed);
    p->error = described ? NAN : run_known_error(r);
    p->space.fuses = p->space.free_overlap && !described && !fusing_obstacle(r);
    if (!described) measure(r, p);
    // The kernels are those of the described cluster or of the GPUs, not of this processor.
    if (described || r->device.used)
        p->space.shape.kernels = machine_kernels(&p->machine, p->space.shape.model.bf16);
    search(r, p);
    // without outer steps, as the medians in the ledger are
    r->predicted_ms = 1e3 * (p->best[0].price.seconds - p->best[0].price.outer);
    if (!r->o->plan) return true;
    if (r->lead) {
        const Choice *c = &p->best[0];
        run_warn_micro(r, p->space.shape.batch,
                       (int64_t)c->layout.size[AXIS_D] * c->layout.size[AXIS_Z]);
        if (p->space.only) run_warn_overlap(r, &c->overlap, &c->layout);
        print_plan(r, p);
    }
    return false;
}

void run_print_plan(const Run *r) {
    const Choice *c = &r->plan->best[0];
    char text[128];
    printf("plan     %s: %.2f ms a step predicted, %.0f %% computing; %" PRId64
           " candidates in %.0f ms\n",
           choice_print(c, text), 1e3 * c->price.seconds, 100 * c->price.compute / c->price.seconds,
           r->plan->count.candidates, 1e3 * r->plan->count.seconds);
}

/* Predicts a step of a given layout, for the ledger. */
void run_predict(Run *r) {
    Detected d;
    Machine m;
    Price price;
    StepLists s;
    bool kept = strcmp(r->o->ledger, "none") != 0;
    group_broadcast(&r->group, &kept, sizeof kept); // rank 0 writes the ledger
    if (r->plan || r->o->exact || r->o->profile || !kept) return;
    run_detect(r, &d);
    run_step_lists(r, &s);
    CalibrateWhere where = {
        .world = r->world, .kernels = r->kernels, .team = r->team, .node = r->node};
    if (r->device.used)
        run_machine(r, &d, &m);
    else
        r->calibration = plan_measured(&m, &where, &d, &s);
    if (r->device.used || r->calibration) {
        price_of(&s, &m, &price);
        r->predicted_ms = 1e3 * (price.seconds - price.outer); // as the medians in the ledger are
    }
    if (r->group.size > 1 && r->predicted_ms > 0)
        run_note(r, "plan     %.2f ms a step are predicted for this layout", r->predicted_ms);
    else if (r->group.size > 1)
        run_note(r, "plan     no prediction for this layout: this machine was not measured for it "
                    "(--plan measures)");
    price_free(&s);
    detect_free(&d);
}

void run_plan_free(Run *r) {
    if (r->calibration) calibration_free(r->calibration);
    mem_free(r->plan);
}
