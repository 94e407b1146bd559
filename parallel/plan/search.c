#include "parallel/plan/search.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/search_parts.h"

/* ---- the best choices so far */

/* Is a better than b? Of equally fast ones the one with less memory is, then the earlier. */
static bool better(const Candidate *a, const Candidate *b) {
    if (a->c.price.seconds != b->c.price.seconds) return a->c.price.seconds < b->c.price.seconds;
    if (a->c.price.memory != b->c.price.memory) return a->c.price.memory < b->c.price.memory;
    return a->number != b->number ? a->number < b->number : a->order < b->order;
}

typedef struct Search {
    const Space *s;
    const Machine *m;
    const NamedScheme *scheme; // only its candidates are searched; NULL: all
    Candidate *best;           // [max], n in use, best first
    int n, max;
    Candidate *open; // heap of candidates that are not priced yet, the least bound on top
    int64_t n_open, max_open;
    StepLists lists;
    Orders *orders; // of all sizes of axes so far
    int n_orders, max_orders;
    ListTable *totals; // for bounds; searches of the same space and machine may share it
    SearchCount count;
} Search;

static void keep(Search *w, const Candidate *f) {
    if (w->n == w->max && !better(f, &w->best[w->max - 1])) return;
    int at = w->n < w->max ? w->n++ : w->max - 1;
    for (; at > 0 && better(f, &w->best[at - 1]); at--) w->best[at] = w->best[at - 1];
    w->best[at] = *f;
}

/* The orders of axes of these sizes. Valid until the next call. */
static const Orders *orders_for(Search *w, const int size[N_AXES]) {
    int k = w->n_orders;
    while (k-- > 0)
        if (memcmp(w->orders[k].size, size, sizeof w->orders[k].size) == 0) return &w->orders[k];
    mem_grow(w->orders, w->n_orders, w->max_orders);
    w->orders[w->n_orders] = orders_of(w->s, w->m, size);
    return &w->orders[w->n_orders++];
}

/* Are max choices kept, and is this bound above all their prices? */
static bool beyond(const Search *w, double bound) {
    return w->n == w->max && bound > w->best[w->n - 1].c.price.seconds;
}

/* Prices a candidate in the orders of its axes, those with the least bounds first. Stops when no
 * order that is left can be better than the best one so far, or be kept. The best order is kept.
 * False: the candidate does not fit. */
static bool price_orders(Search *w, const Candidate *candidate) {
    Bound bound;
    const Choice *c = &candidate->c;
    PriceShape shape = candidate_shape(w->s, c);
    Candidate best = *candidate;
    const Orders *o = orders_for(w, c->layout.size);
    shape.model.unplaced = true;
    shape.layer_bytes = candidate_layer_memory(w->totals, c);
    if (!price_lists(&w->lists, &shape, &c->layout, 0, w->m->memory)) {
        price_free(&w->lists);
        return false;
    }
    candidate_bound(&bound, w->totals, c, false);
    double *bound_of = mem_alloc((size_t)o->n * sizeof *bound_of); // [order]; INFINITY: priced
    for (int k = 0; k < o->n; k++) bound_of[k] = bound_in(&bound, o, k);
    for (int n = 0; n < o->n;) {
        int next = 0;
        for (int k = 1; k < o->n; k++)
            if (bound_of[k] < bound_of[next]) next = k;
        bool worse = bound_of[next] > best.c.price.seconds || beyond(w, bound_of[next]);
        if (n > 0 && worse) break;
        bound_of[next] = INFINITY;
        Candidate f = *candidate;
        f.order = next;
        f.c.layout.factors = o->layout[next].factors;
        price_reorder(&w->lists, &f.c.layout, 0);
        price_of(&w->lists, w->m, &f.c.price);
        if (n++ == 0 || better(&f, &best)) best = f;
    }
    bool kept = w->n < w->max || !better(&w->best[w->max - 1], &best);
    if (kept) best.c.price.memory = price_place(&w->lists);
    mem_free(bound_of);
    price_free(&w->lists);
    if (!machine_fits(w->m, best.c.price.memory)) return false;
    w->count.priced++;
    best.c.fits = true;
    keep(w, &best);
    return true;
}

