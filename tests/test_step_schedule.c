/* parallel/step/schedule: every order that it finds is one that ranks can run, and what overlaps
 * in it is what the field has names for. */
#include "parallel/step/schedule.h"

#include "base/rng.h"
#include "parallel/plan/cost.h"
#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

typedef struct Step {
    Grid grid;
    ModelShape shape;
    bool fused;
    Program p;
    OpCost *cost;
} Step;

static Program list_of(const Step *s) {
    Program p = program_passes(&s->shape, PASS_FUSE, NULL);
    if (s->fused) program_fuse_collectives(&p, false);
    return p;
}

static void step_build(Step *s, const char *spec, const char *model, Recompute r, int rank,
                       bool fused) {
    *s = (Step){.grid = mesh_grid(spec, rank), .fused = fused};
    s->shape = mesh_shape(model, &s->grid);
    s->shape.S = s->shape.config.seq, s->shape.recompute = r;
    s->p = list_of(s);
}

static void step_costs(Step *s, const char *machine) {
    Machine m = machine_of(machine);
    s->cost = program_costs(&s->p, &m, false);
}

static void step_free(Step *s) {
    program_free(&s->p);
    mem_free(s->cost);
}

/* Which operation of a list makes each tensor; freed by mem_free. */
static int *makers(const Program *p) {
    int *maker = mem_alloc((size_t)p->n_tensors * sizeof *maker);
    for (int i = 0; i < p->n_ops; i++)
        if (p->op[i].kind != OP_WAIT) maker[p->op[i].out] = i;
    return maker;
}

/* The list in its order, with the costs of its operations and the times of program_play. */
typedef struct Ordered {
    Program p;
    OpCost *cost;
    OpTime *time;
    Spent spent;
} Ordered;

enum { NOMINAL = 0 }; // as a window: the order in which every rank runs the list

static Ordered ordered(const Step *s, int window) {
    Ordered o = {.p = list_of(s)};
    if (window == NOMINAL)
        program_order_nominal(&o.p);
    else if (window > WINDOW_NONE)
        program_order(&o.p, s->cost, window);
    OWNED(test_mem_end) int *maker = makers(&s->p);
    o.cost = mem_alloc((size_t)o.p.n_ops * sizeof *o.cost);
    o.time = mem_calloc((size_t)o.p.n_ops, sizeof *o.time);
    for (int i = 0; i < o.p.n_ops; i++)
        o.cost[i] =
            o.p.op[i].kind == OP_WAIT ? (OpCost){.level = -1} : s->cost[maker[o.p.op[i].out]];
    o.spent = program_play(&o.p, o.cost, true, o.time);
    return o;
}

static void ordered_free(Ordered *o) {
    program_free(&o->p);
    mem_free(o->cost), mem_free(o->time);
}

static bool sends(const Ordered *o, int i) {
    return o->cost[i].level >= 0;
}

/* Why a rank could not run this list of n operations; NULL: it can. */
static const char *wrong(const Ordered *o, int n) {
    const Program *p = &o->p;
    const char *why = NULL;
    enum { ABSENT, STARTED, THERE };
    OWNED(test_mem_end) char *state = mem_calloc((size_t)p->n_tensors, 1);
    int done = 0, open = 0, gather = -1, before = -1; // in the last kernel, in the one before
    memset(state, THERE, (size_t)p->n_tensors);
    for (int i = 0; i < p->n_ops; i++) {
        if (p->op[i].kind == OP_WAIT) continue;
        state[p->op[i].out] = ABSENT;
        if (p->op[i].out2 >= 0) state[p->op[i].out2] = ABSENT;
    }
    for (int i = 0, end; i < p->n_ops && !why; i = end) {
        end = op_kernel_end(p->op, p->n_ops, i);
        if (p->op[i].kind == OP_WAIT) {
            if (state[p->op[i].out] != STARTED) why = "waits for what is not under way";
            state[p->op[i].out] = THERE, open--;
            continue;
        }
        if (!sends(o, i) || op_in_kernel(p, i)) {
            if (before >= 0 && state[before] != THERE) why = "what a gather sends stays in memory";
            before = gather, gather = sends(o, i) ? p->op[i].out : -1;
        }
        for (int k = i; k < end; k++, done++) {
            const Op *op = &p->op[k];
            for (int j = 0; j < op->n_in; j++) {
                bool gathers = k > i && op->in[j] == p->op[i].out && sends(o, i);
                if (state[op->in[j]] != THERE && !gathers) why = "an operand is not there";
            }
            if (state[op->out] != ABSENT) why = "twice";
            state[op->out] = sends(o, k) ? STARTED : THERE;
            open += sends(o, k);
            if (op->out2 >= 0) state[op->out2] = THERE;
        }
        if (open >= COLL_IN_FLIGHT) why = "more under way than there are tickets";
    }
    if (!why && done != n) why = "some operations are left out";
    if (!why && open) why = "something is still under way";
    return why;
}

static const char *const models[] = {"layers=3,heads=4,channels=64,vocab=96,seq=64",
                                     "llama,layers=2,heads=6,channels=48,ffn=80,vocab=70,seq=64"};
