/* bench_layouts -- trains a model on every layout of its ranks, in turns, to find which layout is
 * really the fastest.
 *
 *     bench_layouts --ranks 4 --model d6                     ranks as threads
 *     mpirun -n 8 bench_layouts --model d6 --recompute all   ranks as processes
 *     bench_layouts --ranks 4 --layouts d4,x2.y2+sp,fsdp     only these layouts
 *     bench_layouts --ranks 4 --overlap all                  each layout with every useful overlap
 *     bench_layouts --ranks 4 --layouts megatron@none@full,x4@bulk+halves
 *                                                            LAYOUT@OVERLAP@RECOMPUTE[@MICRO]
 *
 * One job measures all layouts, since separate jobs would run at other times of a shared machine.
 * It measures them in several rounds, so that a drift of the machine affects all of them. The step
 * is that of the trainer (train_gpt.c); tokens are random. Standard output gets lines of JSON:
 * first the run, then one for each layout. Standard error gets the progress.
 *
 *     ms           median of --steps steps in each of --rounds rounds, on rank 0; a warm-up step
 *                  precedes each round
 *     error_ms     standard error of that median, from the quartiles of those steps
 *     fastest_ms   the shortest of those steps
 *     tensor_ms    time of a step in which rank 0 was blocked on collectives along x and y;
 *                  other_ms: on all others
 *     update_ms    time of a step after the end of its last micro-batch
 *     each_ms      with --alternate: all those steps, in order
 *     serial_*     with --serial: the same for steps that wait for every collective where it starts
 *     received     bytes of a step that rank 0 receives from other ranks
 *     memory       bytes of rank 0's arenas; resident: those that lie in memory after the last step
 *     ms null      the layout does not fit into memory
 *     predicted_*  with --predict: kernels and collectives are measured first, as a run with
 *                  --layout auto does. A last line then has the layout that is predicted to be the
 *                  fastest, the one that was, and how much longer a step of the former takes
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/die.h"
#include "base/median.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/rng.h"
#include "base/version.h"
#include "data/progress.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/plan.h"
#include "parallel/plan/search_parts.h"
#include "parallel/step/memory.h"

enum { MAX_UNITS = 3, MAX_ROWS = 512 };

static struct {
    int64_t ranks, seq, batch, micro, threads, steps, rounds, finals, timeout;
    const char *model, *layouts, *units, *overlap, *contest;
    int recompute, dtype;
    bool predict, serial, alternate;
    double within;
} o;

/* Measured steps of rank 0, in ms: the whole step; blocked on collectives along x and y; blocked on
 * other collectives; the update. */
typedef enum { TIME_ALL, TIME_TENSOR, TIME_OTHER, TIME_UPDATE, N_TIMES } TimeKind;
typedef struct Times {
    double *ms[N_TIMES]; // [n] of each kind
    int n;
} Times;

/* A candidate and its measurements. */
typedef struct Entry {
    Choice choice;
    Times steps, serial;
    int64_t received, memory, resident;
    double median; // ms
    // far: predicted slower than --within allows. final: takes part in the finals. called: takes
    // part in the next rounds of the finals
    bool far, final, called;
} Entry;

/* The state of one rank. */
typedef struct Bench {
    World *world;
    Group group;
    Space space;
    Team *team;
    Plan plan; // with --predict: has the measured machine
    NodeShare node;
    int unit[MAX_UNITS], n_units;
    Entry *entry;
    int n, max;
    Progress *progress; // progress line of rank 0
    double begin;
} Bench;

/* ---- candidates */

static void reserve(Times *t, int64_t n) {
    for (int i = 0; i < N_TIMES; i++) t->ms[i] = mem_realloc(t->ms[i], (size_t)n, sizeof *t->ms[i]);
    t->n = 0;
}

static void add(Bench *b, const Choice *c, const Layout *l) {
    mem_grow(b->entry, b->n, b->max);
    Entry *e = &b->entry[b->n++];
    *e = (Entry){.choice = *c};
    e->choice.layout = *l;
    reserve(&e->steps, o.rounds * o.steps);
    reserve(&e->serial, o.rounds * o.steps);
}

static void add_orders(const Choice *c, void *ctx) {
    Bench *b = ctx;
    int n;
    Layout *order = layout_orders(&c->layout, b->unit, b->n_units, &n);
    for (int i = 0; i < n; i++) add(b, c, b->n_units ? &order[i] : &c->layout);
    mem_free(order);
}

