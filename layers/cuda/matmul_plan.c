#include "layers/cuda/matmul_plan.h"

#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "base/rng.h"
#include "layers/cuda/cublaslt.h"
#include "layers/cuda/matmul_choices.h"
#include "layers/matmul_sm80.h"
#include "layers/matmul_sm90.h"

/* An operand as the library reads it. y[M,N] is stored row by row, which is y' column by column:
 * the library computes y' = b' a', so its first matrix is b, and its rows are our columns. An
 * operand whose second stride is not 1 is transposed by the library. */
typedef struct LtOperand {
    int64_t rows, cols, ld; // as stored, column by column
    // LT_OP_N or LT_OP_T; 64 bits, as keys are compared as bytes and may have no holes
    int64_t operation;
} LtOperand;

/* Everything that a choice of algorithms depends on. Compared as bytes. */
typedef struct Key {
    int64_t M, N, K, ldy;
    int64_t bias_grad; // N if the columns of b are summed, else 0
    int act;           // of the epilogue
    int padded;        // a kernel may store beyond N
    LtOperand a, b;
    int sms, rounds, elem_bytes, y_bytes, epilogue; // rounds: fp32 operands are rounded to bf16
    int align_a, align_b, align_c, align_y;         // bytes
    int bias, aux, addend; // 0: absent, 1: present, 2: aligned as an epilogue needs it
} Key;
_Static_assert(sizeof(LtOperand) == 4 * sizeof(int64_t) &&
                   sizeof(Key) == 5 * sizeof(int64_t) + 2 * sizeof(LtOperand) + 14 * sizeof(int),
               "no holes");

/* MOST: algorithms of a plan. MOST_TRIED: own configs that are timed. ALIGNED: addresses count as
 * aligned to at most what arenas give, so that all operands of a shape share one plan; the aux of
 * an activation needs less. */
enum { MOST = 8, MOST_TRIED = 8, PLANS = 512, ALIGNED = ARENA_ALIGN, AUX_ALIGNED = 16 };

struct MatmulPlan {
    Key key;
    bool whole; // the library does the epilogue, too; else the sum alone
    bool timed; // matmul_plan_time has chosen: choice[0] or config is final
    int config; // of the own kernel, if it is faster; else 0
    LtDesc desc;
    LtLayout a, b, y;
    LtHeuristic choice[MOST]; // algorithms, the best first
    int n;                    // 0: the library does not take this shape
};

/* The plans of a rank, by hash of the key. */
typedef struct Plans {
    LtHandle handle;
    const CublasLt *lt;
    MatmulPlan *slot[PLANS];
} Plans;
static _Thread_local Plans *plans;
static _Thread_local MatmulBackend highest;
static _Thread_local MatmulCounts counts;

int matmul_plan_config(const MatmulPlan *plan) {
    return plan->config;
}
void matmul_set_backend(MatmulBackend backend) {
    highest = backend;
}
MatmulBackend matmul_backend(void) {
    return highest;
}
MatmulCounts *matmul_counts_mine(void) {
    return &counts;
}
MatmulCounts matmul_counts(void) {
    return counts;
}

static void check(const Key *k, int status, const char *what) {
    if (status == LT_SUCCESS) return;
    die("cuBLASLt: %s of y[%lld,%lld] = a b over %lld, elements of %d and %d bytes, epilogue %d: "
        "%s",
        what, (long long)k->M, (long long)k->N, (long long)k->K, k->elem_bytes, k->y_bytes,
        k->epilogue, plans->lt->status_string(status));
}

/* --- the key of a plan */

/* x(r, c) = x[r row + c col], as the library reads its transpose; ld 0: it cannot. */
static LtOperand lt_operand(int64_t r, int64_t c, int64_t row, int64_t col) {
    LtOperand s = {0};
    if (col == 1 && (row >= c || r == 1)) {
        s.rows = c, s.cols = r, s.ld = r == 1 ? c : row, s.operation = LT_OP_N;
    } else if (row == 1 && (col >= r || c == 1)) {
        s.rows = r, s.cols = c, s.ld = c == 1 ? r : col, s.operation = LT_OP_T;
    }
    return s;
}

