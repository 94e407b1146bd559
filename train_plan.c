/* The startup search of a run: --layout auto asks it, --plan prints it, and the first steps may overrule it.
 *
 * Rank 0 searches; all ranks get its choices. */
#include "train_gpt.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/io.h"
#include "data/machine.h"
#include "parallel/detect.h"
#include "parallel/ledger.h"
#include "parallel/pieces.h"
#include "parallel/ranks.h"

static bool given(const char *option) {
    return opt_given(opt_find(options, option));
}

void check_batch(int64_t batch, int64_t seq) {
    int64_t round = o.micro * seq, below = batch / round * round;
    char nearest[64] = "the next is";
    if (batch % round == 0) return;
    if (below) snprintf(nearest, sizeof nearest, "the nearest are %" PRId64 " and", below);
    die_usage("--batch %" PRId64 " tokens is no multiple of a micro-step: --micro %" PRId64
              " x --seq %" PRId64 " = %" PRId64 "; %s %" PRId64,
              batch, o.micro, seq, round, nearest, below + round);
}

void warn_micro(int64_t batch, int64_t seq, int64_t places) {
    int64_t share = (batch / seq + places - 1) / places;
    if (given("micro") && o.micro > share)
        warn("--micro %" PRId64 ": a step is %" PRId64 " sequences for %" PRId64
             " places (d x z), so its only micro-step is of %" PRId64,
             o.micro, batch / seq, places, share);
}

void warn_overlap(const Overlap *words, const Layout *l) {
    int X = l->size[AXIS_X], Y = l->size[AXIS_Y];
    char spec[64];
    if (words->ring && (!l->sp || X < 2))
        warn("--overlap ring does nothing on %s: its tokens are gathered along no axis (x and the "
             "word sp)",
             layout_print(l, spec));
    else if (words->ring && X > MAX_RING)
        warn("--overlap ring does nothing on %s: a ring is of %d ranks at most",
             layout_print(l, spec), MAX_RING);
    if (words->chunks && (X * Y < 2 || l->stay))
        warn("--overlap chunk does nothing on %s: %s", layout_print(l, spec),
             l->stay ? "stay=y streams its products in panels"
                     : "its products wait for nothing (x and y do)");
    else if (words->chunks && l->sp && X > MAX_STRIPES)
        warn("--overlap chunk does nothing on %s: tokens are cut over more than %d ranks",
             layout_print(l, spec), MAX_STRIPES);
}

void check_halves(int64_t micro) {
    if (micro % 2)
        die_usage("--overlap %s: halves take turns, and a micro-step of %" PRId64
                  " sequence%s has none: an even --micro, or other words",
                  o.overlap, micro, micro > 1 ? "s" : "");
}

Overlap run_overlap(const Run *r) {
    Overlap words = {.bulk = true}; // which changes no sum
    Err e;
    if (r->plan && r->plan->n_best > 0) return r->plan->best[0].overlap;
    if (strcmp(o.overlap, "auto") == 0) return r->group.size > 1 ? words : (Overlap){0};
    if (!overlap_parse(&words, o.overlap, &e)) die_usage("--%s", e.text);
    return words;
}

/* What may be chosen: all that the command line does not say. */
static Space space_of(const Run *r, int ranks, int threads, Layout *fixed) {
    Space s = {.p = ranks,
               .shape = {.config = r->config,
                         .S = r->seq,
                         .micro = o.micro,
                         .bf16 = o.dtype == 1,
                         .samples = o.sample_every > 0 || *o.prompt,
                         .recompute = (Recompute)o.recompute,
                         .threads = threads,
                         .outer = outer_copies(&r->outer),
                         .apart = r->outer.every > 1,
                         .every = r->outer.every > 1 ? r->outer.every : 0,
                         .fragments = r->outer.fragments},
               .free_micro = !given("micro"),
               .free_recompute = !given("recompute"),
               .free_overlap = strcmp(o.overlap, "auto") == 0,
               .no_zero = r->outer.every > 1};
    if (!s.free_overlap) s.shape.overlap = run_overlap(r);
    if (s.shape.overlap.halves && !s.free_micro) check_halves(o.micro);
    int64_t batch = o.batch ? o.batch : r->state.batch;
    s.shape.batch = batch ? batch : o.micro * r->seq * ranks; // as plain data parallelism takes it
    if (s.shape.batch % r->seq)
        die_usage("--batch %" PRId64 " tokens is no multiple of --seq %" PRId64, s.shape.batch,
                  r->seq);
    if (!s.free_micro) check_batch(s.shape.batch, r->seq);
    if (!given("threads") &&
        threads > 1) // half of them may be quicker, where cores are shared or work is small
        s.n_threads = 2, s.threads[0] = threads, s.threads[1] = threads / 2;
    if (strcmp(o.layout, "auto") != 0) {
        Err e;
        if (!layout_parse(fixed, o.layout, ranks, &e)) die_usage("--%s", e.text);
        s.only = fixed;
    }
    return s;
}

