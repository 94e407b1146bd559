/* layers/matmul.cu and its plans for cuBLASLt against double precision: every kernel,
 * all transposes and epilogues, in both words; what the library refuses; how often it is asked. */
#include <unistd.h>

#include "layers/cuda/cublaslt.h"
#include "layers/cuda/matmul_choices.h"
#include "layers/cuda/matmuls.h"
#include "tests/cuda_test.h"
#include "tests/emu/calls.h"
#include "tests/emu/emu_cublaslt.h"
#include "tests/pointwise_double.h"

typedef struct Form {
    int64_t M, N, K, gap, skew; // gap: of words between rows of y; skew: of each address
    bool a_turned, b_turned;
    int addend; // 0 none, 1 y itself, 2 another matrix
    bool bias;
    Epilogue epilogue;
    bool aux, wide, rounds; // rounds: fp32 operands to bf16
    bool sums;              // of the columns of b: the gradient of a bias
    ActKind act;            // of the epilogue
} Form;

/* Shapes that take each kernel (a tile and parts of tiles, less than a tile, a single row) with
 * something of all. */
static const Form forms[] = {
    {24, 40, 32, 0, 0, false, false, 0, false, EPI_NONE, false, false, false, false, ACT_GELU},
    {70, 72, 19, 8, 0, false, false, 0, true, EPI_ACT, true, false, false, false, ACT_GELU},
    {70, 72, 19, 0, 0, false, false, 0, true, EPI_ACT, false, false, false, false, ACT_GELU},
    {17, 80, 33, 0, 0, true, false, 2, false, EPI_ACT, true, false, false, false, ACT_GELU},
    {33, 24, 48, 8, 0, false, true, 0, false, EPI_DACT, true, false, false, false, ACT_GELU},
    {33, 25, 48, 2, 0, false, true, 0, true, EPI_DACT, true, false, false, false, ACT_GELU},
    {33, 24, 16, 0, 0, false, true, 1, false, EPI_DACT, true, false, true, false, ACT_GELU},
    {65, 31, 20, 2, 0, false, false, 0, true, EPI_ACT, true, false, false, false, ACT_GELU},
    {40, 65, 50, 3, 1, true, true, 1, true, EPI_NONE, false, false, false, false, ACT_GELU},
    {40, 64, 50, 0, 0, true, false, 1, false, EPI_NONE, false, true, false, false, ACT_GELU},
    {21, 19, 70, 5, 1, true, false, 0, false, EPI_NONE, false, true, false, false, ACT_GELU},
    {21, 24, 70, 0, 0, true, false, 2, true, EPI_NONE, false, true, true, false, ACT_GELU},
    {1, 50, 40, 0, 0, false, false, 0, true, EPI_NONE, false, false, false, false, ACT_GELU},
    {50, 1, 40, 4, 0, false, true, 2, false, EPI_NONE, false, false, true, false, ACT_GELU},
    {65, 31, 20, 1, 1, false, false, 0, true, EPI_ACT, true, false, false, false, ACT_GELU},
    {9, 7, 1, 0, 1, true, true, 2, true, EPI_ACT, true, false, false, false, ACT_GELU},
    {5, 6, 0, 2, 0, false, false, 2, true, EPI_ACT, true, false, false, false, ACT_GELU},
    {20, 17, 0, 0, 0, false, false, 0, false, EPI_NONE, false, true, false, false, ACT_GELU},
    {40, 64, 50, 0, 0, true, false, 1, false, EPI_NONE, false, true, false, true, ACT_GELU},
    {21, 19, 70, 5, 1, true, false, 0, false, EPI_NONE, false, true, false, true, ACT_GELU},
    {70, 130, 600, 0, 0, true, false, 1, false, EPI_NONE, false, true, true, true, ACT_GELU},
    {17, 24, 33, 0, 0, true, false, 2, false, EPI_NONE, false, false, false, true, ACT_GELU},
    {17, 24, 33, 0, 0, true, false, 0, true, EPI_ACT, true, false, false, true, ACT_GELU},
    {20, 17, 0, 0, 0, true, false, 1, false, EPI_NONE, false, true, false, true, ACT_GELU},
    {0, 24, 33, 0, 0, true, false, 1, false, EPI_NONE, false, true, false, true, ACT_GELU},
    {70, 72, 19, 8, 0, false, false, 0, true, EPI_ACT, true, false, false, false, ACT_RELU2},
    {33, 24, 48, 8, 0, false, true, 0, false, EPI_DACT, true, false, false, false, ACT_RELU2},
    // those of a head whose vocabulary is no multiple of 8, in aligned rows
    {9, 2053, 24, 3, 0, false, true, 2, false, EPI_NONE, false, false, false, false, ACT_GELU},
    {9, 24, 2051, 0, 0, false, false, 2, false, EPI_NONE, false, false, false, false, ACT_GELU},
    {2050, 24, 9, 0, 0, true, false, 1, false, EPI_NONE, false, true, false, false, ACT_GELU},
};
enum { FORMS = N_OF(forms), HEAD = FORMS - 3, LONG = 2048 };

