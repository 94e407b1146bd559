/* The seconds of a bound in one order of the axes. The linear layers of one block run on clocks
 * like those of tape_play.c, from links that are free: what a clock shows never falls when
 * something is added, or begins later, so two blocks that find their links busy take no less
 * together. So a program may leave things out; but it has all kernels of a block that a bound
 * counts, each in its place, as they may hide something. What may begin later than here is not
 * taken to slow kernels: it might do so beside something else.
 */
#include <math.h>

#include "base/mem.h"
#include "parallel/plan/search_bound.h"

static inline double later(double a, double b) {
    return a > b ? a : b;
}

enum { MAX_TICKETS = 8 };

/* Clocks, as tape_play has them. */
typedef struct Clocks {
    const double *start, *rate, *wire_start, *wire_rate; // of this order: Order
    const uint8_t *level;
    int n_levels;
    double slowdown;
    double now, link[MAX_LEVELS];
    double busy[MAX_LEVELS];     // until when, for sure
    double ends[2][MAX_TICKETS]; // of what each pass started
    double plain;                // kernels, and what nothing hides
} Clocks;

static void compute(Clocks *c, double seconds) {
    double until = c->now, slow = c->slowdown;
    for (int i = 0; i < c->n_levels; i++) until = later(until, c->busy[i]);
    c->plain += seconds;
    if (c->now + seconds * slow <= until)
        c->now += seconds * slow;
    else
        c->now += seconds + (until - c->now) * (1 - 1 / slow);
}

static void make(Clocks *c, const Move *m, int pass) {
    double *link = &c->link[c->level[m->along]], *busy = &c->busy[c->level[m->along]];
    double *ends = &c->ends[pass][m->ticket];
    if (m->kind == MOVE_RUN) {
        compute(c, m->seconds);
    } else if (m->kind == MOVE_START) {
        double cost = m->calls * c->start[m->along] + m->bytes * c->rate[m->along];
        double wire = m->calls * c->wire_start[m->along] + m->bytes * c->wire_rate[m->along];
        *ends = *link = later(*link, c->now) + wire;
        if (m->sure) *busy = later(*busy, c->now) + wire;
        if (m->plain) *ends += cost - wire, c->plain += cost;
    } else {
        c->now = later(c->now, *ends);
    }
}

/* Seconds that blocks take beyond kernels and what nothing hides anyway, from links that are free;
 * until the first pass is through. last: without what comes for the next one. */
static double run_blocks(const Program *p, Clocks c, int blocks, bool last) {
    int at[2] = {0}, end = blocks * p->n, pass = 0;
    bool given[2] = {false}; // has let the other one go on
    while (at[0] < end) {
        const Move *m = &p->move[at[pass] % p->n];
        bool made = !(m->ahead && last);
        if (made && m->kind == MOVE_WAIT && p->passes == 2 && !given[pass]) {
            given[pass] = true;
            pass = !pass;
            continue;
        }
        if (made) make(&c, m, pass);
        given[pass] = false;
        at[pass]++;
    }
    return c.now - c.plain;
}

/* Of all blocks: in pairs, and the last one by itself. Blocks that find their links busy take no
 * less together, though one of them may. */
static double more_of(const Program *p, const Orders *o, int order, double slowdown) {
    Clocks c = {.start = o->at[order].start,
                .rate = o->at[order].rate,
                .wire_start = o->at[order].wire_start,
                .wire_rate = o->at[order].wire_rate,
                .level = o->at[order].level,
                .n_levels = o->n_levels,
                .slowdown = slowdown};
    int64_t others = p->blocks - 1;
    if (p->n == 0) return 0;
    double all = run_blocks(p, c, 1, true);
    if (others > 1) all += (double)(others / 2) * run_blocks(p, c, 2, false);
    if (others % 2) all += run_blocks(p, c, 1, false);
    return p->times * all;
}

/* What a collective along each axis costs, what it keeps links busy by itself and with all
 * replicas, and which; NULL: each axis has its own. */
typedef struct Lines {
    const double *start, *rate, *wire_start, *wire_rate, *load_start, *load_rate;
    const uint8_t *level;
} Lines;

