#include "parallel/search.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/coll_backend.h"
#include "parallel/search_parts.h"

/* ---- the best so far */

/* Is a better than b? Among equals the one with less memory, then the earlier. */
typedef struct Found {
    Choice c;
    int32_t number; // of the candidate, then of the order of its axes
    int order;
} Found;

static bool better(const Found *a, const Found *b) {
    if (a->c.price.seconds != b->c.price.seconds) return a->c.price.seconds < b->c.price.seconds;
    if (a->c.price.memory != b->c.price.memory) return a->c.price.memory < b->c.price.memory;
    return a->number != b->number ? a->number < b->number : a->order < b->order;
}

typedef struct Search {
    const Space *s;
    const Machine *m;
    const Family *family;
    Found *best; // [max]
    int n, max;
    Seed *seed; // a heap: the least bound first
    int64_t n_seeds, max_seeds;
    bool brute;
    Tape tape;
    Orders orders;
    SearchCount count;
} Search;

static void keep(Search *w, const Found *f) {
    if (w->n == w->max && !better(f, &w->best[w->max - 1])) return;
    int at = w->n < w->max ? w->n++ : w->max - 1;
    for (; at > 0 && better(f, &w->best[at - 1]); at--) w->best[at] = w->best[at - 1];
    w->best[at] = *f;
}

/* The words of one layout in the order of another. */
static Layout reorder(const Layout *words, const Layout *order) {
    Layout l = *order;
    l.sp = words->sp, l.heads = words->heads, l.stay = words->stay, l.zero = words->zero;
    l.exact = words->exact;
    return l;
}

/* Prices a candidate in the orders of its axes, the most promising first; the best is kept. */
static void price_orders(Search *w, Choice c, int32_t number) {
    Bound bound;
    PriceShape shape = seed_shape(w->s, &c);
    Found best = {.number = number};
    bool priced[SEARCH_ORDERS] = {false};
    Orders *o = &w->orders;
    int32_t size[N_AXES];
    for (int i = 0; i < N_AXES; i++) size[i] = c.layout.size[i];
    seed_bound(&bound, w->s, w->m, &c);
    orders_of(o, w->s, w->m, size);
    for (int n = 0; n < o->n; n++) {
        int next = -1;
        for (int k = 0; k < o->n; k++)
            if (!priced[k] && (next < 0 || bound_in(&bound, o, k) < bound_in(&bound, o, next)))
                next = k;
        if (n > 0 && !w->brute && bound_in(&bound, o, next) > best.c.price.seconds) break;
        priced[next] = true;
        Found f = {.c = c, .number = number, .order = next};
        f.c.layout = reorder(&c.layout, &o->layout[next]);
        if (n == 0)
            price_record(&w->tape, &shape, &f.c.layout, 0);
        else
            price_reorder(&w->tape, &f.c.layout);
        tape_play(&w->tape, w->m, &f.c.price);
        if (n == 0 || better(&f, &best)) best = f;
    }
    w->count.priced++;
    best.c.fits = w->m->memory == 0 || best.c.price.memory <= w->m->memory;
    if (best.c.fits)
        keep(w, &best);
    else
        w->count.too_large++;
}

/* ---- the heap of bounds */

static bool sooner(const Seed *a, const Seed *b) {
    return a->bound != b->bound ? a->bound < b->bound : a->number < b->number;
}

static void sink(Seed *s, int64_t n, int64_t i) {
    Seed x = s[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && sooner(&s[child + 1], &s[child])) child++;
        if (!sooner(&s[child], &x)) break;
        s[i] = s[child];
    }
    s[i] = x;
}

static void add_seed(const Seed *seed, void *ctx) {
    Search *w = ctx;
    Choice c = seed_choice(seed);
    Bound bound;
    w->count.candidates++;
    seed_bound(&bound, w->s, w->m, &c);
    if (w->m->memory && bound.memory > w->m->memory) {
        w->count.too_large++;
        return;
    }
    if (w->n_seeds == w->max_seeds) {
        w->max_seeds = w->max_seeds ? 2 * w->max_seeds : 4096;
        w->seed = mem_realloc(w->seed, (size_t)w->max_seeds, sizeof *w->seed);
    }
    orders_of(&w->orders, w->s, w->m, seed->size);
    double least = bound_in(&bound, &w->orders, 0);
    for (int k = 1; k < w->orders.n; k++) least = fmin(least, bound_in(&bound, &w->orders, k));
    w->seed[w->n_seeds] = *seed;
    w->seed[w->n_seeds++].bound = least;
}

