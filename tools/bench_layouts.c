/* bench_layouts -- trains a model on every layout of its ranks, in turns: what is the fastest really?
 *
 *     bench_layouts --ranks 4 --model d6                            ranks as threads
 *     mpirun -n 8 bench_layouts --model d6 --recompute all          ranks as processes
 *     bench_layouts --ranks 4 --layouts d4,x2.y2+sp,fsdp            these alone
 *
 * One job measures them all: layouts of separate jobs would see other minutes of a shared machine. It goes round
 * several times, so that what drifts meets all of them. The step is the trainer's (train_gpt.c); tokens are random.
 * Lines of JSON on standard output, the run first, then one for each layout; progress on standard error.
 *
 *     ms           median of --steps steps in each of --rounds rounds, on rank 0; one more to warm up each time
 *     fastest_ms   the least of them
 *     received     bytes of a step that rank 0 gets from others
 *     memory       bytes of rank 0's arenas; resident: those of them that lie in memory after the last step
 *     ms null      it does not fit
 *     predicted_*  with --foretell: kernels and collectives are measured first, as a run with --layout auto does; and a
 *                  last line has the layout that is foretold to be the fastest, the one that was, and how much
 *                  longer a step of the former takes
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/rng.h"
#include "base/version.h"
#include "parallel/coll_backend.h"
#include "parallel/memory.h"
#include "parallel/plan.h"
#include "parallel/ranks.h"

enum { MAX_ORDERS = 64, MAX_UNITS = 3, MAX_ROWS = 512 };
static const char *const recompute_words[] = {"none", "selective", "full"};

static struct {
    int64_t ranks, seq, batch, micro, threads, steps, rounds, finals, timeout;
    const char *model, *layouts, *units;
    int recompute, dtype;
    bool foretell;
    double within;
} o;

/* A candidate and what was measured. */
typedef struct Entry {
    Choice choice;
    double *ms; // [rounds * steps] of rank 0
    int n_ms;
    int64_t received, memory, resident;
    double median;
    bool final;
} Entry;

/* All of it, as one rank has it. */
typedef struct Bench {
    World *world;
    Group group;
    Space space;
    Team *team;
    Plan plan;      // its machine, with --foretell
    int neighbours; // ranks on this node
    int unit[MAX_UNITS], n_units;
    Entry *entry;
    int n, max;
    double begin, told;
} Bench;

/* ---- candidates */

static void add(Bench *b, const Choice *c, const Layout *l) {
    if (b->n == b->max) {
        b->max = b->max ? 2 * b->max : 64;
        b->entry = mem_realloc(b->entry, (size_t)b->max, sizeof *b->entry);
    }
    Entry *e = &b->entry[b->n++];
    *e = (Entry){.choice = *c};
    e->choice.layout = *l;
    e->ms = mem_calloc((size_t)(o.rounds * o.steps), sizeof *e->ms);
}

static void add_orders(const Choice *c, void *ctx) {
    Bench *b = ctx;
    Layout order[MAX_ORDERS];
    int n = b->n_units ? layout_orders(&c->layout, b->unit, b->n_units, order, MAX_ORDERS) : 0;
    for (int i = 0; i < n; i++) add(b, c, &order[i]);
    if (n == 0) add(b, c, &c->layout);
}

static void add_given(const Choice *c, void *ctx) {
    Bench *b = ctx;
    add(b, c, b->space.only); // the search itself knows one order of it
}

static void add_list(Bench *b) {
    char *list = mem_strdup(o.layouts), *rest = list;
    for (char *spec; (spec = strsep(&rest, ",")) != NULL;) {
        Layout l;
        Err e;
        if (!layout_parse(&l, spec, b->space.p, &e)) die_usage("--layouts: %s", e.text);
        b->space.only = &l;
        search_each(&b->space, add_given, b);
    }
    b->space.only = NULL;
    mem_free(list);
}

