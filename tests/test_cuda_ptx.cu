/* The instructions of layers/cuda/ptx.cuh as the emulator has them, with numbers that tell where
 * they came from. */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx.cuh"
#include "layers/cuda/vec.cuh"

#include <cstring>

extern "C" {
#include "tests/test.h"
}

namespace {

enum { LANES = 32, MOST = 1024 };

/* A kernel of one warp gives numbers[MOST] for numbers[MOST]. */
template <class T> void run(void (*kernel)(T *, const T *), T *out, const T *in, EmuOrder order) {
    emu_setup.order = order, emu_setup.seed = 3;
    device_open(0, 4096);
    auto *x = static_cast<T *>(device_alloc(MOST * sizeof(T)));
    auto *y = static_cast<T *>(device_alloc(MOST * sizeof(T)));
    device_put(x, in, MOST * sizeof(T));
    LAUNCH(kernel, 1, LANES, 4096, y, x);
    device_get(out, y, MOST * sizeof(T));
    device_wait();
    device_free(x), device_free(y);
    device_close();
    emu_set({});
}
const EmuOrder orders[] = {EMU_FORWARD, EMU_REVERSE, EMU_RANDOM};

unsigned pair(float low, float high) {
    return static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16 |
           __bfloat16_as_ushort(__float2bfloat16_rn(low));
}

/* --- mma: in = A[16][16], B[16][8], C[16][8]; each lane takes what the drawing in ptx.cuh gives
 * it */
__global__ void multiply(float *out, const float *in) {
    const float *A = in, *B = in + 256, *C = in + 384;
    int g = this_lane() / 4, t = this_lane() % 4 * 2;
    unsigned a[4] = {pair(A[g * 16 + t], A[g * 16 + t + 1]),
                     pair(A[(g + 8) * 16 + t], A[(g + 8) * 16 + t + 1]),
                     pair(A[g * 16 + t + 8], A[g * 16 + t + 9]),
                     pair(A[(g + 8) * 16 + t + 8], A[(g + 8) * 16 + t + 9])};
    float d[4] = {C[g * 8 + t], C[g * 8 + t + 1], C[(g + 8) * 8 + t], C[(g + 8) * 8 + t + 1]};
    mma_bf16(d, a, pair(B[t * 8 + g], B[(t + 1) * 8 + g]),
             pair(B[(t + 8) * 8 + g], B[(t + 9) * 8 + g]));
    out[g * 8 + t] = d[0], out[g * 8 + t + 1] = d[1];
    out[(g + 8) * 8 + t] = d[2], out[(g + 8) * 8 + t + 1] = d[3];
}

TEST(cuda_ptx_mma_multiplies_matrices) {
    static float in[MOST], out[MOST];
    for (int i = 0; i < MOST; i++) in[i] = static_cast<float>(i * 37 % 61 - 30); // sums are exact
    for (EmuOrder o : orders) {
        run(multiply, out, in, o);
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 8; n++) {
                float want = in[384 + m * 8 + n];
                for (int k = 0; k < 16; k++) want += in[m * 16 + k] * in[256 + k * 8 + n];
                CHECK(out[m * 8 + n] == want);
            }
    }
}

/* --- ldmatrix: matrix i has at (row, column) the number 64 i + 8 row + column; its rows lie in an
 * order of their own */
template <bool TRANS> __global__ void take(unsigned *out, const unsigned *) {
    auto *words = dynamic_shared<uint16_t>();
    int lane = this_lane(), matrix = lane / 8, row = lane % 8, at = 31 - lane;
    for (int c = 0; c < 8; c++)
        words[at * 8 + c] = static_cast<uint16_t>(matrix * 64 + row * 8 + c);
    __syncthreads();
    unsigned r[4];
    Shared from = shared_address(words + at * 8);
    if constexpr (TRANS)
        ldmatrix_trans(r, from);
    else
        ldmatrix(r, from);
    for (int i = 0; i < 4; i++) out[i * LANES + lane] = r[i];
}

template <bool TRANS> void check_ldmatrix() {
    static unsigned in[MOST], out[MOST];
    for (EmuOrder o : orders) {
        run(take<TRANS>, out, in, o);
        for (int i = 0; i < 4; i++)
            for (int l = 0; l < LANES; l++) {
                int g = l / 4, t = l % 4 * 2;
                int low = i * 64 + (TRANS ? t * 8 + g : g * 8 + t), step = TRANS ? 8 : 1;
                CHECK(out[i * LANES + l] == static_cast<unsigned>(low + ((low + step) << 16)));
            }
    }
}

