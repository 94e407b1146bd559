#include "parallel/plan/price.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/count.h"
#include "parallel/step/generate.h"
#include "parallel/step/outer.h"
#include "parallel/step/passes.h"

_Static_assert((int)LINK_LEVELS == (int)MAX_LEVELS, "levels of a schedule are those of a machine");

/* ---- the lists of a step ---- */

int64_t price_micro_batches(const PriceShape *s, const Layout *l) {
    int64_t data_parallel = (int64_t)l->size[AXIS_D] * l->size[AXIS_Z],
            round = s->model.B * data_parallel, sequences = s->batch / s->model.S;
    return div_up(sequences, round);
}

/* Plans model k of the lists with this number of layers. */
static void plan_model(StepLists *s, int k, int64_t layers, bool unplaced) {
    const PriceShape *of = &s->shape;
    ModelShape shape = of->model;
    shape.training = shape.step_alone = true;
    shape.unplaced = unplaced;
    shape.threads = shape.threads > 0 ? shape.threads : 1;
    shape.grid = &s->grid;
    shape.config.layers = layers;
    model_plan(&s->model[k], &shape, of->kernels ? of->kernels : kernels_cpu("portable"), NULL);
    s->sampling[k] = shape.samples ? generator_bytes(&s->model[k]) : 0;
}

/* The first and the last layer may differ from those between them, so the smaller model needs both:
 * two layers. With bulk and full recompute layer l is recomputed during the backward of layer l+1,
 * so only a layer with neighbours on both sides is like the others: three layers. */
bool price_lists(StepLists *s, const PriceShape *shape, const Layout *l, int rank, int64_t bytes) {
    bool recomputed_early = shape->model.overlap.bulk && shape->model.recompute == RECOMPUTE_FULL;
    int64_t layers = shape->model.config.layers, few = recomputed_early ? 3 : 2;
    few = shape->whole ? layers : min_i64(max_i64(few, shape->few), layers);
    *s = (StepLists){.shape = *shape, .layers = layers, .n = layers > few ? 2 : 1};
    price_reorder(s, l, rank);
    s->grid.local_steps = shape->local_steps && l->size[AXIS_D] > 1;
    s->micro_batches = price_micro_batches(shape, l);
    for (int k = 0, n = s->n; k < n; k++) { // temporaries are placed in the larger model alone
        plan_model(s, k, few + k, shape->model.unplaced || k < n - 1);
        s->n = k + 1;
        if (k < n - 1 && bytes && price_memory(s) + (layers - few) * shape->layer_bytes > bytes)
            return false;
    }
    if (bytes && price_memory(s) > bytes) return false;
    for (int k = 0; k < s->n; k++) step_run_plan_end(s->model[k].program, s->model[k].k);
    return true;
}

void price_free(StepLists *s) {
    for (int k = 0; k < s->n; k++) model_free(&s->model[k]);
    *s = (StepLists){.n = 0};
}

void price_reorder(StepLists *s, const Layout *l, int rank) {
    s->grid.layout = *l;
    s->grid.mesh = mesh_make(&l->factors, rank);
}

int price_parts(const StepLists *s, int more, StepPart out[STEP_PARTS]) {
    const StepRun *r = s->model[more].program;
    const Program *p = step_run_micro_batch(r);
    int64_t all = s->micro_batches;
    int n = 0;
    out[n++] = (StepPart){p, 1, true, all == 1};
    if (all > 2) out[n++] = (StepPart){p, all - 2, false, false};
    if (all > 1) out[n++] = (StepPart){p, 1, false, true};
    out[n++] = (StepPart){step_run_end(r), 1, false, true};
    return n;
}

/* Layers of the real model beyond those of the smaller planned model. */
static int64_t layers_more(const StepLists *s) {
    return s->n > 1 ? s->layers - s->model[0].shape.config.layers : 0;
}