static void add_given(const Choice *c, void *ctx) {
    Bench *b = ctx;
    add(b, c, b->space.only); // the given order of axes: the search itself tries one order only
}

static void read_overlap(Space *s, const char *words) {
    Err e;
    s->free_overlap = strcmp(words, "all") == 0;
    if (!s->free_overlap && !overlap_parse(&s->shape.model.overlap, words, &e))
        die_usage("--%s", e.text);
}

static Recompute read_recompute(const char *word) {
    for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
        if (strcmp(word, recompute_name(r)) == 0) return r;
    die_usage("--layouts: recompute is none, selective or full, not %s", word);
}

static int64_t read_micro(const char *text) {
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1)
        die_usage("--layouts: sequences of a micro-batch are a number from 1, not %s", text);
    return n;
}

/* Adds LAYOUT@OVERLAP@RECOMPUTE@MICRO. Parts that are left out are those of the options. */
static void add_one(Bench *b, char *text) {
    Space said = b->space;
    Layout l;
    Err e;
    int before = b->n;
    const char *spec = strsep(&text, "@"), *words = strsep(&text, "@"),
               *recompute = strsep(&text, "@");
    if (!layout_parse(&l, spec, b->space.p, &e)) die_usage("--layouts: %s", e.text);
    b->space.only = &l;
    if (words) read_overlap(&b->space, words);
    if (recompute)
        b->space.shape.model.recompute = read_recompute(recompute), b->space.free_recompute = false;
    if (text) b->space.shape.model.B = read_micro(text), b->space.free_micro = false;
    search_each(&b->space, add_given, b);
    if (b->n == before)
        die_usage("--layouts: %s@%s: halves need an even number of sequences in a micro-batch",
                  spec, words ? words : o.overlap);
    b->space = said;
}

static void add_list(Bench *b) {
    char *list = mem_strdup(o.layouts), *rest = list;
    for (char *one; (one = strsep(&rest, ",")) != NULL;) add_one(b, one);
    mem_free(list);
}

/* Reads --units: sizes of groups of consecutive ranks that are near each other. Default: the ranks
 * of a node. */
