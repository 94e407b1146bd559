/* Overlap changes when a rank waits, and no sum: whatever its words, steps have the bits of those
 * without, send and hold what their price predicts. */

#include "base/debug.h"
#include "base/rng.h"
#include "parallel/plan/price.h"
#include "parallel/step/evaluate.h"
#include "tests/mesh_run.h"
#include "tests/parsed.h"
#include "tests/test.h"

enum { TIED }; // of mesh_models

/* ---- with and without ---- */

typedef struct Sweep {
    const char *overlap; // words
    const char *only;    // layouts with this word; NULL: all
    int number, every;   // takes layouts number, number + every, ...
    bool exact;
    int seen, n, bad;
} Sweep;

/* Model, recompute, threads and how sequences are cut into micro-batches are drawn for each
 * layout. */
static MeshRun drawn(const Sweep *s) {
    uint64_t dice = rng_u64(1, (uint64_t)s->number, (uint64_t)s->seen);
    static const int64_t cuts[][2] = {{2, 5}, {4, 9}, {2, 2}, {6, 5}}; // micro, sequences
    const int64_t *cut = cuts[dice / 9 % 4];
    return (MeshRun){.model = mesh_models[dice % N_MESH_MODELS],
                     .recompute = (Recompute)(dice / 3 % 3),
                     .S = 5,
                     .micro = cut[0],
                     .steps = mesh_sweep_steps(),
                     .sequences = cut[1],
                     .threads = dice / 36 % 4 ? 1 : 2,
                     .exact = s->exact};
}

/* Gradients of two halves are added before they are reduced, those of micro-batches after it: where
 * a matrix's gradient is reduced in every micro-batch, halves add in another order, so a few units
 * in the last place. So they do to the gradient of a tied table, which is made in two places. */
static bool adds_in_another_order(const MeshRun *halves) {
    Layout l = layout_of(halves->layout);
    return halves->model == mesh_models[TIED] || l.size[AXIS_Z] > 1 || l.zero >= 2 || l.stay;
}

/* Halves are micro-batches half as long; with --exact sums do not depend on those either. */
static void compare(const char *spec, Sweep *s) {
    if (s->only && !strstr(spec, s->only)) return;
    if (s->seen++ % s->every != s->number % s->every) return;
    OWNED(mesh_run_free) MeshRun with = drawn(s), without = with;
    with.layout = without.layout = spec;
    with.overlap = s->overlap;
    with.priced = !s->exact;
    without.in_halves = !s->exact && strstr(s->overlap, "halves");
    mesh_run(&with), mesh_run(&without);
    bool reordered = without.in_halves && adds_in_another_order(&with);
    MeshDiff bits = {0, 0, 0}, rounding = {6e-7, 2e-6, 1e-5};
    s->bad += !mesh_near(&with, &without, reordered ? rounding : bits);
    s->bad += with.unpredicted;
    s->n++;
}

/* All layouts take part, each with some of the words. */
static void sweep(const char *overlap, int number) {
    int every = BASE_DEBUG ? (test_long() ? 10 : 40) : test_long() ? 1 : 6, n = 0;
    for (int exact = 0; exact < 2; exact++) {
        Sweep s = {.overlap = overlap,
                   .number = number,
                   .every = exact ? 4 * every : every,
                   .exact = exact};
        for (EACH_LAYOUT(l, 1, 6)) compare(l.spec, &s);
        CHECK(s.bad == 0);
        n += s.n;
    }
    CHECK(n > (BASE_DEBUG ? 4 : 20));
}

#define TEST_SWEEP(name, overlap, number)                                                          \
    TEST(name) {                                                                                   \
        sweep(overlap, number);                                                                    \
    }
TEST_SWEEP(overlap_bulk_changes_no_bit, "bulk", 1)
TEST_SWEEP(overlap_chunks_change_no_bit, "chunk=2", 2)
TEST_SWEEP(overlap_bulk_with_chunks_changes_no_bit, "bulk+chunk=3", 3)
TEST_SWEEP(overlap_rings_change_no_bit, "ring", 4)
TEST_SWEEP(overlap_bulk_with_rings_changes_no_bit, "bulk+ring", 5)
TEST_SWEEP(overlap_fused_changes_no_bit, "fused", 10)
TEST_SWEEP(overlap_bulk_with_fused_changes_no_bit, "bulk+fused", 11)
TEST_SWEEP(overlap_halves_have_the_bits_of_smaller_micro_batches, "halves", 6)
TEST_SWEEP(overlap_bulk_with_halves_has_the_bits_of_smaller_micro_batches, "bulk+halves", 7)
TEST(overlap_of_all_kinds_has_the_bits_of_smaller_micro_batches) {
    sweep("bulk+chunk=2+halves", 8);
    sweep("bulk+ring+halves", 9);
    sweep("bulk+fused+halves", 12);
}

