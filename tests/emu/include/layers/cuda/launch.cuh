/* launch -- replaces layers/cuda/launch.cuh for g++: kernels run in the emulator. */
#ifndef TESTS_EMU_LAUNCH_CUH
#define TESTS_EMU_LAUNCH_CUH

#include <cmath>
#include <cuda_runtime.h>
#include <tuple>
#include <type_traits>

extern "C" {
#include "base/debug.h"
#include "base/die.h"
#include "base/mem.h"
#include "layers/cuda/device.h"
}

/* A kernel and its arguments, waiting in a stream. */
template <class... P> struct EmuCall {
    void (*kernel)(P...);
    std::tuple<P...> args;
    EmuLaunch launch;
};
template <class... P> void emu_thread(void *ctx) {
    auto *c = static_cast<EmuCall<P...> *>(ctx);
    std::apply(c->kernel, c->args);
}
template <class... P> void emu_call(void *ctx) {
    emu_run(&static_cast<EmuCall<P...> *>(ctx)->launch);
}

/* Dies if a pointer among the arguments points to memory that kernels cannot access. */
template <class T> void emu_check_argument(const char *name, T arg, const char *file, int line) {
    if constexpr (std::is_pointer<T>::value)
        if (arg && !emu_is_reached(reinterpret_cast<const void *>(arg)))
            die_at(file, line, name, 1, "an argument of the kernel points to memory of the host");
}

template <class... P, class... A>
void launch(const char *name, const char *file, int line, Stream stream, unsigned cluster,
            void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... args) {
    static_assert((std::is_trivially_copyable<P>::value && ...), "arguments are copied as bytes");
    (emu_check_argument<P>(name, static_cast<P>(args), file, line), ...);
    emu_load(stream, name, reinterpret_cast<const void *>(kernel));
    auto *c = static_cast<EmuCall<P...> *>(mem_alloc(sizeof(EmuCall<P...>)));
    c->kernel = kernel;
    c->args = std::tuple<P...>(static_cast<P>(args)...);
    c->launch = EmuLaunch{name, grid, block, cluster, shared_bytes, emu_thread<P...>, c};
    emu_enqueue(stream, name, emu_call<P...>, c);
}

#define LAUNCH(kernel, grid, block, shared_bytes, ...)                                             \
    LAUNCH_ON(device_stream(), kernel, grid, block, shared_bytes, __VA_ARGS__)
#define LAUNCH_ON(stream, kernel, grid, block, shared_bytes, ...)                                  \
    launch(#kernel, __FILE__, __LINE__, stream, 1, kernel, grid, block, shared_bytes, __VA_ARGS__)
#define LAUNCH_CLUSTERS(cluster, kernel, grid, block, shared_bytes, ...)                           \
    launch(#kernel, __FILE__, __LINE__, device_stream(), cluster, kernel, grid, block,             \
           shared_bytes, __VA_ARGS__)

template <class S> S &shared() {
    static char tag; // one address per type
    return *static_cast<S *>(emu_shared(&tag, sizeof(S), alignof(S)));
}
template <class S> S *dynamic_shared() {
    return static_cast<S *>(emu_shared_dynamic());
}

#endif