int64_t price_memory(const StepLists *s) {
    const Model *first = &s->model[0], *last = &s->model[s->n - 1];
    int64_t bytes = s->sampling[s->n - 1], more = bytes - s->sampling[0];
    for (int i = 0; i < N_ARENAS; i++) {
        bytes += (int64_t)last->arena[i].used;
        more += i == ARENA_ACTS ? step_run_micro_batch(last->program)->kept -
                                      step_run_micro_batch(first->program)->kept
                                : (int64_t)(last->arena[i].used - first->arena[i].used);
    }
    return bytes + (s->n > 1 ? (layers_more(s) - 1) * more : 0);
}

int64_t price_place(StepLists *s) {
    Model *last = &s->model[s->n - 1];
    last->arena[ARENA_ACTS].used += step_run_place(last->program);
    return price_memory(s);
}

/* ---- kernels and collectives that are in no list ---- */

/* A kernel that runs `times` times in a step. */
typedef struct Extra {
    Work work;
    int64_t times;
} Extra;

/* The i-th of model k, up to i = tensors.n: the kernel that clears the gradient of tensor i; last,
 * on a device, the one that sums the losses of a micro-batch. False: it does not run. */
static bool extra_at(const StepLists *s, int k, int i, Extra *out) {
    const Model *m = &s->model[k];
    if (i == m->tensors.n) {
        *out = (Extra){{.kind = WORK_SQUARES, .rows = m->tk.T}, m->halves * s->micro_batches};
        return m->k->sum_to;
    }
    *out = (Extra){{.kind = WORK_ZERO, .rows = tensor_part(&m->tensors.t[i], PART_GRAD)}, 1};
    return model_clears(m, i);
}

/* The group of this rank along d. */
static CollGroup replica_group(const StepLists *s) {
    Axes d = axes_of("d");
    CollGroup g = {.place = placement_of(&s->grid.mesh, d),
                   .size = mesh_blocks(&s->grid.mesh, d),
                   .rank = mesh_block(&s->grid.mesh, d),
                   .label = "d"};
    return g;
}

/* Bytes that a rank receives in an all_reduce of `bytes`. */
static int64_t all_reduce_received(int64_t bytes, int type_bytes, int size, int rank) {
    CollCall call = {.op = COLL_ALL_REDUCE, .type = COLL_U8, .rows = 1, .cols = bytes / type_bytes};
    return type_bytes * coll_bytes(&call, rank, size);
}

/* With local steps: the all_reduce of the replicas' gradient norms, one number. */
static StepCollective mean_of_replicas(const StepLists *s) {
    StepCollective mean = {.group = replica_group(s),
                           .collective = {.op = COLL_ALL_REDUCE, .bytes = 8},
                           .what = "mean of replicas",
                           .times = 1};
    mean.received = all_reduce_received(8, 8, mean.group.size, mean.group.rank);
    return mean;
}

bool price_outer(const StepLists *s, StepCollective *sent, int *calls) {
    Outer o = {.every = s->shape.every, .fragments = s->shape.fragments};
    int64_t bytes[2] = {0}, all;
    int n[2] = {0};
    if (!s->grid.local_steps || o.every == 0) return false;
    for (int k = 0; k < s->n; k++)
        for (int f = 0; f < o.fragments; f++) {
            int64_t floats = outer_floats(&o, &s->model[k], f);
            bytes[k] += (int64_t)sizeof(float) * floats, n[k] += floats > 0;
        }
    all = bytes[0] + layers_more(s) * (bytes[1] - bytes[0]);
    *calls = n[1] > n[0] ? n[1] : n[0]; // small models may have fewer tensors than fragments
    if (*calls == 0) return false;
    *sent = (StepCollective){.group = replica_group(s),
                             .collective = {.op = COLL_ALL_REDUCE, .bytes = all / *calls},
                             .what = "outer step"};
    sent->received = all_reduce_received(all, sizeof(float), sent->group.size, sent->group.rank);
    return true;
}

/* ---- clocks ---- */

/* Seconds, bytes and calls of a rank. All fields are doubles: add_played adds them as an array. */
typedef struct Played {
    Spent spent;
    double received, calls;
} Played;

