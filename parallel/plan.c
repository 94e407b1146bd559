#include "parallel/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/search_parts.h"

/* ---- what to measure */

enum { FEW = 3000, LISTED = 48 }; // candidates whose works are all listed; else of so many

typedef struct Lister {
    const Space *s;
    const Machine *m;
    CalibrateList *list;
    double *weight; // [list->n_works] seconds in all candidates
    int max_works, max_groups;
    Tape tape;
    Orders orders;
} Lister;

static void list_work(Lister *l, const Work *w, double seconds) {
    CalibrateList *to = l->list;
    int i = 0;
    while (i < to->n_works && !work_alike(&to->work[i], w)) i++;
    if (i == l->max_works) {
        l->max_works = l->max_works ? 2 * l->max_works : 128;
        to->work = mem_realloc(to->work, (size_t)l->max_works, sizeof *to->work);
        l->weight = mem_realloc(l->weight, (size_t)l->max_works, sizeof *l->weight);
    }
    if (i == to->n_works) to->work[to->n_works] = *w, l->weight[to->n_works++] = 0;
    if (w->rows > to->work[i].rows) to->work[i].rows = w->rows;
    l->weight[i] += seconds;
}

static bool same_place(const Placement *a, const Placement *b) {
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++)
        same = a->size[i] == b->size[i] && a->stride[i] == b->stride[i];
    return same;
}

static void list_send(Lister *l, const TapeGroup *g, const Send *s) {
    CalibrateList *to = l->list;
    int i = 0;
    while (i < to->n_groups && !same_place(&to->group[i].place, &g->place)) i++;
    if (i == l->max_groups) {
        l->max_groups = l->max_groups ? 2 * l->max_groups : 32;
        to->group = mem_realloc(to->group, (size_t)l->max_groups, sizeof *to->group);
        to->most = mem_realloc(to->most, (size_t)l->max_groups, sizeof *to->most);
    }
    if (i == to->n_groups) {
        to->group[i] = *g;
        memset(to->most[to->n_groups++], 0, sizeof *to->most);
    }
    if (s->bytes > to->most[i][s->op]) to->most[i][s->op] = s->bytes;
}

/* All orders of the axes: a group lies elsewhere in each. */
static void list_choice(const Choice *c, void *ctx) {
    Lister *l = ctx;
    Tape *t = &l->tape;
    PriceShape shape = seed_shape(l->s, c);
    int32_t size[N_AXES];
    for (int i = 0; i < N_AXES; i++) size[i] = c->layout.size[i];
    orders_of(&l->orders, l->s, l->m, size);
    price_record(t, &shape, &c->layout, 0);
    for (int i = 0; i < t->n_works; i++) list_work(l, &t->work[i], machine_work(l->m, &t->work[i]));
    for (int k = 0; k < l->orders.n; k++) {
        Layout ordered = l->orders.layout[k];
        ordered.heads = c->layout.heads,
        ordered.stay = c->layout.stay; // they say what kv copies are
        price_reorder(t, &ordered);
        for (int i = 0; i < t->n_sends; i++) list_send(l, &t->group[t->send[i].group], &t->send[i]);
    }
}

static void count_choice(const Choice *c, void *ctx) {
    (void)c;
    ++*(int64_t *)ctx;
}

/* Heaviest first. */
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
    int64_t n = 0;
    *list = (CalibrateList){0};
    search_each(s, count_choice, &n);
    if (n <= FEW) {
        search_each(s, list_choice, &l);
    } else {
        Choice best[LISTED], preset[PLAN_PRESETS];
        const char *name[PLAN_PRESETS];
        int n_best = search_best(s, described, best, LISTED, NULL);
        int n_presets = search_presets(s, described, preset, name, PLAN_PRESETS);
        for (int i = 0; i < n_best; i++) list_choice(&best[i], &l);
        for (int i = 0; i < n_presets; i++) list_choice(&preset[i], &l);
    }
    sort_works(&l);
    mem_free(l.weight);
    tape_free(&l.tape);
}

void plan_list_free(CalibrateList *list) {
    mem_free(list->work);
    mem_free(list->group);
    mem_free(list->most);
    *list = (CalibrateList){0};
}

/* ---- the choice */

typedef struct Least {
    const Space *s;
    Tape tape;
    Choice c;
} Least;

/* Only what can be the smallest: all is made again, one sequence at a time. */
static void least_memory(const Choice *c, void *ctx) {
    Least *l = ctx;
    bool small = (!l->s->free_micro || c->micro == 1) &&
                 (!l->s->free_recompute || c->recompute == RECOMPUTE_FULL);
    if (!small) return;
    PriceShape shape = seed_shape(l->s, c);
    price_record(&l->tape, &shape, &c->layout, 0);
    int64_t memory = tape_memory(&l->tape);
    if (l->c.price.memory && memory >= l->c.price.memory) return;
    l->c = *c;
    l->c.price.memory = memory;
}

bool plan_search(Plan *p, Err *e) {
    char text[128];
    p->n_best = search_best(&p->space, &p->machine, p->best, PLAN_TOP, &p->count);
    if (p->count.candidates == 0)
        return err(e, "no layout of %d ranks has what is asked for", p->space.p);
    if (p->n_best == 0) {
        Least l = {.s = &p->space};
        search_each(&p->space, least_memory, &l);
        tape_free(&l.tape);
        return err(e,
                   "no layout of %d ranks fits into %.2f GiB a rank; the smallest, %s, takes %.2f "
                   "GiB: more ranks, a smaller model, or a shorter --seq",
                   p->space.p, (double)p->machine.memory / 1073741824.0, choice_print(&l.c, text),
                   (double)l.c.price.memory / 1073741824.0);
    }
    p->n_presets = search_presets(&p->space, &p->machine, p->preset, p->preset_name, PLAN_PRESETS);
    return true;
}

int plan_close(const Plan *p) {
    int n = 1;
    while (n < p->n_best && p->best[n].price.seconds <= p->best[0].price.seconds * (1 + p->error))
        n++;
    return n;
}