typedef struct Case {
    Matmul p;
    Array a, b, y, addend, bias, aux, sums;
} Case;

static const float untouched = -12;

/* Rows of y, aux or addend with untouched words between them. */
static Array rows(const Form *f, unsigned seed, bool bf16) {
    int64_t ld = f->N + f->gap;
    Array w = array_empty(f->M * ld, bf16, f->skew);
    test_fill(w.host, (size_t)w.n, 2, seed);
    for (int64_t i = 0; i < w.n; i++)
        if (i % ld >= f->N) w.host[i] = untouched;
    array_put(&w);
    return w;
}

/* Of the test that runs: as much as the emulated library asks for, not all that it may ask for. */
enum { WORKSPACE = (1 << 20) + 256 };
static void *workspace;

/* Elements from a row of an operand to the next. */
static int64_t row(const Form *f, int64_t n) {
    return n < LONG ? n + (f->skew ? 3 : 0) : (n + 7) / 8 * 8;
}
static Case case_make(const Form *f, bool bf16) {
    Case c;
    memset(&c, 0, sizeof c);
    Matmul *p = &c.p;
    int64_t rows_a = f->a_turned ? f->K : f->M, cols_a = row(f, f->a_turned ? f->M : f->K),
            rows_b = f->b_turned ? f->N : f->K, cols_b = row(f, f->b_turned ? f->K : f->N);
    if (f->sums) cols_b = f->N; // rows that touch
    c.a = array_random(rows_a * cols_a + 1, 1, 1, bf16, f->skew);
    c.b = array_random(rows_b * cols_b + 1, 1, 2, bf16, f->skew);
    c.y = rows(f, 3, bf16 && !f->wide), c.addend = rows(f, 4, bf16 && !f->wide);
    c.aux = rows(f, 5, bf16), c.bias = array_random(f->N, 1, 6, bf16 && !f->wide, 0);
    c.sums = array_random(f->N, 1, 7, false, f->skew);
    *p = matmul_sized(f->M, f->N, f->K);
    p->ldy = f->N + f->gap;
    p->a = c.a.device, p->a_row = f->a_turned ? 1 : cols_a, p->a_col = f->a_turned ? cols_a : 1;
    p->b = c.b.device, p->b_row = f->b_turned ? 1 : cols_b, p->b_col = f->b_turned ? cols_b : 1;
    p->y = c.y.device, p->bias = f->bias ? c.bias.device : NULL;
    p->addend = f->addend == 1 ? c.y.device : f->addend == 2 ? c.addend.device : NULL;
    p->bias_grad = f->sums ? c.sums.device : NULL;
    p->epilogue = f->epilogue, p->act = f->act, p->aux = f->aux ? c.aux.device : NULL;
    p->bf16 = f->rounds, p->wide = f->wide, p->workspace = workspace;
    return c;
}

/* What y and aux must be, and how far off they may be. */
typedef struct Want {
    double y, aux, y_off, aux_off;
} Want;

/* Sums of K products in fp32 differ by some sqrt(K) of its units from the exact sum, TF32 keeps 11
 * bits of each operand. Stores in bf16 round y, and what the library may round besides: y before a
 * pass of its own ends it. */
