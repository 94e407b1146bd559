#include "tests/emu/emu_cublaslt.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/bf16.h"
#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/cublaslt.h"
#include "tests/emu/calls.h"
#include "tests/emu/runtime.h"

enum { ALGORITHMS = EMU_LT_ALGORITHMS, ALIGN_2 = 128, NEEDS = 1 << 20, MAGIC = 0x17b1a5 };

struct LtHandleOf {
    int magic;
};
struct LtDescOf {
    int compute, scale_type;
    int32_t turn_a, turn_b, sms;
    uint32_t epilogue;
    void *bias; // read, or written
    void *aux;
    int64_t aux_ld;
};
struct LtLayoutOf {
    int type;
    int64_t rows, cols, ld;
};
struct LtPreferenceOf {
    uint64_t workspace;
    uint32_t reduction, align[4]; // alignment of A, B, C, D in bytes
};

EmuLt emu_lt;
EmuLtSetup emu_lt_setup;

static size_t version(void) {
    return 130100;
}
static const char *status_string(int status) {
    return status == LT_NOT_INITIALIZED ? "the library was not initialized"
           : status == LT_INVALID_VALUE ? "an invalid value was passed"
                                        : "a failure";
}

/* --- objects */

static int create(LtHandle *h) {
    *h = mem_calloc(1, sizeof **h);
    (*h)->magic = MAGIC;
    return LT_SUCCESS;
}
static int destroy(LtHandle h) {
    if (h->magic != MAGIC) die("cublasLtDestroy of no handle");
    mem_free(h);
    return LT_SUCCESS;
}
static int desc_create(LtDesc *d, int compute, int scale_type) {
    *d = mem_calloc(1, sizeof **d);
    (*d)->compute = compute, (*d)->scale_type = scale_type;
    (*d)->epilogue = LT_EPILOGUE_DEFAULT;
    return LT_SUCCESS;
}
static int desc_destroy(LtDesc d) {
    mem_free(d);
    return LT_SUCCESS;
}

static int put(void *to, size_t size, const void *value, size_t n_bytes) {
    if (!value || n_bytes != size) return LT_INVALID_VALUE;
    memcpy(to, value, size);
    return LT_SUCCESS;
}
static int desc_set(LtDesc d, int attribute, const void *value, size_t n) {
    switch (attribute) {
    case LT_DESC_TRANSA:
        return put(&d->turn_a, sizeof d->turn_a, value, n);
    case LT_DESC_TRANSB:
        return put(&d->turn_b, sizeof d->turn_b, value, n);
    case LT_DESC_EPILOGUE:
        return put(&d->epilogue, sizeof d->epilogue, value, n);
    case LT_DESC_BIAS_POINTER:
        return put(&d->bias, sizeof d->bias, value, n);
    case LT_DESC_AUX_POINTER:
        return put(&d->aux, sizeof d->aux, value, n);
    case LT_DESC_AUX_LD:
        return put(&d->aux_ld, sizeof d->aux_ld, value, n);
    case LT_DESC_SM_COUNT_TARGET:
        return put(&d->sms, sizeof d->sms, value, n);
    }
    return LT_INVALID_VALUE;
}

static int layout_create(LtLayout *l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (ld < (int64_t)rows || rows == 0 || cols == 0 || rows > INT32_MAX || cols > INT32_MAX)
        return LT_INVALID_VALUE;
    *l = mem_calloc(1, sizeof **l);
    (*l)->type = type, (*l)->rows = (int64_t)rows, (*l)->cols = (int64_t)cols, (*l)->ld = ld;
    return LT_SUCCESS;
}
static int layout_destroy(LtLayout l) {
    mem_free(l);
    return LT_SUCCESS;
}
static int preference_create(LtPreference *p) {
    *p = mem_calloc(1, sizeof **p);
    for (int i = 0; i < 4; i++) (*p)->align[i] = 256;
    (*p)->reduction = 7;
    return LT_SUCCESS;
}
static int preference_destroy(LtPreference p) {
    mem_free(p);
    return LT_SUCCESS;
}
static int preference_set(LtPreference p, int attribute, const void *value, size_t n) {
    if (attribute == LT_PREF_MAX_WORKSPACE_BYTES)
        return put(&p->workspace, sizeof p->workspace, value, n);
    if (attribute == LT_PREF_REDUCTION_SCHEME_MASK) return put(&p->reduction, 4, value, n);
    if (attribute >= LT_PREF_MIN_ALIGNMENT_A && attribute <= LT_PREF_MIN_ALIGNMENT_D)
        return put(&p->align[attribute - LT_PREF_MIN_ALIGNMENT_A], 4, value, n);
    return LT_INVALID_VALUE;
}

