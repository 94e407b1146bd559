#include <jansson.h>

#include "parallel/comm/coll.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"
#include "parallel/plan/trace.h"
#include "tests/mesh_run.h"
#include "tests/test.h"

/* ---- what a world reports to its watcher */

typedef struct Watched {
    int calls;
    int64_t bytes;
    double exposed, last_end;
    bool in_order, named;
} Watched;

static void add_span(void *ctx, const CollSpan *s) {
    Watched *w = ctx;
    w->calls++;
    w->bytes += s->bytes;
    w->exposed += s->started - s->begin + s->end - s->wait;
    w->in_order &= s->begin <= s->started && s->started <= s->wait && s->wait <= s->end &&
                   s->begin <= s->complete && s->complete <= s->end && w->last_end <= s->end;
    w->named &= strcmp(s->call->what, "watched") == 0 && comm_size(s->comm) == 3;
    w->last_end = s->end;
}

/* Two are open at once; of the second half, with blocking, none. */
static int watch_calls(World *w, void *ctx) {
    enum { N = 1000, CALLS = 6 };
    Watched *seen = &((Watched *)ctx)[world_rank(w)];
    float x[2][N] = {{0}}, y[2][N];
    CollCount rows[4];
    world_set_watch(w, add_span, seen, NULL);
    world_count_reset(w);
    for (int i = 0; i < CALLS; i++) {
        Ticket t[2];
        world_set_wait_at_start(w, i >= CALLS / 2);
        for (int k = 0; k < 2; k++) {
            CollCall call = {.op = COLL_ALL_REDUCE,
                             .rows = 1,
                             .cols = N,
                             .src = x[k],
                             .dst = y[k],
                             .what = "watched"};
            t[k] = coll_start(world_comm(w), &call);
        }
        coll_wait(t[1]), coll_wait(t[0]);
    }
    world_set_watch(w, NULL, NULL, NULL);
    int n = world_counts(w, rows, 4);
    coll_sum(world_comm(w), COLL_F32, x[0], N, "not watched");
    bool same = n == 1 && rows[0].calls == seen->calls && rows[0].bytes == seen->bytes &&
                fabs(rows[0].seconds - seen->exposed) < 1e-9; // another order of additions
    return same && seen->calls == 2 * CALLS && seen->in_order && seen->named ? 0 : 1;
}

TEST(trace_hears_of_every_collective_what_the_counters_add_up) {
    Watched seen[3] = {{.in_order = true, .named = true},
                       {.in_order = true, .named = true},
                       {.in_order = true, .named = true}};
    CHECK(ranks_run(3, watch_calls, seen) == 0);
}

/* ---- one clock */

/* Barriers of two ranks; the other's clock shows 1000 s more and all of its times are `late`
 * seconds later. */
static double offset_of(double ahead, double late, double *error) {
    double mine[8][2], other[8][2];
    for (int i = 0; i < 8; i++) {
        double enter = i + 0.001 * i, leave = enter + 1e-4 * (8 - i); // the last ones are short
        mine[i][0] = enter, mine[i][1] = leave + late;
        other[i][0] = enter + late + ahead, other[i][1] = leave + ahead;
    }
    return trace_offset(mine, other, 8, error);
}

TEST(trace_brings_clocks_of_other_hosts_to_that_of_rank_0) {
    double error;
    CHECK_NEAR(offset_of(1000, 1e-5, &error), -1000, error);
    CHECK(error > 0 && error < 3e-4);
    CHECK_NEAR(offset_of(-3e5, 5e-5, &error), 3e5, error);
    CHECK(offset_of(0, 1e-5, &error) == 0); // one host: one clock, not a guess of it
}

/* ---- two steps of a mesh */

enum { RANKS = 4 };

typedef struct Traced {
    Trace t[RANKS];
    double exposed[RANKS][TRACE_STEPS]; // by the counters
    TraceTable table[RANKS];
    int kernels[RANKS]; // of the lists
    int sends[RANKS];   // of a step that was priced
} Traced;

static double counted(const World *w) {
    CollCount rows[64];
    double s = 0;
    int n = world_counts(w, rows, 64);
    for (int i = 0; i < n; i++) s += rows[i].seconds;
    return s;
}