TEST(cuda_ptx_ldmatrix_deals_out_matrices) {
    check_ldmatrix<false>(), check_ldmatrix<true>();
}

/* --- cp.async: three groups; what is not waited for is not there */
__global__ void copy_groups(unsigned *out, const unsigned *in) {
    auto *x = dynamic_shared<unsigned>();
    int lane = this_lane();
    copy_async<16>(shared_address(x + lane * 4), in + lane * 4, true);
    copy_commit();
    copy_async<4>(shared_address(x + 128 + lane), in + 128 + lane, lane % 2);
    copy_async<4>(shared_address(x + 160 + lane), in + 160 + lane, true);
    copy_commit();
    copy_async<16>(shared_address(x + 192 + lane * 4), in + 192 + lane * 4, false);
    copy_commit();
    copy_wait<2>();
    out[lane] = x[lane * 4 + 3], out[32 + lane] = x[128 + lane];
    copy_wait<1>();
    out[64 + lane] = x[128 + lane], out[96 + lane] = x[160 + lane];
    out[128 + lane] = x[192 + lane * 4];
    copy_wait<0>();
    out[160 + lane] = x[192 + lane * 4];
}

TEST(cuda_ptx_copies_arrive_when_they_are_waited_for) {
    static unsigned in[MOST], out[MOST];
    for (unsigned i = 0; i < MOST; i++) in[i] = i;
    for (EmuOrder o : orders) {
        run(copy_groups, out, in, o);
        for (unsigned l = 0; l < LANES; l++) {
            CHECK(out[l] == l * 4 + 3 && out[32 + l] == ~0u);
            CHECK(out[64 + l] == (l % 2 ? 128 + l : 0) && out[96 + l] == 160 + l);
            CHECK(out[128 + l] == ~0u && out[160 + l] == 0);
        }
    }
}

/* Lane l: l bytes of 16, at most all of them. */
__global__ void copy_first(unsigned *out, const unsigned *in) {
    auto *x = dynamic_shared<unsigned>();
    int lane = this_lane(), bytes = min(lane, 16);
    copy_async_first(shared_address(x + lane * 4), bytes ? in + lane * 4 : nullptr, bytes);
    copy_commit();
    copy_wait<0>();
    for (int i = 0; i < 4; i++) out[lane * 4 + i] = x[lane * 4 + i];
}

TEST(cuda_ptx_copies_end_in_zeros) {
    static unsigned in[MOST], out[MOST];
    for (unsigned i = 0; i < MOST; i++) in[i] = 0x01010101 * i;
    run(copy_first, out, in, orders[0]);
    for (unsigned i = 0; i < LANES * 16; i++) {
        unsigned is = out[i / 4] >> i % 4 * 8 & 0xff;
        CHECK(is == (i % 16 < i / 16 ? in[i / 4] & 0xff : 0));
    }
}

/* --- mistakes */
__global__ void copy_and_leave(unsigned *, const unsigned *in) {
    copy_async<4>(shared_address(dynamic_shared<unsigned>() + this_lane()), in, true);
    copy_commit();
}
__global__ void copy_askew(unsigned *, const unsigned *in) {
    copy_async<16>(shared_address(dynamic_shared<unsigned>()), in + 1, true);
}
__global__ void take_from_memory(unsigned *, const unsigned *in) {
    unsigned r[4];
    ldmatrix(r, shared_address(in));
}
__global__ void multiply_alone(unsigned *, const unsigned *) {
    float d[4] = {};
    unsigned a[4] = {};
    if (this_lane() < 31) mma_bf16(d, a, 0, 0);
}
struct Mistake {
    void (*kernel)(unsigned *, const unsigned *);
    const char *says;
};
void make_mistake(void *arg) {
    static unsigned in[MOST], out[MOST];
    run(static_cast<Mistake *>(arg)->kernel, out, in, EMU_FORWARD);
}

TEST(cuda_ptx_names_each_mistake) {
    const Mistake mistakes[] = {
        {copy_and_leave, "cp.async that nobody waited for"},
        {copy_askew, "not from aligned memory"},
        {take_from_memory, "ldmatrix: lane 0 gives no address"},
        {multiply_alone, "mma.sync: lane 31 has ended"},
    };
    for (const Mistake &m : mistakes) {
        Mistake copy = m;
        CHECK_CHILD(1, make_mistake, &copy, m.says);
    }
}

} // namespace
