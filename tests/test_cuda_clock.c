/* The clock of a device: marks in its streams, for which nobody waits before all is done. */
#include "base/clock.h"
#include "layers/cuda/clock_cuda.h"
#include "tests/cuda_test.h"
#include "tests/emu/calls.h"
#include "tests/test.h"

static const double tick = 1e-6; // that times between events may be wrong: they are floats of ms

/* N marks in two streams, one after the other, around work. */
TEST(cuda_clock_tells_when_streams_came_to_their_marks) {
    enum { N = 40, BYTES = 1 << 16 };
    const DeviceClock *clock = kernels_cuda(false)->clock;
    for (EACH_ORDER(o)) {
        cuda_begin(*o);
        Moment at[N];
        Stream urgent = device_comm_stream();
        Event before = device_event(), after = device_event();
        void *x = cuda_take(BYTES, 1, 0);
        CHECK(clock->mark() == 0); // nobody has begun
        clock->begin(N);
        double error = clock->set(), begin = now_s();
        EmuCalls calls = emu_calls;
        for (int i = 0; i < N; i++) {
            if (i == N / 2)
                device_record(before, device_stream()), device_stream_wait(urgent, before);
            at[i] = i < N / 2 ? clock->mark() : device_mark(urgent);
            if (i < N / 2) device_zero(x, BYTES);
        }
        device_record(after, urgent), device_stream_wait(device_stream(), after);
        CHECK(emu_calls.waits == calls.waits && emu_calls.objects == calls.objects);
        CHECK(clock->end() == N);
        CHECK(test_on_device || emu_calls.waits == calls.waits + 1);
        CHECK(clock->mark() == 0 && clock->seconds(12.5) == 12.5);
        double end = now_s(), last = begin - error - tick;
        for (int i = 0; i < N; i++) {
            CHECK(at[i] < 0 && clock->seconds(at[i]) >= last - tick);
            last = clock->seconds(at[i]);
        }
        CHECK(last <= end + error + tick && error < 1);
        device_event_free(before), device_event_free(after), device_stream_free(urgent);
        CHECK(cuda_end());
    }
}

/* Who makes more marks than were announced loses none; the next time there is room. */
TEST(cuda_clock_makes_room_for_marks_that_were_not_announced) {
    enum { N = 1000 };
    const DeviceClock *clock = kernels_cuda(false)->clock;
    cuda_begin(cuda_orders[2]);
    for (int round = 0; round < 2; round++) {
        Moment first = 0, t = 0;
        clock->begin(1);
        EmuCalls calls = emu_calls;
        for (int i = 0; i < N; i++) {
            t = clock->mark();
            if (i == 0) first = t;
        }
        CHECK(emu_calls.waits == calls.waits);
        CHECK(test_on_device || (emu_calls.objects > calls.objects) == (round == 0));
        CHECK(clock->end() == N && clock->seconds(first) <= clock->seconds(t));
    }
    CHECK(cuda_end());
}

TEST(cuda_events_have_times_where_they_were_recorded_alone) {
    float ms = -1;
    cuda_begin(cuda_orders[2]); // streams are late
    Event a = device_clock(), b = device_clock(), untimed = device_event();
    device_record(a, device_stream());
    CHECK(cudaEventElapsedTime(&ms, a, b) == cudaErrorInvalidResourceHandle);
    device_record(b, device_stream());
    CHECK(test_on_device || cudaEventElapsedTime(&ms, a, b) == cudaErrorNotReady);
    device_record(untimed, device_stream());
    device_wait();
    CHECK(cudaEventElapsedTime(&ms, a, untimed) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventElapsedTime(&ms, a, b) == cudaSuccess && ms >= 0);
    device_event_free(a), device_event_free(b), device_event_free(untimed);
    CHECK(cuda_end());
}