static void search_bounded(Search *w) {
    seed_each(w->s, w->family, add_seed, w);
    for (int64_t i = w->n_seeds / 2; i-- > 0;) sink(w->seed, w->n_seeds, i);
    while (w->n_seeds > 0) {
        Seed next = w->seed[0];
        if (w->n == w->max && next.bound > w->best[w->max - 1].c.price.seconds) break;
        w->seed[0] = w->seed[--w->n_seeds];
        sink(w->seed, w->n_seeds, 0);
        price_orders(w, seed_choice(&next), next.number);
    }
}

static void price_seed(const Seed *seed, void *ctx) {
    Search *w = ctx;
    w->count.candidates++;
    price_orders(w, seed_choice(seed), seed->number);
}

/* ---- the searches */

static int search_in(const Space *s, const Machine *m, const Family *family, bool brute,
                     Choice *best, int max, SearchCount *count) {
    double begin = coll_now();
    Search w = {.s = s, .m = m, .family = family, .max = max, .brute = brute};
    w.best = mem_calloc((size_t)max, sizeof *w.best);
    if (brute)
        seed_each(s, family, price_seed, &w);
    else
        search_bounded(&w);
    for (int i = 0; i < w.n; i++) best[i] = w.best[i].c;
    w.count.seconds = coll_now() - begin;
    if (count) *count = w.count;
    tape_free(&w.tape);
    mem_free(w.seed);
    mem_free(w.best);
    return w.n;
}

int search_best(const Space *s, const Machine *m, Choice *best, int max, SearchCount *count) {
    return search_in(s, m, NULL, false, best, max, count);
}

int search_brute(const Space *s, const Machine *m, Choice *best, int max, SearchCount *count) {
    return search_in(s, m, NULL, true, best, max, count);
}

void search_price(const Space *s, const Machine *m, Choice *c) {
    Tape t = {0};
    PriceShape shape = seed_shape(s, c);
    price_record(&t, &shape, &c->layout, 0);
    tape_play(&t, m, &c->price);
    c->fits = m->memory == 0 || c->price.memory <= m->memory;
    tape_free(&t);
}

double search_bound(const Space *s, const Machine *m, const Choice *c, int64_t *memory) {
    Bound b;
    Orders o = {.n = 0};
    int32_t size[N_AXES];
    for (int i = 0; i < N_AXES; i++) size[i] = c->layout.size[i];
    seed_bound(&b, s, m, c);
    orders_of(&o, s, m, size);
    double least = bound_in(&b, &o, 0);
    for (int k = 1; k < o.n; k++) least = fmin(least, bound_in(&b, &o, k));
    *memory = b.memory;
    return least;
}

typedef struct Each {
    void (*f)(const Choice *c, void *ctx);
    void *ctx;
} Each;

static void each_choice(const Seed *seed, void *ctx) {
    Each *e = ctx;
    Choice c = seed_choice(seed);
    e->f(&c, e->ctx);
}

void search_each(const Space *s, void (*f)(const Choice *c, void *ctx), void *ctx) {
    Each e = {f, ctx};
    seed_each(s, NULL, each_choice, &e);
}

/* What does not fit is shown as well. */
static bool search_family(const Space *s, const Machine *m, const Family *f, Choice *out) {
    Machine any = *m;
    any.memory = 0;
    if (search_in(s, m, f, false, out, 1, NULL) == 0 &&
        search_in(s, &any, f, false, out, 1, NULL) == 0)
        return false;
    out->fits = m->memory == 0 || out->price.memory <= m->memory;
    return true;
}

int search_presets(const Space *s, const Machine *m, Choice *out, const char **name, int max) {
    int n = 0;
    for (int i = 0; i < N_FAMILIES && n < max; i++)
        if (search_family(s, m, &families[i], &out[n])) name[n++] = families[i].name;
    return n;
}

bool search_preset(const Space *s, const Machine *m, const char *name, Choice *out) {
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0) return search_family(s, m, &families[i], out);
    return false;
}