/* All of those in which matmuls are fused with collectives: the sweeps take some of them. */
TEST(overlap_fused_of_every_sp_layout_changes_no_bit) {
    for (int bulk = 0; bulk < 2; bulk++) {
        Sweep s = {.overlap = bulk ? "bulk+fused" : "fused",
                   .only = "sp",
                   .number = bulk,
                   .every = BASE_DEBUG ? 3 : 1};
        for (EACH_LAYOUT(l, 2, 4)) compare(l.spec, &s);
        CHECK(s.bad == 0);
        CHECK(s.n > (BASE_DEBUG ? 2 : 8));
    }
}

/* ---- evaluation ---- */

// sequences of a micro-batch, and in all; the largest vocabulary
enum { EVAL_B = 4, EVAL_N = 6, EVAL_S = 5, EVAL_V = 37 };
typedef struct Evaluation {
    EvalSum sum;
    float losses[EVAL_N * EVAL_S], logits[EVAL_B * EVAL_S * EVAL_V];
} Evaluation;

static void fill_eval(UNUSED void *ctx, int64_t i, int32_t *inputs, int32_t *targets) {
    for (int64_t t = 0; t < EVAL_S; t++, inputs++, targets++)
        *inputs = *targets = (int32_t)((i * EVAL_S + t) * (i * EVAL_S + t) % 11);
}

/* After the first step; what rank 0 gets stays. */
static void look_at_losses(Model *m, int step, void *ctx) {
    if (step != 0) return;
    int32_t tokens[EVAL_B * EVAL_S], targets[EVAL_S];
    Evaluation e = {{0}, {0}, {0}}, *out = ctx;
    for (int i = 0; i < EVAL_B; i++) fill_eval(NULL, i, tokens + i * EVAL_S, targets);
    e.sum = evaluate(m, &(Sequences){NULL, fill_eval}, EVAL_N, e.losses, NULL, NULL);
    model_logits(m, tokens, e.logits);
    if (m->grid->mesh.rank == 0) *out = e;
}

/* The sum of all tokens, and of nothing that the step has left. */
static bool sums_losses(const Evaluation *e) {
    double sum = 0;
    for (int i = 0; i < EVAL_N * EVAL_S; i++) sum += (double)e->losses[i];
    return fabs(e->sum.loss - sum) < 1e-6 * sum && e->sum.n == EVAL_N * EVAL_S;
}

/* Losses and logits have the same bits with the words and without. */
static void evaluate_alike(MeshRun a, const char *overlap) {
    static Evaluation with, without;
    a.sequences = a.micro = EVAL_B, a.S = EVAL_S, a.after = look_at_losses;
    MeshRun b = a;
    a.ctx = &without, b.ctx = &with, b.overlap = overlap;
    mesh_run(&a), mesh_run(&b);
    mesh_run_free(&a), mesh_run_free(&b);
    CHECK(memcmp(with.losses, without.losses, sizeof with.losses) == 0);
    CHECK(memcmp(with.logits, without.logits, sizeof with.logits) == 0);
    CHECK(with.sum.loss == without.sum.loss && sums_losses(&with));
    int64_t last = EVAL_B * EVAL_S * config_of(a.model).vocab - 1;
    CHECK(with.losses[EVAL_N * EVAL_S - 1] > 0 && with.logits[last] != 0);
}

/* A token's loss depends on no other sequence; with --exact the step before leaves the same
 * weights. */
TEST(overlap_of_halves_evaluates_every_token_alike) {
    static const char *const layouts[] = {"d1", "x2", "z2.x2+sp", "x2.y2+stay=y"};
    for (EACH(l, layouts))
        evaluate_alike((MeshRun){.model = mesh_models[1], .layout = *l, .exact = true},
                       "bulk+halves");
}

/* Forward alone keeps less than forward with backward: results lie over other operands. */
TEST(overlap_of_chunks_and_rings_evaluates_every_token_alike) {
    static const char *const layouts[] = {"x3", "x2+sp", "x2.y2+heads", "z2.x2+sp"},
                             *const words[] = {"chunk=2", "bulk+chunk=3", "ring", "bulk+ring"};
    for (int i = 0; i < 4 * N_MESH_MODELS; i++)
        evaluate_alike((MeshRun){.model = mesh_models[i % N_MESH_MODELS],
                                 .layout = layouts[i % 4],
                                 .steps = 1},
                       words[i / N_MESH_MODELS]);
}

