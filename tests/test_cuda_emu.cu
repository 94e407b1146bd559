/* The emulator itself: kernels that are right give the right numbers in every order of threads, and
 * each mistake that it is there to find is found, with the place. */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx.cuh"
#include "layers/cuda/vec.cuh"

#include <cstring>
#include <pthread.h>

extern "C" {
#include "layers/cuda/graph.h"
#include "layers/cuda/streams.h"
#include "tests/test.h"
}

namespace {

enum { N = 96 };

struct Device {
    explicit Device(EmuOrder order = EMU_FORWARD, bool late = false, unsigned shuffle = 0) {
        EmuSetup s = {};
        s.order = order, s.seed = 7, s.late = late, s.shuffle = shuffle;
        emu_set(s);
        device_open(0, 4096);
        p = static_cast<int *>(device_alloc(N * sizeof(int)));
    }
    ~Device() {
        device_free(p);
        device_close();
        emu_set({});
    }
    int *p;
};

/* What a kernel makes of N zeros. */
void run(EmuOrder order, void (*kernel)(int *), dim3 blocks, dim3 threads, int out[N]) {
    Device d(order);
    device_zero(d.p, N * sizeof(int));
    LAUNCH(kernel, blocks, threads, 0, d.p);
    device_get(out, d.p, N * sizeof *out);
    device_wait();
}

struct Slots {
    int at[N];
};

/* Reverses N numbers through shared memory; without `wait` it needs luck. */
__global__ void reverse(int *x, bool wait) {
    auto &s = shared<Slots>();
    s.at[threadIdx.x] = x[threadIdx.x];
    if (wait) __syncthreads();
    x[threadIdx.x] = s.at[N - 1 - threadIdx.x];
}

void reverse_numbers(EmuOrder order, bool wait, int out[N]) {
    Device d(order);
    for (int i = 0; i < N; i++) out[i] = i;
    device_put(d.p, out, N * sizeof *out);
    LAUNCH(reverse, 1, N, 0, d.p, wait);
    device_get(out, d.p, N * sizeof *out);
    device_wait();
}

/* Every exchange of a warp, checked by each lane against what it should take. */
__global__ void exchange(int *wrong) {
    int i = static_cast<int>(threadIdx.x), lane = i % 32, bad = 0;
    unsigned all = 0xffffffff, half = lane < 16 ? 0x0000ffff : 0xffff0000;
    bad += __shfl_sync(all, i, 5) != i / 32 * 32 + 5;
    bad += __shfl_sync(all, i, 3, 8) != i / 8 * 8 + 3;
    bad += __shfl_xor_sync(all, i, 17) != (i ^ 17);
    bad += __shfl_up_sync(all, i, 4) != (lane >= 4 ? i - 4 : i);
    bad += __shfl_xor_sync(half, i, 8) != (i ^ 8); // two halves apart
    bad += __match_any_sync(all, lane / 5) != (lane < 30 ? 31u << lane / 5 * 5 : 0xc0000000u);
    bad += warp_sum(static_cast<float>(lane)) != 496.0f;
    bad += warp_max(static_cast<float>(lane ^ 9)) != 31.0f;
    if (lane < 8) bad += __shfl_sync(0xff, i, 7) != i / 32 * 32 + 7; // the others have ended
    wrong[i] = bad;
}

/* Half of the block hands a number over to the other half and goes on without waiting. */
__global__ void hand_over(int *x) {
    auto &s = shared<Slots>();
    int i = static_cast<int>(threadIdx.x);
    EmuPlace here = {__FILE__, __LINE__};
    if (i < 32) {
        s.at[i] = 100 + i;
        emu_barrier(1, 64, false, here);
    } else {
        emu_barrier(1, 64, true, here);
        x[i - 32] = s.at[i - 32];
    }
}

const EmuOrder orders[] = {EMU_FORWARD, EMU_REVERSE, EMU_RANDOM};

TEST(cuda_emulation_runs_barriers_in_any_order) {
    int x[N];
    for (EmuOrder o : orders) {
        reverse_numbers(o, true, x);
        for (int i = 0; i < N; i++) CHECK(x[i] == N - 1 - i);
    }
}

TEST(cuda_emulation_shows_a_missing_barrier_in_some_order) {
    int x[N];
    bool shown = false;
    for (EmuOrder o : orders) {
        reverse_numbers(o, false, x);
        for (int i = 0; i < N; i++) shown = shown || x[i] != N - 1 - i;
    }
    CHECK(shown);
}

TEST(cuda_emulation_exchanges_lanes) {
    int wrong[N];
    for (EmuOrder o : orders) {
        run(o, exchange, 1, N, wrong);
        for (int i = 0; i < N; i++) CHECK(wrong[i] == 0);
    }
}

TEST(cuda_emulation_hands_over_at_a_named_barrier) {
    int x[N];
    for (EmuOrder o : orders) {
        run(o, hand_over, 1, 64, x);
        for (int i = 0; i < 32; i++) CHECK(x[i] == 100 + i);
    }
}

/* Block b waits for block b - 1, adds 1 to its 32 numbers, and says so; the last one ends them all.
 * Flags behind the numbers. */
__global__ void relay(int *x) {
    int block = static_cast<int>(blockIdx.x), n = static_cast<int>(gridDim.x);
    int *flag = x + 32;
    if (block > 0) flag_wait(flag + block, 1);
    x[threadIdx.x] += 1;
    __syncthreads();
    if (threadIdx.x == 0) flag_signal(flag + (block + 1) % n, 1);
    flag_wait(flag, 1); // the last block's
}

TEST(cuda_emulation_runs_blocks_that_wait_for_each_other) {
    int x[N];
    for (EmuOrder o : orders) {
        run(o, relay, 5, 32, x);
        for (int i = 0; i < 32; i++) CHECK(x[i] == 5);
    }
}

/* Says so before it writes. */
__global__ void says_too_early(int *x) {
    if (blockIdx.x == 1) {
        flag_signal(x + 1, 1);
        x[0] = 7;
    } else {
        flag_wait(x + 1, 1);
        x[2] = x[0];
    }
}

TEST(cuda_emulation_shows_a_flag_that_is_said_too_early) {
    int x[N], shown = 0;
    for (EmuOrder o : orders) run(o, says_too_early, 2, 1, x), shown += x[2] != 7;
    CHECK(shown > 0);
}

__global__ void number_blocks(int *x) {
    unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    x[b * 4 + t] = static_cast<int>(b * 4 + t);
}

TEST(cuda_emulation_runs_every_thread_of_every_block_once) {
    int x[N];
    for (EmuOrder o : orders) {
        run(o, number_blocks, dim3(4, 3, 2), dim3(1, 2, 2), x);
        for (int i = 0; i < N; i++) CHECK(x[i] == i);
    }
}

/* --- mistakes */

__global__ void waits_for_ever(int *) {
    int warp = static_cast<int>(threadIdx.x) / WARP;
    emu_barrier(1 + warp, 64, true, {__FILE__, 100 + warp});
}
__global__ void different_barriers(int *) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}
__global__ void different_masks(int *) {
    __syncwarp(threadIdx.x % 2 ? 0xffffffff : 0x7fffffff);
}
__global__ void mask_without_me(int *) {
    __syncwarp(0xfffffffe);
}
__global__ void beyond_shared(int *x) {
    auto &s = shared<Slots>();
    s.at[threadIdx.x + 1 + (x ? 0 : 1)] = 0;
}
__global__ void beyond_device(int *x) {
    x[threadIdx.x + 1] = 0;
}
__global__ void nothing(int *) {}
__global__ void waits_for_a_flag(int *x) {
    if (threadIdx.x == 3) flag_wait(x, 12345);
}