static void add_played(Played *to, const Played *from, int64_t times) {
    double *a = (double *)to;
    const double *b = (const double *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *a; i++) a[i] += (double)times * b[i];
}

/* Runs one list against the clocks. */
static Played play(const StepPart *part, const OpCost *cost) {
    const Program *p = part->p;
    OpTime *time = mem_alloc((size_t)p->n_ops * sizeof *time);
    Played out = {.spent = program_play(p, cost, part->last, time)};
    for (int i = 0; i < p->n_ops; i++) {
        bool sends = op_info(p->op[i].kind)->collective && op_runs(&p->op[i], part->last);
        if (sends) out.received += (double)op_bytes(p, &p->op[i]), out.calls++;
    }
    mem_free(time);
    return out;
}

/* All lists of a step of model `more`, and the kernels that are in no list. */
static Played play_step(const StepLists *s, int more, const Machine *m) {
    StepPart part[STEP_PARTS];
    Played all = {.calls = 0};
    OpCost *cost = NULL;
    Extra x;
    for (int parts = price_parts(s, more, part), k = 0; k < parts; k++) {
        bool same = k > 0 && part[k].p == part[k - 1].p && part[k].first == part[k - 1].first;
        if (!same) mem_free(cost), cost = program_costs(part[k].p, m, part[k].first);
        Played once = play(&part[k], cost);
        add_played(&all, &once, part[k].times);
    }
    mem_free(cost);
    for (int i = 0; i <= s->model[more].tensors.n; i++)
        if (extra_at(s, more, i, &x))
            all.spent.compute += (double)x.times * machine_work(m, &x.work);
    return all;
}

/* k ranks share a core. Kernels that take a alone were measured while all k ranks compute: k a.
 * But while a rank waits for collectives, E in a step, the others have its core. In a step of time
 * t the core is busy for a share k a / t, and kernels are slowed by that share only:
 *
 *     t = a (1 + (k-1) k a / t) + E        which is k a without collectives, and a + E with long
 *                                          ones
 */
double price_oversubscribed(double compute, double exposed, double k) {
    if (k <= 1) return compute;
    double a = compute / k, b = a + exposed;
    return (b + sqrt(b * b + 4 * k * (k - 1) * a * a)) / 2 - exposed;
}

/* Seconds that replicas along d wait for each other at links that they share. Between two sums
 * along d a replica takes S without these waits. It keeps a link busy for `own` seconds of S, all
 * replicas together for `busy`. Replicas fall out of step, so in a time t the link is busy for a
 * share busy / t, and a replica's messages wait for the others' with that probability:
 *
 *     t = S + (busy - own) busy / t            which is S if own = busy (no shared link), and busy
 *                                              if S = own (nothing but this link)
 *
 * Returns t - S for the level where that is largest. */
static double waits_for_replicas(const Spent *p) {
    double s = p->compute + p->exposed - p->along_d, most = 0;
    for (int i = 0; i < LINK_LEVELS; i++) most = fmax(most, p->busy[i] * (p->busy[i] - p->own[i]));
    return (s + sqrt(s * s + 4 * most)) / 2 - s;
}

/* Adds the collectives of replicas that take local steps. Returns the seconds of a step's share in
 * the outer step, under which nothing runs. */
static double add_replicas(const StepLists *s, const Machine *m, Played *p) {
    StepCollective mean = mean_of_replicas(s), outer;
    int calls;
    if (!s->grid.local_steps) return 0;
    double seconds = machine_collective(m, &mean.group, &mean.collective);
    p->spent.exposed += seconds, p->spent.sent += seconds, p->spent.along_d += seconds;
    p->received += (double)mean.received, p->calls++;
    if (!price_outer(s, &outer, &calls)) return 0;
    p->received += (double)(outer.received / s->shape.every);
    return calls * machine_collective(m, &outer.group, &outer.collective) / (double)s->shape.every;
}

