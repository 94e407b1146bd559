#include "parallel/step/schedule.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* Collectives under way at the same time: fewer than a group of ranks can have (coll.h). */
enum { MOST_OPEN = COLL_IN_FLIGHT / 2 };

typedef struct Scheduler {
    const Program *p; // the list as it was
    const OpCost *cost;
    Program *out;
    int window;
    int *next;  // [operations + 1] the next unit that is left; [n_ops]: the first one
    int *maker; // [tensors] operation that makes it; -1: it is there from the beginning
    int *rows;  // [tensors] of a parent: the last tensor that is rows of it and is made; -1: none
    int *more;  // [tensors] of such rows: another one of the same parent; -1
    int *dep, *first_dep; // unit i needs operations dep[first_dep[i]] to dep[first_dep[i + 1] - 1]
    int n_deps, max_deps;
    int *known;    // [operations] of a unit: of dep, behind those that are known to be scheduled
    double *last;  // [operations] of a unit: when the latest of these is there
    int *reader;   // [operations] the first unit that needs it; -1: none
    double *ready; // [operations] when the result is there; INFINITY: it is not scheduled yet
    bool *waited;  // [operations] of a collective: a WAIT is in the list
    bool *sends;   // [operations] is a unit a collective, or else a kernel?
    int open[MOST_OPEN], n_open; // started and not waited for, in order
    int number[MOST_OPEN];       // of these, among all that were started
    int n_started;
    int gather; // the last one in the kernel of a matmul; -1
    Clocks clocks;
} Scheduler;

/* ---- clocks ---- */