/* cuBLASLt's fast kernels move 16 bytes at once, so each dimension along which an operand is
 * contiguous should be a multiple of 8. On an H200 a vocabulary of 50257, with aligned rows, took 2
 * to 8 times as long as one of 50304. So the remainder of up to 7 rows, columns or elements of k is
 * computed by a second matmul, where the remainder is small beside the rest. */
enum { CHUNK = 8, MUCH = 2048 };
static int64_t remainder_of(bool along, int64_t n) {
    return along && n >= MUCH ? n % CHUNK : 0;
}
bool matmul_plan_parts(const Matmul *p, size_t elem_bytes, Matmul part[2]) {
    bool plain = p->epilogue == EPI_NONE && !p->bias && !p->bias_grad && !p->blocks;
    int64_t lda = p->a_col == 1 ? p->a_row : p->a_col, ldb = p->b_col == 1 ? p->b_row : p->b_col;
    if (elem_bytes != 2 || !plain || (lda | ldb | p->ldy) % CHUNK) return false;
    int64_t M = remainder_of(p->a_row == 1, p->M), N = remainder_of(true, p->N),
            K = remainder_of(p->a_col == 1, p->K);
    size_t y_bytes = p->wide ? sizeof(float) : elem_bytes;
    part[0] = part[1] = *p;
    if (M) {
        part[0].M -= M, part[1].M = M;
        part[1].a = act_at(p->a, part[0].M * p->a_row, elem_bytes);
    } else if (N) {
        part[0].N -= N, part[1].N = N, part[0].padded = false;
        part[1].b = act_at(p->b, part[0].N * p->b_col, elem_bytes);
    } else if (K) {
        // the remainder comes first: the sum that is rounded before the rest is added is then small
        part[0].K = K, part[1].K -= K;
        part[0].a = act_at(p->a, part[1].K * p->a_col, elem_bytes);
        part[0].b = act_at(p->b, part[1].K * p->b_row, elem_bytes);
        part[1].addend = p->y;
    }
    int64_t at = M ? part[0].M * p->ldy : N ? part[0].N : 0;
    part[1].y = act_at(p->y, at, y_bytes);
    if (at && p->addend) part[1].addend = act_at(p->addend, at, y_bytes);
    return M || N || K;
}

static int alignment(const void *p) {
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return p && low < ALIGNED ? (int)low : ALIGNED;
}
static int present(const void *p) {
    return !p ? 0 : alignment(p) >= AUX_ALIGNED ? 2 : 1;
}

static Key key_of(const Matmul *p, size_t elem_bytes) {
    Key k;
    memset(&k, 0, sizeof k);
    k.M = p->M, k.N = p->N, k.K = p->K, k.ldy = p->M == 1 ? p->N : p->ldy;
    k.a = lt_operand(p->M, p->K, p->a_row, p->a_col);
    k.b = lt_operand(p->K, p->N, p->b_row, p->b_col);
    k.sms = device_sm_margin() ? device_sms() : 0, k.elem_bytes = (int)elem_bytes,
    k.y_bytes = p->wide ? 4 : (int)elem_bytes;
    k.rounds = elem_bytes != 2 && p->bf16;
    k.epilogue = (int)p->epilogue, k.act = k.epilogue == EPI_NONE ? 0 : (int)p->act;
    k.align_a = alignment(p->a), k.align_b = alignment(p->b), k.align_y = alignment(p->y);
    k.align_c = p->addend ? alignment(p->addend) : k.align_y;
    k.bias = present(p->bias), k.aux = p->epilogue == EPI_NONE ? 0 : present(p->aux);
    k.addend = p->addend ? 1 : 0, k.padded = p->padded && p->N % CHUNK;
    k.bias_grad = p->bias_grad ? p->N : 0;
    return k;
}

/* Can the library do it at all? It may round fp32 operands to bf16 (its COMPUTE_32F_FAST_16BF), but
 * need not: on an H200 it kept the bits of TF32. */