static Want want_at(const Form *f, const Case *c, bool bf16, int64_t m, int64_t n) {
    const Matmul *p = &c->p;
    double sum = 0, size = 1, add = 0, bias = 0;
    bool halves = !bf16 && f->rounds;
    for (int64_t k = 0; k < f->K; k++) {
        double x = (double)rounded(c->a.host[m * p->a_row + k * p->a_col], halves) *
                   (double)rounded(c->b.host[k * p->b_row + n * p->b_col], halves);
        sum += x, size += fabs(x);
    }
    int64_t at = m * p->ldy + n;
    if (f->addend) add = (double)(f->addend == 1 ? c->y.host : c->addend.host)[at];
    if (f->bias) bias = (double)c->bias.host[n];
    double s = sum + add + bias, eps = 6e-8 * (4 + 2 * sqrt((double)f->K));
    double off = eps * (size + fabs(add) + fabs(bias)) + 2e-6 * fabs(s);
    if (bf16 && !f->wide) off += 0x1p-8 * (fabs(s) + fabs(sum + add));
    // cuBLASLt may round the product before it adds; on tensor cores no other kernel takes this
    bool added = f->addend && f->epilogue == EPI_DACT;
    if (bf16 && !f->wide && added && test_on_device) off += 0x1p-8 * fabs(sum);
    Want w = {s, s, off, off};
    double slope = 1, before = f->aux ? (double)c->aux.host[at] : 0;
    if (f->epilogue == EPI_ACT) slope = act_slope_of(f->act, s), w.y = act_of(f->act, s);
    if (f->epilogue == EPI_DACT) slope = act_slope_of(f->act, before), w.y = s * slope;
    w.y_off *= fmax(1.2, 1.1 * fabs(slope));
    if (bf16 && !f->wide) w.y_off += 0x1p-8 * fabs(w.y);
    return w;
}

/* The columns of b, as it lies in memory, and what was there. */
static bool check_sums(const Form *f, Case *c, bool bf16, const char *what) {
    Array sums = array_now(c->sums);
    for (int64_t n = 0; n < f->N; n++) {
        double want = (double)c->sums.host[n], size = fabs(want);
        for (int64_t k = 0; k < f->K && f->sums; k++) {
            double x = (double)c->b.host[k * c->p.b_row + n];
            want += x, size += fabs(x);
        }
        double off = f->sums ? 6e-8 * (4 + 2 * sqrt((double)f->K)) * size : 0;
        if (fabs((double)sums.host[n] - want) <= off) continue;
        test_fail("%s: form %d bf16 %d: the sum of column %d is %.9g, not %.9g (+- %.2g)", what,
                  (int)(f - forms), bf16, (int)n, (double)sums.host[n], want, off);
        return false;
    }
    return true;
}

/* y and aux as they came back, against what they must be. Host copies still hold what was there
 * before. */
static bool check_case(const Form *f, Case *c, bool bf16, const char *what) {
    Array y = array_now(c->y), aux = array_now(c->aux);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t m = i / c->p.ldy, n = i % c->p.ldy;
        bool inside = n < f->N;
        Want w = {(double)untouched, (double)untouched, 0, 0};
        if (inside) w = want_at(f, c, bf16, m, n);
        if (inside && (f->epilogue != EPI_ACT || !f->aux))
            w.aux = (double)c->aux.host[i], w.aux_off = 0;
        if (fabs((double)y.host[i] - w.y) <= w.y_off &&
            fabs((double)aux.host[i] - w.aux) <= w.aux_off)
            continue;
        test_fail("%s: form %d bf16 %d: y(%d,%d) is %.9g, not %.9g (+- %.2g); aux %.9g, not %.9g",
                  what, (int)(f - forms), bf16, (int)m, (int)n, (double)y.host[i], w.y, w.y_off,
                  (double)aux.host[i], w.aux);
        return false;
    }
    return true;
}

static void begin(EmuSetup o) {
    device_at_most(7); // without the kernels that are timed beside the library's
    cuda_begin(o);
    device_at_most(9);
    emu_lt_setup = (EmuLtSetup){0};
    matmul_set_backend(BACKEND_LIBRARY);
    size_t all = kernels_cuda(true)->matmul_workspace(1);
    workspace = cuda_take(test_on_device ? (int64_t)all : WORKSPACE, 1, 0);
}

static bool run_form(const Form *f, bool bf16, const char *what) {
    Case c = case_make(f, bf16);
    kernels_cuda(bf16)->matmul(NULL, &c.p);
    return check_case(f, &c, bf16, what) && check_sums(f, &c, bf16, what);
}

