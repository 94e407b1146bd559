#include "parallel/plan/plan.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "parallel/plan/quantity.h"
#include "parallel/plan/search_parts.h"

/* ---- what to measure */

#define CLOSE 0.02 // Space.close: no prediction can tell candidates apart that are so close
// up to FEW candidates the works of all are listed, else those of the LISTED best
enum { FEW = 3000, LISTED = 48 };

typedef struct Lister {
    const Space *s;
    const Machine *m;
    CalibrateList *list;
    double *weight; // [list->n_works] seconds in all candidates
    int max_works, max_weights, max_collectives;
    int64_t n_choices;
    StepLists lists;
} Lister;

static void list_work(void *ctx, const Work *w) {
    Lister *l = ctx;
    CalibrateList *to = l->list;
    int i = 0;
    while (i < to->n_works && !work_alike(&to->work[i], w)) i++;
    if (i == to->n_works) {
        mem_grow(to->work, i, l->max_works);
        mem_grow(l->weight, i, l->max_weights);
        to->work[to->n_works] = *w, l->weight[to->n_works++] = 0;
    }
    if (w->rows > to->work[i].rows) to->work[i].rows = w->rows;
    l->weight[i] += machine_work(l->m, w);
}

static void list_collective(void *ctx, const StepCollective *sent) {
    Lister *l = ctx;
    CalibrateList *to = l->list;
    const Placement *place = &sent->group.place;
    const Collective *c = &sent->collective;
    int i = 0, size = placement_ranks(place);
    if (size < 2 || c->bytes < 1) return;
    while (i < to->n_collectives && !(to->collective[i].op == c->op &&
                                      placement_equal(&to->collective[i].group.place, place)))
        i++;
    if (i == to->n_collectives) {
        mem_grow(to->collective, i, l->max_collectives);
        to->collective[to->n_collectives++] = (ListedCollective){.group = sent->group, .op = c->op};
        to->collective[i].group.size = size;
    }
    to->collective[i].most = max_i64(to->collective[i].most, c->bytes);
}

/* Are a choice's works and collectives unlike those of another choice? With chunks and halves works
 * only have fewer rows; a ring has shifts, and sums of its own. */
static bool listed(const Space *s, const Choice *c) {
    return !s->free_overlap || !c->overlap.bulk || c->overlap.ring;
}

/* Lists a choice's works, and its groups in all orders of the axes, as each order puts a group at
 * another place. */
static void list_choice(const Choice *c, void *ctx) {
    Lister *l = ctx;
    if (!listed(l->s, c)) return;
    PriceShape shape = candidate_shape(l->s, c);
    int n;
    Layout *order = orders_list(l->s, l->m, c->layout.size, &n);
    price_lists(&l->lists, &shape, &c->layout, 0, 0);
    price_each_work(&l->lists, list_work, l);
    for (int k = 0; k < n; k++) {
        Layout ordered = c->layout;
        ordered.factors = order[k].factors;
        price_reorder(&l->lists, &ordered, 0);
        price_each_collective(&l->lists, list_collective, l);
    }
    price_free(&l->lists);
    mem_free(order);
}

/* Lists a choice; one with chunks or halves as if its matmuls were whole. */
static void list_plain(const Choice *c, Lister *l) {
    Choice plain = *c;
    if (!listed(l->s, c)) plain.overlap = (Overlap){0};
    list_choice(&plain, l);
}

static void count_choice(const Choice *c, void *ctx) {
    Lister *l = ctx;
    l->n_choices += listed(l->s, c);
}

/* Those that take most time first. */
static void sort_works(Lister *l) {
    CalibrateList *to = l->list;
    for (int i = 1; i < to->n_works; i++) {
        Work w = to->work[i];
        double weight = l->weight[i];
        int at = i;
        for (; at > 0 && l->weight[at - 1] < weight; at--)
            to->work[at] = to->work[at - 1], l->weight[at] = l->weight[at - 1];
        to->work[at] = w, l->weight[at] = weight;
    }
}