/* ---- panels of stay=y ---- */

TEST(overlap_bulk_of_every_stay_layout_changes_no_bit) {
    for (int exact = 0; exact < 2; exact++) {
        int every = BASE_DEBUG ? 20 : test_long() ? 1 : 3;
        Sweep s = {.overlap = "bulk", .only = "stay=y", .every = every, .exact = exact};
        for (EACH_LAYOUT(l, 2, 8)) compare(l.spec, &s);
        CHECK(s.bad == 0);
        CHECK(s.n > (BASE_DEBUG ? 2 : 20));
    }
}

/* Does a matmul run between the start of a collective and its wait? */
static bool covered(const Program *p, int start) {
    bool matmul = false;
    for (int i = start + 1; i < p->n_ops; i++) {
        OpKind kind = p->op[i].kind;
        if (kind == OP_WAIT && p->op[i].in[0] == p->op[start].out) return matmul;
        matmul |= kind == OP_MATMUL || kind == OP_MATMUL_BT || kind == OP_MATMUL_AT;
    }
    return false;
}

static bool any(UNUSED const Program *p, UNUSED const Op *op) {
    return true;
}
static bool of_panels(UNUSED const Program *p, const Op *op) {
    return op->kind == OP_BROADCAST || op->kind == OP_REDUCE;
}
static bool of_head(const Program *p, const Op *op) {
    return strcmp(p->tensor[op->out].what, "dx of head") == 0;
}

/* Such collectives of a step of one micro-batch; how many of them nothing
 * covers. */
static int sends_of(const char *layout, const char *overlap,
                    bool (*such)(const Program *p, const Op *op), int *alone) {
    OWNED(price_free) StepLists t;
    StepPart part[STEP_PARTS];
    PriceShape shape = {.model.config = config_of("layers=4,heads=4,channels=16,seq=8,vocab=32"),
                        .model.S = 8,
                        .batch = 32,
                        .model.B = 4,
                        .model.overlap = overlap_of(overlap),
                        .whole = true};
    Layout l = layout_of(layout);
    int n = 0;
    price_lists(&t, &shape, &l, 0, 0);
    *alone = 0;
    for (int parts = price_parts(&t, 0, part), k = 0; k < parts; k++)
        for (int i = 0; i < part[k].p->n_ops; i++) {
            const Op *op = &part[k].p->op[i];
            if (!op_info(op->kind)->collective || !such(part[k].p, op)) continue;
            n++, *alone += !covered(part[k].p, i);
        }
    return n;
}

/* Of each of the four linear layers at most the first panels of x and w, or as many others. */
TEST(overlap_bulk_of_stay_y_leaves_only_first_panels_uncovered) {
    static const struct {
        const char *layout;
        int sends; // of the panels of a linear layer: x w; w dx x dw
    } rows[] = {{"x2.y2+stay=y", 6 * 2},
                {"x4.y4+stay=y", 6 * 4},
                {"x2.y4+stay=y", 6 * 4},
                {"y2+stay=y", 3 * 2}}; // x; dx x
    for (EACH(r, rows)) {
        int alone, layers = 4, n = layers * 4 * r->sends;
        CHECK(sends_of(r->layout, "none", of_panels, &alone) == n && alone == n);
        CHECK(sends_of(r->layout, "bulk", of_panels, &alone) == n && alone <= layers * 4 * 2);
    }
}

/* Otherwise the sweeps above would compare a step with itself. */
TEST(overlap_covers_collectives_that_nothing_covers_without) {
    static const char *const rows[][2] = {
        {"x2", "bulk"},       {"x2+sp", "bulk"},     {"z2", "bulk"},       {"d2", "bulk"},
        {"d2+zero3", "bulk"}, {"x2", "chunk=2"},     {"x2+sp", "chunk=2"}, {"x2+sp", "ring"},
        {"x2", "halves"},     {"z2.x2+sp", "halves"}};
    for (int i = 0; i < N_OF(rows); i++) {
        int without, with, n = sends_of(rows[i][0], "none", any, &without),
                           m = sends_of(rows[i][0], rows[i][1], any, &with);
        CHECK(without == n);
        CHECK(with < m);
    }
}

TEST(overlap_bulk_sums_dx_of_the_head_under_its_last_dw) {
    static const char *const layouts[] = {"x2", "x2+sp", "y2", "x2.y2"};
    for (EACH(layout, layouts)) {
        int without, with, n = sends_of(*layout, "none", of_head, &without);
        CHECK(n > 0 && without == n);
        CHECK(sends_of(*layout, "bulk", of_head, &with) == n);
        CHECK(with == n - 1); // where two follow each other, the second has nothing left
    }
}
