/* Running the clocks of a tape.
 *
 * One clock is the rank's kernels; each level of the machine has one for its links, so that
 * collectives of different axes share a link when they are under way at the same time. A collective
 * begins when it was started and its links are free; who waits for it waits until it has ended.
 * What replicas wait for each other on links that they share comes on top (in_turns).
 *
 * On long links (machine_long) the latencies of collectives that are under way together overlap,
 * their bytes do not: a collective keeps its links busy for its `wire` seconds and ends when all
 * its seconds are over.
 *
 *     A   wire === latency .......|          measured, all_gathers of 256 KiB between 2 hosts,
 *     B           === ............|          20 ms apart at 1 Gbit/s: one takes 21 ms,
 *                                            four together 4 ms longer (tests/mpi.sh)
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "parallel/plan/machine.h"

int machine_level(const Machine *m, const TapeGroup *g) {
    int64_t extent = placement_extent(&g->place);
    int l = 0;
    while (l < m->n_levels - 1 && extent >= m->level[l].ranks) l++;
    return l;
}

enum { MAX_LOCAL = 256 };

/* Costs of a tape's entries, looked up once. */
typedef struct Costs {
    double work_local[MAX_LOCAL], send_local[3 * MAX_LOCAL];
    double *work, *send;
    double *wire, *load;          // of send, what keeps links busy: by this replica, by all
    double beside[MAX_COMMS + 2]; // kernels while a collective of the group is under way
    int level[MAX_COMMS + 2];     // of each group
} Costs;