/* Pieces of memory that a test may hold are not endless: some forms at a time. */
static bool run_forms(EmuSetup o, bool bf16, MatmulBackend first, const char *what) {
    bool fine = true;
    for (int i = 0; i < FORMS && fine; i++) {
        if (i % 8 == 0) begin(o), matmul_set_backend(first);
        fine = run_form(&forms[i], bf16, what);
        if (i % 8 == 7 || i == FORMS - 1) fine = cuda_end() && fine;
    }
    matmul_set_backend(BACKEND_LIBRARY);
    return fine;
}

TEST(cuda_matmul_by_the_library_matches_double) {
    for (EACH_DTYPE(bf16)) {
        CHECK(run_forms(cuda_orders[0], bf16, BACKEND_LIBRARY, "eager"));
        CHECK(run_forms(cuda_orders[2], bf16, BACKEND_LIBRARY, "late"));
    }
}

/* What is over of a long side that is no multiple of 8 is a matmul of its own; not where a row's
 * length is none either, nor without the library. */
TEST(cuda_matmul_of_a_long_odd_side_is_two) {
    for (int i = HEAD - 1; i < FORMS; i++) {
        begin(cuda_orders[0]);
        Case c = case_make(&forms[i < HEAD ? HEAD : i], true);
        if (i < HEAD) c.p.ldy = c.p.N;
        MatmulCounts before = matmul_counts();
        kernels_cuda(true)->matmul(NULL, &c.p);
        MatmulCounts after = matmul_counts();
        CHECK(after.fused + after.bare - before.fused - before.bare == (i < HEAD ? 1 : 2));
        CHECK(cuda_end());
    }
}

TEST(cuda_matmul_by_own_kernels_matches_double_in_any_order) {
    for (EACH_DTYPE(bf16))
        for (int tiled = 0; tiled < 2; tiled++) {
            uint64_t first = 0;
            for (EACH_ORDER(o)) {
                arrays_hash = 0;
                CHECK(run_forms(*o, bf16, tiled ? BACKEND_TILED : BACKEND_PLAIN,
                                tiled ? "tiled" : "plain"));
                if (o == cuda_orders) first = arrays_hash;
                CHECK_SAYS(arrays_hash == first, "tiled %d, bf16 %d: other bits", tiled, bf16);
            }
        }
}

/* Which kernel did form i take? */
typedef struct Took {
    int64_t fused, bare, tiled, plain, heuristics;
} Took;
static Took since(MatmulCounts b) {
    MatmulCounts e = matmul_counts();
    return (Took){e.fused - b.fused, e.bare - b.bare, e.tiled - b.tiled, e.plain - b.plain,
                  e.heuristics - b.heuristics};
}
static Took took(int i, bool bf16) {
    MatmulCounts before = matmul_counts();
    return run_form(&forms[i], bf16, "took") ? since(before) : (Took){-1, -1, -1, -1, -1};
}

TEST(cuda_matmul_workspace_has_room_for_the_librarys) {
    for (EACH_DTYPE(bf16)) CHECK(kernels_cuda(bf16)->matmul_workspace(4) >= (32 << 20) + 255);
}

TEST_EMULATED(cuda_matmul_takes_the_first_backend_that_serves) {
    for (EACH_DTYPE(bf16)) {
        begin(cuda_orders[0]);
        CHECK(took(0, bf16).fused == 1);
        static const int activation[] = {0, LT_EPILOGUE_GELU_AUX_BIAS, LT_EPILOGUE_GELU_BIAS,
                                         LT_EPILOGUE_GELU_AUX, LT_EPILOGUE_DGELU};
        for (int i = 1; i <= 4; i++) { // which the library may approximate
            Took t = took(i, bf16);
            CHECK(t.fused == bf16 && t.bare == !bf16);
            CHECK(emu_lt.epilogue == (bf16 ? activation[i] : LT_EPILOGUE_DEFAULT));
        }
        Took sum = took(6, bf16); // an addend; operands of fp32 are to be rounded
        CHECK(took(5, bf16).bare == 1 && sum.bare == bf16 && sum.tiled == !bf16); // 5: a bias
        CHECK(took(7, bf16).bare == 1); // rows of aux that are no multiple of 8
        CHECK(took(10, bf16).fused == 1 && emu_lt.runs[1] > 0);
        CHECK(took(16, bf16).plain == 1); // K = 0
        matmul_set_backend(BACKEND_TILED);
        CHECK(took(0, bf16).tiled == 1 && took(12, bf16).plain == 1);
        CHECK(cuda_end());
    }
}