/* Which neighbours of the job's ranks are alike near: by default those of a node. */
static void read_units(Bench *b) {
    bool nodes = b->neighbours > 1 && b->neighbours < b->space.p;
    if (!*o.units && nodes) b->unit[b->n_units++] = b->neighbours;
    for (const char *at = o.units; *at && strcmp(o.units, "none") != 0;) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || n < 2 || n > b->space.p ||
            b->n_units == MAX_UNITS)
            die_usage("--units %s: at most %d numbers of ranks, as in 2,4", o.units, MAX_UNITS);
        b->unit[b->n_units++] = (int)n;
        at = *end ? end + 1 : end;
    }
}

static void list_candidates(Bench *b) {
    Space *s = &b->space;
    PriceShape *shape = &s->shape;
    Err e;
    s->p = world_size(b->world);
    if (!config_parse(&shape->config, o.model, &e)) die_usage("--model: %s", e.text);
    shape->S = o.seq ? o.seq : shape->config.seq;
    if (shape->S > shape->config.seq)
        die_usage("--seq %" PRId64 ": the model has %" PRId64 " positions", shape->S,
                  shape->config.seq);
    shape->micro = o.micro ? o.micro : 1;
    shape->batch = o.batch ? o.batch : s->p * shape->micro * shape->S;
    if (shape->batch % shape->S)
        die_usage("--batch %" PRId64 " tokens is no multiple of %" PRId64 " positions",
                  shape->batch, shape->S);
    shape->bf16 = o.dtype == 1;
    shape->threads = o.threads ? (int)o.threads : ranks_threads(b->world);
    s->free_micro = o.micro == 0;
    s->free_recompute = o.recompute == 3;
    if (!s->free_recompute) shape->recompute = (Recompute)o.recompute;
    read_units(b);
    if (strcmp(o.layouts, "all") == 0)
        search_each(s, add_orders, b);
    else
        add_list(b);
}

static Calibration *foretell(Bench *b) {
    Detected d;
    const Kernels *k = kernels_cpu(NULL);
    b->plan.space = b->space;
    detect(&d, b->world, k, b->team, b->space.shape.bf16);
    PlanWhere where = {.world = b->world, .kernels = k, .team = &b->team, .measure = true};
    Calibration *c = plan_measure(&b->plan, &where, &d);
    detect_free(&d);
    for (int i = 0; i < b->n; i++) search_price(&b->space, &b->plan.machine, &b->entry[i].choice);
    double best = INFINITY;
    for (int i = 0; i < b->n; i++) best = fmin(best, b->entry[i].choice.price.seconds);
    int kept = 0;
    for (int i = 0; i < b->n; i++)
        if (o.within == 0 || b->entry[i].choice.price.seconds <= o.within * best)
            b->entry[kept++] = b->entry[i];
        else
            mem_free(b->entry[i].ms);
    b->n = kept;
    return c;
}

/* ---- a layout */

typedef struct Trial {
    Bench *b;
    Grid grid;
    Model m;
    int32_t *inputs, *targets; // [B, S] of a micro-step: always the same
    int64_t micro_steps, step;
} Trial;

/* As train_gpt.c has it. */
static void train_step(Trial *t) {
    int64_t batch = t->b->space.shape.batch;
    model_zero_grads(&t->m);
    model_zero_losses(&t->m);
    for (int64_t i = 0; i < t->micro_steps; i++)
        model_step(&t->m, t->inputs, t->targets, 1 / (float)batch);
    model_losses(&t->m);
    model_reduce_grads(&t->m);
    double norm = model_grad_norm(&t->m);
    AdamW rule = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    rule.grad_scale = norm > 1 ? 1 / norm : 1;
    rule.step = ++t->step;
    model_update(&t->m, &rule);
}

static int64_t received(const World *w) {
    static _Thread_local CollCount rows[MAX_ROWS];
    int64_t sum = 0;
    for (int i = world_counts(w, rows, MAX_ROWS); i-- > 0;) sum += rows[i].bytes;
    return sum;
}