static Lines lines_in(const Orders *o, int order) {
    const Order *at = &o->at[order];
    return (Lines){at->start,      at->rate,      at->wire_start, at->wire_rate,
                   at->load_start, at->load_rate, at->level};
}

/* Collectives along tensor axes are exposed one after the other; of others some may be in flight
 * together. */
static double traffic_in(const Traffic *t, const Lines *l) {
    double s = 0;
    for (int i = 0; i < N_ALONG; i++) {
        bool alone = i != ALONG_Z && i != ALONG_D && i != ALONG_ZD;
        s += t->calls[i] * (alone ? l->start : l->wire_start)[i];
        s += t->bytes[i] * (alone ? l->rate : l->wire_rate)[i];
    }
    return s;
}

static double over_d(const Line *t, const Lines *l) {
    return t->calls * l->wire_start[ALONG_D] + t->bytes * l->wire_rate[ALONG_D];
}

/* Seconds of the links that have most to do. */
static double busiest_of(const Traffic *t, const Lines *l) {
    double links[N_ALONG] = {0}, most = 0; // there are fewer levels
    for (int i = 0; i < N_ALONG; i++) {
        double *link = &links[l->level ? l->level[i] : i];
        *link += t->calls[i] * l->load_start[i] + t->bytes[i] * l->load_rate[i];
        most = later(most, *link);
    }
    return most;
}

/* Kernels and what is exposed, at each place where something waits; or the busiest links, which
 * work while kernels do; or the sums of gradients, after all that comes before them. Where ranks
 * share cores: tape_play.c. front, back: what programs add. */
static double seconds_in(const Bound *b, Lines l, double front, double back) {
    double k = b->crowd, hidden = 1 - 1 / b->slowdown, busiest = busiest_of(&b->all, &l);
    double sums = over_d(&b->sums, &l), last = over_d(&b->last, &l) - b->beneath;
    double exposed = traffic_in(&b->exposed, &l);
    if (last > 0) exposed += later(0, last - traffic_in(&b->meanwhile, &l));
    double fresh = over_d(&b->fresh, &l), more = later(0, fresh - b->update);
    double waits = b->compute + exposed + more;
    double step = b->early + front + sums + b->squares + b->update + more;
    step = later(later(step, busiest), waits + front + back);
    step = later(step, waits + hidden * (busiest - exposed - fresh));
    if (k == 1) return step + (b->slowest - 1) * b->compute;
    // with E = S - C exposed beside C of kernels, a step takes 4k/(5k - 1) of S at least, with C =
    // 2k/(5k - 1) of it
    step *= 4 * k / (5 * k - 1);
    return later(step, b->slowest * tape_crowded(b->compute, exposed, k) + exposed);
}

double bound_under(const Bound *b, const Orders *o, int order) {
    return seconds_in(b, lines_in(o, order), 0, 0);
}

double bound_in(const Bound *b, const Orders *o, int order) {
    double front = more_of(&b->front, o, order, b->slowdown),
           back = more_of(&b->back, o, order, b->slowdown);
    return later(bound_under(b, o, order), seconds_in(b, lines_in(o, order), front, back));
}

double bound_rough(const Bound *b, const Orders *o) {
    return seconds_in(b,
                      (Lines){o->least_start, o->least_rate, o->least_start, o->least_rate,
                              o->least_start, o->least_rate, NULL},
                      0, 0);
}

double bound_least(const Bound *b, const Orders *o) {
    double least = INFINITY;
    if (b->front.n == 0) {
        for (int k = 0; k < o->n; k++) {
            double s = bound_under(b, o, k);
            least = s < least ? s : least;
        }
        return least;
    }
    double *under = mem_alloc((size_t)o->n * sizeof *under);
    for (int k = 0; k < o->n; k++) under[k] = bound_under(b, o, k);
    for (;;) { // the programs of those alone that may be the least
        int next = 0;
        for (int k = 1; k < o->n; k++)
            if (under[k] < under[next]) next = k;
        if (under[next] >= least) break;
        double s = bound_in(b, o, next);
        least = s < least ? s : least;
        under[next] = INFINITY;
    }
    mem_free(under);
    return least;
}