PriceShape shape_of_step(const Run *r) {
    const ModelShape *m = &r->m.shape;
    return (PriceShape){.config = r->config,
                        .S = r->seq,
                        .batch = r->batch,
                        .micro = r->micro,
                        .bf16 = m->bf16,
                        .samples = m->samples,
                        .recompute = m->recompute,
                        .overlap = m->overlap,
                        .threads = team_size(r->team),
                        .outer = m->outer,
                        .apart = r->grid.apart,
                        .kernels = r->device.used ? r->m.k : NULL};
}

void record_step(const Run *r, Tape *t) {
    PriceShape s = shape_of_step(r);
    price_record(t, &s, &r->grid.layout, world_rank(r->world));
}

/* ---- costs of the machine at hand */

/* Predictions for this machine were wrong by so much, in half of the runs that the ledger remembers. */
static double known_error(const Run *r) {
    enum { LINES = 64 };
    char machine[64];
    LedgerLine *lines = mem_calloc(LINES, sizeof *lines);
    machine_words(r, machine, sizeof machine);
    bool measured = !r->device.used && o.calibrate != 2;
    double error = ledger_median_error(lines, last_lines(lines, LINES), machine, measured);
    mem_free(lines);
    return isfinite(error) ? fmin(fmax(error, 0.01), 0.5) : 0.1;
}

/* ---- the plan */

/* What a person sees of a search that takes longer; a signal ends the run, of which there is nothing yet. */
typedef struct Searching {
    Progress *progress;
    double begin;
    SearchWatch watch;
} Searching;

static void look(void *ctx, const SearchNews *n) {
    Searching *s = ctx;
    char what[160];
    if (signal_here())
        die_status(128 + signal_here(),
                   "stopped by signal %d in the search for a layout; nothing was trained",
                   signal_here());
    snprintf(what, sizeof what, "searching: %s, %" PRId64 " candidates, %" PRId64 " priced",
             n->scheme < 0 ? "all layouts" : n->name, n->candidates, n->priced);
    progress_part(s->progress, what, (n->scheme + 1.0) / (n->schemes + 1.0),
                  machine_clock() - s->begin);
}

static void watch(Searching *s, Space *space) {
    *s = (Searching){.progress = progress_open(stderr, 0), .begin = machine_clock()};
    s->watch = (SearchWatch){look, s};
    space->watch = &s->watch;
}

static void search(Run *r, Plan *p) {
    Err e;
    Searching s;
    if (r->lead) watch(&s, &p->space);
    bool found = !r->lead || plan_search(p, &e);
    if (r->lead) progress_close(s.progress), p->space.watch = NULL;
    group_share(&r->group, &p->count, sizeof p->count);
    if (!group_agree(&r->group, found, &e)) {
        int64_t sequences = p->space.shape.batch / p->space.shape.S;
        if (p->count.candidates == 0 && r->outer.every > 1)
            die_usage("--sync-every %" PRId64
                      ": replicas need equal shares of a step: no layout of "
                      "%d ranks gives them of %" PRId64 " sequence%s",
                      o.sync_every, p->space.p, sequences, sequences > 1 ? "s" : "");
        if (!r->lead) ranks_follow(r->world);
        die_user("%s", e.text);
    }
    group_share(&r->group, p->best, sizeof p->best);
    group_share(&r->group, &p->n_best, sizeof p->n_best);
    group_share(&r->group, &p->error, sizeof p->error);
}

/* Devices are priced by what is known of them: nothing is measured. */
static void gpu_machine(const Run *r, const Detected *d, Machine *m) {
    const DeviceFacts *f = &r->device.facts;
    Gpus g = {.facts = device_gpu(f),
              .memory = (int64_t)r->kernels->memory->available(),
              .sharing = r->device.ranks};
    for (int i = 0; i < d->node[0].n_gpus; i++) g.linked |= d->node[0].gpu[i].links > 0;
    const char *how;
    bool bf16 = o.dtype == 1, known = gpu_peak(&g.facts, bf16, &how) > 0;
    if (!group_all(&r->group, known)) g.measured[bf16] = gpu_measure(r->kernels, bf16);
    group_share(&r->group, &g, sizeof g); // alike on all ranks
    detect_gpu_machine(d, &g, m);
}

/* Collective. */
static void measure(Run *r, Plan *p) {
    Detected d;
    detect(&d, r->world, kernels_cpu(o.kernels), r->team, o.dtype == 1);
    if (r->lead && o.plan) detect_print(&d, stdout);
    for (int i = 0; i < d.n_warnings && r->lead && !o.plan; i++)
        fprintf(stderr, "train_gpt: warning: %s\n", d.warning[i]);
    if (r->device.used) {
        gpu_machine(r, &d, &p->machine);
        p->space.n_threads = 0;
        detect_free(&d);
        return;
    }
    detect_machine(&d, &p->machine);
    if (!group_all(&r->group, !r->lead || plan_may_fit(p))) search(r, p); // which says why it ends
    measure_machine(r, p, &d);
    detect_free(&d);
}