static void take_time(Trial *t, Entry *e) {
    World *w = t->b->world;
    for (int64_t i = -1; i < o.steps; i++) { // one to warm up
        if (i == 0) group_barrier(&t->b->group);
        world_count_reset(w);
        double begin = coll_now();
        train_step(t);
        if (i >= 0) e->ms[e->n_ms++] = 1e3 * (coll_now() - begin);
    }
    e->received = received(w);
    e->resident = 0;
    for (int i = 0; i < N_ARENAS; i++) e->resident += (int64_t)arena_resident(&t->m.arena[i]);
}

static void fill_tokens(Trial *t) {
    size_t n = (size_t)(t->m.shape.B * t->m.shape.S);
    uint64_t vocab = (uint64_t)t->m.shape.config.vocab;
    // ranks of one coordinate of d and z have the same tokens
    uint64_t place = (uint64_t)mesh_block(&t->grid.mesh, axes_of("d.z"));
    t->inputs = mem_alloc(n * sizeof *t->inputs);
    t->targets = mem_alloc(n * sizeof *t->targets);
    for (size_t i = 0; i < n; i++) {
        t->inputs[i] = (int32_t)(rng_u64(1, 2 * place, i) % vocab);
        t->targets[i] = (int32_t)(rng_u64(1, 2 * place + 1, i) % vocab);
    }
}

/* One round of one candidate, from nothing to nothing. */
static void measure(Bench *b, Entry *e) {
    Choice *c = &e->choice;
    Trial t = {.b = b};
    char spec[64];
    world_set_phase(b->world, layout_print(&c->layout, spec));
    if (team_size(b->team) != c->threads) {
        team_destroy(b->team);
        world_set_team(b->world, b->team = team_create(c->threads));
    }
    grid_make(&t.grid, b->world, &c->layout, &b->space.shape.config);
    t.micro_steps = price_micro_steps(
        &(PriceShape){.S = b->space.shape.S, .batch = b->space.shape.batch, .micro = c->micro},
        &c->layout);
    ModelShape s = {.config = b->space.shape.config,
                    .B = c->micro,
                    .S = b->space.shape.S,
                    .bf16 = b->space.shape.bf16,
                    .recompute = c->recompute,
                    .training = true,
                    .grid = &t.grid};
    model_plan(&t.m, &s, kernels_cpu(NULL), b->team);
    e->memory = memory_needed(&t.m);
    int64_t have = memory_available();
    if (group_all(&b->group, have == 0 || e->memory * b->neighbours <= have)) {
        model_allocate(&t.m);
        tensors_init(&t.m.tensors, b->team, 42);
        fill_tokens(&t);
        take_time(&t, e);
        mem_free(t.inputs), mem_free(t.targets);
    }
    model_free(&t.m);
    grid_free(&t.grid);
}

/* ---- what it says */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const Entry *e) {
    qsort(e->ms, (size_t)e->n_ms, sizeof *e->ms, ascending);
    return (e->ms[(e->n_ms - 1) / 2] + e->ms[e->n_ms / 2]) / 2;
}

static void print_run(const Bench *b) {
    const PriceShape *s = &b->space.shape;
    char model[256];
    config_print(&s->config, model, sizeof model);
    printf("{\"model\":\"%s\",\"ranks\":%d,\"ranks_on_node\":%d,\"backend\":\"%s\",\"seq\":%" PRId64
           ",\"batch\":%" PRId64 ",\"dtype\":\"%s\",\"steps\":%" PRId64 ",\"rounds\":%" PRId64
           ",\"layouts\":%d,\"commit\":\"%s\"}\n",
           model, b->space.p, b->neighbours, world_backend(b->world), s->S, s->batch,
           s->bf16 ? "bf16" : "fp32", o.steps, o.rounds, b->n, version_commit());
    fflush(stdout);
}