void plan_list(const Space *s, const Machine *described, CalibrateList *list) {
    Lister l = {.s = s, .m = described, .list = list};
    Space any = *s; // all layouts, as in search_presets
    any.only = NULL;
    *list = (CalibrateList){0};
    search_each(s, count_choice, &l);
    bool few = l.n_choices <= FEW;
    Choice best[LISTED];
    int n_best = 0;
    if (few) {
        search_each(s, list_choice, &l);
    } else {
        n_best = search_best(s, described, best, LISTED, NULL);
        for (int i = 0; i < n_best; i++) list_plain(&best[i], &l);
    }
    if (!few || s->only) { // else the schemes' candidates are listed already
        Choice preset[N_SCHEMES];
        const char *name[N_SCHEMES];
        int n_presets = search_presets(s, described, best, n_best, preset, name);
        l.s = &any;
        for (int i = 0; i < n_presets; i++) list_plain(&preset[i], &l);
    }
    sort_works(&l);
    mem_free(l.weight);
}

void plan_list_step(const Machine *m, const StepLists *s, CalibrateList *list) {
    Lister l = {.m = m, .list = list};
    *list = (CalibrateList){0};
    price_each_work(s, list_work, &l);
    price_each_collective(s, list_collective, &l);
    mem_free(l.weight);
}

void plan_list_free(CalibrateList *list) {
    mem_free(list->work);
    mem_free(list->collective);
    *list = (CalibrateList){0};
}

/* ---- the choice */

/* The choice with the least memory so far. */
typedef struct Least {
    const Space *s;
    StepLists lists;
    Choice c;
    int64_t most; // bytes: a larger choice is not taken; 0: no limit yet
    bool first;   // the first choice that fits is enough
} Least;

/* Takes c if it needs less memory. Only choices that can be the smallest are looked at: one
 * sequence in a micro-batch, full recompute, and no overlap, which needs buffers. */
static void least_memory(const Choice *c, void *ctx) {
    Least *l = ctx;
    int least =
        !l->s->free_overlap && l->s->shape.model.overlap.halves ? 2 : 1; // one for each half
    bool small = (!l->s->free_micro || c->micro == least) &&
                 (!l->s->free_recompute || c->recompute == RECOMPUTE_FULL) &&
                 (!l->s->free_overlap || overlap_equal(&c->overlap, &(Overlap){0}));
    if (!small || (l->first && l->c.price.memory > 0)) return;
    PriceShape shape = candidate_shape(l->s, c);
    if (price_lists(&l->lists, &shape, &c->layout, 0, l->most)) {
        l->c = *c;
        l->c.price.memory = price_memory(&l->lists);
        l->most = l->c.price.memory - 1;
    }
    price_free(&l->lists);
}

bool plan_may_fit(const Plan *p) {
    Least l = {.s = &p->space, .most = p->machine.memory, .first = true};
    search_each(&p->space, least_memory, &l);
    return l.c.price.memory > 0;
}

int plan_best(const Space *s, const Machine *m, Choice best[PLAN_TOP]) {
    Space close = *s;
    close.close = CLOSE;
    int n = search_best(&close, m, best, PLAN_TOP, NULL);
    search_reprice(s, m, best, n);
    return n;
}

/* Prices the best choices and the named schemes once more. A scheme that is faster than these
 * choices becomes the best, unless one layout was asked for. */
static void reprice(Plan *p) {
    search_reprice(&p->space, &p->machine, p->best, p->n_best);
    for (int i = 0; i < p->n_presets; i++) {
        Choice *c = &p->preset[i];
        search_reprice(&p->space, &p->machine, c, 1);
        bool faster = c->fits && c->price.seconds < p->best[0].price.seconds;
        if (p->space.only || !faster) continue;
        if (p->n_best < PLAN_TOP) p->n_best++;
        memmove(p->best + 1, p->best, (size_t)(p->n_best - 1) * sizeof *p->best);
        p->best[0] = *c;
    }
}