void price_of(const StepLists *s, const Machine *m, Price *price) {
    Played p = play_step(s, 0, m);
    if (s->n > 1) {
        Played more = play_step(s, 1, m);
        add_played(&more, &p, -1);
        add_played(&p, &more, layers_more(s));
    }
    double outer = add_replicas(s, m, &p);
    Spent *spent = &p.spent;
    spent->exposed += waits_for_replicas(spent);
    // The third layer may have hidden collectives that the first two exposed; the hundredth finds
    // none to hide. So the difference times the number of layers may come out below 0.
    spent->exposed = fmax(spent->exposed, 0);
    for (int i = 0; i < LINK_LEVELS; i++)
        spent->exposed = fmax(spent->exposed, spent->busy[i] - spent->compute);
    double exposed = spent->exposed + outer, hidden = spent->sent - spent->exposed;
    *price = (Price){.compute = price_oversubscribed(spent->compute, exposed, m->oversubscription),
                     .exposed = exposed,
                     .outer = outer,
                     .hidden = hidden > 1e-9 * spent->sent ? hidden : 0, // less is rounding
                     .received = (int64_t)p.received,
                     .calls = (int64_t)p.calls,
                     .memory = price_memory(s)};
    price->waiting = price->compute * (m->slowest - 1);
    price->seconds = price->compute + price->exposed + price->waiting;
}

void price_step(const PriceShape *shape, const Layout *l, const Machine *m, Price *price) {
    StepLists s;
    price_lists(&s, shape, l, 0, 0);
    price_of(&s, m, price);
    price_free(&s);
}

/* ---- kernels and collectives of a step ---- */

void price_each_work(const StepLists *s, void (*f)(void *ctx, const Work *w), void *ctx) {
    StepPart part[STEP_PARTS];
    const Model *m = &s->model[0];
    Extra x;
    Work w;
    for (int parts = price_parts(s, 0, part), k = 0; k < parts; k++)
        for (int i = 0; i < part[k].p->n_ops; i++) {
            const Op *op = &part[k].p->op[i];
            bool priced = kernels_on_device(m->k) || !op_of_numbers(op);
            if (!op_runs(op, part[k].last)) continue;
            if (priced && op_work(part[k].p, i, part[k].first, &w)) f(ctx, &w);
            if (op_packing(part[k].p, op, &w)) f(ctx, &w);
        }
    for (int i = 0; i <= m->tensors.n; i++)
        if (extra_at(s, 0, i, &x)) f(ctx, &x.work);
}

void price_each_collective(const StepLists *s, void (*f)(void *ctx, const StepCollective *sent),
                           void *ctx) {
    StepPart part[STEP_PARTS];
    StepCollective mean = mean_of_replicas(s), outer;
    int calls;
    for (int parts = price_parts(s, 0, part), k = 0; k < parts; k++)
        for (int i = 0; i < part[k].p->n_ops; i++) {
            const Program *p = part[k].p;
            const Op *op = &p->op[i];
            if (op_info(op->kind)->collective && op_runs(op, part[k].last))
                f(ctx, &(StepCollective){op_group(p, op), op_collective(p, op),
                                         p->tensor[op->out].what, op_bytes(p, op), part[k].times});
        }
    if (s->grid.local_steps) f(ctx, &mean);
    if (price_outer(s, &outer, &calls)) f(ctx, &outer);
}

typedef struct Counts {
    CollCount *rows;
    int n, max;
} Counts;

static void count_collective(void *ctx, const StepCollective *sent) {
    Counts *c = ctx;
    CollCount row = {.what = sent->what, .op = sent->collective.op, .size = sent->group.size};
    snprintf(row.label, sizeof row.label, "%s", sent->group.label);
    int at = count_find(c->rows, c->n, &row);
    if (at == c->max || sent->times == 0) return;
    if (at == c->n) c->rows[c->n++] = row;
    c->rows[at].calls += sent->times, c->rows[at].bytes += sent->times * sent->received;
}

int price_counts(const StepLists *s, CollCount *rows, int max) {
    Counts c = {.rows = rows, .max = max};
    assert(s->n == 1);
    price_each_collective(s, count_collective, &c);
    return c.n;
}