/* --- checks of the arguments */

static int bytes_of(int type) {
    return type == LT_R_16BF ? 2 : 4;
}
static bool aligned(const void *p, uint64_t to) {
    return (uintptr_t)p % to == 0;
}

static int check_types(LtDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout y) {
    bool known = d->compute == LT_32F && d->scale_type == LT_R_32F;
    if (!known || a->type != b->type || c->type != y->type) return LT_NOT_SUPPORTED;
    return y->type == LT_R_32F || a->type == LT_R_16BF ? LT_SUCCESS : LT_NOT_SUPPORTED;
}

static int check_shapes(LtDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout y) {
    int64_t m = d->turn_a ? a->cols : a->rows, k = d->turn_a ? a->rows : a->cols;
    int64_t k_b = d->turn_b ? b->cols : b->rows, n = d->turn_b ? b->rows : b->cols;
    bool fits = k == k_b && m == y->rows && n == y->cols && c->rows == m && c->cols == n;
    return fits ? LT_SUCCESS : LT_INVALID_VALUE;
}

/* beta: -1 when algorithms are chosen, since beta is not known then. */
static int check_epilogue(LtDesc d, LtLayout a, LtLayout y, float beta) {
    bool known = false;
    const uint32_t all[] = {LT_EPILOGUE_DEFAULT,   LT_EPILOGUE_BIAS,     LT_EPILOGUE_GELU,
                            LT_EPILOGUE_GELU_BIAS, LT_EPILOGUE_GELU_AUX, LT_EPILOGUE_GELU_AUX_BIAS,
                            LT_EPILOGUE_DGELU,     LT_EPILOGUE_BGRADA};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) known = known || d->epilogue == all[i];
    // BGRADA sums rows of A, which must not be transposed
    bool sums = d->epilogue == LT_EPILOGUE_BGRADA;
    if (!known || emu_lt_setup.fault == EMU_LT_NOTHING ||
        (sums && emu_lt_setup.fault == EMU_LT_NO_SUMS))
        return LT_NOT_SUPPORTED;
    if ((sums || d->epilogue & LT_EPILOGUE_BIAS) &&
        (!d->bias || !aligned(d->bias, (uint64_t)bytes_of(y->type))))
        return LT_INVALID_VALUE;
    if (sums && d->turn_a != LT_OP_N) return LT_NOT_SUPPORTED;
    if (d->epilogue & 128) {
        if (!d->aux || !aligned(d->aux, 16) || d->aux_ld % 8 || d->aux_ld < y->rows)
            return LT_INVALID_VALUE;
        if (a->type != y->type) return LT_NOT_SUPPORTED;
    }
    return d->epilogue == LT_EPILOGUE_DGELU && beta > 0 ? LT_NOT_SUPPORTED : LT_SUCCESS;
}

static int check_all(LtDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout y, float beta) {
    int status = check_types(d, a, b, c, y);
    if (!status) status = check_shapes(d, a, b, c, y);
    return status ? status : check_epilogue(d, a, y, beta);
}

static bool proposes(LtPreference p, LtLayout y, int i) {
    if (i == 2) return p->align[0] >= ALIGN_2 && p->align[1] >= ALIGN_2 && p->align[3] >= ALIGN_2;
    if (i == 3) return p->workspace >= NEEDS;
    if (i == 5) return p->reduction & LT_REDUCTION_OUTPUT_TYPE && y->type == LT_R_16BF;
    return true;
}