/* The library reads the bias where it lies: nothing else is launched. */
TEST_EMULATED(cuda_matmul_with_its_epilogue_is_one_launch) {
    static const int some[] = {0, 1, 2, 12};
    begin(cuda_orders[0]);
    for (EACH(s, some)) {
        Case c = case_make(&forms[*s], true);
        int64_t before = emu_calls.launches;
        kernels_cuda(true)->matmul(NULL, &c.p);
        CHECK(emu_calls.launches == before + 1);
    }
    CHECK(cuda_end());
}

TEST_EMULATED(cuda_matmul_sums_columns_where_the_librarys_sums_are_floats) {
    for (EACH_DTYPE(bf16)) {
        begin(cuda_orders[0]);
        int64_t before = matmul_counts().bias_grads;
        CHECK(took(18, bf16).fused == 1 && emu_lt.epilogue == LT_EPILOGUE_BGRADA);
        CHECK(took(19, bf16).fused == 1 && emu_lt.epilogue == LT_EPILOGUE_BGRADA);
        CHECK(matmul_counts().bias_grads == before + 2);
        Took t = took(21, bf16); // in 8 bits they would not do
        CHECK(bf16 ? t.bare == 1 : t.fused == 1);
        CHECK(took(22, bf16).bare == 1 && took(23, bf16).plain == 1);
        CHECK(took(24, bf16).heuristics == 0); // M = 0: sums alone
        CHECK(matmul_counts().bias_grads == before + 2 + !bf16);
        CHECK(cuda_end());
    }
}

TEST_EMULATED(cuda_matmul_goes_on_where_the_library_refuses) {
    begin(cuda_orders[2]);
    int refused = emu_lt.runs[2];
    Took t = took(9, true); // algorithm 1 is proposed, and refused with beta = 1
    CHECK(t.fused == 1 && emu_lt.runs[2] == refused + 1);
    t = took(9, true);
    CHECK(t.fused == 1 && t.heuristics == 0); // and not tried again
    emu_lt_setup.fault = EMU_LT_BARE;
    t = took(1, true);
    CHECK(t.bare == 1 && t.heuristics == 2);
    t = took(1, true);
    CHECK(t.bare == 1 && t.heuristics == 0);
    for (int round = 0; round < 2; round++) { // when it is run, and when the plan is made
        emu_lt_setup.fault = round ? EMU_LT_NO_SUMS : EMU_LT_BARE;
        int64_t sums = matmul_counts().bias_grads;
        t = took(18 + round, true);
        CHECK(t.bare == 1 && t.heuristics == 2);
        t = took(18 + round, true);
        CHECK(t.bare == 1 && t.heuristics == 0 && matmul_counts().bias_grads == sums);
    }
    emu_lt_setup.fault = EMU_LT_NOTHING;
    t = took(3, true);
    CHECK(t.tiled == 1 && t.heuristics == 2);
    t = took(3, true);
    CHECK(t.tiled == 1 && t.heuristics == 0);
    CHECK(cuda_end());
}

/* A plan for each shape, alignment and number of multiprocessors; none of a closed device. */
TEST_EMULATED(cuda_matmul_asks_once_for_each_shape) {
    for (int round = 0; round < 2; round++) {
        begin(cuda_orders[round]);
        CHECK(matmul_counts().plans == 0);
        CHECK(took(0, true).heuristics == 1 && took(0, true).heuristics == 0);
        CHECK(took(0, false).heuristics == 1 && took(0, false).heuristics == 0);
        Form f = forms[0];
        f.skew = 1;
        CHECK(run_form(&f, true, "skewed") && matmul_counts().plans == 3);
        device_set_sm_margin(1);
        CHECK(took(0, true).heuristics == 1 && emu_lt.sms == device_sms() && device_sms() == 3);
        device_set_sm_margin(0);
        CHECK(took(0, true).heuristics == 0 && emu_lt.sms == 0);
        CHECK(matmul_counts().plans == 4);
        CHECK(cuda_end());
    }
}

/* The very same matmul: another one's operands may be aligned otherwise, and have a plan of their
 * own. */
static Took took_again(const Matmul *p, bool bf16) {
    MatmulCounts before = matmul_counts();
    kernels_cuda(bf16)->matmul(NULL, p);
    device_wait();
    return since(before);
}

