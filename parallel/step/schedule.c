#include "parallel/step/schedule.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* Collectives under way at the same time: fewer than each group has tickets for. */
enum { MOST_OPEN = COLL_IN_FLIGHT / 2 };

typedef struct Scheduler {
    const Program *p;
    const OpCost *cost;
    Schedule *s;
    int window;
    int *next;  // [operations + 1] the next unit that is left; [n_ops]: the first one
    int *maker; // [tensors] operation that makes it; -1: it is there from the beginning
    int *rows;  // [tensors] of a whole: the last tensor that is rows of it and is made; -1: none
    int *more;  // [tensors] of such rows: another one of the same whole; -1
    int *dep, *first_dep; // of unit i: operations dep[first_dep[i]] to dep[first_dep[i + 1] - 1]
    double *ready; // [operations] when the result is there; INFINITY: it is not scheduled yet
    bool *waited;  // [operations] of a collective: a WAIT is in the list
    int open[MOST_OPEN], n_open; // started and not waited for, in order
    int number[MOST_OPEN];       // of these, among all that were started
    int n_started;
    double now;               // of the compute stream
    double link[LINK_LEVELS]; // when a level's links are free
    double slow[LINK_LEVELS]; // time of kernels until then, by that of them alone
    double waiting;           // seconds since the last kernel, or the last wait that had a name
} Scheduler;

static bool collective(const Scheduler *s, int i) {
    return s->cost[i].level >= 0;
}

/* Behind unit i: its fused operations are skipped. */
static int unit_end(const Scheduler *s, int i) {
    int end = i + 1;
    while (end < s->p->n_ops && s->p->op[end].fused) end++;
    return end;
}

/* Unit i needs operation `maker`, unless it is one of its own. */
static int add_dep(Scheduler *s, int n, int i, int end, int maker) {
    if (maker < 0 || (maker >= i && maker < end)) return n;
    s->dep[n] = maker;
    return n + 1;
}

/* What unit i reads: rows are there when their whole is, a whole when all its rows are. */
static int add_deps(Scheduler *s, int n, int i) {
    int end = unit_end(s, i);
    for (int k = i; k < end; k++)
        for (int j = 0; j < s->p->op[k].n_in; j++) {
            int t = s->p->op[k].in[j], whole = s->p->tensor[t].whole;
            n = add_dep(s, n, i, end, s->maker[t]);
            int all = s->maker[t] < 0 && whole >= 0 ? whole : t;
            if (all != t) n = add_dep(s, n, i, end, s->maker[all]);
            for (int r = s->rows[all]; r >= 0; r = s->more[r])
                n = add_dep(s, n, i, end, s->maker[r]);
        }
    return n;
}

/* When all operands of unit i are there; INFINITY: not known yet. */
static double operands_at(const Scheduler *s, int i) {
    double at = 0;
    for (int k = s->first_dep[i]; k < s->first_dep[i + 1]; k++)
        if (s->ready[s->dep[k]] > at) at = s->ready[s->dep[k]];
    return at;
}

/* ---- the list ---- */

static void add_slot(Scheduler *s, SlotKind kind, int op) {
    s->s->slot[s->s->n_slots++] = (Slot){kind, op};
}

static void wait_for(Scheduler *s, int op) {
    int k = 0;
    if (!collective(s, op) || s->waited[op]) return;
    add_slot(s, SLOT_WAIT, op);
    s->waited[op] = true;
    while (s->open[k] != op) k++;
    s->n_open--;
    memmove(s->open + k, s->open + k + 1, (size_t)(s->n_open - k) * sizeof(int));
    memmove(s->number + k, s->number + k + 1, (size_t)(s->n_open - k) * sizeof(int));
}

static void wait_for_operands(Scheduler *s, int i) {
    for (int k = s->first_dep[i]; k < s->first_dep[i + 1]; k++) wait_for(s, s->dep[k]);
}

/* ---- clocks ---- */

static void wait_until(Scheduler *s, double at) {
    if (at <= s->now) return;
    s->waiting += at - s->now;
    s->s->exposed += at - s->now;
    s->now = at;
}

