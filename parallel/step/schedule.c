#include "parallel/step/schedule.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

/* Most collectives in flight at the same time: fewer than a group of ranks can have (coll.h). */
enum { MOST_OPEN = COLL_IN_FLIGHT / 2 };

typedef struct Scheduler {
    const Program *p; // the old list; a unit is named by the index of its first operation in it
    const OpCost *cost;
    Program *out; // the new list
    int window;
    // [operations + 3] linked lists of the units that are not scheduled yet: the first kernel is
    // next[kernels], the first collective next[collectives], and `end` follows the last one. Before
    // split_units all units are in the list of kernels
    int *next;
    int end, kernels, collectives; // indices behind those of the operations
    int *place; // [operations + 1] of a unit: number of units before it in the list
    int n_units, n_scheduled;
    int window_end; // the window has the units whose place is below it
    int *maker;     // [tensors] the operation that makes the tensor; -1: none, as of a parameter
    int *part; // [tensors] of a parent or bucket: the latest tensor that is a part of it; -1: none
    int *more; // [tensors] of a part: the part before it of the same tensor; -1: none
    int *dep, *first_dep; // unit i needs operations dep[first_dep[i]] to dep[first_dep[i + 1] - 1]
    int n_deps, max_deps;
    int *known;    // [operations] of a unit: index in dep after the operations seen to be scheduled
    double *last;  // [operations] of a unit: the latest time of a result of these operations
    int *reader;   // [operations] the first unit that needs the result; -1: none
    double *ready; // [operations] time of the result; INFINITY: not scheduled yet
    int open[MOST_OPEN], n_open; // collectives started and not waited for, in the order of starts
    int number[MOST_OPEN];       // of each of these: how many were started before it
    int n_started;               // collectives so far
    int gather; // the last all_gather that runs in the kernel of a matmul; -1: none
    Clocks clocks;
} Scheduler;

/* ---- clocks ---- */

/* A kernel is slower while collectives are in flight, by the largest slowdown among them. */
static void clocks_run(Clocks *c, double seconds) {
    double begin = c->now;
    while (seconds > 0) {
        double slow = 1, until = INFINITY; // largest slowdown; when the first level is free
        for (int l = 0; l < LINK_LEVELS; l++)
            if (c->link[l] > c->now) slow = fmax(slow, c->slow[l]), until = fmin(until, c->link[l]);
        if (c->now + seconds * slow <= until) {
            c->now += seconds * slow;
            break;
        }
        seconds -= (until - c->now) / slow;
        c->now = until;
    }
    c->spent.compute += c->now - begin;
}

double clocks_start(Clocks *c, const OpCost *cost) {
    double *link = &c->link[cost->level], begin = fmax(c->now, *link);
    *link = begin + cost->wire;
    c->slow[cost->level] = cost->slowdown;
    c->spent.own[cost->level] += cost->wire;
    c->spent.busy[cost->level] += cost->load;
    c->spent.sent += cost->seconds;
    return begin + cost->seconds;
}

void clocks_wait(Clocks *c, double until) {
    if (until <= c->now) return;
    c->spent.exposed += until - c->now;
    c->now = until;
}

/* The state of program_play. */
typedef struct Walk {
    const Program *p;
    OpTime *time;
    Clocks clocks;
    double waited; // seconds that the compute stream has waited since the last kernel
    int last;      // the collective that ended last of those waited for since then; -1: none
} Walk;

/* The compute stream waits for collective i. */
static void walk_wait(Walk *w, int i) {
    double begin = w->clocks.now;
    clocks_wait(&w->clocks, w->time[i].end);
    w->waited += w->clocks.now - begin;
    if (axes_has(w->p->op[i].axes, AXIS_D)) w->clocks.spent.along_d += w->clocks.now - begin;
    if (w->last < 0 || w->time[i].end > w->time[w->last].end) w->last = i;
}

