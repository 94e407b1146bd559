/* parallel/step/schedule: every order that it finds is one that ranks can run, and what overlaps
 * in it is what the field has names for. */
#include "parallel/step/schedule.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/plan/cost.h"
#include "parallel/step/passes.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

typedef struct Step {
    Grid grid;
    ModelShape shape;
    Program p;
    OpCost *cost;
} Step;

static void step_build(Step *s, const char *spec, const char *model, Recompute r, int rank,
                       bool fused) {
    *s = (Step){.grid = mesh_grid(spec, rank)};
    s->shape = mesh_shape(model, &s->grid);
    s->shape.S = s->shape.config.seq, s->shape.recompute = r;
    s->p = program_passes(&s->shape, PASS_FUSE, NULL);
    if (fused) program_fuse_collectives(&s->p, false);
}

static void step_costs(Step *s, const char *machine) {
    Machine m = machine_of(machine);
    s->cost = program_costs(&s->p, &m, false);
}

static void step_free(Step *s) {
    program_free(&s->p);
    mem_free(s->cost);
}

/* The times of an order: program_play of the list in that order, whose costs stand where it has
 * their operations. time: [operations of s->p]. */
static Spent play(const Step *s, const Schedule *o, OpTime *time) {
    OWNED(program_free) Program p = program_copy(&s->p, s->p.shape);
    program_order(&p, o);
    int n = 0, *from = mem_alloc((size_t)p.n_ops * sizeof *from);
    OpCost *cost = mem_alloc((size_t)p.n_ops * sizeof *cost);
    OpTime *at = mem_alloc((size_t)p.n_ops * sizeof *at);
    for (int k = 0; k < o->n_slots; k++) {
        int i = o->slot[k].op;
        bool wait = o->slot[k].kind == SLOT_WAIT;
        int end = o->slot[k].kind == SLOT_RUN ? op_kernel_end(s->p.op, s->p.n_ops, i) : i + 1;
        for (; i < end; i++) cost[n] = wait ? (OpCost){.level = -1} : s->cost[i], from[n++] = i;
    }
    Spent spent = program_play(&p, cost, at);
    for (int i = 0; i < p.n_ops; i++)
        if (p.op[i].kind != OP_WAIT) time[from[i]] = at[i];
    mem_free(from), mem_free(cost), mem_free(at);
    return spent;
}

/* Why a rank could not run this list; NULL: it can. */
static const char *wrong(const Step *s, const Schedule *o) {
    const Program *p = &s->p;
    const char *why = NULL;
    enum { ABSENT, STARTED, THERE };
    OWNED(test_mem_end) char *state = mem_calloc((size_t)p->n_tensors, 1);
    int done = 0, open = 0, gather = -1, before = -1; // in the last kernel, in the one before
    memset(state, THERE, (size_t)p->n_tensors);
    for (int i = 0; i < p->n_ops; i++) {
        state[p->op[i].out] = ABSENT;
        if (p->op[i].also >= 0) state[p->op[i].also] = ABSENT;
    }
    for (int k = 0; k < o->n_slots && !why; k++) {
        int i = o->slot[k].op, sends = s->cost[i].level >= 0;
        bool alone = sends && !op_in_kernel(p, i);
        char *out = &state[p->op[i].out];
        if (o->slot[k].kind == SLOT_WAIT) {
            if (!sends || *out != STARTED) why = "waits for what is not under way";
            *out = THERE, open--;
            continue;
        }
        if (alone != (o->slot[k].kind == SLOT_START))
            why = "a kernel that starts, a collective that runs";
        if (!alone) {
            if (before >= 0 && state[before] != THERE) why = "what a gather sends stays in memory";
            before = gather, gather = sends ? p->op[i].out : -1;
        }
        int end = i + 1;
        while (end < p->n_ops && p->op[end].fused) end++;
        for (int lead = i; i < end; i++, done++) {
            for (int j = 0; j < p->op[i].n_in; j++) {
                int t = p->op[i].in[j];
                bool gathers = i > lead && t == p->op[lead].out && s->cost[lead].level >= 0;
                if (state[t] != THERE && !gathers) why = "an operand is not there";
            }
            if (state[p->op[i].out] != ABSENT) why = "twice";
            state[p->op[i].out] = s->cost[i].level >= 0 ? STARTED : THERE;
            open += s->cost[i].level >= 0;
            if (p->op[i].also >= 0) state[p->op[i].also] = THERE;
        }
        if (open >= COLL_IN_FLIGHT) why = "more under way than there are tickets";
    }
    if (!why && done != p->n_ops) why = "some operations are left out";
    if (!why && open) why = "something is still under way";
    return why;
}

static const char *const models[] = {"layers=3,heads=4,channels=64,vocab=96,seq=64",
                                     "llama,layers=2,heads=6,channels=48,ffn=80,vocab=70,seq=64"};