static bool library_can(const Key *k) {
    const int64_t most = INT32_MAX;
    return !k->rounds && k->M > 0 && k->N > 0 && k->K > 0 && k->M <= most && k->N <= most &&
           k->K <= most && k->a.ld > 0 && k->b.ld > 0 && k->ldy >= k->N &&
           k->align_a >= k->elem_bytes && k->align_b >= k->elem_bytes && k->align_y >= k->y_bytes &&
           k->align_c >= k->y_bytes;
}

/* Does p have a bias, bias_grad or an epilogue beside addend + a b? */
static bool has_more(const Matmul *p) {
    return p->bias || p->bias_grad || p->epilogue != EPI_NONE;
}

/* The library's epilogue that does all of the key; 0: it has none. Its aux has y's dtype. Its GELU'
 * takes neither bias nor addend. Gradients in fp32 of bf16 elements have no activation. Its tanh
 * may be the processor's approximation, which is good enough for bf16, not for fp32. Its sums of b
 * have y's dtype, too, and bf16 sums would be too coarse; b is its first matrix, which it sums only
 * if not transposed. */
static int epilogue_of(const Key *k) {
    bool aux = k->aux == 2 && k->ldy % 8 == 0 && k->y_bytes == k->elem_bytes;
    if (k->epilogue != EPI_NONE && (k->elem_bytes != 2 || k->act != ACT_GELU)) return 0;
    if (k->bias_grad) {
        bool sums = k->y_bytes == 4 && k->b.operation == LT_OP_N;
        return sums && k->epilogue == EPI_NONE && !k->bias ? LT_EPILOGUE_BGRADA : 0;
    }
    switch (k->epilogue) {
    case EPI_NONE:
        return k->bias ? LT_EPILOGUE_BIAS : LT_EPILOGUE_DEFAULT;
    // ldy % 8 counts without aux, too: recomputing for backward adds the aux, and must give the
    // same bits
    case EPI_ACT:
        if (k->ldy % 8) return 0;
        if (!k->aux) return k->bias ? LT_EPILOGUE_GELU_BIAS : LT_EPILOGUE_GELU;
        return !aux ? 0 : k->bias ? LT_EPILOGUE_GELU_AUX_BIAS : LT_EPILOGUE_GELU_AUX;
    case EPI_DACT:
        return aux && !k->bias && !k->addend ? LT_EPILOGUE_DGELU : 0;
    }
    return 0;
}

/* --- the plan */

static void set_attribute(const MatmulPlan *plan, int attribute, const void *value,
                          size_t n_bytes) {
    check(&plan->key, plans->lt->desc_set(plan->desc, attribute, value, n_bytes), "an attribute");
}

static int type_of(int elem_bytes) {
    return elem_bytes == 2 ? LT_R_16BF : LT_R_32F;
}

static void layout(const Key *k, LtLayout *l, int type, int64_t rows, int64_t cols, int64_t ld) {
    check(k, plans->lt->layout_create(l, type, (uint64_t)rows, (uint64_t)cols, ld), "a layout");
}

static void describe(MatmulPlan *plan) {
    const Key *k = &plan->key;
    check(k, plans->lt->desc_create(&plan->desc, LT_32F, LT_R_32F), "a description");
    int32_t sms = k->sms, of_a = (int32_t)k->a.operation, of_b = (int32_t)k->b.operation;
    set_attribute(plan, LT_DESC_TRANSA, &of_b, sizeof of_b);
    set_attribute(plan, LT_DESC_TRANSB, &of_a, sizeof of_a);
    if (sms > 0) set_attribute(plan, LT_DESC_SM_COUNT_TARGET, &sms, sizeof sms);
    layout(k, &plan->a, type_of(k->elem_bytes), k->a.rows, k->a.cols, k->a.ld);
    layout(k, &plan->b, type_of(k->elem_bytes), k->b.rows, k->b.cols, k->b.ld);
    layout(k, &plan->y, type_of(k->y_bytes), k->N, k->M, k->ldy);
}