/* Kernels are slower while a collective is under way: the slowest of those that are decides. */
void clocks_run(Clocks *c, double seconds) {
    double begin = c->now;
    while (seconds > 0) {
        double slow = 1, until = INFINITY; // the slowest level, and when the first one is through
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

typedef struct Walk {
    const Program *p;
    OpTime *time;
    Clocks clocks;
    double waited; // by the compute stream, since the last kernel
    int last;      // of what it waited for: the collective that came last; -1
} Walk;

static void walk_wait(Walk *of, int i) {
    double begin = of->clocks.now;
    clocks_wait(&of->clocks, of->time[i].end);
    of->waited += of->clocks.now - begin;
    if (axes_has(of->p->op[i].axes, AXIS_D)) of->clocks.spent.along_d += of->clocks.now - begin;
    if (of->last < 0 || of->time[i].end > of->time[of->last].end) of->last = i;
}

static OpTime walk_kernel(Walk *of, double seconds) {
    OpTime t = {.start = of->clocks.now, .waited = of->waited, .awaited = of->last};
    clocks_run(&of->clocks, seconds);
    t.end = of->clocks.now;
    of->waited = 0, of->last = -1;
    return t;
}

Spent program_play(const Program *p, const OpCost *costs, OpTime *time) {
    Walk of = {.p = p, .time = time, .last = -1};
    OpTime kernel = {0};
    int *maker = mem_alloc((size_t)p->n_tensors * sizeof *maker); // of what a collective makes
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->op[i];
        if (op->kind == OP_WAIT) {
            walk_wait(&of, maker[op->in[0]]);
        } else if (costs[i].level >= 0) {
            double now = of.clocks.now, end = clocks_start(&of.clocks, &costs[i]);
            time[i] = (OpTime){fmax(now, end - costs[i].seconds), end, 0, -1}; // now: rounding
            maker[op->out] = i;
            if (!p->ordered) walk_wait(&of, i);
        } else if (op_begins_kernel(p, i)) {
            time[i] = kernel = walk_kernel(&of, costs[i].seconds);
        } else {
            time[i] = (OpTime){kernel.start, kernel.end, 0, -1};
        }
    }
    mem_free(maker);
    return of.clocks.spent;
}

/* ---- dependences ---- */

/* Behind unit i: its fused operations are skipped. */
static int unit_end(const Scheduler *s, int i) {
    return op_kernel_end(s->p->op, s->p->n_ops, i);
}

/* Unit i needs operation `maker`, unless it is one of its own. */
static void add_dep(Scheduler *s, int i, int end, int maker) {
    if (maker < 0 || (maker >= i && maker < end)) return;
    if (s->reader[maker] < 0) s->reader[maker] = i;
    mem_grow(s->dep, s->n_deps, s->max_deps);
    s->dep[s->n_deps++] = maker;
}

/* What unit i reads: rows are there when their parent is, a parent when all its rows are. */
static void add_deps(Scheduler *s, int i) {
    int end = unit_end(s, i);
    for (int k = i; k < end; k++)
        for (int j = 0; j < s->p->op[k].n_in; j++) {
            int t = s->p->op[k].in[j], parent = s->p->tensor[t].parent;
            add_dep(s, i, end, s->maker[t]);
            int all = s->maker[t] < 0 && parent >= 0 ? parent : t;
            if (all != t) add_dep(s, i, end, s->maker[all]);
            for (int r = s->rows[all]; r >= 0; r = s->more[r]) add_dep(s, i, end, s->maker[r]);
        }
}

/* When all operands of unit i are there; INFINITY: not known yet. */
static double able(Scheduler *s, int i) {
    for (; s->known[i] < s->first_dep[i + 1]; s->known[i]++) {
        double at = s->ready[s->dep[s->known[i]]];
        if (isinf(at)) return at;
        if (at > s->last[i]) s->last[i] = at;
    }
    return s->last[i];
}

/* ---- the list ---- */

static void add(Scheduler *s, int begin, int end) {
    for (int i = begin; i < end; i++) program_append(s->out, &s->p->op[i]);
}

static void wait_for(Scheduler *s, int i) {
    const Op *op = &s->p->op[i];
    int k = 0;
    if (s->cost[i].level < 0 || s->waited[i]) return;
    s->out->phase = op->phase, s->out->layer = op->layer;
    EMIT(s->out, OP_WAIT, op->out, op->out, op->in[0]);
    s->waited[i] = true;
    while (s->open[k] != i) k++;
    s->n_open--;
    memmove(s->open + k, s->open + k + 1, (size_t)(s->n_open - k) * sizeof(int));
    memmove(s->number + k, s->number + k + 1, (size_t)(s->n_open - k) * sizeof(int));
}

static void wait_for_operands(Scheduler *s, int i) {
    for (int k = s->first_dep[i]; k < s->first_dep[i + 1]; k++) wait_for(s, s->dep[k]);
}

static void under_way(Scheduler *s, int i) {
    s->number[s->n_open] = s->n_started++;
    s->open[s->n_open++] = i;
    s->ready[i] = clocks_start(&s->clocks, &s->cost[i]);
}

static void start(Scheduler *s, int i) {
    wait_for_operands(s, i);
    add(s, i, i + 1);
    under_way(s, i);
}

/* A collective's result that nobody in the window reads is waited for here. */
static void finish(Scheduler *s, int i) {
    clocks_wait(&s->clocks, s->ready[i]);
    wait_for(s, i);
}

/* ---- the scheduler ---- */

/* There is room for one more when the oldest has arrived. A group has tickets for so many that
 * follow each other, however few of them are open. */
static bool may_start(Scheduler *s) {
    bool oldest_blocks = s->n_open > 0 && s->n_started - s->number[0] >= COLL_IN_FLIGHT;
    if (s->n_open < MOST_OPEN && !oldest_blocks) return true;
    if (s->ready[s->open[0]] > s->clocks.now) return false;
    wait_for(s, s->open[0]);
    return true;
}

/* The collective in the kernel of unit i; -1. An all_gather begins it, a reduce_scatter ends it. */
static int inside(const Scheduler *s, int i) {
    int last = unit_end(s, i) - 1;
    return s->cost[i].level >= 0 ? i : s->cost[last].level >= 0 ? last : -1;
}

/* A kernel. Its all_gather is waited for behind the kernel that follows: until then other ranks may
 * read what this one sends. */
static void run(Scheduler *s, int i) {
    int fused = inside(s, i), end = unit_end(s, i), before = s->gather;
    while (fused >= 0 && !may_start(s)) finish(s, s->open[0]);
    wait_for_operands(s, i);
    add(s, i, end);
    if (fused == i) under_way(s, i), s->gather = i;
    for (int k = i; k < end; k++)
        if (op_begins_kernel(s->p, k)) clocks_run(&s->clocks, s->cost[k].seconds);
    for (int k = i; k < end; k++)
        if (s->cost[k].level < 0) s->ready[k] = s->clocks.now;
    if (fused > i) under_way(s, fused);
    if (before >= 0) wait_for(s, before);
}

/* The first kernel of the window if none of them can run: the compute stream waits for its
 * operands. n_ops: one can run, or there is no kernel. */
static int stalled(Scheduler *s) {
    int end = s->p->n_ops, first = end;
    for (int n = 0, i = s->next[end]; n < s->window && i < end; n++, i = s->next[i]) {
        if (s->sends[i]) continue;
        if (able(s, i) <= s->clocks.now) return end;
        if (first == end) first = i;
    }
    return first;
}

/* Starts what may start in the window. While the compute stream waits for the operands of a kernel,
 * nothing starts that only later ones need: no kernel hides it, and it would take bandwidth from
 * those operands. What nothing reads has no better time to start. Returns the place (of `next`)
 * before the first kernel that can run; -1: there is none. *soonest: when an operand arrives that
 * something in the window lacks. */
static int look(Scheduler *s, double *soonest) {
    enum { UNKNOWN = -1 };
    int before = s->p->n_ops, kernel = -1, last = UNKNOWN;
    *soonest = INFINITY;
    for (int n = 0; n < s->window && s->next[before] < s->p->n_ops; n++) {
        int i = s->next[before];
        double at = able(s, i);
        if (at > s->clocks.now) {
            if (at < *soonest) *soonest = at;
        } else if (!s->sends[i]) {
            if (kernel < 0) kernel = before;
        } else {
            if (last == UNKNOWN) last = stalled(s);
            bool needed = s->reader[i] <= last;
            if (needed && may_start(s)) {
                start(s, i);
                s->next[before] = s->next[i];
                continue;
            }
            if (needed) *soonest = fmin(*soonest, s->ready[s->open[0]]);
        }
        before = i;
    }
    return kernel;
}

/* Waits for the next operand, before anything else starts. */
static void wait_for_next(Scheduler *s, double at) {
    clocks_wait(&s->clocks, at);
    for (int k = s->n_open - 1; k >= 0; k--)
        if (s->ready[s->open[k]] == at) wait_for(s, s->open[k]);
}

static void schedule_all(Scheduler *s) {
    int n = s->p->n_ops;
    while (s->next[n] < n) {
        double soonest;
        int before = look(s, &soonest);
        if (before >= 0) {
            int i = s->next[before];
            run(s, i);
            s->next[before] = s->next[i];
        } else if (s->next[n] < n) {
            wait_for_next(s, soonest);
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
        s->reader[i] = -1;
        for (int k = 0; k < 2 && made[k] >= 0; k++) {
            int parent = p->tensor[made[k]].parent;
            s->maker[made[k]] = i;
            if (parent >= 0) s->more[made[k]] = s->rows[parent], s->rows[parent] = made[k];
        }
    }
}

static void find_deps(Scheduler *s) {
    s->next[s->p->n_ops] = s->p->n_ops, s->first_dep[0] = 0; // of a list without operations, too
    for (int i = 0, unit = s->p->n_ops; i < s->p->n_ops; i++) {
        s->waited[i] = false, s->ready[i] = INFINITY, s->last[i] = 0;
        s->sends[i] = s->cost[i].level >= 0 && !op_in_kernel(s->p, i);
        s->known[i] = s->n_deps;
        if (!s->p->op[i].fused) s->next[unit] = i, unit = i, add_deps(s, i);
        s->first_dep[i + 1] = s->n_deps;
        s->next[unit] = s->p->n_ops;
    }
}

/* Is unit i a sum of gradients, which no kernel reads? */
static bool completes(const Scheduler *s, int i) {
    const Op *op = &s->p->op[i];
    bool sum = op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE;
    int first = s->reader[i];
    return sum && (first < 0 || s->p->op[first].kind == OP_ACCUMULATE);
}

/* A sum of gradients stands behind the kernel whose result it takes. Differentiation completes the
 * gradients of a layer behind all of its kernels, further than the window reaches. */
static void move_sums(Scheduler *s) {
    int n = s->p->n_ops;
    for (int before = n, i; (i = s->next[before]) < n;) {
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

void program_order(Program *p, const OpCost *costs, int window) {
    const Program old = *p;
    Op *op = program_take(p);
    size_t n = (size_t)old.n_ops, tensors = (size_t)p->n_tensors;
    Scheduler s = {.p = &old, .cost = costs, .out = p, .window = window, .gather = -1};
    s.ready = mem_alloc(2 * n * sizeof *s.ready), s.last = s.ready + n;
    s.waited = mem_alloc(2 * n * sizeof *s.waited), s.sends = s.waited + n;
    s.next = mem_alloc((4 * n + 2 + 3 * tensors) * sizeof *s.next);
    s.first_dep = s.next + n + 1, s.known = s.first_dep + n + 1, s.reader = s.known + n;
    s.maker = s.reader + n, s.rows = s.maker + tensors, s.more = s.rows + tensors;
    find_makers(&s);
    find_deps(&s);
    move_sums(&s);
    schedule_all(&s);
    p->ordered = true;
    mem_free(s.ready), mem_free(s.waited), mem_free(s.next);
    mem_free(s.dep), mem_free(op);
}

int schedule_window(const Overlap *overlap) {
    bool beside = overlap->bulk || overlap->chunks || overlap->ring;
    return overlap->halves ? WINDOW_HALVES : beside ? WINDOW_BULK : WINDOW_NONE;
}

/* ---- what operations are taken to cost where the order is found ---- */

/* Is an operation priced without its bytes? Those of copied heads, which have no padding, differ
 * between ranks and would give them different orders; a bucket is only a name. */
static bool counts_no_bytes(const Op *op) {
    return op->kv || op->kind == OP_PACK_COPIES || op->kind == OP_UNPACK_COPIES ||
           op->kind == OP_BUCKET;
}

/* Links that are slow on purpose, much slower than kernels: so a collective is waited for as late
 * as the window allows. Where links are fast, this costs nothing; what is ordered for fast links
 * waits on slow ones. */
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