/* Proposes algorithms, as cublasLtMatmulAlgoGetHeuristic. */
static int heuristic(LtHandle h, LtDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout y,
                     LtPreference p, int most, LtHeuristic *out, int *n) {
    emu_called(&emu_calls.choices);
    if (h->magic != MAGIC || most < 1) return LT_INVALID_VALUE;
    int status = check_all(d, a, b, c, y, -1);
    if (status) return status;
    *n = 0;
    for (int i = 0; i < ALGORITHMS && *n < most; i++) {
        if (!proposes(p, y, i)) continue;
        LtHeuristic *one = &out[(*n)++];
        memset(one, 0x5a, sizeof *one);
        one->algorithm.data[0] = MAGIC, one->algorithm.data[1] = (uint64_t)i;
        one->status = i == 0 ? LT_NOT_SUPPORTED : LT_SUCCESS;
        one->workspace_bytes = i == 3 ? NEEDS : 0;
    }
    return LT_SUCCESS;
}

static int algorithm_check(LtHandle h, LtDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout y,
                           const LtAlgorithm *algorithm, LtHeuristic *out) {
    if (h->magic != MAGIC || algorithm->data[0] != MAGIC || algorithm->data[1] >= ALGORITHMS)
        return LT_INVALID_VALUE;
    int status = check_all(d, a, b, c, y, -1);
    memset(out, 0x5a, sizeof *out);
    out->status = status, out->workspace_bytes = algorithm->data[1] == 3 ? NEEDS : 0;
    return status;
}

/* --- a matmul that waits in a stream */

typedef struct Call {
    struct LtDescOf d;
    struct LtLayoutOf a, b, y;
    const char *a_at, *b_at, *c_at;
    char *y_at, *workspace;
    float beta;
    int algorithm;
} Call;

static float number(const char *p, int type, int64_t i) {
    return type == LT_R_16BF ? bf16_to_float(((const uint16_t *)(const void *)p)[i])
                             : ((const float *)(const void *)p)[i];
}
static void set_number(char *p, int type, int64_t i, float x) {
    if (type == LT_R_16BF)
        ((uint16_t *)(void *)p)[i] = bf16_from_float(x);
    else
        ((float *)(void *)p)[i] = x;
}

static float sum_over(const Call *c, int64_t m, int64_t n, int64_t begin, int64_t end, int64_t by) {
    float sum = 0;
    for (int64_t k = begin; k != end; k += by) {
        int64_t at_a = c->d.turn_a ? k + m * c->a.ld : m + k * c->a.ld;
        int64_t at_b = c->d.turn_b ? n + k * c->b.ld : k + n * c->b.ld;
        sum += number(c->a_at, c->a.type, at_a) * number(c->b_at, c->b.type, at_b);
    }
    return sum;
}

/* BGRADA: writes the sum of row m of A over k, in the type of D. */
static void sum_row(const Call *c, int64_t m) {
    float sum = 0;
    for (int64_t k = 0; k < c->a.cols; k++) sum += number(c->a_at, c->a.type, m + k * c->a.ld);
    set_number(c->d.bias, c->y.type, m, sum);
}