bool plan_search(Plan *p, Err *e) {
    char text[128], has[64], takes[64];
    p->space.close = CLOSE;
    p->n_best = search_best(&p->space, &p->machine, p->best, PLAN_TOP, &p->count);
    if (p->count.candidates == 0)
        return err(e, "no layout of %d ranks has what is asked for", p->space.p);
    if (p->n_best == 0) {
        Least l = {.s = &p->space};
        search_each(&p->space, least_memory, &l);
        return err(e,
                   "no layout of %d ranks fits into %s a rank; the smallest, %s, takes %s: more "
                   "ranks, a smaller model, or a shorter --seq",
                   p->space.p, quantity_short((double)p->machine.memory, AS_BYTES, "GiB", has),
                   choice_print(&l.c, text),
                   quantity_short((double)l.c.price.memory, AS_BYTES, "GiB", takes));
    }
    p->n_presets =
        search_presets(&p->space, &p->machine, p->best, p->n_best, p->preset, p->preset_name);
    reprice(p);
    return true;
}

double plan_error(const Plan *p) {
    const double assumed = 0.25;
    return isnan(p->error) ? assumed : p->error;
}

int plan_close(const Plan *p) {
    double most = p->best[0].price.seconds * (1 + plan_error(p));
    int n = 1;
    while (n < p->n_best && p->best[n].price.seconds <= most) n++;
    return n;
}

/* Bit 0: the layout shards matmuls over ranks, bit 1: it gives ranks different sequences. */
static int kind_of(const Choice *c) {
    const int *size = c->layout.size;
    return (size[AXIS_X] * size[AXIS_Y] > 1) | (size[AXIS_D] * size[AXIS_Z] > 1) << 1;
}

/* The fastest of a kind among the best and the named schemes; NULL: none that fits. */
static const Choice *fastest_of(const Plan *p, int kind) {
    const Choice *fastest = NULL;
    for (int i = 0; i < p->n_best + p->n_presets; i++) {
        const Choice *c = i < p->n_best ? &p->best[i] : &p->preset[i - p->n_best];
        if (!c->fits || kind_of(c) != kind) continue;
        if (!fastest || c->price.seconds < fastest->price.seconds) fastest = c;
    }
    return fastest;
}

/* Adds as the last trial a copy of the first one whose matmuls can be fused with their collectives,
 * with fused matmuls. Returns the number of trials. */
static int add_fused(const Plan *p, Choice *out, int n, int max) {
    int at = n < max ? n : n - 1;
    for (int i = 0; p->space.fuses && i < at; i++) {
        Choice c = out[i];
        c.overlap.fused = true;
        if (c.overlap.chunks || c.overlap.ring || overlap_idle(&c.overlap, &c.layout)) continue;
        out[at] = c;
        return at + 1;
    }
    return n;
}

int plan_trials(const Plan *p, Choice *out, int max) {
    double first = p->best[0].price.seconds;
    int n = 0, kinds = 1 << kind_of(&p->best[0]);
    if (max > 0) out[n++] = p->best[0];
    for (int kind = 1; kind < 4 && n < max; kind++) {
        const Choice *c = kinds & 1 << kind ? NULL : fastest_of(p, kind);
        if (c && c->price.seconds <= first * (1 + 3 * plan_error(p)))
            out[n++] = *c, kinds |= 1 << kind;
    }
    for (int i = 1; i < plan_close(p) && n < max; i++) {
        bool listed = false;
        for (int k = 1; k < n; k++)
            listed |= out[k].price.seconds == p->best[i].price.seconds &&
                      kind_of(&out[k]) == kind_of(&p->best[i]);
        if (!listed) out[n++] = p->best[i];
    }
    return add_fused(p, out, n, max);
}
