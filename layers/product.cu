/* matmul on CUDA. The ladder, from plain to fast; all rungs end alike: addend, bias, epilogue, one
 * rounding to the dtype of y. FLOPs 2MNK.
 *
 *     a thread for each element    here. Two loads for a multiply-add: bound by L1.
 *     tiles in shared memory       here. A tile of 64 x 64 reads 128 numbers of shared memory for
 *                                  4,096 multiply-adds: bound by fp32 units, 67 TFLOP/s on an H200.
 *     tensor cores of Hopper       matmul_sm90.cu: 989 TFLOP/s
 *     cuBLASLt                     the same tensor cores (layers/cuda/products.h)
 *
 * Of the last two the faster one is taken, shape by shape. The first two serve what neither takes,
 * and are what both are checked against.
 *
 * The gradient of a bias comes with dw = x' dy where the library sums the columns of dy on the way
 * (BGRADA: its first matrix is dy, as it lies in memory). That saves bias_backward (activation.cu)
 * its reading of dy, 18 C bytes for a token of a GPT-2 layer in bf16 (qkv 3 C elements, both
 * projections C, up 4 C): of 32 x 1,024 tokens of GPT-2 124M 5.4 GB, 1.3 ms of memory at 4.2 TB/s,
 * in a micro-batch of some 50 ms. The library writes these sums and does not add them, so they go
 * to scratch, and a kernel adds N floats. The plan decides once, before the first step: without an
 * algorithm that sums, or with --tune where one without and bias_backward are faster, that is what
 * is done. Not taken:
 *     - where the matmul's dy is not what the rank stores. With sequence parallelism (sp) the two
 *       row-parallel layers gather dy along x, and the sums over x would count it X times; with
 *       stay=y a dy serves all of the panels (parallel/step/panels.c);
 *     - DGELU_BGRAD of dx, which would give the gradient of up's bias: its sums are bf16, 8 bits of
 *       a sum over all tokens. DGELU alone is used; the gradient of up's bias comes with up's dw.
 * What the epilogue costs beside an algorithm without, a device must say (make bench-gpu, matmuls:
 * dw and dw+).
 */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/panels.cuh"
#include "layers/cuda/vec.cuh"
#include "layers/pointwise.cuh"

extern "C" {
#include "layers/cuda/families.h"
#include "layers/cuda/product_plan.h"
#include "layers/matmul_sm90.h"
}