/* The compute stream runs a kernel; returns its times, with the waits since the kernel before. */
static OpTime walk_kernel(Walk *w, double seconds) {
    OpTime t = {.start = w->clocks.now, .waited = w->waited, .awaited = w->last};
    clocks_run(&w->clocks, seconds);
    t.end = w->clocks.now;
    w->waited = 0, w->last = -1;
    return t;
}

Spent program_play(const Program *p, const OpCost *costs, bool last, OpTime *time) {
    Walk w = {.p = p, .time = time, .last = -1};
    OpTime kernel = {0};
    int *maker = mem_alloc((size_t)p->n_tensors * sizeof *maker); // of results of collectives
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        if (!op_runs(op, last)) continue;
        if (op->kind == OP_WAIT) {
            walk_wait(&w, maker[op->in[0]]);
        } else if (costs[i].level >= 0) {
            double now = w.clocks.now, end = clocks_start(&w.clocks, &costs[i]);
            time[i] = (OpTime){fmax(now, end - costs[i].seconds), end, 0, -1}; // now: rounding
            maker[op->out] = i;
            if (!p->ordered) walk_wait(&w, i);
        } else if (op_begins_kernel(p, i)) {
            time[i] = kernel = walk_kernel(&w, costs[i].seconds);
        } else {
            time[i] = (OpTime){kernel.start, kernel.end, 0, -1};
        }
    }
    mem_free(maker);
    return w.clocks.spent;
}

/* ---- dependences ---- */

/* The index after unit i and the operations fused into it. */
static int unit_end(const Scheduler *s, int i) {
    return op_kernel_end(s->p->op, s->p->n_ops, i);
}

/* Notes that unit i, operations [i, end), needs operation `maker`, unless the unit contains it. */
static void add_dep(Scheduler *s, int i, int end, int maker) {
    if (maker < 0 || (maker >= i && maker < end)) return;
    if (s->reader[maker] < 0) s->reader[maker] = i;
    mem_grow(s->dep, s->n_deps, s->max_deps);
    s->dep[s->n_deps++] = maker;
}

/* Notes that unit i needs what makes tensor t, or parts of it: rows, the gradients of a bucket. */
static void add_makers(Scheduler *s, int i, int end, int t) {
    add_dep(s, i, end, s->maker[t]);
    for (int k = s->part[t]; k >= 0; k = s->more[k]) add_makers(s, i, end, k);
}

/* Notes the operations that unit i needs: the makers of its operands. An operand that is rows which
 * no operation makes needs its parent. */
static void add_deps(Scheduler *s, int i) {
    int end = unit_end(s, i);
    for (int k = i; k < end; k++)
        for (int j = 0; j < s->p->op[k].n_in; j++) {
            int t = s->p->op[k].in[j], parent = s->p->tensor[t].parent;
            add_makers(s, i, end, s->maker[t] < 0 && parent >= 0 ? parent : t);
        }
}

/* The time when all operands of unit i are complete; INFINITY: one of them is not scheduled yet. */
static double operands_ready(Scheduler *s, int i) {
    for (; s->known[i] < s->first_dep[i + 1]; s->known[i]++) {
        double at = s->ready[s->dep[s->known[i]]];
        if (isinf(at)) return at;
        if (at > s->last[i]) s->last[i] = at;
    }
    return s->last[i];
}

/* ---- the list ---- */

/* Appends operations [begin, end) to the new list. */
static void add(Scheduler *s, int begin, int end) {
    for (int i = begin; i < end; i++) program_append(s->out, &s->p->op[i]);
}

/* Appends the OP_WAIT of operation i, if i is a collective in flight. */
static void wait_for(Scheduler *s, int i) {
    const Op *op = &s->p->op[i];
    int k = 0;
    while (k < s->n_open && s->open[k] != i) k++;
    if (k == s->n_open) return;
    s->out->phase = op->phase, s->out->layer = op->layer;
    EMIT(s->out, OP_WAIT, op->out, op->out, op->in[0]);
    s->n_open--;
    memmove(s->open + k, s->open + k + 1, (size_t)(s->n_open - k) * sizeof(int));
    memmove(s->number + k, s->number + k + 1, (size_t)(s->n_open - k) * sizeof(int));
}

