/* bench_gpu_library -- cuBLASLt for comparison: measures up to 16 algorithms that it proposes for a
 * matmul, and takes the fastest. */
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/cublaslt.h"
#include "tools/bench_gpu.h"

enum { MOST_SETS = 8, WORKSPACE = 32 << 20, QUICK_ROUNDS = 3 };

struct GpuLibrary {
    const CublasLt *lt;
    LtHandle handle;
    const void *bias; // bias of the first set; or memory for a gradient in fp32
    LtDesc desc;
    LtLayout a, b, y;
    const Matmul *p; // [sets] the matmul of each set
    LtHeuristic choice[GPU_ALGORITHMS];
    int now; // the algorithm that runs
};

static void check(const GpuLibrary *l, int status, const char *what) {
    if (status != LT_SUCCESS) die("cuBLASLt: %s: %s", what, l->lt->status_string(status));
}

GpuLibrary *gpu_library_open(void) {
    if (!cublaslt()) return NULL;
    GpuLibrary *l = mem_calloc(1, sizeof *l);
    l->lt = cublaslt();
    check(l, l->lt->create(&l->handle), "the start");
    return l;
}

void gpu_library_close(GpuLibrary *l) {
    if (!l) return;
    l->lt->destroy(l->handle);
    mem_free(l);
}

static void set(const GpuLibrary *l, int attribute, const void *value, size_t n_bytes) {
    check(l, l->lt->desc_set(l->desc, attribute, value, n_bytes), "an attribute");
}

/* The layout of x(r, c) = x[r row + c col]. The library's matrices are column-major, so it sees the
 * transpose of x. */
static LtLayout layout(const GpuLibrary *l, int64_t r, int64_t c, int64_t row, int64_t col,
                       int32_t *turn) {
    LtLayout made;
    *turn = col == 1 ? LT_OP_N : LT_OP_T;
    int status = col == 1 ? l->lt->layout_create(&made, LT_R_16BF, (uint64_t)c, (uint64_t)r, row)
                          : l->lt->layout_create(&made, LT_R_16BF, (uint64_t)r, (uint64_t)c, col);
    check(l, status, "a layout");
    return made;
}

/* The library's epilogue that does all of p's; 0: there is none. Its GELU' takes neither bias nor
 * addend. */
static uint32_t epilogue_of(const Matmul *p) {
    switch (p->epilogue) {
    case EPI_NONE:
        return p->bias ? LT_EPILOGUE_BIAS : p->bias_grad ? LT_EPILOGUE_BGRADA : LT_EPILOGUE_DEFAULT;
    case EPI_ACT:
        return p->bias ? LT_EPILOGUE_GELU_AUX_BIAS : LT_EPILOGUE_GELU_AUX;
    case EPI_DACT:
        return p->bias || p->addend ? 0 : LT_EPILOGUE_DGELU;
    }
    return 0;
}

/* The library computes y' = b' a', since its matrices are column-major: its first operand is b. */
static void describe(GpuLibrary *l, const Matmul *p, uint32_t epilogue) {
    int32_t turn_a, turn_b;
    check(l, l->lt->desc_create(&l->desc, LT_32F, LT_R_32F), "a description");
    l->a = layout(l, p->M, p->K, p->a_row, p->a_col, &turn_a);
    l->b = layout(l, p->K, p->N, p->b_row, p->b_col, &turn_b);
    check(l,
          l->lt->layout_create(&l->y, p->wide ? LT_R_32F : LT_R_16BF, (uint64_t)p->N,
                               (uint64_t)p->M, p->ldy),
          "a layout");
    set(l, LT_DESC_TRANSA, &turn_b, sizeof turn_b);
    set(l, LT_DESC_TRANSB, &turn_a, sizeof turn_a);
    set(l, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if ((p->bias || p->bias_grad) && epilogue != LT_EPILOGUE_DEFAULT)
        set(l, LT_DESC_BIAS_POINTER, &l->bias, sizeof l->bias);
    if (p->epilogue == EPI_NONE || epilogue == LT_EPILOGUE_DEFAULT) return;
    set(l, LT_DESC_AUX_POINTER, &p->aux, sizeof p->aux);
    set(l, LT_DESC_AUX_LD, &p->ldy, sizeof p->ldy);
}

/* Asks the library for algorithms. Returns their number. */
static int propose(GpuLibrary *l) {
    LtPreference f;
    uint64_t bytes = WORKSPACE;
    int n = 0;
    check(l, l->lt->preference_create(&f), "a preference");
    check(l, l->lt->preference_set(f, LT_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
          "the size of the workspace");
    int status = l->lt->heuristic(l->handle, l->desc, l->b, l->a, l->y, l->y, f, GPU_ALGORITHMS,
                                  l->choice, &n);
    l->lt->preference_destroy(f);
    return status == LT_SUCCESS ? n : 0;
}

static int enqueue(GpuLibrary *l, int algorithm, int of_set) {
    const float one = 1, beta = l->p[of_set].addend ? 1 : 0;
    const Matmul *p = &l->p[of_set];
    const LtHeuristic *h = &l->choice[algorithm];
    if (p->epilogue != EPI_NONE) set(l, LT_DESC_AUX_POINTER, &p->aux, sizeof p->aux);
    return l->lt->matmul(l->handle, l->desc, &one, p->b, l->b, p->a, l->a, &beta,
                         p->addend ? p->addend : p->y, l->y, p->y, l->y, &h->algorithm,
                         l->p->workspace, h->workspace_bytes, device_stream());
}
static void run(void *ctx, int of_set) {
    GpuLibrary *l = ctx;
    check(l, enqueue(l, l->now, of_set), "the matmul");
}

/* The fastest of n algorithms; -1: none runs. */
static int best_of(GpuLibrary *l, int n, int sets) {
    int best = -1;
    double least = 1e30;
    for (int i = 0; i < n; i++) {
        GpuJob job = {run, l, sets, 0};
        l->now = i;
        // not every proposed algorithm runs
        if (l->choice[i].status != LT_SUCCESS || enqueue(l, i, 0) != LT_SUCCESS) continue;
        gpu_time_rounds(&job, 1, QUICK_ROUNDS);
        if (job.seconds < least) least = job.seconds, best = i;
    }
    return best;
}

static void forget(GpuLibrary *l) {
    if (!l->desc) return;
    l->lt->desc_destroy(l->desc), l->desc = NULL;
    l->lt->layout_destroy(l->a), l->lt->layout_destroy(l->b), l->lt->layout_destroy(l->y);
}

bool gpu_library_best(GpuLibrary *l, const Matmul *p, int sets, GpuJob *job) {
    bool whole = epilogue_of(p) != 0;
    l->p = p;
    l->bias = p->bias_grad ? gpu_take(4 * p->N, GPU_ZEROS) : p->bias;
    for (;; whole = false) {
        forget(l);
        describe(l, p, whole ? epilogue_of(p) : LT_EPILOGUE_DEFAULT);
        l->now = best_of(l, propose(l), sets);
        if (l->now >= 0 || !whole) break;
    }
    if (l->now < 0) die("cuBLASLt has no algorithm for a matmul");
    *job = (GpuJob){run, l, sets, 0};
    return whole;
}
