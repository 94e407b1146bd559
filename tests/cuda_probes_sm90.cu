/* Probes of the instructions of layers/cuda/ptx_sm90.cuh, and of those of warps in ptx.cuh. Words
 * are small integers: matmuls and sums are exact in any order. */
#include <cstring>

#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx_sm90.cuh"

extern "C" {
#include "layers/cuda/tensor_map.h"
#include "tests/cuda_probes.h"
}

namespace {

constexpr int THREADS = 128, PANEL = 64, DEEP = 64, M = 64, MOST_N = 256, ROOM = 64 << 10;

inline uint16_t bf16_of(int x) {
    auto f = static_cast<float>(x);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return static_cast<uint16_t>(u >> 16);
}
/* A small number that tells i. */
inline int coded(int i) {
    return i * 37 % 61 % 17 - 8;
}

/* Word (row, column) of rows x columns words in panels of 64 columns, rows of 128 bytes,
 * swizzled. */
inline int place(int rows, int row, int column) {
    int chunk = column % PANEL / 8;
    return column / PANEL * rows * PANEL + row * PANEL + (chunk ^ row % 8) * 8 + column % 8;
}

/* The device's input and output of one probe. */
struct Memory {
    void *in, *out;
    Memory() : in(device_alloc(ROOM)), out(device_alloc(ROOM)) {}
    ~Memory() { device_free(in), device_free(out); }