/* Sets the addresses of one call. A request for algorithms needs them, too, as it reads their
 * alignment. */
static void set_addresses(const MatmulPlan *plan, const Matmul *p, const float *sums) {
    const void *vector = p->bias_grad ? sums : p->bias;
    if (!plan->whole) return;
    if (vector) set_attribute(plan, LT_DESC_BIAS_POINTER, &vector, sizeof vector);
    if (plan->key.aux) set_attribute(plan, LT_DESC_AUX_POINTER, &p->aux, sizeof p->aux);
}

static LtPreference preference(const Key *k) {
    const CublasLt *lt = plans->lt;
    LtPreference f;
    uint64_t bytes = MATMUL_WORKSPACE;
    const int align[] = {k->align_b, k->align_a, k->align_c,
                         k->align_y}; // of the library's A, B, C, D
    check(k, lt->preference_create(&f), "a preference");
    check(k, lt->preference_set(f, LT_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
          "the size of the workspace");
    if (k->y_bytes == 2) { // the sums of parts of K are added in fp32, before rounding
        uint32_t scheme = LT_REDUCTION_COMPUTE_TYPE;
        check(k, lt->preference_set(f, LT_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme),
              "how parts of sums are added");
    }
    for (int i = 0; i < 4; i++) {
        uint32_t n = (uint32_t)align[i];
        check(k, lt->preference_set(f, LT_PREF_MIN_ALIGNMENT_A + i, &n, sizeof n), "an alignment");
    }
    return f;
}

/* Sets the epilogue, or none if the plan does the sum alone. False: the library has no such
 * epilogue. */
static bool set_epilogue(const MatmulPlan *plan) {
    const Key *k = &plan->key;
    uint32_t epilogue = (uint32_t)(plan->whole ? epilogue_of(k) : LT_EPILOGUE_DEFAULT);
    int64_t ld = k->ldy;
    if (!epilogue) return false;
    set_attribute(plan, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (plan->whole && k->aux) set_attribute(plan, LT_DESC_AUX_LD, &ld, sizeof ld);
    return true;
}

/* Asks the library for algorithms, with the epilogue (whole) or without. */
static void ask_algorithms(MatmulPlan *plan, bool whole, const Matmul *p) {
    const Key *k = &plan->key;
    const CublasLt *lt = plans->lt;
    plan->n = 0, plan->whole = whole;
    if (!set_epilogue(plan)) return;
    set_addresses(plan, p, device_scratch(0));
    LtPreference f = preference(k);
    int n = 0, status = lt->heuristic(plans->handle, plan->desc, plan->b, plan->a, plan->y, plan->y,
                                      f, MOST, plan->choice, &n);
    lt->preference_destroy(f);
    counts.heuristics++;
    if (status == LT_NOT_SUPPORTED || status == LT_INVALID_VALUE) return;
    check(k, status, "a choice of algorithms");
    for (int i = 0; i < n; i++)
        if (plan->choice[i].status == LT_SUCCESS &&
            plan->choice[i].workspace_bytes <= MATMUL_WORKSPACE)
            plan->choice[plan->n++] = plan->choice[i];
}

static void plan_free(MatmulPlan *plan) {
    const CublasLt *lt = plans->lt;
    if (plan->desc) {
        lt->desc_destroy(plan->desc);
        lt->layout_destroy(plan->a), lt->layout_destroy(plan->b), lt->layout_destroy(plan->y);
    }
    mem_free(plan);
}

static void free_plans(void) {
    for (int i = 0; i < PLANS; i++)
        if (plans->slot[i]) plan_free(plans->slot[i]);
    plans->lt->destroy(plans->handle);
    mem_free(plans);
    plans = NULL;
    counts.plans = 0;
}

static MatmulPlan *plan_new(const Key *k, const Matmul *p) {
    MatmulPlan *plan = mem_calloc(1, sizeof *plan);
    plan->key = *k;
    counts.plans++;
    if (!library_can(k)) return plan;
    describe(plan);
    ask_algorithms(plan, true, p);
    if (!plan->n && has_more(p)) ask_algorithms(plan, false, p);
    return plan;
}

MatmulPlan *matmul_plan(const Matmul *p, size_t elem_bytes) {
    const CublasLt *lt = plans ? plans->lt : cublaslt();
    if (!lt) return NULL;
    Key k = key_of(p, elem_bytes);
    if (!plans) {
        plans = mem_calloc(1, sizeof *plans);
        plans->lt = lt;
        check(&k, lt->create(&plans->handle), "the start");
        device_at_close(free_plans);
    }
    uint64_t at = (rng_hash(0, &k, sizeof k) >> 40) % PLANS;
    for (int tries = 0; tries < PLANS; tries++, at = (at + 1) % PLANS) {
        MatmulPlan **slot = &plans->slot[at];
        if (!*slot) *slot = plan_new(&k, p);
        if (memcmp(&(*slot)->key, &k, sizeof k) == 0) return *slot;
    }
    die("more than %d shapes of matmuls, of which y[%lld,%lld] over %lld is the next", PLANS,
        (long long)p->M, (long long)p->N, (long long)p->K);
}

/* --- running it */

static void *workspace_of(const Matmul *p) {
    uintptr_t at = (uintptr_t)p->workspace + WORKSPACE_ALIGN - 1;
    return (void *)(at - at % WORKSPACE_ALIGN);
}

/* Puts algorithm i into the stream. False when the library refuses it: it does not take all
 * algorithms that it proposes. */
static bool start(const MatmulPlan *plan, int i, const Matmul *p) {
    const float one = 1, beta = p->addend ? 1 : 0;
    const LtHeuristic *h = &plan->choice[i];
    int status =
        plans->lt->matmul(plans->handle, plan->desc, &one, p->b, plan->b, p->a, plan->a, &beta,
                          p->addend ? p->addend : p->y, plan->y, p->y, plan->y, &h->algorithm,
                          workspace_of(p), h->workspace_bytes, device_stream());
    if (status == LT_NOT_SUPPORTED || status == LT_INVALID_VALUE || status == LT_ARCH_MISMATCH)
        return false;
    check(&plan->key, status, "the matmul");
    return true;
}

static void drop_algorithm(MatmulPlan *plan, int i) {
    plan->n--;
    memmove(&plan->choice[i], &plan->choice[i + 1], (size_t)(plan->n - i) * sizeof *plan->choice);
}

static MatmulDone done_by(const MatmulPlan *plan) {
    return plan->whole ? DONE_ALL : DONE_SUM;
}

MatmulDone matmul_plan_run(MatmulPlan *plan, const Matmul *p, float *sums) {
    if (plan->config) return DONE_NOTHING;
    set_addresses(plan, p, sums);
    while (plan->n > 0) {
        if (start(plan, 0, p)) return done_by(plan);
        drop_algorithm(plan, 0);
        if (!plan->n && plan->whole && has_more(p)) ask_algorithms(plan, false, p);
    }
    return DONE_NOTHING;
}

/* --- choosing by time */

typedef struct Trial {
    MatmulPlan *plan;
    const Matmul *p;
    const float *sums;
    MatmulRest *rest;
} Trial;

/* Runs the matmul once with way i: i >= 0 is an algorithm of the library, -1 - i a config of the
 * own kernel. False: the library refuses the algorithm. */
static bool run_once(const Trial *t, int i) {
    if (i >= 0 && !start(t->plan, i, t->p)) return false;
    t->rest(t->p, (size_t)t->plan->key.elem_bytes, i < 0 ? DONE_NOTHING : done_by(t->plan),
            i < 0 ? -1 - i : 0, t->sums);
    return true;
}

/* Seconds of n runs of a way, each with the rest of the matmul. */
static double seconds(const Trial *t, int i, int n) {
    device_wait();
    double begin = now_s();
    for (int run = 0; run < n; run++) run_once(t, i);
    device_wait();
    return now_s() - begin;
}

/* Number of runs that take about a millisecond. They are queued together, so that the host's time
 * for a launch is not measured. */
static int runs_of(double seconds) {
    enum { MOST_RUNS = 50 };
    return seconds < 1e-3 / MOST_RUNS ? MOST_RUNS : seconds < 1e-3 ? (int)(1e-3 / seconds) : 1;
}

/* Seconds of one run: the least of several rounds. */
static double time_of(const Trial *t, int i) {
    enum { ROUNDS = 3 };
    int n = runs_of(seconds(t, i, 1));
    double best = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        double s = seconds(t, i, n) / n;
        if (s < best) best = s;
    }
    return best;
}

/* A choice is replaced only by one that takes less than this share of its time. */
static const double much_faster = 0.98;

enum { FINALISTS = 4, TURNS = 5 };

/* The index of the fastest of n > 0 ways that took these times, and its seconds in *least. Ways
 * that are close are timed again, in turn: at its limit of power a GPU slows down within some
 * hundred milliseconds, so of two ways the one that was timed first seems to be faster. */
static int fastest_of(const Trial *t, const int way[], const double time[], int n, double *least) {
    const double close = 1.15;
    double turn[FINALISTS][TURNS];
    int finalist[FINALISTS + 1] = {0}, finalists = 0, best = 0;
    for (int i = 0; i < n; i++) { // sorts the finalists, the fastest first
        int at = finalists < FINALISTS ? finalists++ : FINALISTS;
        for (; at > 0 && time[i] < time[finalist[at - 1]]; at--) finalist[at] = finalist[at - 1];
        finalist[at] = i;
    }
    *least = time[finalist[0]];
    while (finalists > 1 && time[finalist[finalists - 1]] > close * *least) finalists--;
    if (finalists < 2) return finalist[0];
    for (int k = 0; k < TURNS; k++)
        for (int j = 0; j < finalists; j++) {
            int i = finalist[j], runs = runs_of(time[i]);
            turn[j][k] = seconds(t, way[i], runs) / runs;
        }
    for (int j = 0; j < finalists; j++) {
        double s = median_of(turn[j], TURNS);
        if (j == 0 || s < much_faster * *least) *least = s, best = finalist[j];
    }
    return best;
}

/* Moves the fastest of the plan's algorithms to choice[0]; returns its seconds. */
static double take_fastest(const Trial *t) {
    MatmulPlan *plan = t->plan;
    double time[MOST], least = 1e30;
    int way[MOST];
    for (int i = 0; i < plan->n;) {
        if (!run_once(t, i)) { // the first run also warms up
            drop_algorithm(plan, i);
            continue;
        }
        way[i] = i, time[i] = time_of(t, i), i++;
    }
    if (!plan->n) return least;
    int best = fastest_of(t, way, time, plan->n, &least);
    LtHeuristic h = plan->choice[best];
    memmove(&plan->choice[1], &plan->choice[0], (size_t)best * sizeof h);
    plan->choice[0] = h;
    return least;
}

/* Chooses the fastest among the algorithms with the epilogue and, if y is fp32 or the library has
 * no such epilogue, those without; returns its seconds. */
static double take_best(const Trial *t) {
    MatmulPlan *plan = t->plan;
    double whole = take_fastest(t);
    bool rounds = plan->key.y_bytes == 2; // a separate pass would round a second time
    if (!plan->whole || !has_more(t->p) || (plan->n && rounds)) return whole;
    MatmulPlan fused = *plan;
    ask_algorithms(plan, false, t->p);
    double alone = take_fastest(t);
    if (alone < much_faster * whole && plan->n) return alone;
    *plan = fused;
    set_epilogue(plan);
    return whole;
}

/* Writes the configs of the own kernel that takes p on this device; returns how many. */
static int own_configs(const Matmul *p, int elem_bytes, int config[MATMUL_CONFIGS]) {
    if (!matmul_sm90_refuses(p, (size_t)elem_bytes)) return matmul_sm90_configs(p, config);
    return matmul_sm80_refuses(p, (size_t)elem_bytes) ? 0 : matmul_sm80_configs(p, config);
}

/* Chooses the fastest config of the own kernel if it is faster than the library, which takes
 * `library` seconds. A config whose second run takes more than twice as long as the best is
 * not timed further. */
static void take_own_if_faster(const Trial *t, double library) {
    int config[MATMUL_CONFIGS], n = own_configs(t->p, t->plan->key.elem_bytes, config);
    int way[MOST_TRIED + 1], ways = 0;
    double time[MOST_TRIED + 1], least = library;
    if (t->plan->n) way[ways] = 0, time[ways++] = library;
    for (int i = 0; i < n && i < MOST_TRIED; i++) {
        run_once(t, -1 - config[i]); // warms up
        if (seconds(t, -1 - config[i], 1) > 2 * least) continue;
        way[ways] = -1 - config[i], time[ways] = time_of(t, way[ways]);
        if (time[ways] < least) least = time[ways];
        ways++;
    }
    int best = ways ? way[fastest_of(t, way, time, ways, &least)] : 0;
    if (best < 0) t->plan->config = -1 - best;
}

/* --- choices of earlier runs and of other ranks */

_Static_assert(sizeof(Key) <= CHOICE_KEY, "a key has room");

static AlgorithmChoice choice_of(const MatmulPlan *plan) {
    AlgorithmChoice c = {.done = plan->config ? DONE_NOTHING : done_by(plan),
                         .algorithm = plan->choice[0].algorithm};
    if (plan->config) c.algorithm = (LtAlgorithm){{(uint64_t)plan->config}};
    memcpy(c.key, &plan->key, sizeof plan->key);
    return c;
}

/* If the library would run this algorithm, makes it the plan's only one. */
static bool take_algorithm(MatmulPlan *plan, const LtAlgorithm *algorithm) {
    LtHeuristic h;
    int status = plans->lt->algorithm_check(plans->handle, plan->desc, plan->b, plan->a, plan->y,
                                            plan->y, algorithm, &h);
    if (status != LT_SUCCESS || h.workspace_bytes > MATMUL_WORKSPACE) return false;
    h.algorithm = *algorithm; // algorithm_check does not set it
    plan->choice[0] = h, plan->n = 1;
    return true;
}

/* Takes the choice in the file; false where it has none that this device runs. */
static bool recall(const Trial *t, int file) {
    MatmulPlan *plan = t->plan;
    AlgorithmChoice c = choice_of(plan);
    bool before = plan->whole;
    if (!choices_find(file, &c)) return false;
    if (c.done == DONE_NOTHING) {
        int config[MATMUL_CONFIGS], n = own_configs(t->p, plan->key.elem_bytes, config);
        while (n > 0 && config[n - 1] != (int)c.algorithm.data[0]) n--;
        plan->config = n > 0 ? config[n - 1] : 0;
        return n > 0;
    }
    plan->whole = c.done == DONE_ALL;
    if (set_epilogue(plan) && take_algorithm(plan, &c.algorithm)) return true;
    plan->whole = before;
    set_epilogue(plan);
    return false;
}

void matmul_plan_time(MatmulPlan *plan, const Matmul *p, float *sums, MatmulRest *rest) {
    Trial t = {plan, p, sums, rest};
    if (plan->timed || !plan->n) return; // timed: by the first layer of this shape
    // Not for plans that leave multiprocessors to other kernels: timed alone, an algorithm that
    // takes all multiprocessors would be faster, but beside those kernels it is not.
    if (plan->key.sms) return;
    plan->timed = true;
    // First waits for work in the stream that needs other ranks: while this rank holds the file,
    // they may wait for it.
    device_wait();
    int file = choices_lock(device_name(), plans->lt->version());
    set_addresses(plan, p, sums);
    if (!recall(&t, file)) {
        take_own_if_faster(&t, take_best(&t));
        AlgorithmChoice c = choice_of(plan);
        if (plan->n || plan->config) choices_add(file, &c);
    }
    choices_unlock(file);
}