static void print_entry(Entry *e) {
    const Choice *c = &e->choice;
    char spec[64], ms[80] = "\"ms\":null", told[200] = "";
    if (e->n_ms) {
        e->median = median(e); // which sorts them
        snprintf(ms, sizeof ms, "\"ms\":%.3f,\"fastest_ms\":%.3f", e->median, e->ms[0]);
    }
    if (o.foretell)
        snprintf(
            told, sizeof told,
            ",\"predicted_ms\":%.3f,\"predicted_compute_ms\":%.3f,\"predicted_received\":%" PRId64
            ",\"predicted_memory\":%" PRId64,
            1e3 * c->price.seconds, 1e3 * c->price.compute, c->price.received, c->price.memory);
    printf("{\"layout\":\"%s\",\"micro\":%" PRId64
           ",\"recompute\":\"%s\",\"threads\":%d,%s,\"received\":%" PRId64 ",\"memory\":%" PRId64
           ",\"resident\":%" PRId64 "%s}\n",
           layout_print(&c->layout, spec), c->micro, recompute_words[c->recompute], c->threads, ms,
           e->received, e->memory, e->resident, told);
    fflush(stdout);
}

static void print_regret(const Bench *b, double calibrated) {
    const Entry *pick = NULL, *best = NULL;
    char a[64], z[64];
    for (int i = 0; i < b->n; i++) {
        const Entry *e = &b->entry[i];
        if (!e->n_ms) continue;
        if (!pick || e->choice.price.seconds < pick->choice.price.seconds) pick = e;
        if (o.finals > 0 && !e->final) continue;
        if (!best || e->median < best->median) best = e;
    }
    if (!pick) return;
    printf("{\"pick\":\"%s\",\"pick_ms\":%.3f,\"best\":\"%s\",\"best_ms\":%.3f,\"regret\":%.4f,"
           "\"calibrate_s\":%.2f}\n",
           layout_print(&pick->choice.layout, a), pick->median,
           layout_print(&best->choice.layout, z), best->median, pick->median / best->median - 1,
           calibrated);
}

/* On a terminal one line that changes, else one every ten seconds. */
static void tell(Bench *b, int64_t round, int i) {
    const Entry *e = &b->entry[i];
    double now = coll_now(), done = (double)(round * b->n + i + 1) / (double)(o.rounds * b->n);
    double left = (now - b->begin) * (1 - done) / done;
    bool terminal = isatty(STDERR_FILENO), last = done >= 1;
    char spec[64];
    if (!terminal && now - b->told < 10 && !last) return;
    b->told = now;
    fprintf(stderr, "%sround %" PRId64 "/%" PRId64 ", %d/%d: %s, %.2f ms; %.0f s, %.0f to go%s",
            terminal ? "\r\033[K" : "", round + 1, o.rounds, i + 1, b->n,
            layout_print(&e->choice.layout, spec), e->n_ms ? e->ms[e->n_ms - 1] : 0, now - b->begin,
            left, terminal && !last ? "" : "\n");
}

/* The fastest are a draw of a few noisy steps: those that come near, and the planner's choice, take more turns, and only
 * these count. */
static void play_finals(Bench *b) {
    double *ms = mem_calloc((size_t)b->n, sizeof *ms), best = INFINITY;
    int pick = 0, n = 0;
    for (int i = 0; i < b->n; i++) {
        const Entry *e = &b->entry[i];
        ms[i] = e->n_ms ? median(e) : INFINITY;
        if (e->choice.price.seconds < b->entry[pick].choice.price.seconds) pick = i;
    }
    group_share(&b->group, ms, (size_t)b->n * sizeof *ms);
    for (int i = 0; i < b->n; i++) best = fmin(best, ms[i]);
    for (int i = 0; o.finals > 0 && i < b->n; i++) {
        Entry *e = &b->entry[i];
        e->final = (o.foretell && i == pick) || ms[i] <= 1.1 * best;
        if (!e->final) continue;
        n++, e->n_ms = 0;
        e->ms = mem_realloc(e->ms, (size_t)(o.finals * o.steps), sizeof *e->ms);
    }
    for (int64_t round = 0; round < o.finals; round++)
        for (int i = 0; i < b->n; i++)
            if (b->entry[i].final) measure(b, &b->entry[i]);
    if (n && b->group.rank == 0) fprintf(stderr, "%d of them took more turns\n", n);
    mem_free(ms);
}

