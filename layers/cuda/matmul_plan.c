#include "layers/cuda/matmul_plan.h"

#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/mem.h"
#include "layers/cuda/cublaslt.h"
#include "layers/cuda/matmul_choices.h"
#include "layers/matmul_sm80.h"
#include "layers/matmul_sm90.h"

/* y[M,N] lies row by row, which is y' column by column: the library computes y' = b' a', so its
 * first matrix is b and its rows are our columns. An operand whose second stride is not 1 is one
 * that it shall transpose. */
typedef struct Side {
    int64_t rows, cols, ld; // as it lies in memory, column by column
    // LT_OP; as wide as the others: keys are compared as bytes, and have no holes
    int64_t operation;
} Side;

/* All that a choice of algorithms depends on. Compared as bytes. */
typedef struct Key {
    int64_t M, N, K, ldy;
    int64_t bias_grad; // columns of b that are to be summed: N or 0
    int act;           // of the epilogue
    int padded;        // a kernel may store behind N
    Side a, b;
    int sms, rounds, elem_bytes, y_bytes, epilogue; // rounds: fp32 operands to bf16
    int align_a, align_b, align_c, align_y;         // bytes
    int bias, aux, addend; // is it there; aligned as an epilogue wants it: 2
} Key;
_Static_assert(sizeof(Side) == 4 * sizeof(int64_t) &&
                   sizeof(Key) == 5 * sizeof(int64_t) + 2 * sizeof(Side) + 14 * sizeof(int),
               "no holes");

/* Addresses count as aligned to what arenas give at most, that plans of a shape be one; an
 * activation's aux wants less. */
enum { MOST = 8, MOST_TRIED = 8, PLANS = 512, ALIGNED = ARENA_ALIGN, AUX_ALIGNED = 16 };

struct MatmulPlan {
    Key key;
    bool whole; // with the epilogue; else the sum alone
    bool timed; // choice[0] is the fastest
    int config; // of the own kernel, if that is faster; or 0
    LtDesc desc;
    LtLayout a, b, y;
    LtHeuristic choice[MOST]; // of algorithms: the best first
    int n;                    // 0: the library does not take it
};

/* Of a rank. */
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
    die("cuBLASLt: %s of y[%lld,%lld] = a b over %lld, words of %d and %d bytes, epilogue %d: %s",
        what, (long long)k->M, (long long)k->N, (long long)k->K, k->elem_bytes, k->y_bytes,
        k->epilogue, plans->lt->status_string(status));
}

/* --- what is asked for */

/* Of x(r, c) = x[r row + c col] the transpose, as the library is to read it; ld 0: it cannot. */
static Side side(int64_t r, int64_t c, int64_t row, int64_t col) {
    Side s = {0};
    if (col == 1 && (row >= c || r == 1)) {
        s.rows = c, s.cols = r, s.ld = r == 1 ? c : row, s.operation = LT_OP_N;
    } else if (row == 1 && (col >= r || c == 1)) {
        s.rows = r, s.cols = c, s.ld = c == 1 ? r : col, s.operation = LT_OP_T;
    }
    return s;
}

/* cuBLASLt's fast kernels move 16 bytes at once, so each side along which an operand lies in memory
 * is a multiple of 8. A vocabulary of 50257, in rows that are aligned, took 2 to 8 times as long
 * as one of 50304 on an H200. So what is over is a matmul of its own, of up to 7 rows, columns or
 * elements of k, where that is little beside the rest. */