/* After steps 1 and 2: the steps that follow are traced. */
static void trace_after_step(Model *m, int step, void *ctx) {
    Traced *all = ctx;
    World *w = m->grid->world;
    int rank = world_rank(w), which = step - 1;
    Trace *t = &all->t[rank];
    if (which > 0 && which <= TRACE_STEPS) {
        all->exposed[rank][which - 1] = counted(w) - all->exposed[rank][which - 1];
        trace_end(t, m, w);
    }
    all->kernels[rank] = mesh_kernels(m);
    if (which >= 0 && which < TRACE_STEPS) {
        trace_begin(t, which, step + 2, m, w);
        all->exposed[rank][which] = counted(w);
    }
    if (which != TRACE_STEPS) return;
    Group g = comm_group(world_comm(w));
    trace_table(&all->table[rank], t, &g);
}

static void run_traced(Traced *all, const char *layout, const char *overlap, int64_t room) {
    OWNED(mesh_run_free)
    MeshRun plain = {.model = "layers=3,heads=4,channels=16,vocab=24,seq=8",
                     .layout = layout,
                     .overlap = overlap,
                     .sequences = 8,
                     .S = 8,
                     .steps = 4},
            r = plain;
    *all = (Traced){0};
    for (int i = 0; i < RANKS; i++) trace_create(&all->t[i], room, 0);
    r.after = trace_after_step, r.ctx = all;
    mesh_run(&plain), mesh_run(&r);
    for (int rank = 0; rank < RANKS; rank++) all->sends[rank] = mesh_collectives(&r, rank);
    if (memcmp(plain.loss, r.loss, sizeof r.loss) || memcmp(plain.norm, r.norm, sizeof r.norm))
        test_fail("%s: traced steps make other bits", layout);
}

static void free_traced(Traced *all) {
    for (int i = 0; i < RANKS; i++) trace_free(&all->t[i]);
}

static const struct {
    const char *layout, *overlap;
} cases[] = {{"d4", NULL},
             {"z4", "bulk"},
             {"d2.x2", "halves"},
             {"x2.y2+sp", "bulk+chunk=2"},
             {"x4", "chunk=3"},
             {"d2.y2", "bulk"},
             {"z2.x2+sp", "ring"},
             {"d4+zero1", "bulk"},
             {"x2.y2+stay=y", "bulk"},
             {"d2.z2+zero2", "bulk+halves"},
             {"x2.y2", NULL}};

/* The first thing that is wrong with what a rank wrote down; NULL: nothing. */
static const char *wrong_spans(const Traced *all, int rank) {
    const Trace *t = &all->t[rank];
    int kernels[TRACE_STEPS] = {0}, collectives[TRACE_STEPS] = {0};
    double exposed[TRACE_STEPS] = {0}, busy = 0, open = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const TraceSpan *s = &t->span[i];
        if (s->begin < t->step[s->step].begin || s->end > t->step[s->step].end)
            return "outside of its step";
        if (s->end < s->begin) return "ends before it begins";
        exposed[s->step] += trace_exposed(s);
        (s->label ? collectives : kernels)[s->step]++;
        if (s->label && (s->begin > s->started || s->started > s->wait || s->wait > s->waited))
            return "is waited for before it starts or after it ends";
        if (s->label && s->end > s->waited) return "is complete after it was waited for";
        if (s->begin < open) return "begins before the serial step has waited";
        if (s->label && s->step == TRACE_SERIAL) open = s->waited;
        if (!s->label && s->begin < busy) return "two kernels at once";
        if (!s->label) busy = s->end;
    }
    for (int i = 0; i < TRACE_STEPS; i++) {
        // the same readings of the clock, added in another order
        if (fabs(exposed[i] - all->exposed[rank][i]) > 1e-9)
            return "is exposed for other times than the counters say";
        if (kernels[i] != all->kernels[rank]) return "other kernels than the lists have";
        if (collectives[i] != all->sends[rank]) return "other collectives than were predicted";
    }
    return t->lost ? "there was no room" : NULL;
}

/* Kernels that begin while a collective is under way that is waited for later. */
static int hidden_under(const Trace *t, int step) {
    int n = 0;
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t k = i + 1; k < t->n && t->span[i].label; k++) {
            const TraceSpan *c = &t->span[i], *s = &t->span[k];
            n += c->step == step && !s->label && s->begin >= c->started && s->begin < c->wait;
        }
    return n;
}