struct Mistake {
    const char *name;
    void (*kernel)(int *);
    unsigned threads;
    const char *says;
};
const Mistake mistakes[] = {
    {"waits_for_ever", waits_for_ever, 64,
     "64 of 64 threads wait for ever; 32 from thread 0 at named barrier "
     "(tests/test_cuda_emu.cu:100)"},
    {"different_barriers", different_barriers, 64, "__syncthreads here, but others of the block"},
    {"different_masks", different_masks, 32, "mask ffffffff, but other lanes wait in __syncwarp"},
    {"mask_without_me", mask_without_me, 32, "mask fffffffe, in which lane 0 is not"},
    {"beyond_shared", beyond_shared, N, "written 0 bytes behind the end of an object of 384 bytes"},
    {"beyond_device", beyond_device, N, "written 384 bytes from the beginning of a piece of 384"},
    {"waits_for_a_flag", waits_for_a_flag, N,
     "1 of 96 threads wait for ever; 1 from thread 3 at a flag (tests/test_cuda_emu.cu:"},
    {"nothing", nothing, 1025, "no GPU launches a grid of (1,1,1) blocks of (1025,1,1)"},
};

void make_mistake(void *arg) {
    const auto *m = static_cast<const Mistake *>(arg);
    Device d;
    launch(m->name, __FILE__, __LINE__, device_stream(), 1, m->kernel, 1, m->threads, 0, d.p);
}
void pass_host_memory(void *) {
    Device d;
    int x = 0;
    LAUNCH(nothing, 1, 1, 0, &x);
}
/* Also when a kernel has used it, which may. */
void follow_device_pointer(void *used) {
    Device d;
    if (used) LAUNCH(number_blocks, 1, 1, 0, d.p);
    device_wait();
    *static_cast<volatile int *>(d.p) = 1;
}