static int rank_main(World *w, void *ctx) {
    (void)ctx;
    Bench bench = {.world = w, .group = comm_group(world_comm(w)), .begin = coll_now()},
          *b = &bench;
    bool lead = world_rank(w) == 0;
    world_set_limit(w, (double)o.timeout);
    b->neighbours = ranks_on_node(w);
    list_candidates(b);
    b->team = team_create(b->space.shape.threads);
    world_set_team(w, b->team);
    Calibration *c = o.foretell ? foretell(b) : NULL;
    if (lead) print_run(b);
    for (int64_t round = 0; round < o.rounds; round++)
        for (int i = 0; i < b->n; i++) {
            measure(b, &b->entry[i]);
            if (lead) tell(b, round, i);
        }
    play_finals(b);
    for (int i = 0; i < b->n && lead; i++) print_entry(&b->entry[i]);
    if (lead && c) print_regret(b, calibration_seconds(c));
    if (c) calibration_free(c);
    for (int i = 0; i < b->n; i++) mem_free(b->entry[i].ms);
    mem_free(b->entry);
    world_set_team(w, NULL);
    team_destroy(b->team);
    return 0;
}

int main(int argc, char **argv) {
    const Opt options[] = {
        {"model", OPT_STR, &o.model, "d6", 0, 0, "NAME", "or layers=6,heads=6,channels=384,..."},
        {"seq", OPT_INT, &o.seq, "0", 0, 1e9, "S", "positions; 0: the model's"},
        {"batch", OPT_INT, &o.batch, "0", 0, 1e12, "TOKENS",
         "of a step, over all ranks; 0: a micro-step of each rank, were all of them on d"},
        {"micro", OPT_INT, &o.micro, "4", 0, 1e9, "N",
         "sequences of a micro-step at each coordinate of d x z; 0: all powers of two"},
        {"recompute", OPT_CHOICE, &o.recompute, "none", 0, 0, "none|selective|full|all",
         "activations that are computed again"},
        {"dtype", OPT_CHOICE, &o.dtype, "fp32", 0, 0, "fp32|bf16", "of products"},
        {"ranks", OPT_INT, &o.ranks, "0", 0, MAX_THREAD_RANKS, "N",
         "as threads (0: the launcher's, or 1)"},
        {"threads", OPT_INT, &o.threads, "0", 0, 4096, "N", "of a rank; 0: its share of the cores"},
        {"layouts", OPT_STR, &o.layouts, "all", 0, 0, "LIST", "SPECs and presets, or all"},
        {"units", OPT_STR, &o.units, "", 0, 0, "LIST",
         "every order of axes that units of so many ranks tell apart: 2,4 (empty: nodes; none)"},
        {"foretell", OPT_BOOL, &o.foretell, "0", 0, 0, "",
         "what the planner says of each, as well"},
        {"within", OPT_FLOAT, &o.within, "0", 0, 1e9, "X",
         "with --foretell: only layouts that are foretold to take X times the best, or less; 0: "
         "all"},
        {"steps", OPT_INT, &o.steps, "3", 1, 1e6, "N", "measured in each round"},
        {"rounds", OPT_INT, &o.rounds, "3", 1, 1e6, "N", "over all layouts"},
        {"finals", OPT_INT, &o.finals, "0", 0, 1e6, "N",
         "more rounds of those within 10 % of the fastest and of what is foretold to be it"},
        {"timeout", OPT_INT, &o.timeout, "60", 0, 1e9, "S",
         "a rank that waits longer ends the job; 0: never"},
        {0}};
    die_set_program(argv[0]);
    ranks_share_usage();
    opt_parse(options, argc, argv,
              "bench_layouts: trains a model on every layout of its ranks, in turns\n\n");
    return ranks_run((int)o.ranks, rank_main, NULL);
}