static const char *const machines[] = {"cpu:8", "h100:1", "v100:4"};

/* Costs drawn at random: an order must hold whatever they are. */
static void draw_costs(Step *s, uint64_t *drawn) {
    for (int i = 0; i < s->p.n_ops; i++) {
        double u = (double)(rng_u64(5, 3, ++*drawn) >> 11) * 0x1p-53;
        OpCost *c = &s->cost[i];
        c->seconds = op_begins_kernel(&s->p, i) || c->level >= 0 ? u * u * u : 0;
        if (c->level >= 0)
            c->wire = c->load = c->seconds, c->slowdown = 1 + u, c->level = (int)(*drawn % 3);
    }
}

typedef struct Count {
    bool fused; // matmuls with collectives
    int n, faster;
    uint64_t drawn;
} Count;

static void check_orders(const char *spec, void *ctx) {
    Count *count = ctx;
    int k = count->n++;
    Step s;
    step_build(&s, spec, models[k % 2], (Recompute)(k / 2 % 3), 0, count->fused);
    step_costs(&s, machines[k % 3]);
    if (k % 4 == 3) draw_costs(&s, &count->drawn);
    double none = 0, sent = 0;
    OWNED(test_mem_end) OpTime *time = mem_alloc((size_t)s.p.n_ops * sizeof *time);
    for (int i = 0; i < s.p.n_ops; i++) sent += s.cost[i].level < 0 ? 0 : s.cost[i].seconds;
    for (int window = WINDOW_NONE; window <= WINDOW_HALVES; window *= 4) {
        OWNED(schedule_free) Schedule o = schedule_make(&s.p, s.cost, window);
        Spent spent = play(&s, &o, time);
        double seconds = spent.compute + spent.exposed;
        const char *why = wrong(&s, &o);
        if (why) test_fail(__FILE__, __LINE__, "%s, window %d: %s", spec, window, why);
        double last = 0;
        for (int i = 0; i < s.p.n_ops; i++) last = fmax(last, time[i].end);
        if (fabs(last - seconds) > 1e-9 * seconds || fabs(spent.sent - sent) > 1e-9 * sent)
            test_fail(__FILE__, __LINE__, "%s, window %d: parts of time are not the whole", spec,
                      window);
        if (window == WINDOW_NONE) none = seconds;
        if (k % 4 != 3 && seconds > none * (1 + 1e-9))
            test_fail(__FILE__, __LINE__, "%s on %s, window %d: slower by %.2f %%", spec,
                      machines[k % 3], window, 100 * (seconds / none - 1));
        count->faster += seconds < 0.99 * none;
    }
    step_free(&s);
}

TEST(step_schedule_is_an_order_that_ranks_can_run) {
    Count count = {0};
    for (int ranks = 1; ranks <= 8; ranks++) mesh_every_layout(ranks, check_orders, &count);
    CHECK(count.n > 200);
    CHECK(count.faster > 200);
    count = (Count){.fused = true};
    for (int ranks = 2; ranks <= 8; ranks++) mesh_every_layout(ranks, check_orders, &count);
    CHECK(count.n > 200);
}

/* Collectives of the middle layer, of this name, that are on the links while the compute stream
 * runs an operation `under` (N_OP_KINDS: any kernel). */
static int beside(const char *spec, int window, const char *what, OpKind under) {
    Step s;
    int n = 0;
    step_build(&s, spec, "layers=3,heads=8,channels=512,vocab=1024,seq=1024", RECOMPUTE_NONE, 0,
               false);
    step_costs(&s, "v100:2");
    OWNED(schedule_free) Schedule o = schedule_make(&s.p, s.cost, window);
    OWNED(test_mem_end) OpTime *time = mem_alloc((size_t)s.p.n_ops * sizeof *time);
    play(&s, &o, time);
    for (int i = 0; i < s.p.n_ops; i++) {
        const OpTime *t = &time[i];
        if (s.p.op[i].layer != 1 ||
            strncmp(s.p.tensor[s.p.op[i].out].what, what, strlen(what)) != 0)
            continue;
        if (s.cost[i].level < 0) continue;
        for (int k = 0; k < s.p.n_ops; k++)
            if ((under == N_OP_KINDS ? s.cost[k].level < 0 : s.p.op[k].kind == under) &&
                time[k].start < t->end && time[k].end > t->start) {
                n++;
                break;
            }
    }
    step_free(&s);
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
    int t = p->op[i].out;
    for (int k = i + 1; k < p->n_ops; k++)
        for (int j = 0; j < p->op[k].n_in; j++)
            if (p->op[k].in[j] == t) return k;
    return p->n_ops;
}

/* Collectives that start although the compute stream then waits for one that a kernel before all
 * their readers needs. */