static void read_units(Bench *b) {
    bool nodes = b->node.local_size > 1 && b->node.local_size < b->space.p;
    if (!*o.units && nodes) b->unit[b->n_units++] = b->node.local_size;
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

/* Reads the options that describe the model and the search, and lists the candidates. */
static void list_candidates(Bench *b) {
    Space *s = &b->space;
    PriceShape *shape = &s->shape;
    Err e;
    s->p = world_size(b->world);
    if (!config_parse(&shape->model.config, o.model, &e)) die_usage("--model: %s", e.text);
    shape->model.S = o.seq ? o.seq : shape->model.config.seq;
    if (shape->model.S > shape->model.config.seq)
        die_usage("--seq %" PRId64 ": the model has %" PRId64 " positions", shape->model.S,
                  shape->model.config.seq);
    shape->model.B = o.micro ? o.micro : 1;
    shape->batch = o.batch ? o.batch : s->p * shape->model.B * shape->model.S;
    if (shape->batch % shape->model.S)
        die_usage("--batch %" PRId64 " tokens is no multiple of %" PRId64 " positions",
                  shape->batch, shape->model.S);
    shape->model.bf16 = o.dtype == 1;
    shape->model.threads = o.threads ? (int)o.threads : ranks_threads(&b->node, 0);
    shape->kernels = kernels_cpu(NULL); // the predicted memory includes their workspaces
    s->free_micro = o.micro == 0;
    s->free_recompute = o.recompute == 3;
    read_overlap(s, o.overlap);
    if (!s->free_recompute) shape->model.recompute = (Recompute)o.recompute;
    read_units(b);
    if (strcmp(o.layouts, "all") == 0)
        search_each(s, add_orders, b);
    else
        add_list(b);
}

/* Measures the machine, then predicts every candidate. */
static Calibration *predict(Bench *b) {
    Detected d;
    const Kernels *k = kernels_cpu(NULL);
    b->plan.space = b->space;
    detect(&d, b->world, k, b->team, b->space.shape.model.bf16);
    detect_machine(&d, &b->plan.machine);
    CalibrateWhere where = {.world = b->world, .kernels = k, .team = b->team, .node = b->node};
    Calibration *c = plan_measure(&b->plan, &where, &d);
    detect_free(&d);
    for (int i = 0; i < b->n; i++) {
        Choice *one = &b->entry[i].choice;
        PriceShape shape = candidate_shape(&b->space, one);
        shape.whole = true;
        price_step(&shape, &one->layout, &b->plan.machine, &one->price);
    }
    double best = INFINITY;
    for (int i = 0; i < b->n; i++) best = fmin(best, b->entry[i].choice.price.seconds);
    for (int i = 0; i < b->n; i++)
        b->entry[i].far = o.within > 0 && b->entry[i].choice.price.seconds > o.within * best;
    return c;
}

/* ---- a layout */

typedef struct Trial {
    Bench *b;
    Grid grid;
    Model m;
    int32_t *inputs, *targets; // [B, S]; every micro-batch has the same tokens
    int64_t micro_batches, step;
} Trial;

/* One step, as in train_gpt.c. Returns the seconds of the update. */
static double train_step(Trial *t) {
    int64_t batch = t->b->space.shape.batch;
    model_zero_grads(&t->m, t->micro_batches);
    for (int64_t i = 0; i < t->micro_batches; i++)
        model_step(&t->m, t->inputs, t->targets, 1 / (float)batch);
    double update = now_s();
    model_sums_begin(&t->m);
    AdamW rule = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    rule.step = ++t->step;
    model_update_clipped(&t->m, &rule, 1);
    model_sums_end(&t->m);
    return now_s() - update;
}

/* Reads the counters of the last step: returns the received bytes; held: seconds that the rank was
 * blocked on collectives. */
static int64_t read_counters(const World *w, double held[N_TIMES]) {
    static _Thread_local CollCount rows[MAX_ROWS];
    int64_t sum = 0;
    held[TIME_TENSOR] = held[TIME_OTHER] = 0;
    for (int i = world_counts(w, rows, MAX_ROWS); i-- > 0;) {
        bool tensor = strspn(rows[i].label, "xy.") == strlen(rows[i].label);
        held[tensor ? TIME_TENSOR : TIME_OTHER] += rows[i].seconds;
        sum += rows[i].bytes;
    }
    return sum;
}

/* Runs n steps and adds their times; times NULL: warm-up. */
static void take_times(Trial *t, Entry *e, int64_t n, Times *times) {
    World *w = t->b->world;
    for (int64_t i = 0; i < n; i++) {
        double s[N_TIMES];
        world_count_reset(w);
        double begin = now_s();
        s[TIME_UPDATE] = train_step(t);
        s[TIME_ALL] = now_s() - begin;
        e->received = read_counters(w, s);
        for (int k = 0; times && k < N_TIMES; k++) times->ms[k][times->n] = 1e3 * s[k];
        if (times) times->n++;
    }
}

static void take_turn(Trial *t, Entry *e) {
    Bench *b = t->b;
    int64_t steps = e->far ? 1 : o.steps;
    if (!e->far) take_times(t, e, 1, NULL);
    group_barrier(&b->group);
    take_times(t, e, steps, &e->steps);
    world_set_wait_at_start(b->world, true);
    if (o.serial) take_times(t, e, steps, &e->serial);
    world_set_wait_at_start(b->world, false);
    e->resident = 0;
    for (int i = 0; i < N_ARENAS; i++) e->resident += (int64_t)arena_resident(&t->m.arena[i]);
}

static void fill_tokens(Trial *t) {
    size_t n = (size_t)(t->m.shape.B * t->m.shape.S);
    uint64_t vocab = (uint64_t)t->m.shape.config.vocab;
    // ranks with the same coordinates of d and z get the same tokens
    uint64_t place = (uint64_t)mesh_block(&t->grid.mesh, axes_of("d.z"));
    t->inputs = mem_alloc(n * sizeof *t->inputs);
    t->targets = mem_alloc(n * sizeof *t->targets);
    for (size_t i = 0; i < n; i++) {
        t->inputs[i] = (int32_t)(rng_u64(1, 2 * place, i) % vocab);
        t->targets[i] = (int32_t)(rng_u64(1, 2 * place + 1, i) % vocab);
    }
}

/* Makes the model of a candidate and allocates its memory. False: it does not fit. */
static bool trial_open(Trial *t, Bench *b, Entry *e) {
    Choice *c = &e->choice;
    char spec[64];
    *t = (Trial){.b = b};
    world_set_phase(b->world, layout_print(&c->layout, spec));
    grid_make(&t->grid, b->world, &c->layout, &b->space.shape.model.config);
    PriceShape s = candidate_shape(&b->space, c);
    t->micro_batches = price_micro_batches(&s, &c->layout);
    s.model.training = true, s.model.grid = &t->grid;
    model_plan(&t->m, &s.model, kernels_cpu(NULL), b->team);
    e->memory = memory_needed(&t->m);
    int64_t have = memory_available();
    if (!group_all(&b->group, have == 0 || e->memory * b->node.local_size <= have)) return false;
    model_allocate(&t->m);
    tensors_init(&t->m.tensors, b->team, 42);
    fill_tokens(t);
    return true;
}

static void trial_close(Trial *t) {
    mem_free(t->inputs), mem_free(t->targets);
    model_free(&t->m), grid_free(&t->grid);
}

/* One round of one candidate: makes its model, measures, frees it. */
static void measure(Bench *b, Entry *e) {
    Trial t;
    if (trial_open(&t, b, e)) take_turn(&t, e);
    trial_close(&t);
}

/* One round of all candidates at once: single steps in turns, forwards and backwards through the
 * list, so that a drift of the machine affects all alike. */
static void measure_all(Bench *b) {
    Trial *t = mem_calloc((size_t)b->n, sizeof *t);
    for (int i = 0; i < b->n; i++) {
        if (!trial_open(&t[i], b, &b->entry[i]))
            die("not enough memory for all layouts at once: leave out --alternate, or name fewer "
                "--layouts");
        take_times(&t[i], &b->entry[i], 1, NULL);
    }
    for (int64_t step = 0; step < o.steps; step++)
        for (int k = 0; k < b->n; k++) {
            int i = step % 2 ? b->n - 1 - k : k;
            take_times(&t[i], &b->entry[i], 1, &b->entry[i].steps);
        }
    for (int i = 0; i < b->n; i++) trial_close(&t[i]);
    mem_free(t);
}

/* ---- output */

static double median(const Times *t, TimeKind kind) {
    return median_of(t->ms[kind], t->n);
}

/* Standard error of the median of ascending values. For a normal distribution the median errs by
 * 1.253 sigma / sqrt(n), and the quartiles lie 1.349 sigma apart. */
static double median_error(const double *ms, int n) {
    return 1.253 / 1.349 * (ms[3 * (n - 1) / 4] - ms[(n - 1) / 4]) / sqrt((double)n);
}

static void print_run(const Bench *b) {
    const PriceShape *s = &b->space.shape;
    char model[256];
    config_print(&s->model.config, model, sizeof model);
    printf("{\"model\":\"%s\",\"ranks\":%d,\"ranks_on_node\":%d,\"backend\":\"%s\",\"seq\":%" PRId64
           ",\"batch\":%" PRId64 ",\"dtype\":\"%s\",\"steps\":%" PRId64 ",\"rounds\":%" PRId64
           ",\"layouts\":%d,\"commit\":\"%s\"}\n",
           model, b->space.p, b->node.local_size, world_backend(b->world), s->model.S, s->batch,
           s->model.bf16 ? "bf16" : "fp32", o.steps, o.rounds, b->n, version_commit());
    fflush(stdout);
}

/* Called before the times are sorted. */
static void print_each(const Times *t) {
    for (int i = 0; o.alternate && i < t->n; i++)
        printf("%s%.4f%s", i ? "," : ",\"each_ms\":[", t->ms[TIME_ALL][i], i + 1 < t->n ? "" : "]");
}

/* prefix_ms, prefix_tensor_ms, prefix_other_ms, prefix_update_ms */
static void print_times(const Times *t, const char *prefix) {
    static const char *const name[N_TIMES] = {"ms", "tensor_ms", "other_ms", "update_ms"};
    for (int k = 0; t->n && k < N_TIMES; k++)
        printf(",\"%s%s\":%.3f", prefix, name[k], median(t, (TimeKind)k));
}

static void print_entry(Entry *e) {
    const Choice *c = &e->choice;
    char spec[64], words[OVERLAP_TEXT];
    printf("{\"layout\":\"%s\",\"overlap\":\"%s\",\"micro\":%" PRId64 ",\"recompute\":\"%s\"",
           layout_print(&c->layout, spec), overlap_print(&c->overlap, words), c->micro,
           recompute_name(c->recompute));
    if (e->steps.n) {
        print_each(&e->steps);
        print_times(&e->steps, "");
        e->median = median(&e->steps, TIME_ALL); // also sorts the times
        const double *ms = e->steps.ms[TIME_ALL];
        printf(",\"error_ms\":%.3f,\"fastest_ms\":%.3f", median_error(ms, e->steps.n), ms[0]);
    } else
        printf(",\"ms\":null");
    print_times(&e->serial, "serial_");
    printf(",\"received\":%" PRId64 ",\"memory\":%" PRId64 ",\"resident\":%" PRId64, e->received,
           e->memory, e->resident);
    if (o.predict)
        printf(
            ",\"predicted_ms\":%.3f,\"predicted_compute_ms\":%.3f,\"predicted_received\":%" PRId64
            ",\"predicted_memory\":%" PRId64,
            1e3 * c->price.seconds, 1e3 * c->price.compute, c->price.received, c->price.memory);
    printf("}\n");
    fflush(stdout);
}

/* The layout predicted to be the fastest, the one that was, and the difference. */
static void print_regret(const Bench *b, double calibrated) {
    const Entry *pick = NULL, *best = NULL;
    char a[64], z[64];
    for (int i = 0; i < b->n; i++) {
        const Entry *e = &b->entry[i];
        if (!e->steps.n) continue;
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

static void show_progress(const Bench *b, int64_t round, int i) {
    const Entry *e = &b->entry[i];
    char spec[64], what[160];
    snprintf(what, sizeof what, "round %" PRId64 "/%" PRId64 ", %d/%d: %s, %.2f ms", round + 1,
             o.rounds, i + 1, b->n, layout_print(&e->choice.layout, spec),
             e->steps.n ? e->steps.ms[TIME_ALL][e->steps.n - 1] : 0);
    progress_part(b->progress, what, (double)(round * b->n + i + 1) / (double)(o.rounds * b->n),
                  now_s() - b->begin);
}

/* Marks the candidates for the next rounds of the finals: those that have not taken part yet and
 * are within 10 % of the fastest, are predicted to be the fastest, or are named by --contest.
 * Returns their number. */
static int call_finals(Bench *b, double *ms) {
    double best = INFINITY;
    char spec[64];
    int n = 0, pick = 0;
    for (int i = 1; i < b->n; i++)
        if (b->entry[i].choice.price.seconds < b->entry[pick].choice.price.seconds) pick = i;
    for (int i = 0; i < b->n; i++)
        ms[i] = b->entry[i].steps.n ? median(&b->entry[i].steps, TIME_ALL) : INFINITY;
    group_broadcast(&b->group, ms, (size_t)b->n * sizeof *ms);
    for (int i = 0; i < b->n; i++) best = fmin(best, ms[i]);
    for (int i = 0; i < b->n; i++) {
        Entry *e = &b->entry[i];
        bool asked = strcmp(layout_print(&e->choice.layout, spec), o.contest) == 0;
        e->called = !e->final && ((o.predict && i == pick) || asked || ms[i] <= 1.1 * best);
        e->final |= e->called, n += e->called;
        if (e->called)
            reserve(&e->steps, o.finals * o.steps), reserve(&e->serial, o.finals * o.steps);
    }
    return n;
}

/* The fastest candidate of a few noisy steps is partly chosen by luck. So candidates near the
 * fastest, and the planner's choice, are measured in more rounds, and only those count. A candidate
 * that was fast by luck is slower then, and others come near the fastest: they are measured too,
 * until no new one does. */
static void play_finals(Bench *b) {
    if (o.finals == 0) return;
    double *ms = mem_calloc((size_t)b->n, sizeof *ms);
    while (call_finals(b, ms) > 0)
        for (int64_t round = 0; round < o.finals; round++)
            for (int i = 0; i < b->n; i++)
                if (b->entry[i].called) measure(b, &b->entry[i]);
    mem_free(ms);
}

static int rank_main(World *w, void *ctx) {
    (void)ctx;
    Bench *b = &(Bench){.world = w, .group = comm_group(world_comm(w)), .begin = now_s()};
    bool lead = world_rank(w) == 0;
    world_set_limit(w, (double)o.timeout);
    b->node = ranks_on_node(w);
    list_candidates(b);
    b->team = team_create(b->space.shape.model.threads);
    world_set_team(w, b->team);
    Calibration *c = o.predict ? predict(b) : NULL;
    if (lead) print_run(b), b->progress = progress_open(stderr, 0);
    for (int64_t round = 0; o.alternate && round < o.rounds; round++) measure_all(b);
    for (int64_t round = 0; !o.alternate && round < o.rounds; round++)
        for (int i = 0; i < b->n; i++) {
            measure(b, &b->entry[i]);
            if (lead) show_progress(b, round, i);
        }
    progress_close(b->progress);
    play_finals(b);
    for (int i = 0; i < b->n && lead; i++) print_entry(&b->entry[i]);
    if (lead && c) print_regret(b, c->seconds);
    if (c) calibration_free(c);
    for (int i = 0; i < b->n; i++)
        for (int k = 0; k < N_TIMES; k++)
            mem_free(b->entry[i].steps.ms[k]), mem_free(b->entry[i].serial.ms[k]);
    mem_free(b->entry);
    world_set_team(w, NULL);
    team_destroy(b->team);
    return 0;
}

int main(int argc, char **argv) {
    const Opt options[] = {
        {"model", OPT_STR, &o.model, "d6", 0, 0, "NAME",
         "model: a name, or layers=6,heads=6,channels=384,..."},
        {"seq", OPT_INT, &o.seq, "0", 0, 1e9, "S", "positions of a sequence; 0: the model's"},
        {"batch", OPT_INT, &o.batch, "0", 0, 1e12, "TOKENS",
         "tokens of a step, over all ranks; 0: as many as layout dp has with one micro-batch per "
         "rank"},
        {"micro", OPT_INT, &o.micro, "4", 0, 1e9, "N",
         "sequences of a micro-batch at each coordinate of d x z; 0: all powers of two"},
        {"recompute", OPT_CHOICE, &o.recompute, "none", 0, 0, "none|selective|full|all",
         "activations that backward computes again; all: each of the three"},
        {"overlap", OPT_STR, &o.overlap, "none", 0, 0, "none|FLAGS|all",
         "schedule: bulk chunk=n ring fused halves, joined by '+'; all: those that a search tries"},
        {"dtype", OPT_CHOICE, &o.dtype, "fp32", 0, 0, "fp32|bf16",
         "type of the operands of matmuls"},
        {"ranks", OPT_INT, &o.ranks, "0", 0, MAX_THREAD_RANKS, "N",
         "ranks as threads of this process; 0: the ranks of the launcher, or 1"},
        {"threads", OPT_INT, &o.threads, "0", 0, 4096, "N",
         "threads of a rank; 0: its share of the cores"},
        {"layouts", OPT_STR, &o.layouts, "all", 0, 0, "LIST",
         "layouts to train, joined by commas: SPEC[@OVERLAP[@RECOMPUTE[@MICRO]]] or a preset; all: "
         "every layout of the ranks"},
        {"units", OPT_STR, &o.units, "", 0, 0, "LIST",
         "also try every order of axes that differs in cost where so many ranks share a unit: 2,4 "
         "for sockets of 2 and nodes of 4; empty: the nodes; none: one order"},
        {"predict", OPT_BOOL, &o.predict, "0", 0, 0, "",
         "also print the predicted time of each layout"},
        {"serial", OPT_BOOL, &o.serial, "0", 0, 0, "",
         "also measure as many steps without overlap: each collective is waited for where it "
         "starts"},
        {"alternate", OPT_BOOL, &o.alternate, "0", 0, 0, "",
         "keep all layouts in memory and train one step of each in turn, against drift"},
        {"within", OPT_FLOAT, &o.within, "0", 0, 1e9, "X",
         "with --predict: train only one step of layouts that are predicted to take more than X "
         "times as long as the best; 0: train all equally"},
        {"steps", OPT_INT, &o.steps, "3", 1, 1e6, "N", "measured steps of a layout in each round"},
        {"rounds", OPT_INT, &o.rounds, "3", 1, 1e6, "N", "rounds over all layouts"},
        {"finals", OPT_INT, &o.finals, "0", 0, 1e6, "N",
         "more rounds of the layouts within 10 % of the fastest, and of the one predicted to be "
         "fastest"},
        {"contest", OPT_STR, &o.contest, "", 0, 0, "SPEC",
         "a layout that takes part in these rounds, too"},
        {"timeout", OPT_INT, &o.timeout, "60", 0, 1e9, "S",
         "seconds after which a rank that waits ends the job; 0: never"},
        {0}};
    die_set_program(argv[0]);
    ranks_share_usage();
    opt_parse(options, argc, argv,
              "bench_layouts: trains a model on every layout of its ranks, in turns\n\n");
    return ranks_run((int)o.ranks, rank_main, NULL);
}
