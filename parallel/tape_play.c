/* Running the clocks of a tape.
 *
 * One clock is the rank's kernels; each level of the machine has one for its links, so that collectives of
 * different axes share a link when they are under way at the same time. A collective begins when it was
 * started and its links are free; who waits for it waits until it has ended.
 */
#include <math.h>

#include "base/mem.h"
#include "parallel/machine.h"

int machine_level(const Machine *m, const TapeGroup *g) {
    int64_t extent = 0; // from the first to the last rank of the group
    for (int i = 0; i < g->place.n; i++)
        extent += (int64_t)(g->place.size[i] - 1) * g->place.stride[i];
    int l = 0;
    while (l < m->n_levels - 1 && extent >= m->level[l].ranks) l++;
    return l;
}

enum { MAX_LOCAL = 256 };

/* Costs of a tape's entries, looked up once. */
typedef struct Costs {
    double work_local[MAX_LOCAL], send_local[MAX_LOCAL];
    double *work, *send;
} Costs;

static void costs_of(Costs *c, const Tape *t, const Machine *m) {
    c->work =
        t->n_works <= MAX_LOCAL ? c->work_local : mem_alloc((size_t)t->n_works * sizeof *c->work);
    c->send =
        t->n_sends <= MAX_LOCAL ? c->send_local : mem_alloc((size_t)t->n_sends * sizeof *c->send);
    for (int i = 0; i < t->n_works; i++) c->work[i] = machine_work(m, &t->work[i]);
    for (int i = 0; i < t->n_sends; i++)
        c->send[i] = machine_send(m, &t->group[t->send[i].group], &t->send[i]);
}

static void costs_free(Costs *c) {
    if (c->work != c->work_local) mem_free(c->work);
    if (c->send != c->send_local) mem_free(c->send);
}

typedef struct Clocks {
    const Tape *t;
    const Machine *m;
    const Costs *cost;
    double now;              // of the kernels
    double free[MAX_LEVELS]; // when the links of a level are free
    double end;              // of the last collective under way
    double sum;              // of all collectives
    Price p;
    Interval *out; // or NULL
    int n_out, max_out;
} Clocks;

static void note(Clocks *c, int event, double begin, double end, bool communication,
                 double exposed) {
    if (!c->out) return;
    if (c->n_out < c->max_out)
        c->out[c->n_out] = (Interval){.begin = begin,
                                      .end = end,
                                      .event = event,
                                      .communication = communication,
                                      .exposed = exposed};
    c->n_out++;
}

/* Kernels are slower while a collective is under way. */
static void play_work(Clocks *c, int event) {
    double s = c->cost->work[c->t->event[event].index], begin = c->now;
    double beside = c->end - c->now, slow = c->m->slowdown;
    if (beside > 0 && slow > 1) s = s * slow <= beside ? s * slow : beside + (s - beside / slow);
    c->now += s;
    c->p.compute += s;
    note(c, event, begin, c->now, false, 0);
}

/* A collective in the ring of those that are open: the event that started it, and its end. */
enum { OPEN = 1024 };

static void play(Clocks *c, int begin, int end, double *ends) {
    const Tape *t = c->t;
    for (int i = begin; i < end; i++) {
        const Event *e = &t->event[i];
        if (e->kind == EVENT_WORK) {
            play_work(c, i);
        } else if (e->kind == EVENT_START) {
            const Send *s = &t->send[e->index];
            double *link = &c->free[machine_level(c->m, &t->group[s->group])];
            double from = fmax(c->now, *link), cost = c->cost->send[e->index];
            *link = ends[i % OPEN] = from + cost;
            c->end = fmax(c->end, *link);
            c->sum += cost;
            c->p.received += s->received;
            c->p.calls++;
        } else if (e->kind == EVENT_WAIT) {
            double until = ends[e->index % OPEN], wait = fmax(until - c->now, 0);
            double cost = c->cost->send[t->event[e->index].index];
            note(c, e->index, until - cost, until, true, wait);
            c->p.exposed += wait;
            c->now += wait;
        }
    }
}

static void subtract(Price *a, const Price *b) {
    a->compute -= b->compute, a->exposed -= b->exposed, a->hidden -= b->hidden;
    a->received -= b->received, a->calls -= b->calls, a->memory -= b->memory;
}
static void add_times(Price *a, const Price *b, int64_t times, int64_t of) {
    double f = (double)times / (double)of;
    a->compute += f * b->compute, a->exposed += f * b->exposed, a->hidden += f * b->hidden;
    a->received += b->received / of * times, a->calls += b->calls / of * times;
    a->memory += b->memory / of * times;
}

