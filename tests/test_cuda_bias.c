/* Gradients of biases that come with dw = x' dy (Matmul.bias_grad), over layouts and schedules:
 * those of a library that does not sum, and as many as there are matmuls whose dy is the rank's
 * own. */
#include "tests/parsed.h"
#include "tests/test.h"

#include "base/debug.h"
#include "layers/cuda/device.h"
#include "layers/cuda/matmuls.h"
#include "parallel/step/model.h"
#include "tests/emu/emu_cublaslt.h"
#include "tests/mesh_run.h"

enum { RANKS = 4, LAYERS = 1, FLOATS = 512, SEQUENCES = 4, MICRO = 2 };

/* What each rank holds after a step. */
typedef struct Seen {
    float grad[RANKS][FLOATS];
    int n[RANKS];
    int64_t with_dw[RANKS]; // matmuls that brought one
} Seen;

static _Thread_local int64_t before; // of this thread's counts, which go on

static void look(Model *m, UNUSED int step, void *ctx) {
    Seen *s = ctx;
    int rank = m->grid->mesh.rank, n = 0;
    for (int i = 0; i < m->tensors.n; i++) {
        const Tensor *t = &m->tensors.t[i];
        int64_t here = tensor_part(t, PART_GRAD);
        if (!strstr(t->name, "bias") || strstr(t->name, "ln")) continue;
        if (n + here > FLOATS) die("more than %d gradients of biases", FLOATS);
        device_get(s->grad[rank] + n, t->grad, (size_t)here * sizeof(float));
        n += (int)here;
    }
    device_wait();
    s->n[rank] = n, s->with_dw[rank] = matmul_counts().bias_grads - before;
}

typedef struct Case {
    const char *layout, *overlap;
    Recompute recompute;
    bool bf16;
    int i;
} Case;

static void run_on(const Case *c, EmuLtFault fault, Seen *seen) {
    OWNED(mesh_run_free)
    MeshRun r = {.model = "layers=1,heads=4,channels=16,seq=4,vocab=13",
                 .layout = c->layout,
                 .overlap = c->overlap,
                 .recompute = c->recompute,
                 .sequences = SEQUENCES,
                 .S = 4,
                 .micro = MICRO,
                 .cuda = true,
                 .emu = {.late = c->i % 2, .shuffle = (unsigned)c->i},
                 .bf16 = c->bf16,
                 .steps = 1,
                 .after = look,
                 .ctx = seen};
    memset(seen, 0, sizeof *seen);
    before = matmul_counts().bias_grads;
    emu_lt_setup.fault = fault;
    mesh_run(&r);
    emu_lt_setup.fault = EMU_LT_NO_FAULT;
}

/* Of a rank, in a step: the two layers that widen gather dy by heads, the two that narrow by
 * tokens; panels serve many. */
static int64_t expected(const Case *c) {
    Layout l = layout_of(c->layout);
    if (l.stay) return 0;
    int of_block = (l.heads && l.size[AXIS_Y] > 1 ? 0 : 2) + (l.sp && l.size[AXIS_X] > 1 ? 0 : 2);
    int n = l.size[AXIS_D] * l.size[AXIS_Z] * MICRO,
        passes = (SEQUENCES + n - 1) / n * (strstr(c->overlap, "halves") ? 2 : 1);
    return (int64_t)LAYERS * of_block * passes;
}

/* Sums of some tens of numbers in another order. */
static bool alike(const Case *c, const Seen *a, const Seen *b) {
    double most = 0, off = 0;
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < a->n[r]; i++) {
            most = fmax(most, fabs((double)b->grad[r][i]));
            off = fmax(off, fabs((double)a->grad[r][i] - (double)b->grad[r][i]));
        }
    bool good = off <= 1e-6 * most && most > 0;
    for (int r = 0; r < RANKS; r++) good = good && a->n[r] == b->n[r] && b->with_dw[r] == 0;
    for (int r = 0; r < RANKS; r++) good = good && a->with_dw[r] == (a->n[r] ? expected(c) : 0);
    if (!good)
        printf("    %s, %s, recompute %d: off by %.2g of %.2g; %d sums with dw, not %d\n",
               c->layout, c->overlap, c->recompute, off, most, (int)a->with_dw[0],
               (int)expected(c));
    return good;
}

static int wrong;

static void compare(const Case *c) {
    static Seen with, without;
    run_on(c, EMU_LT_NO_FAULT, &with), run_on(c, EMU_LT_NO_SUMS, &without);
    wrong += !alike(c, &with, &without);
}

static void compare_layout(const char *layout, int i) {
    static const char *const overlaps[] = {"none", "bulk+ring", "bulk+halves", "chunk=2", "bulk"};
    if (BASE_DEBUG && i % 23) return;
    compare(&(Case){layout, overlaps[i % 5], (Recompute)(i % 3), i % 2, i});
}

TEST_EMULATED(cuda_bias_gradients_come_with_dw_where_dy_is_the_ranks_own) {
    static const Case some[] = {{"d1", "none", RECOMPUTE_NONE, true, 0},
                                {"x2+sp", "bulk+ring", RECOMPUTE_FULL, true, 1},
                                {"x2.y2+heads", "chunk=2", RECOMPUTE_NONE, false, 2},
                                {"y2", "bulk+halves", RECOMPUTE_SELECTIVE, true, 3},
                                {"d2.x2+stay=y", "bulk", RECOMPUTE_NONE, true, 4}};
    wrong = 0;
    if (test_long())
        for (EACH_LAYOUT(l, 1, RANKS)) compare_layout(l.spec, l.number);
    else
        for (int i = 0; i < (BASE_DEBUG ? 2 : 5); i++) compare(&some[i]);
    CHECK(wrong == 0);
}