enum { CHUNK = 8, MUCH = 2048 };
static int64_t over(bool along, int64_t n) {
    return along && n >= MUCH ? n % CHUNK : 0;
}
bool matmul_plan_parts(const Matmul *p, size_t elem_bytes, Matmul part[2]) {
    bool plain = p->epilogue == EPI_NONE && !p->bias && !p->bias_grad && !p->blocks;
    int64_t lda = p->a_col == 1 ? p->a_row : p->a_col, ldb = p->b_col == 1 ? p->b_row : p->b_col;
    if (elem_bytes != 2 || !plain || (lda | ldb | p->ldy) % CHUNK) return false;
    int64_t M = over(p->a_row == 1, p->M), N = over(true, p->N), K = over(p->a_col == 1, p->K);
    size_t y_bytes = p->wide ? sizeof(float) : elem_bytes;
    part[0] = part[1] = *p;
    if (M) {
        part[0].M -= M, part[1].M = M;
        part[1].a = act_at(p->a, part[0].M * p->a_row, elem_bytes);
    } else if (N) {
        part[0].N -= N, part[1].N = N, part[0].padded = false;
        part[1].b = act_at(p->b, part[0].N * p->b_col, elem_bytes);
    } else if (K) { // the few first: what is rounded before the others are added is small
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
    k.a = side(p->M, p->K, p->a_row, p->a_col);
    k.b = side(p->K, p->N, p->b_row, p->b_col);
    k.sms = device_left() ? device_sms() : 0, k.elem_bytes = (int)elem_bytes,
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

/* What the library can be asked for at all. Operands of fp32 it may round to bf16 (its
 * COMPUTE_32F_FAST_16BF), but need not: on an H200 it kept the bits of TF32. */
static bool possible(const Key *k) {
    const int64_t most = INT32_MAX;
    return !k->rounds && k->M > 0 && k->N > 0 && k->K > 0 && k->M <= most && k->N <= most &&
           k->K <= most && k->a.ld > 0 && k->b.ld > 0 && k->ldy >= k->N &&
           k->align_a >= k->elem_bytes && k->align_b >= k->elem_bytes && k->align_y >= k->y_bytes &&
           k->align_c >= k->y_bytes;
}

/* Is there more to do than addend + a b? */
static bool has_more(const Matmul *p) {
    return p->bias || p->bias_grad || p->epilogue != EPI_NONE;
}

/* The library's epilogue for all that is asked for; 0: it has none. Its aux is of y's type, its
 * GELU' takes neither bias nor addend, and fp32 gradients of bf16 elements have no activation. Its
 * tanh may be the processor's own approximation: good enough for 8 bits, not for fp32. Sums of b
 * are of y's type, too, and a fraction of 8 bits would not do; b is its first matrix, which it sums
 * as it lies, not turned. */
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
    case EPI_ACT: // with aux or without the same bits: recomputed for backward it has an aux
        if (k->ldy % 8) return 0;
        if (!k->aux) return k->bias ? LT_EPILOGUE_GELU_BIAS : LT_EPILOGUE_GELU;
        return !aux ? 0 : k->bias ? LT_EPILOGUE_GELU_AUX_BIAS : LT_EPILOGUE_GELU_AUX;
    case EPI_DACT:
        return aux && !k->bias && !k->addend ? LT_EPILOGUE_DGELU : 0;
    }
    return 0;
}

/* --- the plan */

static void set(const MatmulPlan *plan, int attribute, const void *value, size_t n_bytes) {
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
    set(plan, LT_DESC_TRANSA, &of_b, sizeof of_b);
    set(plan, LT_DESC_TRANSB, &of_a, sizeof of_a);
    if (sms > 0) set(plan, LT_DESC_SM_COUNT_TARGET, &sms, sizeof sms);
    layout(k, &plan->a, type_of(k->elem_bytes), k->a.rows, k->a.cols, k->a.ld);
    layout(k, &plan->b, type_of(k->elem_bytes), k->b.rows, k->b.cols, k->b.ld);
    layout(k, &plan->y, type_of(k->y_bytes), k->N, k->M, k->ldy);
}

/* What one call brings; also what a choice of algorithms looks at: it reads how the addresses are
 * aligned. */
static void set_addresses(const MatmulPlan *plan, const Matmul *p, const float *sums) {
    const void *vector = p->bias_grad ? sums : p->bias;
    if (!plan->whole) return;
    if (vector) set(plan, LT_DESC_BIAS_POINTER, &vector, sizeof vector);
    if (plan->key.aux) set(plan, LT_DESC_AUX_POINTER, &p->aux, sizeof p->aux);
}