/* What the plan leaves out, and what a run must be told to be the one that is planned. */
static void print_hints(const Plan *p) {
    const Choice *c = &p->best[0];
    char spec[64], words[OVERLAP_TEXT];
    bool bulk = overlap_equal(&c->overlap, &(Overlap){.bulk = p->space.p > 1});
    bool told = (!p->space.free_micro || c->micro == o.micro) &&
                c->recompute == (Recompute)o.recompute && (!p->space.free_overlap || bulk);
    if (p->space.only && !told)
        printf("A run of --layout %s chooses nothing else by itself; this plan is --micro %" PRId64
               " --recompute %s --overlap %s.\n",
               layout_print(&c->layout, spec), c->micro, recompute_word(c->recompute),
               overlap_print(&c->overlap, words));
    if (o.exact)
        printf("This is the step without --exact, whose sums of integers of 8 bytes are not "
               "priced.\n");
}

static void print_plan(const Plan *p) {
    plan_print(p, stdout);
    print_hints(p);
    fflush(stdout);
    if (!*o.json) return;
    FILE *f = io_fopen(o.json);
    if (!f) die_user("--json: cannot write %s: %s", o.json, strerror(errno));
    plan_json(p, f);
    bool bad = ferror(f) != 0;
    if (fclose(f) || bad) die_user("--json: cannot write %s: %s", o.json, strerror(errno));
}

bool plan_run(Run *r) {
    Err e;
    bool described = *o.cluster, wanted = strcmp(o.layout, "auto") == 0 && r->group.size > 1;
    if (described && !o.plan) die_usage("--cluster describes other ranks than these: add --plan");
    if (!o.plan && (!wanted || (!*o.train && *o.init))) return true;
    Plan *p = r->plan = mem_calloc(1, sizeof *p);
    if (described && (given("ranks") || given("threads")))
        die_usage("--cluster %s says how many ranks there are, and threads of each: leave --%s out",
                  o.cluster, given("ranks") ? "ranks" : "threads");
    if (described && !machine_open(&p->machine, o.cluster, &e)) die_usage("--cluster: %s", e.text);
    int ranks = described ? p->machine.ranks : r->group.size;
    int threads = described ? p->machine.threads : team_size(r->team);
    p->space = space_of(r, ranks, threads, &r->fixed);
    p->error = described ? 0.1 : known_error(r);
    if (!described) measure(r, p);
    p->space.shape.kernels = machine_kernels(&p->machine, p->space.shape.bf16);
    search(r, p);
    // the ledger is about steps; meetings of replicas are not in their median
    r->predicted_ms = 1e3 * (p->best[0].price.seconds - p->best[0].price.meeting);
    if (!o.plan) use_threads(r, p->best[0].threads);
    if (!o.plan) return true;
    if (r->lead) {
        const Choice *c = &p->best[0];
        warn_micro(p->space.shape.batch, r->seq,
                   (int64_t)c->layout.size[AXIS_D] * c->layout.size[AXIS_Z]);
        if (p->space.only) warn_overlap(&c->overlap, &c->layout);
        print_plan(p);
    }
    return false;
}

void plan_say(const Run *r) {
    const Choice *c = &r->plan->best[0];
    char text[128];
    printf("plan     %s: %.2f ms a step foretold%s, %.0f %% computing; %" PRId64
           " candidates in %.0f ms\n",
           choice_print(c, text), 1e3 * c->price.seconds, o.exact ? " without --exact" : "",
           100 * c->price.compute / c->price.seconds, r->plan->count.candidates,
           1e3 * r->plan->count.seconds);
}

/* What no plan has foretold is for the ledger alone: a step as it is laid out. */
void foretell(Run *r) {
    Detected d;
    Machine m;
    Tape t = {0};
    Price price;
    if (r->plan || o.exact || o.profile || strcmp(o.ledger, "none") == 0) return;
    detect(&d, r->world, kernels_cpu(o.kernels), r->team, o.dtype == 1);
    record_step(r, &t);
    if (r->device.used) {
        gpu_machine(r, &d, &m);
        tape_play(&t, &m, &price);
        r->predicted_ms = 1e3 * (price.seconds - price.meeting);
    } else {
        PlanWhere where = {.world = r->world, .kernels = r->kernels, .team = &r->team};
        r->predicted_ms = 1e3 * plan_foretell(&where, &d, &t, &r->calibration);
    }
    tape_free(&t);
    detect_free(&d);
}

void plan_free(Run *r) {
    if (r->calibration) calibration_free(r->calibration);
    mem_free(r->plan);
}
