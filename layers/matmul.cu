/* matmul on CUDA. Four kernels, from plain to fast: two here, and one in each of two more files,
 * whose heads say how they pass the bound of the kernel before. All have the same end: addend,
 * bias, epilogue, one rounding to the dtype of y. 2MNK FLOPs.
 *
 *                                                   bound by       TFLOP/s at most: A100  H100/H200
 *     a thread for each element    here             loads                               5      8
 *     tiles in shared memory       here             shared memory                      19     33
 *     mma.sync, cp.async           matmul_sm80.cu   tensor cores                      312    620
 *     wgmma, TMA                   matmul_sm90.cu   tensor cores                             989
 *     cuBLASLt                     cuda/matmuls.h   tensor cores                      312    989
 *
 * For each shape the faster of the library and the own kernel for the device's tensor cores is
 * taken. The first two kernels serve shapes that neither takes, and the others are tested against
 * them.
 *
 * The arithmetic. TFLOP/s are multiprocessors x multiply-adds in a cycle x 2 x clock: 108 at 1.41
 * GHz in an A100; 132 at 1.98 in an H100 or H200, 1.83 while tensor cores work.
 *
 *     plain    a thread loads two numbers for a multiply-add, and a multiprocessor loads for 32
 *              threads in a cycle: 16 multiply-adds of the 64 (Hopper: 128) of its fp32 units
 *     tiles    in a tile of 64 x 64 a thread has 16 sums. It reads 8 numbers of shared memory for
 *              16 multiply-adds, so 64 in a cycle: all that an A100 has, half of Hopper's
 *     tensor   1,024 multiply-adds in a cycle, Hopper 2,048, of which mma.sync reaches some 63 %
 *              (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
 *              Microbenchmarking", 2024)
 *
 * Memory bounds none of them where M, N and K are all large: a matmul in bf16 does 1 / (1/M + 1/N +
 * 1/K) FLOPs per byte. An H100 has 989 TFLOP/s over 3.35 TB/s, 295 FLOPs per byte; an H200, with
 * 4.8 TB/s, 206; an A100 312 over 2.04, 153. The smallest matmul of GPT-2 124M, 32768 x 768 over
 * 768, does 379.
 */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/panels.cuh"
#include "layers/cuda/vec.cuh"
#include "layers/pointwise.cuh"

extern "C" {
#include "layers/cuda/cublaslt.h"
#include "layers/cuda/families.h"
#include "layers/cuda/matmul_plan.h"
#include "layers/matmul_sm80.h"
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
    bool rounds; // fp32 operands are rounded to bf16
};

__device__ __forceinline__ float operand(float x, bool rounds) {
    return rounds ? __bfloat162float(__float2bfloat16_rn(x)) : x;
}
__device__ __forceinline__ float operand(bf16 x, bool) {
    return __bfloat162float(x);
}

/* Stores y(m, n), given its finished sum: addend, bias, epilogue. */
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

template <class E, class Y> __global__ void matmul_plain(Task<E, Y> p) {
    int64_t m, n;
    if (!this_element(p, m, n)) return;
    float sum = 0;
    for (int64_t k = 0; k < p.K; k++)
        sum = fmaf(operand(p.a[m * p.a_row + k * p.a_col], p.rounds),
                   operand(p.b[k * p.b_row + n * p.b_col], p.rounds), sum);
    finish(p, m, n, sum);
}

/* Bias and epilogue of a matmul for which the library has computed only addend + a b into y. */
template <class E, class Y> __global__ void matmul_end(Task<E, Y> p) {
    int64_t m, n;
    if (this_element(p, m, n)) finish(p, m, n, to_float(p.y[m * p.ldy + n]));
}

/* --- tiled: a block of 16 x 16 threads computes a tile of y of 64 x 64, in steps of 16 of K
 * through shared memory. A thread computes every 16th row and column of the tile, so that
 * neighbouring lanes of a warp read and write neighbouring elements:
 *
 *         b  | STEP x TILE      thread (x, y): rows y, y + 16, ..., columns x, x + 16, ...
 *     ---+--------------
 *      a |  y  TILE x TILE
 */