/* The library's first choice takes 30 ms more than the others. */
TEST_EMULATED(cuda_matmul_prepare_takes_the_fastest) {
    for (EACH_DTYPE(bf16)) {
        cuda_forget_choices();
        begin(cuda_orders[2]);
        Case c = case_make(&forms[0], bf16);
        kernels_cuda(bf16)->matmul(NULL, &c.p);
        device_wait();
        int first = emu_lt.runs[1];
        CHECK(first > 0);
        emu_lt_setup.slow = 1;
        matmul_prepare(&c.p, bf16 ? 2 : 4);
        CHECK(emu_lt.runs[1] > first && emu_lt.runs[2] > 0 && emu_lt.runs[3] > 0 &&
              emu_lt.runs[4] > 0);
        CHECK(matmul_counts().heuristics > 0);
        CHECK(emu_lt.runs[5] == 0); // adds rounded sums
        first = emu_lt.runs[1];
        CHECK(took_again(&c.p, bf16).heuristics == 0 && emu_lt.runs[1] == first);
        EmuLt timed = emu_lt; // and once
        matmul_prepare(&c.p, bf16 ? 2 : 4);
        CHECK(memcmp(&timed, &emu_lt, sizeof timed) == 0);
        Form sum = forms[9]; // beta = 1: prepare drops what is refused
        Case d = case_make(&sum, bf16);
        matmul_prepare(&d.p, bf16 ? 2 : 4);
        first = emu_lt.runs[1];
        CHECK(took_again(&d.p, bf16).fused == 1 && emu_lt.runs[1] == first);
        Case none = case_make(&forms[16], bf16);
        matmul_prepare(&none.p, bf16 ? 2 : 4); // K = 0: nothing to time
        // algorithm 2 takes no operand at 16 or 32 bytes
        for (int i = 0; i < 3; i++) {
            Case at_8 = case_make(&forms[0], bf16);
            size_t bytes = bf16 ? 2 : 4;
            if (i == 0) at_8.p.a = act_at(at_8.p.a, 8, bytes), at_8.p.K -= 8;
            if (i == 1) at_8.p.b = act_at(at_8.p.b, 8, bytes), at_8.p.N -= 8;
            if (i == 2) at_8.p.y = act_at(at_8.p.y, 8, bytes), at_8.p.N -= 8;
            EmuLt before = emu_lt;
            matmul_prepare(&at_8.p, bytes);
            CHECK(emu_lt.runs[2] == before.runs[2] && memcmp(&before, &emu_lt, sizeof before));
        }
        CHECK(cuda_end());
    }
}

/* What is fast alone need not be so beside others. */
TEST_EMULATED(cuda_matmul_prepare_times_nothing_where_multiprocessors_are_left_to_others) {
    cuda_forget_choices();
    begin(cuda_orders[0]);
    Case c = case_make(&forms[0], true);
    for (int left = 1; left >= 0; left--) {
        EmuLt before = emu_lt;
        device_set_sm_margin(left);
        matmul_prepare(&c.p, 2);
        CHECK(left ? memcmp(&before, &emu_lt, sizeof before) == 0
                   : emu_lt.runs[4] > before.runs[4]);
    }
    CHECK(cuda_end());
}

/* All algorithms that sum the columns of b take 30 ms more; then those that do not. The next run
 * takes the same. */
TEST_EMULATED(cuda_matmul_prepare_takes_an_epilogue_where_it_is_faster_than_a_pass) {
    for (int alone = 0; alone < 2; alone++) {
        cuda_forget_choices();
        begin(cuda_orders[2]);
        emu_lt_setup.slow_epilogue = alone ? LT_EPILOGUE_BGRADA : LT_EPILOGUE_DEFAULT;
        Case c = case_make(&forms[18], true);
        matmul_prepare(&c.p, 2);
        emu_lt_setup.slow_epilogue = 0;
        array_put(&c.y), array_put(&c.sums); // as they were
        Took t = took_again(&c.p, true);
        CHECK(t.fused == !alone && t.bare == alone && t.heuristics == 0);
        CHECK(check_case(&forms[18], &c, true, "prepared") &&
              check_sums(&forms[18], &c, true, "prepared"));
        CHECK(cuda_end());
        begin(cuda_orders[2]);
        c = case_make(&forms[18], true);
        matmul_prepare(&c.p, 2);
        CHECK(took_again(&c.p, true).bare == alone);
        CHECK(cuda_end());
    }
}

/* Where nothing that was proposed with the epilogue runs, that without is chosen, whatever the
 * words. */
