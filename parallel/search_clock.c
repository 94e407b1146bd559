/* The seconds of a bound in one order of the axes. The linear layers of one block run on clocks like those of tape_play.c,
 * from links that are free: what a clock shows never falls when something is added, or begins later, so two blocks that
 * find their links busy take no less together. What may begin later than here is not taken to slow kernels: it might do
 * so beside something else.
 */
#include <math.h>

#include "parallel/search_parts.h"

static inline double later(double a, double b) {
    return a > b ? a : b;
}

/* Clocks, as tape_play has them. */
typedef struct Clocks {
    const double *start, *rate; // of this order: Orders
    const uint8_t *level;
    int n_levels;
    double slowdown;
    double now, link[MAX_LEVELS];
    double busy[MAX_LEVELS]; // until when, for sure: pieces may begin later than link has them
    double coming, going[2]; // when the next weight is there, when the last gradients are gone
    double plain;            // kernels, and what nothing hides
} Clocks;

static double *link_of(Clocks *c, const Wire *w) {
    return &c->link[c->level[w->along]];
}

/* Seconds of some of it: all, or a piece. */
static double cost_of(const Clocks *c, const Wire *w, double share) {
    if (w->calls == 0 || share == 0) return 0;
    return w->calls * c->start[w->along] + share * w->bytes * c->rate[w->along];
}

static void occupy(Clocks *c, const Wire *w, double cost) {
    double *busy = &c->busy[c->level[w->along]];
    if (cost > 0) *busy = later(*busy, c->now) + cost;
}

/* When it ends that is started now. */
static double start(Clocks *c, const Wire *w) {
    double *link = link_of(c, w), cost = cost_of(c, w, 1);
    if (cost == 0) return c->now;
    occupy(c, w, cost);
    return *link = later(*link, c->now) + cost;
}

static void compute(Clocks *c, double seconds) {
    double until = c->now, slow = c->slowdown;
    for (int i = 0; i < c->n_levels; i++) until = later(until, c->busy[i]);
    c->plain += seconds;
    if (c->now + seconds * slow <= until)
        c->now += seconds * slow;
    else
        c->now += seconds + (until - c->now) * (1 - 1 / slow);
}

static void run_window(Clocks *c, const Window *w) {
    c->now = later(c->now, c->coming);
    c->coming = start(c, &w->ahead);
    double again = start(c, &w->again), out = 0;
    double first = cost_of(c, &w->in, w->in.share), last = cost_of(c, &w->out, w->out.share);
    double *in_link = link_of(c, &w->in), *out_link = link_of(c, &w->out), begin = c->now;
    double in = cost_of(c, &w->in, 1), made = cost_of(c, &w->out, 1);
    if (in > 0) *in_link = later(*in_link, begin) + first;
    occupy(c, &w->in, first);
    if (first > 0) c->now = *in_link;
    if (in > first) *in_link += in - first;
    compute(c, w->first);
    // its pieces but the last may have gone before
    if (made > last) *out_link = later(*out_link, begin) + made - last;
    if (last > 0) out = *out_link = later(*out_link, c->now) + last;
    occupy(c, &w->out, last);
    c->plain += first + (w->second > 0 ? 0 : last);
    c->now = later(c->now, again);
    if (w->second > 0) {
        c->now = later(c->now, c->going[0]);
        compute(c, w->second);
        c->going[0] = c->going[1];
        c->going[1] = start(c, &w->gone);
    }
    c->now = later(c->now, out);
    compute(c, w->after);
}

static double run_block(Clocks *c, const Windows *w) {
    for (int i = 0; i < w->n; i++) run_window(c, &w->window[i]);
    c->now = later(c->now, c->coming);
    return c->now - c->plain;
}

/* Seconds of all blocks beyond their kernels and what nothing hides anyway: of so many at each other's heels, again and
 * again from links that are free. Blocks that find their links busy take no less together, though one of them may. */