enum { TILE = 64, STEP = 16, SIDE = 16, EACH = TILE / SIDE, THREADS = SIDE * SIDE };

struct Tiles {
    // one more than TILE: columns begin in different banks
    float a[STEP][TILE + 1], b[STEP][TILE + 1];
};

/* Copies rows r0 .. r0 + TILE - 1 and steps k0 .. k0 + STEP - 1 of x(r, k) = x[r row + k col] into
 * a tile, with zeros beyond the ends of x. Neighbouring lanes read neighbouring elements. */
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

template <class E, class Y> __global__ void __launch_bounds__(THREADS) matmul_tiled(Task<E, Y> p) {
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

unsigned tiles(const Matmul *p, int64_t rows, int64_t columns) {
    return blocks_for(p->M, rows) * blocks_for(p->N, columns);
}

enum Kernel { PLAIN, END, TILED };
template <class E, class Y> void start(const Matmul *p, Kernel kernel) {
    Task<E, Y> t = {p->M,
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
                    static_cast<const Y *>(kernel == END ? nullptr : p->addend),
                    static_cast<const Y *>(p->bias),
                    static_cast<E *>(p->aux),
                    p->epilogue,
                    p->act,
                    p->bf16};
    if (kernel == TILED)
        LAUNCH((matmul_tiled<E, Y>), tiles(p, TILE, TILE), dim3(SIDE, SIDE), 0, t);
    else
        LAUNCH((kernel == END ? matmul_end<E, Y> : matmul_plain<E, Y>), tiles(p, ROWS, COLUMNS),
               dim3(COLUMNS, ROWS), 0, t);
}
/* elem_bytes: bytes of an activation (fp32 or bf16). */
void start(const Matmul *p, size_t elem_bytes, Kernel kernel) {
    if (elem_bytes == sizeof(float))
        start<float, float>(p, kernel);
    else if (p->wide)
        start<bf16, float>(p, kernel);
    else
        start<bf16, bf16>(p, kernel);
}

/* --- which kernel */

/* Runs an own kernel: on tensor cores if it takes p, else tiled if a tile would not be mostly
 * empty, else plain. Returns whether the kernel has also computed bias_grad. */
bool by_own_kernel(const Matmul *p, size_t elem_bytes, int config) {
    MatmulCounts *n = matmul_counts_mine();
    MatmulBackend first = matmul_backend();
    bool thin = p->M < SIDE || p->N < SIDE || p->K < STEP;
    if (first <= BACKEND_SM90 && !matmul_sm90_refuses(p, elem_bytes))
        return n->sm90++, matmul_sm90(p, config), true;
    if (first <= BACKEND_SM80 && !matmul_sm80_refuses(p, elem_bytes))
        return n->sm80++, matmul_sm80(p, config), true;
    if (first <= BACKEND_TILED && !thin)
        n->tiled++, start(p, elem_bytes, TILED);
    else
        n->plain++, start(p, elem_bytes, PLAIN);
    return false;
}

void add_columns(const Matmul *p, size_t elem_bytes) {
    const Kernels *k = kernels_cuda(elem_bytes == sizeof(bf16));
    if (p->bias_grad) k->bias_backward(nullptr, p->bias_grad, p->b, p->K, p->N);
}

/* Does the rest of p after the library has done `done` of it. config: of the own kernel, if p is
 * left to it. sums: column sums from the library. */
void finish_rest(const Matmul *p, size_t elem_bytes, MatmulDone done, int config,
                 const float *sums) {
    if (done == DONE_ALL && p->bias_grad)
        launch_add_panels(p->bias_grad, nullptr, sums, 1, p->N, p->N);
    if (done == DONE_SUM && (p->bias || p->epilogue != EPI_NONE)) start(p, elem_bytes, END);
    if (done == DONE_SUM || (done == DONE_NOTHING && !by_own_kernel(p, elem_bytes, config)))
        add_columns(p, elem_bytes);
}

/* N floats of scratch for the gradient of a bias: the library overwrites them, and a kernel then
 * adds them to bias_grad. */
float *sums_workspace(const Matmul *p) {
    auto N = static_cast<size_t>(p->N);
    return p->bias_grad ? static_cast<float *>(device_scratch(N * sizeof(float))) : nullptr;
}

void run(const Matmul *p, size_t elem_bytes) {
    bool own_only = matmul_backend() != BACKEND_LIBRARY || p->K == 0;
    Matmul part[2];
    if (!own_only && cublaslt() && matmul_plan_parts(p, elem_bytes, part)) {
        for (const Matmul &one : part) run(&one, elem_bytes);
        return;
    }
    MatmulPlan *plan = own_only ? nullptr : matmul_plan(p, elem_bytes);
    float *sums = plan ? sums_workspace(p) : nullptr;
    MatmulDone done = plan ? matmul_plan_run(plan, p, sums) : DONE_NOTHING;
    MatmulCounts *n = matmul_counts_mine();
    n->fused += done == DONE_ALL, n->bare += done == DONE_SUM;
    n->bias_grads += done == DONE_ALL && p->bias_grad;
    finish_rest(p, elem_bytes, done, plan ? matmul_plan_config(plan) : 0, sums);
}

/* The matmul of the rows of one block, once the block may be read or written. */
void run_block(const Matmul *p, size_t elem_bytes, int block) {
    const RowBlocks *r = p->blocks;
    int64_t at = block * r->rows;
    Act *here = r->begin(r->ctx, block);
    Matmul q = *p;
    q.M = r->rows, q.blocks = nullptr;
    q.a = act_at(p->a, at * p->a_row, elem_bytes);
    q.y = r->matrix == BLOCKS_OF_Y ? here : act_at(p->y, at * p->ldy, elem_bytes);
    if (p->addend) q.addend = act_at(p->addend, at * p->ldy, elem_bytes);
    if (p->aux) q.aux = act_at(p->aux, at * p->ldy, elem_bytes);
    run(&q, elem_bytes);
}

/* Blocks of rows of a or y: one kernel that waits for its blocks itself, or one kernel per block.
 * Blocks of b or of a transposed: one kernel, after all blocks have arrived. */
void run_blocks(const Matmul *p, size_t elem_bytes) {
    const RowBlocks *r = p->blocks;
    bool rows = r->matrix == BLOCKS_OF_Y || r->matrix == BLOCKS_OF_A;
    bool one = matmul_backend() <= BACKEND_SM90 && !matmul_sm90_refuses(p, elem_bytes);
    Matmul whole = *p;
    whole.blocks = nullptr;
    if (one) matmul_counts_mine()->sm90++, matmul_sm90(p, 0);
    for (int i = 0; i < r->n && !one; i++)
        if (rows)
            run_block(p, elem_bytes, (r->first + i) % r->n);
        else
            r->begin(r->ctx, i);
    if (!rows) run(&whole, elem_bytes);
    for (int i = 0; i < r->n && r->done; i++) r->done(r->ctx, (r->first + i) % r->n);
}

template <class E> void matmul_of(Team *, const Matmul *p) {
    if (p->M == 0) add_columns(p, sizeof(E));
    if (p->M > 0 && p->N > 0) (p->blocks ? run_blocks : run)(p, sizeof(E));
}
template <class E> void choose(const Matmul *p) {
    matmul_prepare(p, sizeof(E));
}

} // namespace

extern "C" void matmul_cuda(Kernels *k, bool is_bf16) {
    k->matmul = is_bf16 ? matmul_of<bf16> : matmul_of<float>;
    k->matmul_choose = is_bf16 ? choose<bf16> : choose<float>;
}

extern "C" void matmul_prepare(const Matmul *p, size_t elem_bytes) {
    Matmul part[2];
    if (cublaslt() && matmul_plan_parts(p, elem_bytes, part)) {
        for (const Matmul &one : part) matmul_prepare(&one, elem_bytes);
        return;
    }
    // with blocks, timing could overwrite memory that other ranks are summing
    bool timed = p->M && p->N && p->K && !p->blocks;
    MatmulPlan *plan = timed ? matmul_plan(p, elem_bytes) : nullptr;
    if (plan) matmul_plan_time(plan, p, sums_workspace(p), finish_rest);
}