/* A whole step of the layers that were recorded. */
static Price play_run(const Tape *t, const TapeRun *r, const Machine *m, const Costs *cost) {
    Clocks c = {.t = t, .m = m, .cost = cost};
    double ends[OPEN];
    play(&c, r->begin[PART_ZERO], r->begin[PART_MICRO_2], ends);
    Price before = c.p;
    before.hidden = c.sum - c.p.exposed;
    play(&c, r->begin[PART_MICRO_2], r->begin[PART_END], ends);
    Price again = c.p;
    again.hidden = c.sum - c.p.exposed;
    subtract(&again, &before);
    play(&c, r->begin[PART_END], r->begin[N_TAPE_PARTS], ends);
    c.p.hidden = c.sum - c.p.exposed;
    if (t->micro_steps > 2) add_times(&c.p, &again, t->micro_steps - 2, 1);
    return c.p;
}

/* Ranks that share cores. What was measured is the time k a of kernels when all compute at once, a alone; but while one
 * waits for a collective, E in all, others have its core. In a step of time t a core is busy for a share k a / t of it,
 * and kernels are slowed by those that run beside them:
 *
 *     t = a (1 + (k-1) k a / t) + E        which is k a without collectives, and a + E with long ones
 */
static double crowded(double compute, double exposed, double k) {
    double a = compute / k, b = a + exposed;
    return (b + sqrt(b * b + 4 * k * (k - 1) * a * a)) / 2 - exposed;
}

void tape_play(const Tape *t, const Machine *m, Price *price) {
    Costs cost;
    costs_of(&cost, t, m);
    *price = play_run(t, &t->run[0], m, &cost);
    int more = t->recorded[1] - t->recorded[0];
    if (more > 0) {
        Price each = play_run(t, &t->run[1], m, &cost);
        subtract(&each, price);
        add_times(price, &each, t->layers - t->recorded[0], more);
        int64_t bytes;
        for (int i = 0; tape_uneven(t, i, &bytes) >= 0; i++) price->received += bytes;
    }
    costs_free(&cost);
    price->hidden = price->hidden > 1e-9 * price->exposed ? price->hidden : 0; // what rounding left
    price->memory = tape_memory(t);
    if (m->crowd > 1) price->compute = crowded(price->compute, price->exposed, m->crowd);
    price->waiting = price->compute * (m->slowest - 1);
    price->seconds = price->compute + price->exposed + price->waiting;
}

int64_t tape_memory(const Tape *t) {
    int64_t bytes[2];
    for (int k = 0; k < 2; k++) {
        bytes[k] = t->run[k].sampling;
        for (int i = 0; i < N_ARENAS; i++) bytes[k] += t->run[k].memory[i];
    }
    int more = t->recorded[1] - t->recorded[0];
    return more ? bytes[0] + (t->layers - t->recorded[0]) / more * (bytes[1] - bytes[0]) : bytes[0];
}

static void sum_groups(const Tape *t, const TapeRun *r, const Costs *cost, double times,
                       double *seconds) {
    for (int i = r->begin[0]; i < r->begin[N_TAPE_PARTS]; i++) {
        if (t->event[i].kind != EVENT_START) continue;
        bool again = i >= r->begin[PART_MICRO_2] && i < r->begin[PART_END];
        double n = again ? (double)(t->micro_steps - 1) : 1;
        int send = t->event[i].index;
        seconds[t->send[send].group] += times * n * cost->send[send];
    }
}

void tape_by_group(const Tape *t, const Machine *m, double *seconds) {
    Costs cost;
    int more = t->recorded[1] - t->recorded[0];
    double extra = more ? (double)(t->layers - t->recorded[0]) / more : 0;
    costs_of(&cost, t, m);
    for (int i = 0; i < t->n_groups; i++) seconds[i] = 0;
    sum_groups(t, &t->run[0], &cost, 1 - extra, seconds);
    if (more) sum_groups(t, &t->run[1], &cost, extra, seconds);
    costs_free(&cost);
}

int tape_intervals(const Tape *t, const Machine *m, Interval *out, int max) {
    Costs cost;
    double ends[OPEN];
    costs_of(&cost, t, m);
    Clocks c = {.t = t, .m = m, .cost = &cost, .out = out, .max_out = max};
    play(&c, t->run[0].begin[0], t->run[0].begin[N_TAPE_PARTS], ends);
    costs_free(&cost);
    return c.n_out;
}