namespace {

/* A matmul of activations of type E, with a result of type Y. */
template <class E, class Y> struct Task {
    int64_t M, N, K;
    const E *a, *b;
    int64_t a_row, a_col, b_row, b_col, ldy;
    Y *y;
    const Y *addend;
    const Y *bias;
    E *aux;
    Epilogue epilogue;
    ActKind act;
    bool rounds; // operands to bf16
};

__device__ __forceinline__ float operand(float x, bool rounds) {
    return rounds ? __bfloat162float(__float2bfloat16_rn(x)) : x;
}
__device__ __forceinline__ float operand(bf16 x, bool) {
    return __bfloat162float(x);
}

/* The sum of y(m, n) is there. */
template <class E, class Y>
__device__ __forceinline__ void finish(const Task<E, Y> &p, int64_t m, int64_t n, float sum) {
    int64_t at = m * p.ldy + n;
    if (p.addend) sum = to_float(p.addend[at]) + sum;
    if (p.bias) sum += to_float(p.bias[n]);
    if (p.epilogue == EPI_ACT) {
        if (p.aux) from_float(p.aux[at], sum);
        sum = pointwise(p.act, sum);
    } else if (p.epilogue == EPI_DACT) {
        sum *= pointwise_slope(p.act, to_float(p.aux[at]));
    }
    from_float(p.y[at], sum);
}

/* --- plain: a thread for each element; 8 rows of 32 columns in a block */

enum { ROWS = 8, COLUMNS = 32 };

template <class E, class Y>
__device__ __forceinline__ bool this_element(const Task<E, Y> &p, int64_t &m, int64_t &n) {
    int64_t across = (p.N + COLUMNS - 1) / COLUMNS, block = blockIdx.x;
    m = block / across * ROWS + threadIdx.y, n = block % across * COLUMNS + threadIdx.x;
    return m < p.M && n < p.N;
}

template <class E, class Y> __global__ void product_plain(Task<E, Y> p) {
    int64_t m, n;
    if (!this_element(p, m, n)) return;
    float sum = 0;
    for (int64_t k = 0; k < p.K; k++)
        sum = fmaf(operand(p.a[m * p.a_row + k * p.a_col], p.rounds),
                   operand(p.b[k * p.b_row + n * p.b_col], p.rounds), sum);
    finish(p, m, n, sum);
}

/* y holds the sums, addend included: what is left of a matmul that the library did without its
 * epilogue. */
template <class E, class Y> __global__ void product_end(Task<E, Y> p) {
    int64_t m, n;
    if (this_element(p, m, n)) finish(p, m, n, to_float(p.y[m * p.ldy + n]));
}

/* --- tiled: a block of 16 x 16 threads makes a tile of y of 64 x 64, 16 of K at a time through
 * shared memory. A thread makes every 16th row and column of it, so that the lanes of a warp read
 * and write side by side:
 *
 *         b  | STEP x TILE      thread (x, y): rows y, y + 16, ..., columns x, x + 16, ...
 *     ---+--------------
 *      a |  y  TILE x TILE
 */
enum { TILE = 64, STEP = 16, SIDE = 16, EACH = TILE / SIDE, THREADS = SIDE * SIDE };

struct Tiles {
    float a[STEP][TILE + 1], b[STEP][TILE + 1]; // one more: columns begin in different banks
};

/* Rows r0.. and steps k0.. of x(r, k) = x[r row + k col], zeros beyond its ends; neighbours in
 * memory go to neighbours among the lanes. */
template <class E>
__device__ __forceinline__ void fetch(float (&tile)[STEP][TILE + 1], const E *x, int64_t r0,
                                      int64_t rows, int64_t row, int64_t k0, int64_t steps,
                                      int64_t col, bool rounds) {
    int t = static_cast<int>(threadIdx.y * SIDE + threadIdx.x);
#pragma unroll
    for (int i = 0; i < TILE * STEP / THREADS; i++) {
        int j = t + i * THREADS, r = col == 1 ? j / STEP : j % TILE,
            k = col == 1 ? j % STEP : j / TILE;
        bool inside = r0 + r < rows && k0 + k < steps;
        tile[k][r] = inside ? operand(x[(r0 + r) * row + (k0 + k) * col], rounds) : 0;
    }
}

template <class E, class Y> __global__ void __launch_bounds__(THREADS) product_tiled(Task<E, Y> p) {
    auto &tile = shared<Tiles>();
    int64_t across = (p.N + TILE - 1) / TILE, block = blockIdx.x;
    int64_t m0 = block / across * TILE, n0 = block % across * TILE;
    int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    float sum[EACH][EACH] = {{0}};
    for (int64_t k0 = 0; k0 < p.K; k0 += STEP) {
        fetch(tile.a, p.a, m0, p.M, p.a_row, k0, p.K, p.a_col, p.rounds);
        fetch(tile.b, p.b, n0, p.N, p.b_col, k0, p.K, p.b_row, p.rounds);
        __syncthreads();
        for (int k = 0; k < STEP; k++) {
            float a[EACH], b[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                a[i] = tile.a[k][y + i * SIDE], b[i] = tile.b[k][x + i * SIDE];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64_t m = m0 + y + i * SIDE, n = n0 + x + j * SIDE;
            if (m < p.M && n < p.N) finish(p, m, n, sum[i][j]);
        }
}

/* --- launchers */

unsigned tiles(const Product *p, int64_t rows, int64_t columns) {
    return blocks_for(p->M, rows) * blocks_for(p->N, columns);
}

template <class E, class Y> Task<E, Y> task_of(const Product *p) {
    return Task<E, Y>{p->M,
                      p->N,
                      p->K,
                      static_cast<const E *>(p->a),
                      static_cast<const E *>(p->b),
                      p->a_row,
                      p->a_col,
                      p->b_row,
                      p->b_col,
                      p->ldy,
                      static_cast<Y *>(p->y),
                      static_cast<const Y *>(p->addend),
                      static_cast<const Y *>(p->bias),
                      static_cast<E *>(p->aux),
                      p->epilogue,
                      p->act,
                      p->bf16};
}

template <class E> struct Launchers {
    /* By tensor cores; false: not of this shape, or on this device. */
    static bool tensor_cores(const Product *p, int way) {
        if (product_rung() > PRODUCT_SM90 || matmul_sm90_refuses(p, sizeof(E))) return false;
        matmul_sm90(p, way);
        product_counts_mine()->sm90++;
        return true;
    }

    /* By tiles, where a tile is not mostly empty. */
    template <class Y> static void tiles_or_plain(const Product *p) {
        Task<E, Y> t = task_of<E, Y>(p);
        bool thin = p->M < SIDE || p->N < SIDE || p->K < STEP;
        if (thin || product_rung() == PRODUCT_PLAIN) {
            LAUNCH((product_plain<E, Y>), tiles(p, ROWS, COLUMNS), dim3(COLUMNS, ROWS), 0, t);
            product_counts_mine()->plain++;
        } else {
            LAUNCH((product_tiled<E, Y>), tiles(p, TILE, TILE), dim3(SIDE, SIDE), 0, t);
            product_counts_mine()->tiled++;
        }
    }

    /* Floats for the gradient of a bias, which the library writes and does not add to. */
    static float *sums_workspace(const Product *p) {
        auto N = static_cast<size_t>(p->N);
        return p->bias_grad ? static_cast<float *>(device_scratch(N * sizeof(float))) : nullptr;
    }

    template <class Y> static void end(const Product *p) {
        if (!p->bias && p->epilogue == EPI_NONE) return;
        Task<E, Y> t = task_of<E, Y>(p);
        t.addend = nullptr;
        LAUNCH((product_end<E, Y>), tiles(p, ROWS, COLUMNS), dim3(COLUMNS, ROWS), 0, t);
    }

    static void add_columns(const Product *p) {
        const Kernels *k = kernels_cuda(sizeof(E) == sizeof(bf16));
        if (p->bias_grad) k->bias_backward(nullptr, p->bias_grad, p->b, p->K, p->N);
    }

    template <class Y>
    static void rest(const Product *p, ProductDone done, int way, const float *sums) {
        if (done == DONE_ALL) {
            if (p->bias_grad) launch_add_panels(p->bias_grad, nullptr, sums, 1, p->N, p->N);
            return;
        }
        if (done == DONE_NOTHING && tensor_cores(p, way)) return;
        if (done == DONE_SUM)
            end<Y>(p);
        else
            tiles_or_plain<Y>(p);
        add_columns(p);
    }

    static void count(const Product *p, ProductDone done) {
        ProductCounts *n = product_counts_mine();
        n->fused += done == DONE_ALL, n->bare += done == DONE_SUM;
        n->bias_grads += done == DONE_ALL && p->bias_grad;
    }

    template <class Y> static void run(const Product *p) {
        bool own_only = product_rung() != PRODUCT_LIBRARY || p->K == 0;
        ProductPlan *plan = own_only ? nullptr : product_plan(p, sizeof(E));
        float *sums = plan ? sums_workspace(p) : nullptr;
        ProductDone done = plan ? product_plan_run(plan, p, sums) : DONE_NOTHING;
        rest<Y>(p, done, plan ? product_plan_way(plan) : 0, sums);
        count(p, done);
    }

    static void product_of(Team *, const Product *p) {
        if (p->M == 0) add_columns(p);
        if (p->M == 0 || p->N == 0) return;
        if (p->wide)
            run<float>(p);
        else
            run<E>(p);
    }

    static void prepare(const Product *p) {
        ProductPlan *plan = p->M && p->N && p->K ? product_plan(p, sizeof(E)) : nullptr;
        matmul_sm90_ready();
        if (plan) product_plan_time(plan, p, sums_workspace(p), p->wide ? rest<float> : rest<E>);
    }

    static void fill(Kernels *k) { k->product = product_of, k->product_choose = prepare; }
};

} // namespace

extern "C" void product_cuda(Kernels *k, bool is_bf16) {
    if (is_bf16)
        Launchers<bf16>::fill(k);
    else
        Launchers<float>::fill(k);
}

extern "C" void product_prepare(const Product *p, size_t word) {
    if (word == sizeof(bf16))
        Launchers<bf16>::prepare(p);
    else
        Launchers<float>::prepare(p);
}