static void check_table(const Traced *all, const char *layout) {
    TraceLayer sum = {0};
    const TraceLayer *row = all->table[0].row;
    int n = all->table[0].n;
    for (int k = 0; k < n - 1; k++) {
        if (strcmp(row[k].name, "others") == 0) test_fail("%s: a collective of no layer", layout);
        sum.calls += row[k].calls, sum.bytes += row[k].bytes;
        sum.serial += row[k].serial, sum.exposed += row[k].exposed;
    }
    double exposed = 0, busy = 0;
    for (int r = 0; r < RANKS; r++)
        for (int64_t k = 0; k < all->t[r].n; k++) {
            const TraceSpan *s = &all->t[r].span[k];
            if (!s->label && s->step == TRACE_OVERLAP) busy += (s->end - s->begin) / RANKS;
        }
    if (fabs(busy - all->table[0].kernels[TRACE_OVERLAP]) > 1e-9)
        test_fail("%s: kernels are not added up", layout);
    for (int r = 0; r < RANKS; r++) exposed += all->exposed[r][TRACE_OVERLAP] / RANKS;
    if (fabs(sum.exposed - exposed) > 1e-9 || fabs(row[n - 1].exposed - exposed) > 1e-9 ||
        fabs(row[n - 1].serial - sum.serial) > 1e-9 || row[n - 1].calls != all->sends[0])
        test_fail("%s: the sum is not that of the rows", layout);
    if (memcmp(row, all->table[RANKS - 1].row, (size_t)n * sizeof *row))
        test_fail("%s: ranks print other tables", layout);
}

/* Kernels run under collectives in the second step alone; the table knows the layer of every
 * collective and adds up. */
TEST(trace_has_every_kernel_and_collective_of_a_step_in_its_place) {
    for (EACH(c, cases)) {
        Traced all;
        const char *layout = c->layout;
        run_traced(&all, layout, c->overlap, 4096);
        for (int r = 0; r < RANKS; r++) {
            const char *wrong = wrong_spans(&all, r);
            if (wrong) test_fail("%s, rank %d: a span %s", layout, r, wrong);
            int serial = hidden_under(&all.t[r], TRACE_SERIAL),
                overlap = hidden_under(&all.t[r], TRACE_OVERLAP);
            if (serial || !overlap != !c->overlap)
                test_fail("%s, --overlap %s, rank %d: %d kernels under collectives, serial %d",
                          layout, c->overlap ? c->overlap : "none", r, overlap, serial);
        }
        check_table(&all, layout);
        free_traced(&all);
    }
}

TEST(trace_table_of_one_rank_has_no_rows_of_zeros) {
    TraceTable t = {.n = 1, .row = {{.name = "all"}}, .kernels = {1e-3, 1e-3}};
    OWNED(test_mem_end) char *text = PRINTED(trace_print(f, &t, false));
    CHECK_STR(text, "no collective sends a byte: nothing is waited for\n"
                    "kernels take 1.000 ms, beside communication 1.000\n");
}

TEST(trace_efficiency_is_1_when_all_is_hidden_and_negative_when_it_got_worse) {
    CHECK(trace_efficiency(&(TraceLayer){.serial = 2, .exposed = 0}) == 1);
    CHECK(trace_efficiency(&(TraceLayer){.serial = 2, .exposed = 0.5}) == 0.75);
    CHECK(trace_efficiency(&(TraceLayer){.serial = 2, .exposed = 3}) == -0.5);
    CHECK(isnan(trace_efficiency(&(TraceLayer){.serial = 0, .exposed = 1})));
    CHECK(isnan(trace_efficiency(&(TraceLayer){.serial = 3e-6, .exposed = 42e-6}))); // was -13
    // 3 of 4 s are hidden, and kernels lose 2 of them
    CHECK_NEAR(trace_charged(&(TraceTable){
                   .n = 1, .row = {{.serial = 4, .exposed = 1}}, .kernels = {10, 12}}),
               0.25, 1e-12); // rounding
    // nothing is lost where the kernels of the second step happen to be faster
    CHECK_NEAR(trace_charged(
                   &(TraceTable){.n = 1, .row = {{.serial = 4, .exposed = 1}}, .kernels = {10, 8}}),
               0.75, 1e-12); // rounding
}