TEST(cuda_emulation_names_each_mistake) {
    char text[2048];
    for (const Mistake &m : mistakes) {
        Mistake copy = m;
        CHECK_CHILD(1, make_mistake, &copy, m.name, m.says);
    }
    CHECK_CHILD(1, pass_host_memory, nullptr, "points to memory of the host");
    for (int used = 0; used < 2; used++) {
        CHECK(test_in_child(follow_device_pointer, used ? text : nullptr, text, sizeof text) != 0);
        CHECK(strstr(text, "the host touched device memory"));
    }
}

/* --- streams */

__global__ void put_number(int *x, int number) {
    *x = number;
}

/* --- graphs */

__global__ void add_number(int *x, int number) {
    *x += number;
}
/* The kernel is there before it is recorded. */
struct Recorder : Device {
    explicit Recorder(bool late = false, unsigned shuffle = 0)
        : Device(EMU_FORWARD, late, shuffle) {
        LAUNCH(add_number, 1, 1, 0, p, 0);
        device_wait();
    }
};

TEST(cuda_emulation_of_graphs_runs_what_was_recorded_again) {
    for (int late = 0; late < 2; late++) {
        Recorder d(late);
        int x = 0;
        device_put(d.p, &x, sizeof x);
        device_capture();
        LAUNCH(add_number, 1, 1, 0, d.p, 5);
        device_copy(d.p + 1, d.p, sizeof x);
        LAUNCH(add_number, 1, 1, 0, d.p, 2);
        Graph g = device_captured();
        device_get(&x, d.p, sizeof x);
        device_wait();
        CHECK(x == 0); // nothing has run
        for (int i = 0; i < 3; i++) device_replay(g);
        device_graph_free(g);
        device_get(&x, d.p, sizeof x);
        device_wait();
        CHECK(x == 21);
        device_get(&x, d.p + 1, sizeof x);
        device_wait();
        CHECK(x == 19);
    }
}