static void costs_of(Costs *c, const Tape *t, const Machine *m) {
    c->work =
        t->n_works <= MAX_LOCAL ? c->work_local : mem_alloc((size_t)t->n_works * sizeof *c->work);
    c->send = t->n_sends <= MAX_LOCAL ? c->send_local
                                      : mem_alloc(3 * (size_t)t->n_sends * sizeof *c->send);
    c->wire = c->send + t->n_sends, c->load = c->wire + t->n_sends;
    Machine near = machine_near(m);
    for (int i = 0; i < t->n_works; i++) c->work[i] = machine_work(m, &t->work[i]);
    for (int i = 0; i < t->n_groups; i++) c->level[i] = machine_level(m, &t->group[i]);
    for (int i = 0; i < t->n_sends; i++) {
        const TapeGroup *g = &t->group[t->send[i].group];
        c->load[i] = machine_send(m, g, &t->send[i]);
        c->send[i] = c->wire[i] = machine_send_in_turn(m, g, &t->send[i], c->load[i]);
        if (machine_long(m, g)) {
            double load = machine_send(&near, g, &t->send[i]);
            c->wire[i] = fmin(c->send[i], machine_send_in_turn(&near, g, &t->send[i], load));
            c->load[i] = fmin(c->load[i], load);
        }
        c->beside[t->send[i].group] = machine_beside(m, g, &t->send[i]);
    }
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
    double slow[MAX_LEVELS]; // what kernels take until then, by what they take alone
    Played p;
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

/* Kernels are slower while a collective is under way: the slowest of those that are decides. */
static void play_work(Clocks *c, int event) {
    double s = c->cost->work[c->t->event[event].index], begin = c->now;
    while (s > 0) {
        double slow = 1, until = INFINITY; // the slowest level, and when the first one is through
        for (int l = 0; l < c->m->n_levels; l++)
            if (c->free[l] > c->now) slow = fmax(slow, c->slow[l]), until = fmin(until, c->free[l]);
        if (c->now + s * slow <= until) {
            c->now += s * slow;
            break;
        }
        s -= (until - c->now) / slow;
        c->now = until;
    }
    c->p.compute += c->now - begin;
    note(c, event, begin, c->now, false, 0);
}

/* ends: of the collectives that are open. */
static void play(Clocks *c, int begin, int end, double ends[TAPE_SLOTS]) {
    const Tape *t = c->t;
    for (int i = begin; i < end; i++) {
        const Event *e = &t->event[i];
        if (e->kind == EVENT_WORK) {
            play_work(c, i);
        } else if (e->kind == EVENT_START) {
            const Send *s = &t->send[e->index];
            int level = c->cost->level[s->group];
            double *link = &c->free[level], from = fmax(c->now, *link);
            *link = from + c->cost->wire[e->index];
            ends[e->slot] = from + c->cost->send[e->index];
            c->slow[level] = c->cost->beside[s->group];
            c->p.busy[level] += c->cost->load[e->index];
            c->p.own[level] += c->cost->wire[e->index];
            c->p.sent += c->cost->send[e->index];
            c->p.received += s->received;
            c->p.calls++;
        } else if (e->kind == EVENT_WAIT) {
            double until = ends[e->slot], wait = fmax(until - c->now, 0);
            double cost = c->cost->send[t->event[e->index].index];
            note(c, e->index, until - cost, until, true, wait);
            c->p.exposed += wait;
            if (t->group[t->send[t->event[e->index].index].group].replicas.n == 0)
                c->p.meeting += wait;
            c->now += wait;
        }
    }
}

void played_add(Played *a, const Played *b, const Played *before, int64_t times) {
    double f = (double)times;
    a->compute += f * (b->compute - before->compute);
    a->exposed += f * (b->exposed - before->exposed);
    a->meeting += f * (b->meeting - before->meeting);
    a->sent += f * (b->sent - before->sent);
    for (int i = 0; i < MAX_LEVELS; i++) {
        a->own[i] += f * (b->own[i] - before->own[i]);
        a->busy[i] += f * (b->busy[i] - before->busy[i]);
    }
    a->received += times * (b->received - before->received);
    a->calls += times * (b->calls - before->calls);
}

/* A whole step of the layers that were recorded. Nothing is under way between two micro-steps. */
static Played play_run(const Tape *t, const TapeRun *r, const Machine *m, const Costs *cost) {
    Clocks c = {.t = t, .m = m, .cost = cost};
    double ends[TAPE_SLOTS];
    play(&c, r->begin[PART_ZERO], r->begin[PART_MICRO_2], ends);
    Played before = c.p;
    play(&c, r->begin[PART_MICRO_2], r->begin[PART_LAST], ends);
    Played again = c.p;
    play(&c, r->begin[PART_LAST], r->begin[N_TAPE_PARTS], ends);
    played_add(&c.p, &again, &before, t->repeats - 1);
    return c.p;
}

/* Ranks that share cores. What was measured is the time k a of kernels when all compute at once, a
 * alone; but while one waits for a collective, E in all, others have its core. In a step of time t
 * a core is busy for a share k a / t of it, and kernels are slowed by those that run beside them:
 *
 *     t = a (1 + (k-1) k a / t) + E        which is k a without collectives, and a + E with long
 *                                          ones
 */
double tape_crowded(double compute, double exposed, double k) {
    if (k <= 1) return compute;
    double a = compute / k, b = a + exposed;
    return (b + sqrt(b * b + 4 * k * (k - 1) * a * a)) / 2 - exposed;
}

/* Replicas that send in turns. Between two sums over d a replica takes S for itself and keeps a
 * link busy for `own` of it, all replicas for `busy`. They are not in step: the link is busy for a
 * share busy / t of the time, and what a replica sends waits for what others do:
 *
 *     t = S + (busy - own) busy / t            which is S where it shares no link, and busy where S
 *                                              is its own link alone
 */
static double in_turns(const Played *p) {
    double s = p->compute + p->exposed - p->meeting, most = 0;
    for (int i = 0; i < MAX_LEVELS; i++) most = fmax(most, p->busy[i] * (p->busy[i] - p->own[i]));
    return (s + sqrt(s * s + 4 * most)) / 2 - s;
}

void played_price(const Played *played, const Machine *m, double meeting, Price *price) {
    Played p = *played;
    double exposed;
    p.exposed += in_turns(&p);
    // a third layer may have filled gaps that a hundredth does not find
    for (int i = 0; i < MAX_LEVELS; i++) p.exposed = fmax(p.exposed, p.busy[i] - p.compute);
    exposed = p.exposed + meeting;
    *price = (Price){.compute = tape_crowded(p.compute, exposed, m->crowd),
                     .exposed = exposed,
                     .meeting = meeting,
                     .hidden =
                         p.sent - p.exposed > 1e-9 * p.sent ? p.sent - p.exposed : 0, // or rounding
                     .received = p.received,
                     .calls = p.calls};
    price->waiting = price->compute * (m->slowest - 1);
    price->seconds = price->compute + price->exposed + price->waiting;
}

/* A step's share in the next meeting, which nothing hides: seconds. */
static double add_meeting(const Tape *t, const Machine *m, Played *p) {
    Send s;
    int calls;
    if (!tape_meeting(t, &s, &calls)) return 0;
    p->received += s.received / t->every;
    return calls * machine_send(m, &t->group[s.group], &s) / (double)t->every;
}

/* Kernels of processors look after collectives that are under way, by the schedule's words whether
 * there are any or not: -0.1 to +0.5 % of a step, measured where there was nothing to hide
 * (tools/bench_overlap.py). So words that bring nothing are not chosen. */
static double tending(const Tape *t, const Machine *m) {
    return t->overlap && m->measured ? 0.002 : 0;
}

void tape_play(const Tape *t, const Machine *m, Price *price) {
    Costs cost;
    costs_of(&cost, t, m);
    Played p = play_run(t, &t->run[0], m, &cost);
    int more = t->recorded[1] - t->recorded[0];
    if (more > 0) {
        Played two = p, three = play_run(t, &t->run[1], m, &cost);
        int64_t bytes;
        played_add(&p, &three, &two, (t->layers - t->recorded[0]) / more);
        for (int i = 0; tape_uneven(t, i, &bytes) >= 0; i++) p.received += bytes;
    }
    costs_free(&cost);
    double meeting = add_meeting(t, m, &p);
    p.compute *= 1 + tending(t, m);
    played_price(&p, m, meeting, price);
    price->memory = tape_memory(t);
}

static int64_t layers_between(const Tape *t) {
    int n = t->recorded[1] - t->recorded[0];
    return n ? n : 1;
}

int64_t tape_memory(const Tape *t) {
    const TapeRun *first = &t->run[0], *last = &t->run[t->recorded[1] > t->recorded[0]];
    int64_t bytes = last->sampling, more = last->sampling - first->sampling;
    for (int i = 0; i < N_ARENAS; i++) {
        bytes += last->memory[i];
        more += i == ARENA_ACTS ? last->kept - first->kept : last->memory[i] - first->memory[i];
    }
    return bytes + (t->layers - t->recorded[1]) / layers_between(t) * more;
}

static void sum_groups(const Tape *t, const TapeRun *r, const Costs *cost, double times,
                       double *seconds) {
    for (int i = r->begin[0]; i < r->begin[N_TAPE_PARTS]; i++) {
        if (t->event[i].kind != EVENT_START) continue;
        bool again = i >= r->begin[PART_MICRO_2] && i < r->begin[PART_LAST];
        double n = again ? (double)t->repeats : 1;
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

static int sooner(const void *a, const void *b) {
    const Interval *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->event > y->event) - (x->event < y->event);
}

int tape_intervals(const Tape *t, const Machine *m, Interval *out, int max) {
    Costs cost;
    double ends[TAPE_SLOTS];
    costs_of(&cost, t, m);
    Clocks c = {.t = t, .m = m, .cost = &cost, .out = out, .max_out = max};
    play(&c, t->run[0].begin[0], t->run[0].begin[N_TAPE_PARTS], ends);
    costs_free(&cost);
    if (out) qsort(out, (size_t)(c.n_out < max ? c.n_out : max), sizeof *out, sooner);
    return c.n_out;
}