static double windows_more(const Windows *w, const Orders *o, int order, double slowdown) {
    enum { AT_HEELS = 2 };
    double more[AT_HEELS + 1] = {0};
    int64_t n = w->blocks < AT_HEELS ? w->blocks : AT_HEELS;
    Clocks c = {.start = o->start[order],
                .rate = o->rate[order],
                .level = o->level[order],
                .n_levels = o->n_levels,
                .slowdown = slowdown};
    if (w->n == 0 || n == 0) return 0;
    for (int64_t i = 1; i <= n; i++) more[i] = run_block(&c, w);
    return w->times * ((double)(w->blocks / n) * more[n] + more[w->blocks % n]);
}

static double traffic_in(const Traffic *t, const Orders *o, int order) {
    double s = 0;
    for (int i = 0; i < N_ALONG; i++)
        s += t->calls[i] * o->start[order][i] + t->bytes[i] * o->rate[order][i];
    return s;
}

static double over_d(const Line *l, const Orders *o, int order) {
    return l->calls * o->start[order][ALONG_D] + l->bytes * o->rate[order][ALONG_D];
}

/* Kernels and what is exposed, at each place where something waits; or the busiest links, which work while kernels do; or
 * the sums of gradients, after all that comes before them. Where ranks share cores: tape_play.c. front, back: what windows
 * add. */
static double seconds_in(const Bound *b, const Orders *o, int order, double front, double back) {
    double links[MAX_LEVELS] = {0}, k = b->crowd, hidden = 1 - 1 / b->slowdown, busiest = 0;
    const double *start = o->load_start[order], *rate = o->load_rate[order];
    for (int i = 0; i < N_ALONG; i++)
        links[o->level[order][i]] += b->all.calls[i] * start[i] + b->all.bytes[i] * rate[i];
    for (int i = 0; i < o->n_levels; i++) busiest = later(busiest, links[i]);
    double sums = over_d(&b->sums, o, order), last = over_d(&b->last, o, order) - b->beneath;
    double exposed = traffic_in(&b->exposed, o, order);
    if (last > 0) exposed += later(0, last - traffic_in(&b->meanwhile, o, order));
    double fresh = over_d(&b->fresh, o, order), more = later(0, fresh - b->update);
    double waits = b->compute + exposed + more;
    double step = b->early + front + sums + b->squares + b->update + more;
    step = later(later(step, busiest), waits + front + back);
    step = later(step, waits + hidden * (busiest - exposed - fresh));
    if (k == 1) return step + (b->slowest - 1) * b->compute;
    // with E = S - C exposed beside C of kernels, a step takes 4k/(5k - 1) of S at least, with C = 2k/(5k - 1) of it
    step *= 4 * k / (5 * k - 1);
    return later(step, b->slowest * tape_crowded(b->compute, exposed, k) + exposed);
}

double bound_under(const Bound *b, const Orders *o, int order) {
    return seconds_in(b, o, order, 0, 0);
}

/* A price goes on from the third layer as from the second, and the third may find links freer than a hundredth does: on
 * 1,024 ranks a bound by clocks was above one price in a thousand, by up to 0.6 percent. */
double bound_in(const Bound *b, const Orders *o, int order) {
    const double transient = 0.99;
    double front = windows_more(&b->front, o, order, b->slowdown),
           back = windows_more(&b->back, o, order, b->slowdown);
    return later(bound_under(b, o, order), transient * seconds_in(b, o, order, front, back));
}

double bound_least(const Bound *b, const Orders *o) {
    double under[SEARCH_ORDERS], least = INFINITY;
    for (int k = 0; k < o->n; k++) under[k] = bound_under(b, o, k);
    for (;;) { // the windows of those alone that may be the least
        int next = 0;
        for (int k = 1; k < o->n; k++)
            if (under[k] < under[next]) next = k;
        if (under[next] >= least) return least;
        double s = b->front.n ? bound_in(b, o, next) : under[next];
        least = s < least ? s : least;
        under[next] = INFINITY;
    }
}