/* While this thread records; the last one another thread would be free to do. */
cudaError_t do_forbidden(int i, int *p) {
    static int x;
    void *q = nullptr;
    switch (i) {
    case 0:
        return cudaStreamSynchronize(device_stream());
    case 1:
        return cudaMalloc(&q, 1);
    case 2:
        return cudaFree(p);
    case 3:
        return cudaMemcpyAsync(p, &x, sizeof x, cudaMemcpyHostToDevice, device_stream());
    default:
        return cudaHostAlloc(&q, 1, 0);
    }
}

TEST(cuda_emulation_of_graphs_refuses_what_cannot_be_recorded) {
    Device d;
    for (int i = 0; i < 5; i++) {
        cudaGraph_t g;
        device_check(cudaStreamBeginCapture(device_stream(), cudaStreamCaptureModeThreadLocal));
        CHECK(do_forbidden(i, d.p) == cudaErrorStreamCaptureUnsupported);
        CHECK(cudaStreamEndCapture(device_stream(), &g) == cudaErrorStreamCaptureInvalidated);
    }
}

__global__ void never_launched(int *x) {
    *x = 1;
}
void record_at_once(void *) {
    Device d;
    device_capture();
    LAUNCH(never_launched, 1, 1, 0, d.p);
}
TEST(cuda_emulation_of_graphs_refuses_kernels_that_are_not_loaded) {
    CHECK_CHILD(1, record_at_once, nullptr, "never_launched: a kernel is loaded in a recording");
}

/* Two streams; events that one may follow in the other. */
struct Streams {
    cudaStream_t own, other;
    cudaEvent_t a, b;
    Streams() {
        own = device_stream();
        device_check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        device_check(cudaEventCreateWithFlags(&a, cudaEventDisableTiming));
        device_check(cudaEventCreateWithFlags(&b, cudaEventDisableTiming));
    }
    ~Streams() {
        device_check(cudaEventDestroy(a));
        device_check(cudaEventDestroy(b));
        device_check(cudaStreamDestroy(other));
    }
};

/* x += 5, then in the other stream y = x and y += 1, then x = y: six more each time. */
TEST(cuda_emulation_of_graphs_forks_and_joins) {
    for (unsigned order = 0; order < 6; order++) {
        Recorder d(order > 0, order > 1 ? order : 0);
        Streams s;
        int x[2] = {0, 0};
        device_put(d.p, x, sizeof x);
        device_capture();
        LAUNCH(add_number, 1, 1, 0, d.p, 5);
        device_check(cudaEventRecord(s.a, s.own));
        device_check(cudaStreamWaitEvent(s.other, s.a, 0));
        device_check(cudaMemcpyAsync(d.p + 1, d.p, sizeof *x, cudaMemcpyDeviceToDevice, s.other));
        LAUNCH_ON(s.other, add_number, 1, 1, 0, d.p + 1, 1);
        device_check(cudaEventRecord(s.a, s.other));
        device_check(cudaStreamWaitEvent(s.own, s.a, 0));
        device_copy(d.p, d.p + 1, sizeof *x);
        Graph g = device_captured();
        for (int i = 0; i < 4; i++) device_replay(g);
        device_get(x, d.p, sizeof x);
        device_wait();
        CHECK(x[0] == 24 && x[1] == 24);
        device_graph_free(g);
    }
}

/* While `own` records, and `other` has followed it: a mistake, and what CUDA says to it. */
cudaError_t make_mistake(int i, const Streams &s) {
    switch (i) {
    case 0:
        return cudaStreamWaitEvent(s.own, s.b, 0); // recorded before
    case 1:
        return cudaEventQuery(s.a);
    case 2:
        return cudaEventSynchronize(s.a);
    case 3:
        return cudaStreamSynchronize(s.other);
    default:
        return cudaSuccess;
    }
}