static int in_the_way(const Program *p, const Schedule *o, const OpTime *time) {
    int n = 0, *begun = mem_alloc((size_t)p->n_ops * sizeof *begun), n_begun = 0;
    double now = 0;
    for (int k = 0; k < o->n_slots; k++) {
        int i = o->slot[k].op;
        if (o->slot[k].kind == SLOT_START) begun[n_begun++] = i;
        if (o->slot[k].kind == SLOT_RUN) n_begun = 0, now = time[i].end;
        if (o->slot[k].kind != SLOT_WAIT || time[i].end <= now) continue;
        now = time[i].end;
        int next = k; // the kernel behind the wait
        while (next < o->n_slots && o->slot[next].kind != SLOT_RUN) next++;
        int kernel = next < o->n_slots ? o->slot[next].op : p->n_ops;
        while (kernel + 1 < p->n_ops && p->op[kernel + 1].fused) kernel++;
        for (int b = 0; b < n_begun; b++) {
            int reader = first_reader(p, begun[b]);
            n += begun[b] != i && reader < p->n_ops && reader > kernel;
        }
    }
    mem_free(begun);
    return n;
}

/* The gather of x for a wgrad does not share the link with that of dy, for which dgrad waits. */
TEST(step_schedule_starts_nothing_that_delays_what_is_waited_for) {
    static const char *const specs[] = {"x2",          "x4+sp", "z4",          "d2.x2+sp+zero1",
                                        "x2.y2+heads", "z2.x2", "x2.y2+stay=y"};
    for (int i = 0; i < 7; i++)
        for (int mode = 0; mode < 3; mode++) {
            Step s;
            step_build(&s, specs[i], models[0], (Recompute)mode, 0, false);
            step_costs(&s, "cpu:8");
            OWNED(schedule_free) Schedule o = schedule_make(&s.p, s.cost, WINDOW_BULK);
            OWNED(test_mem_end) OpTime *time = mem_alloc((size_t)s.p.n_ops * sizeof *time);
            CHECK(play(&s, &o, time).exposed > 0);
            CHECK(in_the_way(&s.p, &o, time) == 0);
            step_free(&s);
        }
}

/* Kernels between the one that makes what a gradient's sum reads and the start of the sum: the most
 * of all such sums. */
static int latest_sum(const Program *p, const Schedule *o) {
    int *made = mem_calloc((size_t)p->n_tensors, sizeof *made), kernels = 0, most = 0;
    for (int k = 0; k < o->n_slots; k++) {
        int i = o->slot[k].op;
        const Op *op = &p->op[i];
        if (o->slot[k].kind == SLOT_RUN) made[op->out] = ++kernels;
        if (o->slot[k].kind != SLOT_START || op->kind != OP_REDUCE_SCATTER) continue;
        int late = made[op->in[0]] ? kernels - made[op->in[0]] : 0;
        if (late > most) most = late;
    }
    mem_free(made);
    return most;
}

/* Differentiation completes the gradients of a layer behind all of its kernels: further than the
 * window reaches. */
TEST(step_schedule_starts_sums_of_gradients_behind_their_kernels) {
    static const char *const specs[] = {"z4", "z2.x2+sp", "d2.x2+sp+zero2"};
    for (int i = 0; i < 3; i++) {
        Step s;
        step_build(&s, specs[i], models[0], RECOMPUTE_NONE, 0, false);
        s.shape.overlap.bulk = true;
        OWNED(schedule_free) Schedule o = schedule_nominal(&s.p);
        CHECK(latest_sum(&s.p, &o) <= 2);
        program_free(&s.p);
    }
}

/* A collective whose result is read late, with many of the same ranks behind it. */
TEST(step_schedule_has_tickets_for_all_that_is_under_way) {
    static const char *const specs[] = {"x16+stay=y", "z4.x16+stay=y", "x8.y4+stay=y", "z8.x4"};
    for (int i = 0; i < 4; i++)
        for (int mode = 0; mode < 3; mode++) {
            Step s;
            step_build(&s, specs[i], "layers=3,heads=16,channels=64,seq=16,vocab=96",
                       (Recompute)mode, 0, false);
            s.shape.overlap.bulk = true;
            OWNED(schedule_free) Schedule o = schedule_nominal(&s.p);
            int *number = mem_calloc((size_t)s.p.n_ops, sizeof *number), n = 0, late = 0;
            for (int k = 0; k < o.n_slots; k++) {
                int op = o.slot[k].op;
                if (o.slot[k].kind == SLOT_START) number[op] = n++;
                if (o.slot[k].kind == SLOT_WAIT) late += n - number[op] > COLL_IN_FLIGHT;
            }
            CHECK(n > 0 && late == 0);
            mem_free(number);
            program_free(&s.p);
        }
}
