/* matmul_epilogue -- the end of a matmul on tensor cores: the epilogue of finished sums, and the
 * sums of tiles whose k is divided. For matmul_sm80.cu and matmul_sm90.cu.
 *
 * Sums are in the fragments of mma m16n8k16 (ptx.cuh), which are those of wgmma, too: c[j] are a
 * lane's 4 floats of columns 8 j .. 8 j + 7, two neighbours of each of two rows.
 */
#ifndef LAYERS_CUDA_MATMUL_EPILOGUE_CUH
#define LAYERS_CUDA_MATMUL_EPILOGUE_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/panels.cuh"
#include "layers/cuda/ptx.cuh"
#include "layers/cuda/vec.cuh"
#include "layers/pointwise.cuh"

#include <algorithm>

extern "C" {
#include "layers/cuda/matmul_schedule.h"
#include "layers/matmul.h"
}

enum { COLUMNS = 8 }; // columns of a fragment
static_assert(MATMUL_FLAGS * sizeof(int) <= DEVICE_ZEROS, "flags lie in device_zeros()");

/* Sums of tiles whose k is divided into parts. Each piece of each share of the schedule has a slot
 * for sums in the workspace, and a flag in device_zeros(). A piece is the sums of Threads::N
 * threads, J fragments each. For every part but the last these threads store their sums
 * (store_partial) and set the flag. The threads of the last part wait for the flags, add these sums
 * in the order of the parts (add_partial), and reset the flags for the next matmul.
 *
 *     Threads    PIECES of a share; index(), from 0 to N - 1; sync(), a barrier of these N
 */
template <int J, class Threads> struct Parts {
    float *slots;
    int *flags;
    __device__ __forceinline__ float4 *slot(int share, int piece) const {
        return reinterpret_cast<float4 *>(slots) +
               static_cast<int64_t>(share * Threads::PIECES + piece) * J * Threads::N +
               Threads::index();
    }
    __device__ __forceinline__ int *flag(int share, int piece) const {
        return flags + share * Threads::PIECES + piece;
    }
    __device__ __forceinline__ void store_partial(const float (&c)[J][4], int share,
                                                  int piece) const {
        float4 *to = slot(share, piece);
#pragma unroll
        for (int j = 0; j < J; j++)
            to[j * Threads::N] = make_float4(c[j][0], c[j][1], c[j][2], c[j][3]);
        Threads::sync();
        if (Threads::index() == 0) flag_signal(flag(share, piece), 1);
    }
    __device__ __forceinline__ void add_partial(float (&c)[J][4], int share, int piece) const {
        const float4 *from = slot(share, piece);
        if (Threads::index() == 0) {
            flag_wait(flag(share, piece), 1);
            *flag(share, piece) = 0;
        }
        Threads::sync();
#pragma unroll
        for (int j = 0; j < J; j++) {
            float4 x = __ldcg(from + j * Threads::N);
            c[j][0] += x.x, c[j][1] += x.y, c[j][2] += x.z, c[j][3] += x.w;
        }
    }
};

/* The epilogue of finished sums. */
struct EpilogueArgs {
    const bf16 *bias;
    int N;
    Epilogue epilogue;
    ActKind act;
    bool reads;      // `beside` is read: the addend or, with EPI_DACT, aux
    bool writes_aux; // `beside` is written: aux of EPI_ACT
    bool adds;       // y += the sums, in fp32
    // [most_parts][summing][N]: partial sums of the columns of b, for bias_grad; or NULL
    float *columns;
    int most_parts; // the most parts that k of a tile is divided into
    // workers that share the sums of a column of tiles: worker i < summing adds every summing-th
    // step, from step i on; workers i >= summing add none
    int summing;
};

/* Initializes the sums of fragments from column n0 on with the bias; products are then added. */
template <int J>
__device__ __forceinline__ void begin_with_bias(float (&c)[J][4], const EpilogueArgs &e, int n0) {
#pragma unroll
    for (int j = 0; j < J; j++) {
        int n = n0 + j * COLUMNS + this_lane() % 4 * 2;
        float pair[2] = {0, 0};
        if (n < e.N) load<bf16, 2>(pair, e.bias + n);
        c[j][0] = c[j][2] = pair[0], c[j][1] = c[j][3] = pair[1];
    }
}

/* The same EpilogueArgs, with constants for the fields that select code. With a branch at each
 * element the code of a tile would have 200 KB, and would come from L2 for every tile. */
__device__ __forceinline__ EpilogueArgs with_constants(EpilogueArgs e, Epilogue epilogue,
                                                       ActKind act, bool reads) {
    e.epilogue = epilogue, e.act = act, e.reads = reads;
    return e;
}
/* The epilogue of two neighbours: their sums x, y become elements of y. beside_x, beside_y: what
 * was read. */
__device__ __forceinline__ void apply_epilogue(const EpilogueArgs &e, float &x, float &y,
                                               float beside_x, float beside_y) {
    if (e.epilogue == EPI_ACT)
        x = pointwise(e.act, x), y = pointwise(e.act, y);
    else if (e.epilogue == EPI_DACT)
        x *= pointwise_slope(e.act, beside_x), y *= pointwise_slope(e.act, beside_y);
    else if (e.reads)
        x = beside_x + x, y = beside_y + y;
}
/* As apply_epilogue, with pairs of bf16 in registers. */
__device__ __forceinline__ unsigned apply_epilogue_pair(const EpilogueArgs &e, float x, float y,
                                                        unsigned beside) {
    apply_epilogue(e, x, y, low_of(beside), high_of(beside));
    return pair_of(x, y);
}

/* Stores the sum of column n of b over part p of k, by worker `by` of e.summing. Parts that p's
 * tile does not have become zeros. */
__device__ __forceinline__ void store_column_sum(const EpilogueArgs &e, const MatmulPart &p, int by,
                                                 int n, float sum) {
    int end = p.part == p.parts - 1 ? e.most_parts : p.part + 1;
    for (int j = p.part; n < e.N && by < e.summing && j < end; j++)
        e.columns[static_cast<int64_t>(j * e.summing + by) * e.N + n] = j == p.part ? sum : 0;
}

/* --- on the host */

inline EpilogueArgs epilogue_args(const Matmul *p) {
    bool reads = !p->wide && (p->addend || p->epilogue == EPI_DACT);
    return {
        reinterpret_cast<const bf16 *>(p->bias), static_cast<int>(p->N), p->epilogue, p->act, reads,
        p->epilogue == EPI_ACT && p->aux,        p->wide && p->addend,   nullptr,     0,      0};
}
/* Before and after the kernel, where p has bias_grad: begin_columns takes scratch for partial sums
 * of the columns, add_columns adds them to bias_grad. The number of partial sums of a column is
 * limited by SCRATCH_OF_FEATURE. */
inline void begin_columns(const Matmul *p, const MatmulSchedule &s, int summing, EpilogueArgs &e) {
    if (!p->bias_grad) return;
    e.most_parts = matmul_most_parts(&s);
    int most = SCRATCH_OF_FEATURE / static_cast<int>(sizeof(float)) / e.most_parts;
    e.summing = std::max(1, std::min(summing, most));
    e.columns = static_cast<float *>(
        device_scratch(static_cast<size_t>(e.most_parts * e.summing * p->N) * sizeof(float)));
}
inline void add_columns(const Matmul *p, const EpilogueArgs &e) {
    if (p->bias_grad)
        launch_add_panels(p->bias_grad, nullptr, e.columns,
                          static_cast<unsigned>(e.most_parts * e.summing), p->N, p->N);
}

#endif