TEST(cuda_emulation_of_graphs_refuses_what_does_not_belong_to_them) {
    static const cudaError_t wanted[] = {cudaErrorStreamCaptureIsolation, cudaErrorCapturedEvent,
                                         cudaErrorCapturedEvent, cudaErrorStreamCaptureUnsupported,
                                         cudaSuccess};
    Recorder d;
    for (int i = 0; i < 5; i++) {
        Streams s;
        cudaGraph_t g;
        device_check(cudaEventRecord(s.b, s.own));
        device_check(cudaStreamBeginCapture(s.own, cudaStreamCaptureModeThreadLocal));
        device_check(cudaEventRecord(s.a, s.own));
        device_check(cudaStreamWaitEvent(s.other, s.a, 0));
        LAUNCH_ON(s.other, add_number, 1, 1, 0, d.p, 5);
        CHECK(make_mistake(i, s) == wanted[i]);
        // the last one is that `other` does not come back
        CHECK(cudaStreamEndCapture(s.own, &g) ==
              (i == 4 ? cudaErrorStreamCaptureUnjoined : cudaErrorStreamCaptureInvalidated));
        // afterwards events are places in nothing, until they are recorded anew
        CHECK(cudaEventQuery(s.a) == cudaErrorInvalidValue);
        CHECK(cudaStreamWaitEvent(s.other, s.a, 0) == cudaErrorInvalidValue);
        device_check(cudaEventRecord(s.a, s.own));
        CHECK(cudaEventQuery(s.a) == cudaSuccess);
    }
}

/* A thread that watches may ask for what is no place in a recording, and for nothing else. */
void *ask_for(void *e) {
    device_set_current(0);
    return cudaEventQuery(static_cast<cudaEvent_t>(e)) == cudaSuccess ? e : nullptr;
}

TEST(cuda_emulation_of_graphs_is_void_when_another_thread_asks_for_their_events) {
    Recorder d;
    for (int recorded = 0; recorded < 2; recorded++) {
        Streams s;
        cudaGraph_t g;
        pthread_t thread;
        void *fine;
        device_check(cudaEventRecord(s.b, s.own));
        device_check(cudaStreamBeginCapture(s.own, cudaStreamCaptureModeThreadLocal));
        LAUNCH(add_number, 1, 1, 0, d.p, 5);
        device_check(cudaEventRecord(s.a, s.own));
        CHECK(pthread_create(&thread, nullptr, ask_for, recorded ? s.a : s.b) == 0);
        CHECK(pthread_join(thread, &fine) == 0);
        CHECK((fine == nullptr) == (recorded == 1));
        cudaError_t e = cudaStreamEndCapture(s.own, &g);
        CHECK(e == (recorded ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
        if (e == cudaSuccess) device_check(cudaGraphDestroy(g));
    }
}

TEST(cuda_emulation_of_late_streams_shows_what_nobody_waited_for) {
    for (int waits = 0; waits < 2; waits++) {
        Device d(EMU_FORWARD, true);
        cudaStream_t other;
        cudaEvent_t done;
        int *x = nullptr;
        device_check(cudaHostAlloc(reinterpret_cast<void **>(&x), sizeof *x, 0));
        device_check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        device_check(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
        *x = -5;
        LAUNCH(put_number, 1, 1, 0, d.p, 42);
        device_check(cudaEventRecord(done, device_stream()));
        if (waits) device_check(cudaStreamWaitEvent(other, done, 0));
        device_check(cudaMemcpyAsync(x, d.p, sizeof *x, cudaMemcpyDeviceToHost, other));
        CHECK(*x == -5); // nothing has run
        device_check(cudaStreamSynchronize(other));
        CHECK(*x == (waits ? 42 : -1)); // fresh memory is all ones
        CHECK(cudaEventQuery(done) == (waits ? cudaSuccess : cudaErrorNotReady));
        device_check(cudaEventDestroy(done));
        device_check(cudaStreamDestroy(other));
        device_check(cudaFreeHost(x));
    }
}

} // namespace