static LtPreference preference(const Key *k) {
    const CublasLt *lt = plans->lt;
    LtPreference f;
    uint64_t bytes = MATMUL_WORKSPACE;
    const int align[] = {k->align_b, k->align_a, k->align_c,
                         k->align_y}; // A, B, C, D of the library
    check(k, lt->preference_create(&f), "a preference");
    check(k, lt->preference_set(f, LT_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
          "the size of the workspace");
    if (k->y_bytes == 2) { // sums of parts of K are added before they are rounded, not after
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

/* False: the library has none. */
static bool set_epilogue(const MatmulPlan *plan) {
    const Key *k = &plan->key;
    uint32_t epilogue = (uint32_t)(plan->whole ? epilogue_of(k) : LT_EPILOGUE_DEFAULT);
    int64_t ld = k->ldy;
    if (!epilogue) return false;
    set(plan, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (plan->whole && k->aux) set(plan, LT_DESC_AUX_LD, &ld, sizeof ld);
    return true;
}

/* Asks for algorithms, with the epilogue or without. */
static void ask(MatmulPlan *plan, bool whole, const Matmul *p) {
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

static void forget(void) {
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
    if (!possible(k)) return plan;
    describe(plan);
    ask(plan, true, p);
    if (!plan->n && has_more(p)) ask(plan, false, p);
    return plan;
}

/* FNV-1a. */
static unsigned hash(const Key *k) {
    const unsigned char *byte = (const unsigned char *)k;
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof *k; i++) h = (h ^ byte[i]) * 0x100000001b3;
    return (unsigned)(h >> 40) % PLANS;
}

MatmulPlan *matmul_plan(const Matmul *p, size_t elem_bytes) {
    const CublasLt *lt = plans ? plans->lt : cublaslt();
    if (!lt) return NULL;
    Key k = key_of(p, elem_bytes);
    if (!plans) {
        plans = mem_calloc(1, sizeof *plans);
        plans->lt = lt;
        check(&k, lt->create(&plans->handle), "the start");
        device_at_close(forget);
    }
    unsigned at = hash(&k);
    for (int tries = 0; tries < PLANS; tries++, at = (at + 1) % PLANS) {
        MatmulPlan **slot = &plans->slot[at];
        if (!*slot) *slot = plan_new(&k, p);
        if (memcmp(&(*slot)->key, &k, sizeof k) == 0) return *slot;
    }
    die("matmuls of more than %d shapes: the one of y[%lld,%lld] over %lld has no place", PLANS,
        (long long)p->M, (long long)p->N, (long long)p->K);
}

/* --- running it */

static void *workspace_of(const Matmul *p) {
    uintptr_t at = (uintptr_t)p->workspace + WORKSPACE_ALIGN - 1;
    return (void *)(at - at % WORKSPACE_ALIGN);
}

/* Puts algorithm i into the stream. False when the library refuses: not all that is proposed is
 * also done. */
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

static void drop(MatmulPlan *plan, int i) {
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
        drop(plan, 0);
        if (!plan->n && plan->whole && has_more(p)) ask(plan, false, p);
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

/* i: of the library's algorithms, or -1 - i a config of the own kernel. */
static bool once(const Trial *t, int i) {
    if (i >= 0 && !start(t->plan, i, t->p)) return false;
    t->rest(t->p, (size_t)t->plan->key.elem_bytes, i < 0 ? DONE_NOTHING : done_by(t->plan),
            i < 0 ? -1 - i : 0, t->sums);
    return true;
}

/* Seconds of n runs of an algorithm and of what it leaves. */
static double seconds(const Trial *t, int i, int n) {
    device_wait();
    double begin = now_s();
    for (int run = 0; run < n; run++) once(t, i);
    device_wait();
    return now_s() - begin;
}

/* Runs of so long a time take about a millisecond: they stand in line, so that what a launch costs
 * the host is not in it. */
static int runs_of(double seconds) {
    enum { MOST_RUNS = 50 };
    return seconds < 1e-3 / MOST_RUNS ? MOST_RUNS : seconds < 1e-3 ? (int)(1e-3 / seconds) : 1;
}

/* The least time of one run, of some rounds. */
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

static const double much_faster = 0.98;

enum { FINALISTS = 4, TURNS = 5 };

/* Which of n > 0 ways that took these seconds is the fastest, and its seconds. Those that are close
 * are timed once more, in turns: a GPU slows down within some hundred milliseconds at its limit of
 * power, so of two ways the one that was timed first seems to be the faster one. */
static int fastest_of(const Trial *t, const int way[], const double time[], int n, double *least) {
    const double close = 1.15;
    double turn[FINALISTS][TURNS];
    int finalist[FINALISTS + 1] = {0}, finalists = 0, best = 0;
    for (int i = 0; i < n; i++) { // the fastest first
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

/* Takes the fastest of the plan's algorithms; its seconds. */
static double take_fastest(const Trial *t) {
    MatmulPlan *plan = t->plan;
    double time[MOST], least = 1e30;
    int way[MOST];
    for (int i = 0; i < plan->n;) {
        if (!once(t, i)) { // and warm
            drop(plan, i);
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

/* Of those with the epilogue or, if they may be faster, of those without; the seconds. */
static double take_best(const Trial *t) {
    MatmulPlan *plan = t->plan;
    double whole = take_fastest(t);
    bool rounds = plan->key.y_bytes == 2; // a pass of its own, once more
    if (!plan->whole || !has_more(t->p) || (plan->n && rounds)) return whole;
    MatmulPlan fused = *plan;
    ask(plan, false, t->p);
    double alone = take_fastest(t);
    if (alone < much_faster * whole && plan->n) return alone;
    *plan = fused;
    set_epilogue(plan);
    return whole;
}

/* The configs of the own kernel that serves on this device; how many. */
static int own_configs(const Matmul *p, int elem_bytes, int config[MATMUL_CONFIGS]) {
    if (!matmul_sm90_refuses(p, (size_t)elem_bytes)) return matmul_sm90_configs(p, config);
    return matmul_sm80_refuses(p, (size_t)elem_bytes) ? 0 : matmul_sm80_configs(p, config);
}

/* Takes the fastest config of the own kernel, where it is faster than the library, which takes
 * these seconds. One that takes twice as long is not timed on. */
static void take_own_if_faster(const Trial *t, double library) {
    int config[MATMUL_CONFIGS], n = own_configs(t->p, t->plan->key.elem_bytes, config);
    int way[MOST_TRIED + 1], ways = 0;
    double time[MOST_TRIED + 1], least = library;
    if (t->plan->n) way[ways] = 0, time[ways++] = library;
    for (int i = 0; i < n && i < MOST_TRIED; i++) {
        once(t, -1 - config[i]); // and warm
        if (seconds(t, -1 - config[i], 1) > 2 * least) continue;
        way[ways] = -1 - config[i], time[ways] = time_of(t, way[ways]);
        if (time[ways] < least) least = time[ways];
        ways++;
    }
    int best = ways ? way[fastest_of(t, way, time, ways, &least)] : 0;
    if (best < 0) t->plan->config = -1 - best;
}

/* --- what was chosen before */

_Static_assert(sizeof(Key) <= CHOICE_KEY, "a key has room");

static AlgorithmChoice choice_of(const MatmulPlan *plan) {
    AlgorithmChoice c = {.done = plan->config ? DONE_NOTHING : done_by(plan),
                         .algorithm = plan->choice[0].algorithm};
    if (plan->config) c.algorithm = (LtAlgorithm){{(uint64_t)plan->config}};
    memcpy(c.key, &plan->key, sizeof plan->key);
    return c;
}

/* Would the library run it? Then it is the plan's only one. */
static bool takes(MatmulPlan *plan, const LtAlgorithm *algorithm) {
    LtHeuristic h;
    int status = plans->lt->algorithm_check(plans->handle, plan->desc, plan->b, plan->a, plan->y,
                                            plan->y, algorithm, &h);
    if (status != LT_SUCCESS || h.workspace_bytes > MATMUL_WORKSPACE) return false;
    h.algorithm = *algorithm; // which the library leaves as it is
    plan->choice[0] = h, plan->n = 1;
    return true;
}

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
    if (set_epilogue(plan) && takes(plan, &c.algorithm)) return true;
    plan->whole = before;
    set_epilogue(plan);
    return false;
}

void matmul_plan_time(MatmulPlan *plan, const Matmul *p, float *sums, MatmulRest *rest) {
    Trial t = {plan, p, sums, rest};
    if (plan->timed || !plan->n) return; // as those of all layers but the first are
    // Alone, an algorithm that takes all multiprocessors is faster than one that leaves some; not
    // beside who has taken those.
    if (plan->key.sms) return;
    plan->timed = true;
    // for what other ranks have a part in: while the file is held that could be for ever
    device_wait();
    int file = choices_hold(device_name(), plans->lt->version());
    set_addresses(plan, p, sums);
    if (!recall(&t, file)) {
        take_own_if_faster(&t, take_best(&t));
        AlgorithmChoice c = choice_of(plan);
        if (plan->n || plan->config) choices_add(file, &c);
    }
    choices_let_go(file);
}