static double take_waiting(Scheduler *s) {
    double seconds = s->waiting;
    s->waiting = 0;
    return seconds;
}

/* Kernels are slower while a collective is under way: the slowest of those that are decides. */
static void run(Scheduler *s, int i) {
    double left = s->cost[i].seconds, begin = s->now;
    wait_for_operands(s, i);
    add_slot(s, SLOT_RUN, i);
    while (left > 0) {
        double slow = 1, until = INFINITY;
        for (int l = 0; l < LINK_LEVELS; l++)
            if (s->link[l] > s->now) slow = fmax(slow, s->slow[l]), until = fmin(until, s->link[l]);
        if (s->now + left * slow <= until) {
            s->now += left * slow;
            break;
        }
        left -= (until - s->now) / slow;
        s->now = until;
    }
    s->s->compute += s->now - begin;
    for (int k = i, end = unit_end(s, i); k < end; k++) {
        s->ready[k] = s->now;
        s->s->time[k] = (OpTime){begin, s->now, k == i ? take_waiting(s) : 0};
    }
}

static void start(Scheduler *s, int i) {
    const OpCost *c = &s->cost[i];
    double *link = &s->link[c->level], begin = fmax(s->now, *link);
    wait_for_operands(s, i);
    add_slot(s, SLOT_START, i);
    s->number[s->n_open] = s->n_started++;
    s->open[s->n_open++] = i;
    s->ready[i] = begin + c->seconds;
    *link = begin + c->wire;
    s->slow[c->level] = c->beside;
    s->s->own[c->level] += c->wire;
    s->s->sent += c->seconds;
    s->s->busy[c->level] += c->load;
    s->s->time[i] = (OpTime){begin, s->ready[i], 0};
}

/* A collective's result that nobody in the window reads is waited for here. */
static void finish(Scheduler *s, int i) {
    wait_until(s, s->ready[i]);
    s->s->time[i].waited += take_waiting(s);
    wait_for(s, i);
}

/* ---- the scheduler ---- */

/* There is room for one more when the oldest has arrived. A group has tickets for so many that
 * follow each other, however few of them are open. */
static bool may_start(Scheduler *s) {
    bool oldest_blocks = s->n_open > 0 && s->n_started - s->number[0] >= COLL_IN_FLIGHT;
    if (s->n_open < MOST_OPEN && !oldest_blocks) return true;
    if (s->ready[s->open[0]] > s->now) return false;
    wait_for(s, s->open[0]);
    return true;
}

/* Starts what may start in the window. Returns the place (of `next`) before the first kernel that
 * can run; -1: there is none. *soonest: when an operand arrives that something in the window
 * lacks. */
static int look(Scheduler *s, double *soonest) {
    int before = s->p->n_ops, kernel = -1;
    *soonest = INFINITY;
    for (int n = 0; n < s->window && s->next[before] < s->p->n_ops; n++) {
        int i = s->next[before];
        double at = operands_at(s, i);
        if (at > s->now) {
            *soonest = fmin(*soonest, at);
        } else if (!collective(s, i)) {
            if (kernel < 0) kernel = before;
        } else if (may_start(s)) {
            start(s, i);
            s->next[before] = s->next[i];
            continue;
        } else {
            *soonest = fmin(*soonest, s->ready[s->open[0]]);
        }
        before = i;
    }
    return kernel;
}

static void schedule_all(Scheduler *s) {
    int n = s->p->n_ops;
    while (s->next[n] < n) {
        double soonest;
        int before = look(s, &soonest);
        if (s->window == WINDOW_NONE && s->n_open > 0) {
            finish(s, s->open[0]);
        } else if (before >= 0) {
            int i = s->next[before];
            run(s, i);
            s->next[before] = s->next[i];
        } else if (s->next[n] < n) {
            wait_until(s, soonest);
        }
    }
    while (s->n_open > 0) finish(s, s->open[0]);
}