TEST(trace_without_room_says_how_many_spans_are_lost) {
    Traced all;
    run_traced(&all, "d2.x2", NULL, 10);
    for (int r = 0; r < RANKS; r++) CHECK(all.t[r].n == 10 && all.t[r].lost > 100);
    free_traced(&all);
}

/* By rank 0's clock, which is 100 s behind, from 10 s on. Two gathers are in flight at once. */
TEST(trace_writes_what_perfetto_reads) {
    static const double at[] = {111, 111.0005, 111.0015, 111.0025};
    static const char *const sent[] = {"w of up", "x of up", "dw of up", "w of qkv"};
    static const char *const words[] = {
        "\"serial\",\"pid\":1,\"tid\":0,\"ts\":0.000,\"dur\":4000.000,\"args\":{\"step\":3}}",
        "\"matmul y\",\"pid\":1,\"tid\":0,\"ts\":1000.000,\"dur\":1000.000,\"args\":{\"part\":"
        "\"matmuls\",\"phase\":\"backward\",\"layer\":0,\"GFLOP/s\":3.0}}",
        "\"args\":{\"part\":\"the rest\",\"phase\":\"forward\"}}",
        "\"w of up\",\"pid\":1,\"tid\":2,\"ts\":1000000.000,\"dur\":1000.000,\"args\":{\"op\":"
        "\"all_gather\",\"along\":\"x\",\"ranks\":2,\"bytes\":5,\"exposed_us\":500.000}}",
        "\"w of up\",\"pid\":1,\"tid\":1,\"ts\":1000000.000,\"dur\":100.000}",
        "\"w of up\",\"pid\":1,\"tid\":1,\"ts\":1000800.000,\"dur\":400.000}",
        "\"tid\":3,\"ts\":1000500.000",
        "\"tid\":2,\"ts\":1001500.000",
        "\"tid\":3,\"args\":{\"name\":\"collectives along x\"}}",
        "\"tid\":4,\"args\":{\"name\":\"collectives along d\"}}"};
    TraceSpan span[6] = {{.name = "matmul",
                          .begin = 110.001,
                          .end = 110.002,
                          .result = "y",
                          .phase = PHASE_BACKWARD,
                          .flops = 3e6},
                         {.name = "?", .begin = 110.002, .end = 110.003, .layer = -1}};
    for (int i = 0; i < 4; i++)
        span[2 + i] = (TraceSpan){.name = sent[i],
                                  .label = i < 3 ? "x" : "d",
                                  .step = TRACE_OVERLAP,
                                  .op = COLL_ALL_GATHER,
                                  .size = 2,
                                  .bytes = 5,
                                  .begin = at[i],
                                  .started = at[i] + 0.1e-3,
                                  .wait = at[i] + 0.8e-3,
                                  .end = at[i] + 1e-3,
                                  .waited = at[i] + 1.2e-3};
    Trace t = {.span = span, .n = 6, .offset = 100, .step = {{3, 110, 110.004}, {4, 111, 111.003}}};
    OWNED(test_mem_end) char *text = PRINTED(trace_events(f, &t, 1, "here", 10));
    for (EACH(word, words))
        if (!strstr(text, *word)) test_fail("no %s in\n%s", *word, text);
    CHECK(test_count(text, "\"cat\":\"step\"") == 2);
    CHECK(test_count(text, "\"cat\":\"kernel\"") == 2);
    CHECK(test_count(text, "\"cat\":\"collective\"") == 4);
    CHECK(test_count(text, "\"cat\":\"exposed\"") == 8);
    OWNED(test_mem_end) char *array = mem_printf("[%s{}]", text);
    OWNED(test_json_end) json_t *parsed = json_loads(array, 0, NULL);
    CHECK(parsed);
    TraceTable table;
    trace_table(&table, &t, &group_alone);
    CHECK(table.n == 4 && table.row[3].calls == 4 && table.row[3].bytes == 20);
    CHECK(strcmp(table.row[0].name, "up") == 0 && strcmp(table.row[1].name, "weights") == 0);
    CHECK_STR(table.row[2].name, "gradients");
}