static const char *const machines[] = {"cpu:8", "h100:1", "v100:4"};

/* Costs drawn at random: an order must hold whatever they are. */
static void draw_costs(Step *s, uint64_t drawn) {
    for (int i = 0; i < s->p.n_ops; i++) {
        double u = (double)(rng_u64(5, 3, ++drawn) >> 11) * 0x1p-53;
        OpCost *c = &s->cost[i];
        c->seconds = op_begins_kernel(&s->p, i) || c->level >= 0 ? u * u * u : 0;
        if (c->level >= 0)
            c->wire = c->load = c->seconds, c->slowdown = 1 + u, c->level = (int)(drawn % 3);
    }
}

/* fused: matmuls with collectives. Returns how many orders are faster than none. */
static int check_orders(const char *spec, int k, bool fused) {
    OWNED(step_free) Step s;
    int faster = 0;
    step_build(&s, spec, models[k % 2], (Recompute)(k / 2 % 3), 0, fused);
    step_costs(&s, machines[k % 3]);
    if (k % 4 == 3) draw_costs(&s, (uint64_t)k << 32);
    double none = 0, sent = 0;
    for (int i = 0; i < s.p.n_ops; i++) sent += s.cost[i].level < 0 ? 0 : s.cost[i].seconds;
    for (int window = WINDOW_NONE; window <= WINDOW_HALVES; window *= 4) {
        OWNED(ordered_free) Ordered o = ordered(&s, window);
        double seconds = o.spent.compute + o.spent.exposed, last = 0;
        const char *why = o.p.ordered ? wrong(&o, s.p.n_ops) : NULL;
        if (why) test_fail("%s, window %d: %s", spec, window, why);
        for (int i = 0; i < o.p.n_ops; i++) last = fmax(last, o.time[i].end);
        if (fabs(last - seconds) > 1e-9 * seconds || fabs(o.spent.sent - sent) > 1e-9 * sent)
            test_fail("%s, window %d: parts of time are not the whole", spec, window);
        if (window == WINDOW_NONE) none = seconds;
        if (k % 4 != 3 && seconds > none * (1 + 1e-9))
            test_fail("%s on %s, window %d: slower by %.2f %%", spec, machines[k % 3], window,
                      100 * (seconds / none - 1));
        faster += seconds < 0.99 * none;
    }
    return faster;
}

TEST(step_schedule_is_an_order_that_ranks_can_run) {
    int faster = 0;
    for (EACH_LAYOUT(l, 1, 8)) faster += check_orders(l.spec, l.number, false);
    CHECK(faster > 200);
    for (EACH_LAYOUT(l, 2, 8)) check_orders(l.spec, l.number, true);
}

/* Collectives of the middle layer, of this name, that are on the links while the compute stream
 * runs an operation `under` (N_OP_KINDS: any kernel). */
static int beside(const char *spec, int window, const char *what, OpKind under) {
    OWNED(step_free) Step s;
    int n = 0;
    step_build(&s, spec, "layers=3,heads=8,channels=512,vocab=1024,seq=1024", RECOMPUTE_NONE, 0,
               false);
    step_costs(&s, "v100:2");
    OWNED(ordered_free) Ordered o = ordered(&s, window);
    const Op *op = o.p.op;
    for (int i = 0; i < o.p.n_ops; i++) {
        const char *name = o.p.tensor[op[i].out].what;
        if (op[i].layer != 1 || strncmp(name, what, strlen(what)) != 0 || !sends(&o, i)) continue;
        for (int k = 0; k < o.p.n_ops; k++)
            if (op[k].kind != OP_WAIT &&
                (under == N_OP_KINDS ? !sends(&o, k) : op[k].kind == under) &&
                o.time[k].start < o.time[i].end && o.time[k].end > o.time[i].start) {
                n++;
                break;
            }
    }
    return n;
}

TEST(step_schedule_overlaps_what_bulk_is_known_for) {
    // weights are gathered one matmul ahead: four forward, four backward
    CHECK(beside("z4", WINDOW_NONE, "w of", N_OP_KINDS) == 0);
    CHECK(beside("z4", WINDOW_BULK, "w of", N_OP_KINDS) == 8);
    // dx is reduced under dw: two column-parallel layers
    CHECK(beside("x4", WINDOW_NONE, "dx of", OP_MATMUL_AT) == 0);
    CHECK(beside("x4", WINDOW_BULK, "dx of", OP_MATMUL_AT) == 2);
    CHECK(beside("x4+sp", WINDOW_BULK, "dx of", OP_MATMUL_AT) == 2);
    // x is gathered again under dgrad
    CHECK(beside("x4+sp", WINDOW_NONE, "x of", OP_MATMUL_BT) == 0);
    CHECK(beside("x4+sp", WINDOW_BULK, "x of", OP_MATMUL_BT) == 2);
    // weight gradients are scattered under the backward of the layer before
    CHECK(beside("z4", WINDOW_NONE, "dw of", N_OP_KINDS) == 0);
    CHECK(beside("z4", WINDOW_BULK, "dw of", N_OP_KINDS) == 4);
}