static void wait_for_operands(Scheduler *s, int i) {
    for (int k = s->first_dep[i]; k < s->first_dep[i + 1]; k++) wait_for(s, s->dep[k]);
}

/* Collective i is in flight from now on. */
static void put_in_flight(Scheduler *s, int i) {
    s->number[s->n_open] = s->n_started++;
    s->open[s->n_open++] = i;
    s->ready[i] = clocks_start(&s->clocks, &s->cost[i]);
}

/* Starts collective i; its operands may come from collectives that are waited for first. */
static void start(Scheduler *s, int i) {
    wait_for_operands(s, i);
    add(s, i, i + 1);
    put_in_flight(s, i);
}

/* Waits for collective i, though no unit reads its result now: another one needs its place in
 * flight, or the list ends. */
static void finish(Scheduler *s, int i) {
    clocks_wait(&s->clocks, s->ready[i]);
    wait_for(s, i);
}

/* ---- the scheduler ---- */

/* May one more collective start? A group has COLL_IN_FLIGHT tickets, used in turn: the oldest
 * collective in flight blocks the ones that many starts after it, however few are in flight. If the
 * oldest one is in the way and has ended, its OP_WAIT makes room. */
static bool may_start(Scheduler *s) {
    bool oldest_blocks = s->n_open > 0 && s->n_started - s->number[0] >= COLL_IN_FLIGHT;
    if (s->n_open < MOST_OPEN && !oldest_blocks) return true;
    if (s->ready[s->open[0]] > s->clocks.now) return false;
    wait_for(s, s->open[0]);
    return true;
}

/* The collective that runs in the kernel of unit i: an all_gather is the unit's first operation, a
 * reduce_scatter the last. -1: none. */
static int collective_inside(const Scheduler *s, int i) {
    int last = unit_end(s, i) - 1;
    return s->cost[i].level >= 0 ? i : s->cost[last].level >= 0 ? last : -1;
}

/* Runs unit i, a kernel. An all_gather in the kernel is waited for after the next kernel: until
 * then other ranks may still read this rank's operand. */
static void run(Scheduler *s, int i) {
    int fused = collective_inside(s, i), end = unit_end(s, i), before = s->gather;
    while (fused >= 0 && !may_start(s)) finish(s, s->open[0]);
    wait_for_operands(s, i);
    add(s, i, end);
    if (fused == i) put_in_flight(s, i), s->gather = i;
    for (int k = i; k < end; k++)
        if (op_begins_kernel(s->p, k)) clocks_run(&s->clocks, s->cost[k].seconds);
    for (int k = i; k < end; k++)
        if (s->cost[k].level < 0) s->ready[k] = s->clocks.now;
    if (fused > i) put_in_flight(s, fused);
    if (before >= 0) wait_for(s, before);
}

/* Is unit i in the window? False for `end`. */
static bool in_window(const Scheduler *s, int i) {
    return s->place[i] < s->window_end;
}

/* Takes the unit after `before` out of its linked list. */
static void take_unit(Scheduler *s, int before) {
    s->next[before] = s->next[s->next[before]];
    s->n_scheduled++;
}

/* The unit before the first kernel of the window whose operands are complete, in the linked list of
 * kernels; -1: none. Lowers *soonest to the earliest time at which the operands of a kernel of the
 * window are complete. */
static int find_kernel(Scheduler *s, double *soonest) {
    for (int before = s->kernels, i; in_window(s, i = s->next[before]); before = i) {
        double at = operands_ready(s, i);
        if (at <= s->clocks.now) return before;
        if (at < *soonest) *soonest = at;
    }
    return -1;
}

/* Starts the collectives of the window whose operands are complete, but none that only kernels
 * behind the awaited one read:
 *
 *     w1  = all_gather z  w1     in flight
 *     y1  = matmul  x, w1        the awaited kernel
 *     w2  = all_gather z  w2     not yet: it would take bandwidth from w1, and no kernel runs that
 *                                would hide it. It starts with y1
 *     y2  = matmul  y1, w2
 *
 * A collective that no unit reads starts at once. awaited: the first kernel of the window, if the
 * operands of no kernel are complete; else `end`. Lowers *soonest to the earliest time at which a
 * collective of the window can start. */