/* ---- the heap of bounds */

static bool sooner(const Candidate *a, const Candidate *b) {
    return a->bound != b->bound ? a->bound < b->bound : a->number < b->number;
}

static void push(Search *w, const Candidate *candidate) {
    mem_grow(w->open, w->n_open, w->max_open);
    int64_t i = w->n_open++;
    for (; i > 0 && sooner(candidate, &w->open[(i - 1) / 2]); i = (i - 1) / 2)
        w->open[i] = w->open[(i - 1) / 2];
    w->open[i] = *candidate;
}

static Candidate pop(Search *w) {
    Candidate *open = w->open, first = open[0], last = open[--w->n_open];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < w->n_open; i = child) {
        if (child + 1 < w->n_open && sooner(&open[child + 1], &open[child])) child++;
        if (!sooner(&open[child], &last)) break;
        open[i] = open[child];
    }
    open[i] = last;
    return first;
}

/* Counts a candidate, or all schedules for which it stands, as too large. */
static void count_large(Search *w, const Candidate *s) {
    Candidate each[N_SCHEDULES];
    w->count.too_large += s->any ? candidate_schedules(w->s, s, each) : 1;
}

/* Puts a candidate with its bound on the heap, unless it cannot fit. */
static void add_candidate(Search *w, Candidate *s) {
    Bound bound;
    if (!machine_fits(w->m, candidate_memory(w->totals, &s->c, s->any))) {
        count_large(w, s);
        return;
    }
    candidate_bound(&bound, w->totals, &s->c, s->any);
    s->bound = bound_least(&bound, orders_for(w, s->c.layout.size));
    push(w, s);
}

/* Puts one entry on the heap for all schedules of a candidate, with a bound that holds for each.
 * When this entry comes to the top, split_candidate puts one for each schedule in its place. Most
 * entries never come to the top, and their lists with chunks or panels need not be built. */
static void add_schedules(const Candidate *candidate, void *ctx) {
    Search *w = ctx;
    Candidate each[N_SCHEDULES], any = *candidate;
    int n = candidate_schedules(w->s, candidate, each);
    w->count.candidates += n;
    if (n > 0) add_candidate(w, &any);
}

static void split_candidate(Search *w, const Candidate *candidate) {
    Candidate each[N_SCHEDULES];
    int n = candidate_schedules(w->s, candidate, each);
    for (int i = 0; i < n; i++) add_candidate(w, &each[i]);
}

/* Candidates that are priced for a named scheme, which is only a row of the plan's table. */
enum { SCHEME_PRICES = 100 };

/* May the search end before `next`, the candidate with the least bound that is left? */
static bool enough(const Search *w, const Candidate *next) {
    if (w->n == 0) return false;
    if (w->scheme && w->count.priced >= SCHEME_PRICES) return true;
    const Choice *first = &w->best[0].c;
    if (w->s->close > 0 && next->bound > (1 + w->s->close) * first->price.seconds) return true;
    return beyond(w, next->bound);
}

static void search_bounded(Search *w) {
    candidate_each(w->s, w->scheme, add_schedules, w);
    while (w->n_open > 0) {
        Candidate next = pop(w);
        if (enough(w, &next)) break;
        if (next.any)
            split_candidate(w, &next);
        else if (!price_orders(w, &next))
            count_large(w, &next);
    }
}

/* ---- the searches */