TEST_EMULATED(cuda_matmul_prepare_finds_what_runs) {
    for (EACH_DTYPE(bf16)) {
        cuda_forget_choices();
        begin(cuda_orders[0]);
        emu_lt_setup.fault = EMU_LT_BARE;
        Case c = case_make(&forms[1], bf16);
        matmul_prepare(&c.p, bf16 ? 2 : 4);
        Took t = took_again(&c.p, bf16);
        CHECK(t.bare == 1 && t.heuristics == 0);
        CHECK(cuda_end());
    }
}

/* The algorithm that a rank takes which comes later, while another one is slow, and how many were
 * timed for it; -1: not as it should be. */
static int taken(const Form *f, int slow, int *timed) {
    begin(cuda_orders[0]);
    Case c = case_make(f, true);
    emu_lt_setup.slow = slow;
    EmuLt before = emu_lt;
    matmul_prepare(&c.p, 2);
    *timed = 0;
    for (int i = 0; i < EMU_LT_ALGORITHMS; i++) *timed += emu_lt.runs[i] > before.runs[i];
    before = emu_lt;
    bool fused = took_again(&c.p, true).fused == 1;
    int one = -1;
    for (int i = 0; i < EMU_LT_ALGORITHMS; i++)
        if (emu_lt.runs[i] > before.runs[i]) one = i;
    return cuda_end() && fused ? one : -1;
}

/* The entry that is there, changed, as the latest one. */
static void choose_another(uint64_t algorithm) {
    int file = choices_lock(device_facts(0).name, cublaslt()->version());
    AlgorithmChoice c;
    CHECK(pread(file, &c, sizeof c, 0) == sizeof c && choices_find(file, &c));
    c.algorithm.data[1] = algorithm;
    choices_add(file, &c);
    choices_unlock(file);
}

TEST_EMULATED(cuda_matmul_prepare_takes_what_was_chosen_before) {
    int timed;
    cuda_forget_choices();
    int one = taken(&forms[0], 1, &timed);
    CHECK(one > 1 && timed == 4);
    CHECK(taken(&forms[0], one, &timed) == one && timed == 0);
    CHECK(taken(&forms[12], one, &timed) >= 0 && timed > 0); // another shape
    choose_another(1);
    CHECK(taken(&forms[0], 0, &timed) == 1 && timed == 0);
    choose_another(77); // the library has it no more
    CHECK(taken(&forms[0], 1, &timed) > 1 && timed == 4);
}

/* A half entry, and one whose bytes are not those that were written, are none. */
TEST(cuda_matmul_choices_may_be_damaged) {
    AlgorithmChoice c = {.key = {1}, .done = 1}, d = c;
    char byte = 7;
    cuda_forget_choices();
    int file = choices_lock("some device", 1);
    CHECK(!choices_find(file, &d));
    choices_add(file, &c);
    CHECK(choices_find(file, &d) && memcmp(&c, &d, sizeof c) == 0);
    CHECK(pwrite(file, &byte, 1, CHOICE_KEY) == 1 && !choices_find(file, &d));
    CHECK(pwrite(file, &byte, 1, sizeof c) == 1);
    choices_add(file, &c);
    CHECK(choices_find(file, &d));
    choices_unlock(file);
    file = choices_lock("some device", 2);
    CHECK(!choices_find(file, &d));
    choices_unlock(file);
}

static void matmul_of_broken_library(UNUSED void *unused) {
    begin(cuda_orders[0]);
    emu_lt_setup.fault = EMU_LT_BROKEN;
    run_form(&forms[0], true, "broken");
}

TEST_EMULATED(cuda_matmul_names_the_shape_when_the_library_breaks) {
    CHECK_CHILD(1, matmul_of_broken_library, NULL,
                "y[24,40] = a b over 32, elements of 2 and 2 bytes",
                "the library was not initialized");
}

TEST_EMULATED(cuda_matmul_needs_all_of_the_library) {
    CublasLt lt;
    Err e;
    CHECK_REFUSED(cublaslt_load("libno-such-library.so.1", &lt, &e), e, "libno-such-library.so.1");
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    CHECK(n > 0);
    path[n] = '\0';
    strcpy(strrchr(path, '/'), "/tests/fake_library/libfake.so.1");
    CHECK_REFUSED(cublaslt_load(path, &lt, &e), e, "has no cublasLtGetVersion");
}