static double tanh_of(double x) {
    return tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
}
static double slope_of(double x) {
    double t = tanh_of(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* The epilogue of element (m, n): beta, bias, activation; stores the result. */
static void end(const Call *c, int64_t m, int64_t n, float sum) {
    int type = c->y.type;
    int64_t at = m + n * c->y.ld, at_aux = m + n * c->d.aux_ld;
    double v = (double)sum;
    if (c->beta != 0) v += (double)(c->beta * number(c->c_at, type, at));
    if (c->d.epilogue & LT_EPILOGUE_BIAS) v += (double)number(c->d.bias, type, m);
    if (c->d.epilogue & LT_EPILOGUE_GELU) {
        if (c->d.epilogue & 128) set_number(c->d.aux, type, at_aux, (float)v);
        v *= 0.5 * (1 + tanh_of(v));
    } else if (c->d.epilogue == LT_EPILOGUE_DGELU) {
        v *= slope_of((double)number(c->d.aux, type, at_aux));
    }
    set_number(c->y_at, type, at, (float)v);
}

static float sum_by(const Call *c, int64_t m, int64_t n, int64_t K) {
    if (c->algorithm == 2) return sum_over(c, m, n, K - 1, -1, -1);
    if (c->algorithm != 3 && c->algorithm != 5) return sum_over(c, m, n, 0, K, 1);
    float half = sum_over(c, m, n, 0, K / 2, 1);
    if (c->algorithm == 5) half = bf16_to_float(bf16_from_float(half));
    return half + sum_over(c, m, n, K / 2, K, 1);
}

static void run(void *ctx) {
    const Call *c = ctx;
    int64_t K = c->d.turn_a ? c->a.rows : c->a.cols;
    if (c->algorithm == 3) memset(c->workspace, 0xff, NEEDS);
    for (int64_t n = 0; n < c->y.cols; n++)
        for (int64_t m = 0; m < c->y.rows; m++) end(c, m, n, sum_by(c, m, n, K));
    for (int64_t m = 0; m < c->y.rows && c->d.epilogue == LT_EPILOGUE_BGRADA; m++) sum_row(c, m);
    if (c->algorithm == emu_lt_setup.slow || (int)c->d.epilogue == emu_lt_setup.slow_epilogue)
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
}

/* Dies if a matrix does not lie in device memory, or is not aligned as the algorithm requires. */
static void check_memory(const char *what, const void *p, LtLayout l, uint64_t align) {
    size_t n = (size_t)((l->cols - 1) * l->ld + l->rows) * (size_t)bytes_of(l->type);
    if (!emu_is_device(p, n)) die("cublasLtMatmul: %s is no memory of a device", what);
    if (!aligned(p, align))
        die("cublasLtMatmul: %s is not aligned to %d bytes as its algorithm wants it", what,
            (int)align);
}

/* Checks a matmul as cublasLtMatmul does, then puts it into the stream. */
static int matmul(LtHandle h, LtDesc d, const void *alpha, const void *a, LtLayout la,
                  const void *b, LtLayout lb, const void *beta, const void *c, LtLayout lc, void *y,
                  LtLayout ly, const LtAlgorithm *algorithm, void *workspace,
                  size_t workspace_bytes, Stream s) {
    float times, add;
    memcpy(&times, alpha, sizeof times), memcpy(&add, beta, sizeof add);
    if (h->magic != MAGIC || algorithm->data[0] != MAGIC || times != 1) return LT_INVALID_VALUE;
    if (emu_lt_setup.fault == EMU_LT_BROKEN) return LT_NOT_INITIALIZED;
    int i = (int)algorithm->data[1], status = check_all(d, la, lb, lc, ly, add);
    if (status) return status;
    if (emu_lt_setup.fault == EMU_LT_BARE &&
        d->epilogue & ~(uint32_t)(LT_EPILOGUE_DEFAULT | LT_EPILOGUE_BIAS))
        return LT_NOT_SUPPORTED;
    if (emu_lt_setup.fault == EMU_LT_REFUSES_ALL) return LT_NOT_SUPPORTED;
    if (i == 0 || (i == 1 && add != 0)) return LT_NOT_SUPPORTED;
    if (i == 3 && (workspace_bytes < NEEDS || !aligned(workspace, 16))) return LT_INVALID_VALUE;
    if (c == y && lc->ld != ly->ld) return LT_INVALID_VALUE;
    uint64_t align = i == 2 ? ALIGN_2 : 1;
    check_memory("A", a, la, align), check_memory("B", b, lb, align);
    check_memory("C", c, lc, 1), check_memory("D", y, ly, align);
    if (d->epilogue == LT_EPILOGUE_BGRADA || d->epilogue & LT_EPILOGUE_BIAS)
        check_memory("the bias", d->bias, &(struct LtLayoutOf){ly->type, ly->rows, 1, ly->rows}, 1);
    if (i == 3 && !emu_is_device(workspace, NEEDS)) die("cublasLtMatmul: no such workspace");
    Call *call = mem_alloc(sizeof *call);
    *call = (Call){*d, *la, *lb, *ly, a, b, c, y, workspace, add, i};
    emu_lt.runs[i]++, emu_lt.sms = d->sms, emu_lt.epilogue = (int)d->epilogue;
    emu_called(&emu_calls.matmuls);
    if (d->sms) emu_called(&emu_calls.narrow);
    emu_enqueue(s, "cublasLtMatmul", run, call);
    return LT_SUCCESS;
}

static const CublasLt lt = {version,           status_string,      create,
                            destroy,           desc_create,        desc_destroy,
                            desc_set,          layout_create,      layout_destroy,
                            preference_create, preference_destroy, preference_set,
                            heuristic,         algorithm_check,    matmul};

__attribute__((constructor)) static void give(void) {
    cublaslt_override(&lt);
}