/* The first operation that reads what i makes; n_ops: none. */
static int first_reader(const Program *p, int i) {
    for (int k = i + 1; k < p->n_ops; k++)
        for (int j = 0; j < p->op[k].n_in; j++)
            if (p->op[k].in[j] == p->op[i].out) return k;
    return p->n_ops;
}

/* Collectives that start although the compute stream then waits for one that a kernel before all
 * their readers needs. */
static int in_the_way(const Program *before, const Ordered *o) {
    const Op *op = o->p.op;
    int n = 0, n_begun = 0, end = o->p.n_ops;
    OWNED(test_mem_end) int *place = makers(before), *maker = makers(&o->p);
    OWNED(test_mem_end) int *begun = mem_alloc((size_t)end * sizeof *begun); // places
    double now = 0;
    for (int i = 0; i < end; i++) {
        int awaited = maker[op[i].out], next = i;
        if (op[i].kind != OP_WAIT) {
            if (sends(o, i)) begun[n_begun++] = place[op[i].out];
            if (!sends(o, i) && !op[i].fused) n_begun = 0, now = o->time[i].end;
            continue;
        }
        if (o->time[awaited].end <= now) continue;
        now = o->time[awaited].end;
        while (next < end && (op[next].kind == OP_WAIT || sends(o, next))) next++;
        int kernel = next < end ? place[op[next].out] : before->n_ops; // the one behind the wait
        if (next < end) kernel = op_kernel_end(before->op, before->n_ops, kernel) - 1;
        for (int b = 0; b < n_begun; b++) {
            int reader = first_reader(before, begun[b]);
            n += begun[b] != place[op[i].out] && reader < before->n_ops && reader > kernel;
        }
    }
    return n;
}

/* The gather of x for a wgrad does not share the link with that of dy, for which dgrad waits. */
TEST(step_schedule_starts_nothing_that_delays_what_is_waited_for) {
    static const char *const specs[] = {"x2",          "x4+sp", "z4",          "d2.x2+sp+zero1",
                                        "x2.y2+heads", "z2.x2", "x2.y2+stay=y"};
    for (EACH(spec, specs))
        for (int mode = 0; mode < 3; mode++) {
            OWNED(step_free) Step s;
            step_build(&s, *spec, models[0], (Recompute)mode, 0, false);
            step_costs(&s, "cpu:8");
            OWNED(ordered_free) Ordered o = ordered(&s, WINDOW_BULK);
            CHECK(o.spent.exposed > 0);
            CHECK(in_the_way(&s.p, &o) == 0);
        }
}

/* Kernels between the one that makes what a gradient's sum reads and the start of the sum: the most
 * of all such sums. */
static int latest_sum(const Ordered *o) {
    OWNED(test_mem_end) int *made = mem_calloc((size_t)o->p.n_tensors, sizeof *made);
    int kernels = 0, most = 0;
    for (int i = 0; i < o->p.n_ops; i++) {
        const Op *op = &o->p.op[i];
        if (op->kind != OP_WAIT && !op->fused && !sends(o, i)) made[op->out] = ++kernels;
        if (op->kind != OP_REDUCE_SCATTER) continue;
        int late = made[op->in[0]] ? kernels - made[op->in[0]] : 0;
        if (late > most) most = late;
    }
    return most;
}

/* Differentiation completes the gradients of a layer behind all of its kernels: further than the
 * window reaches. */
TEST(step_schedule_starts_sums_of_gradients_behind_their_kernels) {
    static const char *const specs[] = {"z4", "z2.x2+sp", "d2.x2+sp+zero2"};
    for (EACH(spec, specs)) {
        OWNED(step_free) Step s;
        step_build(&s, *spec, models[0], RECOMPUTE_NONE, 0, false);
        s.shape.overlap.bulk = true;
        step_costs(&s, "cpu:8");
        OWNED(ordered_free) Ordered o = ordered(&s, NOMINAL);
        CHECK(latest_sum(&o) <= 2);
    }
}

/* A collective whose result is read late, with many of the same ranks behind it. */
TEST(step_schedule_has_tickets_for_all_that_is_under_way) {
    static const char *const specs[] = {"x16+stay=y", "z4.x16+stay=y", "x8.y4+stay=y", "z8.x4"};
    for (EACH(spec, specs))
        for (int mode = 0; mode < 3; mode++) {
            OWNED(step_free) Step s;
            step_build(&s, *spec, "layers=3,heads=16,channels=64,seq=16,vocab=96", (Recompute)mode,
                       0, false);
            s.shape.overlap.bulk = true;
            step_costs(&s, "cpu:8");
            OWNED(ordered_free) Ordered o = ordered(&s, NOMINAL);
            OWNED(test_mem_end) int *number = mem_calloc((size_t)o.p.n_tensors, sizeof *number);
            int n = 0, late = 0;
            for (int k = 0; k < o.p.n_ops; k++) {
                if (sends(&o, k)) number[o.p.op[k].out] = n++;
                if (o.p.op[k].kind == OP_WAIT) late += n - number[o.p.op[k].out] > COLL_IN_FLIGHT;
            }
            CHECK(n > 0 && late == 0);
        }
}