static void start_collectives(Scheduler *s, int awaited, double *soonest) {
    for (int before = s->collectives, i; in_window(s, i = s->next[before]);) {
        double at = operands_ready(s, i);
        bool needed = at <= s->clocks.now && s->reader[i] <= awaited;
        if (needed && may_start(s)) {
            start(s, i);
            take_unit(s, before);
            continue;
        }
        if (needed) at = s->ready[s->open[0]];
        if (at > s->clocks.now && at < *soonest) *soonest = at;
        before = i;
    }
}

/* No unit of the window can run: the compute stream waits until time `at`, for the collectives that
 * end then. */
static void wait_for_next(Scheduler *s, double at) {
    clocks_wait(&s->clocks, at);
    for (int k = s->n_open - 1; k >= 0; k--)
        if (s->ready[s->open[k]] == at) wait_for(s, s->open[k]);
}

/* Until no unit is left: starts collectives, then runs the first kernel that can run, or waits. At
 * the end all collectives in flight are waited for. */
static void schedule_all(Scheduler *s) {
    while (s->n_scheduled < s->n_units) {
        double soonest = INFINITY;
        s->window_end = s->n_scheduled + s->window;
        int before = find_kernel(s, &soonest), first = s->next[s->kernels];
        start_collectives(s, before < 0 && in_window(s, first) ? first : s->end, &soonest);
        if (before >= 0) {
            run(s, s->next[before]);
            take_unit(s, before);
        } else if (s->n_scheduled < s->n_units) {
            // a kernel may wait for a collective that has just started, or that took no time
            if (find_kernel(s, &soonest) < 0) wait_for_next(s, soonest);
        }
    }
    while (s->n_open > 0) finish(s, s->open[0]);
}

/* Tensor t is a part of `whole`; -1: of none. */
static void add_part(Scheduler *s, int whole, int t) {
    if (whole >= 0) s->more[t] = s->part[whole], s->part[whole] = t;
}

/* Sets part and more: which tensors are made that are parts of another one. */
static void find_parts(Scheduler *s) {
    const StepTensor *x = s->p->tensor;
    for (int t = 0; t < s->p->n_tensors; t++) s->part[t] = -1;
    for (int t = 0; t < s->p->n_tensors; t++) {
        if (s->maker[t] >= 0) add_part(s, x[t].parent, t);
        add_part(s, x[t].bucket, t);
    }
}

/* Sets the list of units and the operations that each unit needs. */
static void find_deps(Scheduler *s) {
    s->next[s->kernels] = s->end, s->first_dep[0] = 0; // the list may be empty
    for (int i = 0; i < s->p->n_ops; i++) s->reader[i] = -1;
    for (int i = 0, unit = s->kernels; i < s->p->n_ops; i++) {
        s->ready[i] = INFINITY, s->last[i] = 0;
        s->known[i] = s->n_deps;
        if (!s->p->op[i].fused) s->next[unit] = i, unit = i, add_deps(s, i);
        s->first_dep[i + 1] = s->n_deps;
        s->next[unit] = s->end;
    }
}

/* Is unit i a collective that sums a parameter's gradient? Only an OP_ACCUMULATE may read it. */
static bool completes(const Scheduler *s, int i) {
    const Op *op = &s->p->op[i];
    bool sum = op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE;
    int first = s->reader[i];
    return sum && (first < 0 || s->p->op[first].kind == OP_ACCUMULATE);
}

/* Moves each sum of a gradient to right after the kernel that makes its operand. differentiate.c
 * puts the sums of a layer after all kernels of the layer, beyond the reach of the window. */
