/* Copies of layers/cuda/ptx.cuh as the emulator has them, and the mistakes that it is there to
 * find. What the other instructions do, probes tell (test_cuda_ptx_sm90.cu). */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "tests/test.h"
}

namespace {

enum { LANES = 32, MOST = 1024, BYTES = MOST * sizeof(unsigned) };

/* A kernel of one warp gives numbers[MOST] for numbers[MOST]. */
using Kernel = void (*)(unsigned *, const unsigned *);
void run(Kernel kernel, unsigned *out, const unsigned *in, EmuOrder order) {
    emu_setup.order = order, emu_setup.seed = 3;
    device_open(0, 4096);
    auto *x = static_cast<unsigned *>(device_alloc(BYTES));
    auto *y = static_cast<unsigned *>(device_alloc(BYTES));
    device_put(x, in, BYTES);
    LAUNCH(kernel, 1, LANES, 4096, y, x);
    device_get(out, y, BYTES);
    device_wait();
    device_free(x), device_free(y);
    device_close();
    emu_set({});
}
const EmuOrder orders[] = {EMU_FORWARD, EMU_REVERSE, EMU_RANDOM};

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
    Kernel kernel;
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