    /* What the probe wrote, compared with what it had to write. */
    template <class T> ProbeResult result(const T *want, int n) const {
        static T got[ROOM / sizeof(T)];
        ProbeResult r = {n, 0, UINT64_C(14695981039346656037)};
        device_get(got, out, static_cast<size_t>(n) * sizeof(T));
        device_wait();
        for (int i = 0; i < n; i++) {
            r.wrong += memcmp(&got[i], &want[i], sizeof(T)) != 0;
            for (size_t j = 0; j < sizeof(T); j++)
                r.hash = (r.hash ^ reinterpret_cast<const unsigned char *>(&got[i])[j]) *
                         UINT64_C(1099511628211);
        }
        return r;
    }
};

/* --- wgmma: D[64, N] = A[64, 64] B[64, N] in 4 steps, then D += A B again */

struct Operands {
    uint16_t a[M * DEEP], b[DEEP * MOST_N];
};

template <Major A, Major B, int N, bool REGISTERS>
__global__ void __launch_bounds__(THREADS) multiply(float *out, const Operands *in) {
    auto *x = dynamic_shared<Operands>();
    int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
    for (int i = t; i < M * DEEP; i += THREADS) x->a[i] = in->a[i];
    for (int i = t; i < DEEP * MOST_N; i += THREADS) x->b[i] = in->b[i];
    fence_async();
    __syncthreads();
    Matrix a = matrix_at(shared_address(x->a), DEEP * 128, 1024);
    Matrix b = matrix_at(shared_address(x->b), DEEP * 128, 1024);
    float d[N / 8][4];
    unsigned r[4][4]; // A's fragments of 4 steps from rows along k, as ptx.cuh draws them
    for (int i = 0; i < 16 && REGISTERS; i++) {
        int row = warp * 16 + lane / 4 + i % 2 * 8, c = i / 4 * 16 + lane % 4 * 2 + i % 4 / 2 * 8;
        const uint16_t *p = in->a + row * PANEL + ((c / 8) ^ row % 8) * 8 + c % 8;
        r[i / 4][i % 4] = p[0] | static_cast<unsigned>(p[1]) << 16;
    }
    for (int i = 0; i < N / 8 * 4; i++) d[i / 4][i % 4] = 1000;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int k = i % 4;
        Matrix bk = matrix_on(b, B == K_MAJOR ? k * 32 : k * 2048);
        if constexpr (REGISTERS)
            wgmma<B>(d, r[k], bk, i > 0);
        else
            wgmma<A, B>(d, matrix_on(a, A == K_MAJOR ? k * 32 : k * 2048), bk, i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(d);
    for (int i = 0; i < N / 8 * 4; i++)
        out[(warp * 16 + lane / 4 + i % 4 / 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] =
            d[i / 4][i % 4];
}

template <Major A, Major B, int N, bool REGISTERS> ProbeResult run_multiply() {
    static Operands in;
    static float want[M * N];
    memset(&in, 0, sizeof in);
    for (int m = 0; m < M; m++)
        for (int k = 0; k < DEEP; k++)
            in.a[A == K_MAJOR ? place(M, m, k) : place(DEEP, k, m)] = bf16_of(coded(m * DEEP + k));
    for (int n = 0; n < N; n++)
        for (int k = 0; k < DEEP; k++)
            in.b[B == K_MAJOR ? place(N, n, k) : place(DEEP, k, n)] = bf16_of(coded(n * 67 + k));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            int sum = 0;
            for (int k = 0; k < DEEP; k++) sum += coded(m * DEEP + k) * coded(n * 67 + k);
            want[m * N + n] = static_cast<float>(2 * sum);
        }
    Memory memory;
    device_put(memory.in, &in, sizeof in);
    LAUNCH((multiply<A, B, N, REGISTERS>), 1, THREADS, sizeof(Operands),
           static_cast<float *>(memory.out), static_cast<const Operands *>(memory.in));
    return memory.result(want, M * N);
}

/* --- TMA: boxes that begin before and end behind the tensor on every side */

struct At {
    int c[4];
};
/* Where the box lies: on every side before the tensor, before it in one dimension alone, behind it,
 * within dimension 0; behind it where rows are no multiple of 16 bytes.
 *
 * The first device that ran them ended a store that began before the tensor with an illegal
 * instruction, and took each load. No kernel of layers/ stores so. */
enum Side { BEFORE, LEFT, ABOVE, BEHIND, INSIDE, RAGGED };
constexpr At corner(Side side) {
    return side == BEFORE   ? At{{-8, -3, -1, -1}}
           : side == LEFT   ? At{{-8, 0, 0, 0}}
           : side == ABOVE  ? At{{0, -3, 0, 0}}
           : side == INSIDE ? At{{8, 0, 0, 0}}
                            : At{{24, 2, 2, 1}};
}

constexpr int CHUNK = 8; // words that a store moves at least
constexpr int SIZE_0 = 80, RAGGED_0 = 77, SIZE_1 = 7, SIZE_2 = 3, SIZE_3 = 2, ROW = 88,
              TENSOR = ROW * SIZE_1 * SIZE_2 * SIZE_3;
constexpr int BOX_1 = 8, BOX_2 = 2, BOX_3 = 2, BOX = PANEL * BOX_1 * BOX_2 * BOX_3,
              MOST = TENSOR > BOX ? TENSOR : BOX;

constexpr int row_words(Side side) {
    return side == RAGGED ? RAGGED_0 : SIZE_0;
}
/* n dimensions; rows ROW words apart. */
inline TensorShape shape_of(int n, Side side) {
    return {n,
            {row_words(side), SIZE_1, SIZE_2, SIZE_3},
            {1, ROW, ROW * SIZE_1, ROW * SIZE_1 * SIZE_2},
            {PANEL, BOX_1, BOX_2, BOX_3},
            false};
}
inline int box_words(int n) {
    return PANEL * BOX_1 * (n > 2 ? BOX_2 : 1) * (n > 3 ? BOX_3 : 1);
}
/* The tensor's word that belongs to word i of a box, -1 outside of rows of so many words; and where
 * in shared memory word i of a box lies. */
inline int word_at(int n, int words, At at, int i) {
    const int size[] = {words, SIZE_1, SIZE_2, SIZE_3}, box[] = {PANEL, BOX_1, BOX_2, BOX_3};
    const int stride[] = {1, ROW, ROW * SIZE_1, ROW * SIZE_1 * SIZE_2};
    int word = 0;
    for (int d = 0; d < n; i /= box[d++]) {
        int c = at.c[d] + i % box[d];
        if (c < 0 || c >= size[d]) return -1;
        word += c * stride[d];
    }
    return word;
}
inline int box_place(int i) {
    return i / PANEL * PANEL + ((i % PANEL / 8) ^ i / PANEL % 8) * 8 + i % 8;
}

struct Boxes {
    uint16_t box[BOX];
    uint64_t barrier;
};

template <int DIMENSIONS>
__global__ void __launch_bounds__(THREADS)
    load_box(uint16_t *out, const __grid_constant__ CUtensorMap map, At at, int n) {
    auto *x = dynamic_shared<Boxes>();
    Shared to = shared_address(x->box), barrier = shared_address(&x->barrier);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_fence();
        mbarrier_expect(barrier, n * 2);
        if constexpr (DIMENSIONS == 2) tma_load(to, map, barrier, at.c[0], at.c[1]);
        if constexpr (DIMENSIONS == 4)
            tma_load(to, map, barrier, at.c[0], at.c[1], at.c[2], at.c[3]);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    for (int i = static_cast<int>(threadIdx.x); i < n; i += THREADS) out[i] = x->box[i];
}

template <int DIMENSIONS>
__global__ void __launch_bounds__(THREADS)
    store_box(const uint16_t *in, const __grid_constant__ CUtensorMap map, At at, int n) {
    auto *x = dynamic_shared<Boxes>();
    Shared from = shared_address(x->box);
    for (int i = static_cast<int>(threadIdx.x); i < n; i += THREADS) x->box[i] = in[i];
    fence_async();
    __syncthreads();
    if (threadIdx.x > 0) return;
    if constexpr (DIMENSIONS == 2) tma_store(map, from, at.c[0], at.c[1]);
    if constexpr (DIMENSIONS == 4) tma_store(map, from, at.c[0], at.c[1], at.c[2], at.c[3]);
    tma_commit();
    tma_wait<0>();
}

/* Of what a store brings beyond the end of a row, the whole chunk is written in which it ends. */
template <int DIMENSIONS, Side SIDE, bool STORES> ProbeResult run_box() {
    static uint16_t tensor[TENSOR], box[BOX], want[MOST];
    int n = box_words(DIMENSIONS), n_out = STORES ? TENSOR : n;
    constexpr int WORDS = row_words(SIDE), STORED = (WORDS + CHUNK - 1) / CHUNK * CHUNK;
    At at = corner(SIDE);
    for (int i = 0; i < TENSOR; i++) tensor[i] = static_cast<uint16_t>(i + 1);
    for (int i = 0; i < BOX; i++) box[i] = static_cast<uint16_t>(0x8000 + i);
    memcpy(want, tensor, sizeof tensor);
    for (int i = 0; i < n; i++) {
        int word = word_at(DIMENSIONS, STORES ? STORED : WORDS, at, i);
        if (!STORES) want[box_place(i)] = word < 0 ? 0 : tensor[word];
        if (STORES && word >= 0) want[word] = box[box_place(i)];
    }
    Memory memory;
    TensorShape shape = shape_of(DIMENSIONS, SIDE);
    void *tensor_there = STORES ? memory.out : memory.in;
    CUtensorMap map = tensor_map(tensor_there, &shape);
    device_put(tensor_there, tensor, sizeof tensor);
    if (STORES) {
        device_put(memory.in, box, sizeof box);
        LAUNCH(store_box<DIMENSIONS>, 1, THREADS, sizeof(Boxes),
               static_cast<const uint16_t *>(memory.in), map, at, n);
    } else {
        LAUNCH(load_box<DIMENSIONS>, 1, THREADS, sizeof(Boxes), static_cast<uint16_t *>(memory.out),
               map, at, n);
    }
    return memory.result(want, n_out);
}

/* --- a box of floats that is added: y(1 + i, 4 + j) += i + j, beyond the end of y nothing */

constexpr int FLOATS = 32, SUM_ROWS = 8, SUM_COLUMNS = 32, SUMS = SUM_ROWS * SUM_COLUMNS;
struct FloatBox {
    float at[SUM_ROWS * FLOATS];
};
__global__ void __launch_bounds__(32) add_box(const __grid_constant__ CUtensorMap map) {
    auto *x = dynamic_shared<FloatBox>();
    int lane = static_cast<int>(threadIdx.x);
    for (int i = lane; i < SUM_ROWS * FLOATS / 2; i += 32) {
        int row = i * 2 / FLOATS, column = i * 2 % FLOATS;
        store_shared(shared_address(x->at + row * FLOATS + ((column / 4) ^ row % 8) * 4) +
                         column % 4 * 4,
                     static_cast<float>(row + column), static_cast<float>(row + column + 1));
    }
    fence_async();
    __syncthreads();
    if (lane > 0) return;
    tma_add(map, shared_address(x->at), 4, 1);
    tma_commit();
    tma_wait<0>();
}
inline ProbeResult run_add_box() {
    static float y[SUMS], want[SUMS];
    for (int i = 0; i < SUMS; i++) {
        int row = i / SUM_COLUMNS - 1, column = i % SUM_COLUMNS - 4;
        y[i] = static_cast<float>(1000 * i);
        want[i] = y[i] + static_cast<float>(row >= 0 && column >= 0 ? row + column : 0);
    }
    Memory memory;
    TensorShape shape = {2, {SUM_COLUMNS, SUM_ROWS}, {1, SUM_COLUMNS}, {FLOATS, SUM_ROWS}, true};
    CUtensorMap map = tensor_map(memory.out, &shape);
    device_put(memory.out, y, sizeof y);
    LAUNCH(add_box, 1, 32, sizeof(FloatBox), map);
    return memory.result(want, SUMS);
}

/* --- stmatrix: lane l of a warp holds pairs 128 r + 4 l of matrix r; a bulk copy brings what was
 * there before */

struct Matrices {
    uint16_t words[256];
    uint64_t barrier;
};
__global__ void __launch_bounds__(32) store_matrices(uint16_t *out, const uint16_t *in) {
    auto *x = dynamic_shared<Matrices>();
    int lane = static_cast<int>(threadIdx.x);
    Shared barrier = shared_address(&x->barrier);
    if (lane == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_fence();
        mbarrier_expect(barrier, 512);
        bulk_load(shared_address(x->words), in, 512, barrier);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    for (int i = 0; i < 8; i++) out[256 + lane * 8 + i] = x->words[lane * 8 + i];
    __syncthreads();
    unsigned r[4];
    for (unsigned i = 0; i < 4; i++) {
        unsigned word = i * 64 + static_cast<unsigned>(lane) * 2;
        r[i] = word | (word + 1) << 16;
    }
    stmatrix(shared_address(x->words + (31 - lane) * 8), r); // rows in the opposite order
    __syncthreads();
    for (int i = 0; i < 8; i++) out[lane * 8 + i] = x->words[lane * 8 + i];
}
inline ProbeResult run_matrices() {
    static uint16_t in[256], want[512];
    for (int i = 0; i < 256; i++) {
        in[i] = static_cast<uint16_t>(7 * i);
        want[(31 - i / 8) * 8 + i % 8] = static_cast<uint16_t>(i);
        want[256 + i] = in[i];
    }
    Memory memory;
    device_put(memory.in, in, sizeof in);
    LAUNCH(store_matrices, 1, 32, sizeof(Matrices), static_cast<uint16_t *>(memory.out),
           static_cast<const uint16_t *>(memory.in));
    return memory.result(want, 512);
}

/* --- mma.sync: D[16, 8] = 1000 + 2 A[16, 16] B[16, 8], in the fragments of a warp */

constexpr int WARP_M = 16, WARP_N = 8, WARP_K = 16;
struct WarpOperands {
    uint16_t a[WARP_M][WARP_K], b[WARP_K][WARP_N];
};
__device__ __forceinline__ unsigned pair_of(uint16_t low, uint16_t high) {
    return low | static_cast<unsigned>(high) << 16;
}
__global__ void __launch_bounds__(32) multiply_in_warp(float *out, const WarpOperands *in) {
    int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4 * 2;
    unsigned a[4], b[2];
    float d[4] = {1000, 1000, 1000, 1000};
    for (int i = 0; i < 4; i++) {
        const uint16_t *p = &in->a[g + i % 2 * 8][t + i / 2 * 8];
        a[i] = pair_of(p[0], p[1]);
    }
    for (int i = 0; i < 2; i++) b[i] = pair_of(in->b[t + i * 8][g], in->b[t + i * 8 + 1][g]);
    mma_bf16(d, a, b[0], b[1]);
    mma_bf16(d, a, b[0], b[1]);
    for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * WARP_N + t + i % 2] = d[i];
}
inline ProbeResult run_multiply_in_warp() {
    static WarpOperands in;
    static float want[WARP_M * WARP_N];
    for (int m = 0; m < WARP_M; m++)
        for (int k = 0; k < WARP_K; k++) in.a[m][k] = bf16_of(coded(m * WARP_K + k));
    for (int k = 0; k < WARP_K; k++)
        for (int n = 0; n < WARP_N; n++) in.b[k][n] = bf16_of(coded(n * 67 + k));
    for (int i = 0; i < WARP_M * WARP_N; i++) {
        int sum = 0;
        for (int k = 0; k < WARP_K; k++)
            sum += coded(i / WARP_N * WARP_K + k) * coded(i % WARP_N * 67 + k);
        want[i] = static_cast<float>(1000 + 2 * sum);
    }
    Memory memory;
    device_put(memory.in, &in, sizeof in);
    LAUNCH(multiply_in_warp, 1, 32, 0, static_cast<float *>(memory.out),
           static_cast<const WarpOperands *>(memory.in));
    return memory.result(want, WARP_M * WARP_N);
}

/* --- ldmatrix: row r of matrix i lies where lane 8 i + r says, in the opposite order */

template <bool TRANS>
__global__ void __launch_bounds__(32) load_matrices(unsigned *out, const uint16_t *in) {
    auto *words = dynamic_shared<uint16_t>();
    int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 8; i++) words[lane * 8 + i] = in[lane * 8 + i];
    __syncthreads();
    unsigned r[4];
    Shared row = shared_address(words + (31 - lane) * 8);
    if constexpr (TRANS)
        ldmatrix_trans(r, row);
    else
        ldmatrix(r, row);
    for (int i = 0; i < 4; i++) out[i * 32 + lane] = r[i];
}
template <bool TRANS> ProbeResult run_load_matrices() {
    static uint16_t in[256];
    static unsigned want[128];
    for (int i = 0; i < 256; i++) in[i] = static_cast<uint16_t>(7 * i);
    for (int i = 0; i < 128; i++) {
        int g = i % 32 / 4, t = i % 4 * 2, matrix = i / 32 * 8;
        const uint16_t *low = in + (31 - matrix - (TRANS ? t : g)) * 8 + (TRANS ? g : t);
        want[i] = *low | static_cast<unsigned>(TRANS ? low[-8] : low[1]) << 16;
    }
    Memory memory;
    device_put(memory.in, in, sizeof in);
    LAUNCH((load_matrices<TRANS>), 1, 32, sizeof in, static_cast<unsigned *>(memory.out),
           static_cast<const uint16_t *>(memory.in));
    return memory.result(want, 128);
}

/* --- cp.async: two groups, of 16 bytes to a lane and of 4; zeros where nothing is there */

__global__ void __launch_bounds__(32) copy_later(unsigned *out, const unsigned *in) {
    auto *words = dynamic_shared<unsigned>();
    int lane = static_cast<int>(threadIdx.x), to = 31 - lane;
    for (int i = 0; i < 5; i++) words[i * 32 + lane] = 0xffffffff;
    __syncthreads();
    copy_async<16>(shared_address(words + to * 4), in + lane * 4, lane % 3 > 0);
    copy_commit();
    copy_async<4>(shared_address(words + 128 + to), in + 128 + lane, lane % 2 > 0);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    for (int i = 0; i < 4; i++) out[lane * 4 + i] = words[lane * 4 + i];
    copy_wait<0>();
    __syncthreads();
    out[128 + lane] = words[128 + lane];
}
inline ProbeResult run_copy_later() {
    static unsigned in[160], want[160];
    for (unsigned i = 0; i < 160; i++) in[i] = 7 * i + 1;
    for (int i = 0; i < 160; i++) {
        int lane = 31 - (i < 128 ? i / 4 : i - 128);
        bool there = i < 128 ? lane % 3 > 0 : lane % 2 > 0;
        want[i] = !there ? 0 : i < 128 ? in[lane * 4 + i % 4] : in[128 + lane];
    }
    Memory memory;
    device_put(memory.in, in, sizeof in);
    LAUNCH(copy_later, 1, 32, sizeof in, static_cast<unsigned *>(memory.out),
           static_cast<const unsigned *>(memory.in));
    return memory.result(want, 160);
}

/* --- clusters: each of two blocks brings half of a box of 64 x 64 words to both, and the next box,
 * the other half, when both have read the one before */

struct Pair {
    uint16_t box[64 * 64];
    uint64_t full, empty;
};
__global__ void __launch_bounds__(32)
    bring_halves(const __grid_constant__ CUtensorMap map, uint16_t *out) {
    auto *x = dynamic_shared<Pair>();
    Shared box = shared_address(x->box), full = shared_address(&x->full),
           empty = shared_address(&x->empty);
    int lane = static_cast<int>(threadIdx.x), rank = cluster_rank(), blocks = cluster_size();
    if (lane == 0) {
        mbarrier_init(full, 1);
        mbarrier_init(empty, blocks);
        mbarrier_fence();
    }
    cluster_sync();
    for (int round = 0; round < 2; round++) {
        int half = rank ^ round;
        if (lane == 0) {
            mbarrier_wait(empty, round ^ 1);
            mbarrier_expect(full, 8192);
            tma_multicast(box + half * 4096, map, full, 3, 0, round * 64 + half * 32);
        }
        mbarrier_wait(full, round);
        for (int i = lane; i < 64 * 64; i += 32) out[(rank * 2 + round) * 64 * 64 + i] = x->box[i];
        __syncwarp();
        if (lane < blocks) mbarrier_arrive_at(empty, lane);
    }
    cluster_sync();
}
inline ProbeResult run_bring_halves() {
    static uint16_t in[128 * 64], want[4 * 64 * 64];
    for (int i = 0; i < 128 * 64; i++) in[i] = bf16_of(coded(i));
    for (int i = 0; i < 4; i++)
        for (int row = 0; row < 64; row++)
            for (int column = 0; column < 64; column++)
                want[i * 64 * 64 + place(64, row, column)] = in[(i % 2 * 64 + row) * 64 + column];
    Memory memory;
    device_put(memory.in, in, sizeof in);
    TensorShape s = {2, {64, 128}, {1, 64}, {64, 32}, false};
    LAUNCH_CLUSTERS(2, bring_halves, 2, 32, sizeof(Pair), tensor_map(memory.in, &s),
                    static_cast<uint16_t *>(memory.out));
    return memory.result(want, 4 * 64 * 64);
}

#define MATMULS(n)                                                                                 \
    {"wgmma_" #n "_k_k", run_multiply<K_MAJOR, K_MAJOR, n, false>},                                \
        {"wgmma_" #n "_k_mn", run_multiply<K_MAJOR, MN_MAJOR, n, false>},                          \
        {"wgmma_" #n "_mn_k", run_multiply<MN_MAJOR, K_MAJOR, n, false>},                          \
        {"wgmma_" #n "_mn_mn", run_multiply<MN_MAJOR, MN_MAJOR, n, false>},                        \
        {"wgmma_" #n "_registers_k", run_multiply<K_MAJOR, K_MAJOR, n, true>}, {                   \
        "wgmma_" #n "_registers_mn", run_multiply<K_MAJOR, MN_MAJOR, n, true>                      \
    }
#define MATMULS_OF_SHARED(n)                                                                       \
    {"wgmma_" #n "_k_k", run_multiply<K_MAJOR, K_MAJOR, n, false>},                                \
        {"wgmma_" #n "_k_mn", run_multiply<K_MAJOR, MN_MAJOR, n, false>}, {                        \
        "wgmma_" #n "_mn_mn", run_multiply<MN_MAJOR, MN_MAJOR, n, false>                           \
    }
#define BOXES(n)                                                                                   \
    {"load_" #n "d_before", run_box<n, BEFORE, false>},                                            \
        {"load_" #n "d_behind", run_box<n, BEHIND, false>},                                        \
        {"load_" #n "d_inside", run_box<n, INSIDE, false>},                                        \
        {"store_" #n "d_before", run_box<n, BEFORE, true>, true},                                  \
        {"store_" #n "d_behind", run_box<n, BEHIND, true>}, {                                      \
        "store_" #n "d_inside", run_box<n, INSIDE, true>                                           \
    }

} // namespace

extern "C" const Probe probes[] = {MATMULS(64),
                                   MATMULS(128),
                                   MATMULS_OF_SHARED(32),
                                   MATMULS_OF_SHARED(192),
                                   MATMULS_OF_SHARED(256),
                                   BOXES(2),
                                   {"store_2d_left", run_box<2, LEFT, true>, true},
                                   {"store_2d_above", run_box<2, ABOVE, true>, true},
                                   {"load_2d_ragged", run_box<2, RAGGED, false>},
                                   {"store_2d_ragged", run_box<2, RAGGED, true>},
                                   BOXES(4),
                                   {"add_2d", run_add_box},
                                   {"stmatrix", run_matrices},
                                   {"mma_bf16", run_multiply_in_warp},
                                   {"ldmatrix", run_load_matrices<false>},
                                   {"ldmatrix_trans", run_load_matrices<true>},
                                   {"cp_async", run_copy_later},
                                   {"cluster", run_bring_halves}};
extern "C" const int n_probes = sizeof probes / sizeof *probes;