static int search_in(const Space *s, const Machine *m, const NamedScheme *scheme, ListTable *totals,
                     Choice *best, int max, SearchCount *count) {
    double begin = now_s();
    ListTable own = {.s = s, .m = m};
    Search w = {.s = s, .m = m, .scheme = scheme, .max = max, .totals = totals ? totals : &own};
    w.best = mem_calloc((size_t)max, sizeof *w.best);
    search_bounded(&w);
    for (int i = 0; i < w.n; i++) best[i] = w.best[i].c;
    w.count.seconds = now_s() - begin;
    if (count) *count = w.count;
    for (int k = 0; k < w.n_orders; k++) orders_free(&w.orders[k]);
    mem_free(w.orders), mem_free(w.open), mem_free(w.best), mem_free(own.at);
    return w.n;
}

int search_best(const Space *s, const Machine *m, Choice *best, int max, SearchCount *count) {
    return search_in(s, m, NULL, NULL, best, max, count);
}

void search_price(const Space *s, const Machine *m, Choice *c) {
    PriceShape shape = candidate_shape(s, c);
    price_step(&shape, &c->layout, m, &c->price);
    c->fits = machine_fits(m, c->price.memory);
}

void search_reprice(const Space *s, const Machine *m, Choice *c, int n) {
    enum { FEW = 5 };
    for (int i = 0; i < n; i++) {
        Choice x = c[i];
        PriceShape shape = candidate_shape(s, &x);
        int64_t memory = x.price.memory; // as it was compared with the machine's
        shape.few = FEW, shape.model.unplaced = true;
        price_step(&shape, &x.layout, m, &x.price);
        x.price.memory = memory;
        int at = i;
        for (; at > 0 && x.price.seconds < c[at - 1].price.seconds; at--) c[at] = c[at - 1];
        c[at] = x;
    }
}

typedef struct Each {
    const Space *s;
    void (*f)(const Choice *c, void *ctx);
    void *ctx;
} Each;

static void each_choice(const Candidate *candidate, void *ctx) {
    Each *e = ctx;
    Candidate each[N_SCHEDULES];
    int n = candidate_schedules(e->s, candidate, each);
    for (int i = 0; i < n; i++) e->f(&each[i].c, e->ctx);
}

void search_each(const Space *s, void (*f)(const Choice *c, void *ctx), void *ctx) {
    Each e = {s, f, ctx};
    candidate_each(s, NULL, each_choice, &e);
}

bool search_scheme(const Space *s, const Machine *m, const NamedScheme *f, ListTable *totals,
                   Choice *out) {
    Machine any = *m;
    any.memory = 0;
    if (search_in(s, m, f, totals, out, 1, NULL) == 0 &&
        search_in(s, &any, f, totals, out, 1, NULL) == 0)
        return false;
    out->fits = machine_fits(m, out->price.memory);
    return true;
}

/* The best choice of a scheme, if it is among the n best of all; NULL: unknown. With s->close only
 * choices within that share of the best are certain to have no better one of the same scheme. */
static const Choice *best_of_scheme(const NamedScheme *f, const Space *s, const Choice *best,
                                    int n) {
    double most = s->close > 0 && n > 0 ? (1 + s->close) * best->price.seconds : INFINITY;
    for (int i = 0; i < n && best[i].price.seconds <= most; i++)
        if (scheme_has(f, &best[i].layout)) return &best[i];
    return NULL;
}

int search_presets(const Space *s, const Machine *m, const Choice *best, int n_best,
                   Choice out[N_SCHEMES], const char *name[N_SCHEMES]) {
    int n = 0;
    Space any = *s;
    any.only = NULL; // schemes are compared with the one layout that is asked for
    ListTable totals = {.s = &any, .m = m};
    for (int i = 0; i < N_SCHEMES; i++) {
        const Choice *found = s->only ? NULL : best_of_scheme(&named_schemes[i], s, best, n_best);
        if (found)
            out[n] = *found;
        else if (!search_scheme(&any, m, &named_schemes[i], &totals, &out[n]))
            continue;
        name[n++] = named_schemes[i].name;
    }
    mem_free(totals.at);
    return n;
}