/* Who makes each tensor. */
static void find_makers(Scheduler *s) {
    const Program *p = s->p;
    for (int t = 0; t < p->n_tensors; t++) s->maker[t] = s->rows[t] = -1;
    for (int i = 0; i < p->n_ops; i++) {
        const int made[] = {p->op[i].out, p->op[i].also};
        for (int k = 0; k < 2 && made[k] >= 0; k++) {
            int whole = p->tensor[made[k]].whole;
            s->maker[made[k]] = i;
            if (whole >= 0) s->more[made[k]] = s->rows[whole], s->rows[whole] = made[k];
        }
    }
}

/* More than all units can need: each operand, and all rows of which it is the whole. */
static size_t most_deps(const Scheduler *s) {
    size_t n = 0;
    for (int i = 0; i < s->p->n_ops; i++)
        for (int k = 0; k < s->p->op[i].n_in; k++, n += 2) {
            int t = s->p->op[i].in[k], whole = s->p->tensor[t].whole;
            int all = s->maker[t] < 0 && whole >= 0 ? whole : t;
            for (int r = s->rows[all]; r >= 0; r = s->more[r]) n++;
        }
    return n;
}

static void find_deps(Scheduler *s) {
    int n = 0;
    s->dep = mem_alloc(most_deps(s) * sizeof *s->dep);
    s->next[s->p->n_ops] = s->p->n_ops; // of a list without operations, too
    for (int i = 0, unit = s->p->n_ops; i < s->p->n_ops; i++) {
        s->ready[i] = INFINITY, s->waited[i] = false;
        s->first_dep[i] = n;
        if (!s->p->op[i].fused) s->next[unit] = i, unit = i, n = add_deps(s, n, i);
        s->first_dep[i + 1] = n;
        s->next[unit] = s->p->n_ops;
    }
}

/* What was decided for other costs, in that order. */
static void follow(Scheduler *s, const Schedule *decided) {
    for (int k = 0; k < decided->n_slots; k++) {
        int i = decided->slot[k].op;
        if (decided->slot[k].kind == SLOT_WAIT) {
            wait_until(s, s->ready[i]);
            wait_for(s, i);
            continue;
        }
        wait_until(s, operands_at(s, i));
        if (decided->slot[k].kind == SLOT_RUN)
            run(s, i);
        else
            start(s, i);
    }
}

/* decided: an order to be followed; NULL: none. */
static Schedule schedule(const Program *p, const OpCost *costs, int window,
                         const Schedule *decided) {
    size_t n = (size_t)p->n_ops, tensors = (size_t)p->n_tensors;
    Schedule out = {.slot = mem_alloc(2 * n * sizeof(Slot)), .time = mem_alloc(n * sizeof(OpTime))};
    Scheduler s = {.p = p, .cost = costs, .s = &out, .window = window};
    s.ready = mem_alloc(n * sizeof *s.ready), s.waited = mem_alloc(n * sizeof *s.waited);
    s.next = mem_alloc((n + 1) * sizeof *s.next);
    s.first_dep = mem_alloc((n + 1) * sizeof *s.first_dep);
    s.maker = mem_alloc(tensors * sizeof *s.maker), s.rows = mem_alloc(tensors * sizeof *s.rows);
    s.more = mem_alloc(tensors * sizeof *s.more);
    find_makers(&s);
    find_deps(&s);
    if (decided)
        follow(&s, decided);
    else
        schedule_all(&s);
    out.seconds = s.now;
    mem_free(s.ready), mem_free(s.waited), mem_free(s.next), mem_free(s.first_dep);
    mem_free(s.maker), mem_free(s.rows), mem_free(s.more), mem_free(s.dep);
    return out;
}

Schedule schedule_make(const Program *p, const OpCost *costs, int window) {
    return schedule(p, costs, window, NULL);
}

void schedule_time(Schedule *s, const Program *p, const OpCost *costs) {
    Schedule timed = schedule(p, costs, WINDOW_NONE, s);
    schedule_free(s);
    *s = timed;
}

int schedule_window(const Overlap *overlap) {
    bool beside = overlap->bulk || overlap->chunks || overlap->ring;
    return overlap->halves ? WINDOW_HALVES : beside ? WINDOW_BULK : WINDOW_NONE;
}

void schedule_free(Schedule *s) {
    mem_free(s->slot);
    mem_free(s->time);
    *s = (Schedule){0};
}