static void move_sums(Scheduler *s) {
    for (int before = s->kernels, i; (i = s->next[before]) != s->end;) {
        int last = -1;
        for (int k = s->first_dep[i]; k < s->first_dep[i + 1]; k++)
            if (s->dep[k] > last) last = s->dep[k];
        while (last >= 0 && s->p->op[last].fused) last--;
        if (last < 0 || last == before || !completes(s, i)) {
            before = i;
            continue;
        }
        s->next[before] = s->next[i];
        s->next[i] = s->next[last], s->next[last] = i;
    }
}

/* Splits the list of units into a list of kernels and one of collectives. */
static void split_units(Scheduler *s) {
    int last[] = {s->kernels, s->collectives}; // of each list
    for (int i = s->next[s->kernels], next; i != s->end; i = next) {
        next = s->next[i];
        s->place[i] = s->n_units++;
        bool sends = s->cost[i].level >= 0 && !op_in_kernel(s->p, i);
        s->next[last[sends]] = i, last[sends] = i;
    }
    s->next[last[0]] = s->next[last[1]] = s->end, s->place[s->end] = INT_MAX;
}

void program_order(Program *p, const OpCost *costs, int window) {
    const Program old = *p;
    Uses uses = program_uses(p);
    Op *op = program_take(p);
    size_t n = (size_t)old.n_ops, tensors = (size_t)p->n_tensors;
    Scheduler s = {.p = &old,
                   .cost = costs,
                   .out = p,
                   .window = window,
                   .end = old.n_ops,
                   .kernels = old.n_ops + 1,
                   .collectives = old.n_ops + 2,
                   .maker = uses.maker,
                   .gather = -1};
    s.ready = mem_alloc(2 * n * sizeof *s.ready), s.last = s.ready + n;
    s.next = mem_alloc((5 * n + 5 + 2 * tensors) * sizeof *s.next);
    s.place = s.next + n + 3, s.first_dep = s.place + n + 1, s.known = s.first_dep + n + 1;
    s.reader = s.known + n, s.part = s.reader + n, s.more = s.part + tensors;
    find_parts(&s);
    find_deps(&s);
    move_sums(&s);
    split_units(&s);
    schedule_all(&s);
    p->ordered = true;
    mem_free(s.ready), mem_free(s.next);
    mem_free(s.dep), mem_free(op), mem_free(uses.maker);
}

int schedule_window(const Overlap *overlap) {
    return overlap->halves ? WINDOW_HALVES : overlap->bulk ? WINDOW_BULK : WINDOW_NONE;
}

/* ---- nominal costs ---- */

/* Is an operation priced without its bytes? The bytes of copied heads have no padding and differ
 * between ranks, so ranks would find different orders. */
static bool counts_no_bytes(const Op *op) {
    return op->kv || op->kind == OP_PACK_COPIES || op->kind == OP_UNPACK_COPIES;
}

/* Costs by fixed rates: FLOP/s, bytes/s of memory and of a link, seconds of latency. Links are much
 * slower than kernels on purpose, so a collective is waited for as late as the window allows. On
 * fast links this order costs nothing; an order for fast links would wait on slow ones. */
static OpCost *nominal_costs(const Program *p) {
    const double flops = 50e9, memory = 10e9, link = 30e6, latency = 20e-6;
    OpCost *cost = mem_alloc((size_t)p->n_ops * sizeof *cost);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        bool grows = op->kind == OP_ALL_GATHER || op->kind == OP_BROADCAST;
        double bytes = 0;
        if (!counts_no_bytes(op) && op->n_in)
            bytes = (double)step_tensor_bytes(p, &p->tensor[grows ? op->out : op->in[0]]);
        cost[i] = (OpCost){.level = -1};
        if (op_info(op->kind)->collective)
            cost[i] =
                (OpCost){.seconds = latency + bytes / link, .wire = bytes / link, .slowdown = 1};
        else if (op_begins_kernel(p, i))
            cost[i].seconds = op_flops(p, op) / flops + bytes / memory;
    }
    return cost;
}

void program_order_nominal(Program *p) {
    OpCost *cost = nominal_costs(p);
    program_order(p, cost, schedule_window(&p->shape->overlap));
    mem_free(cost);
}
