/* cuda_test -- helpers of the tests of CUDA kernels, which run in the emulator of tests/emu/ or on
 * a device (tests/device.c).
 *
 *     for (EACH_DTYPE(bf16)) for (EACH_ORDER(o)) {
 *         cuda_begin(*o);
 *         Array x = array_random(n, 1, seed, bf16, skew);    on the device; x.host holds the same
 *                                                            values as floats
 *         Array y = array_empty(n, bf16, skew);              NaN
 *         kernels_cuda(bf16)->act_forward(NULL, ACT_GELU, y.device, x.device, n);
 *         array_get(&y);                                     y.host
 *         CHECK(cuda_end());
 *     }
 */
#ifndef TESTS_CUDA_TEST_H
#define TESTS_CUDA_TEST_H

#include "layers/cuda/device.h"
#include "tests/emu/emu.h"
#include "tests/emu/runtime.h"
#include "tests/layers.h"

/* Orders in which threads of the emulator run; with the last one streams run late as well. */
static const EmuSetup cuda_orders[] = {
    {.order = EMU_FORWARD}, {.order = EMU_REVERSE}, {.order = EMU_RANDOM, .seed = 1, .late = true}};
#define EACH_ORDER(o) EACH(o, cuda_orders)
#define EACH_DTYPE(bf16)                                                                           \
    int bf16 = 0;                                                                                  \
    bf16 < 2;                                                                                      \
    bf16++

/* Fills device memory with NaN on a real device; the emulator does so when it allocates. */
static inline void *cuda_poison(void *p, size_t n_bytes) {
    if (test_on_device) device_check((int)cudaMemsetAsync(p, 0xff, n_bytes, device_stream()));
    return p;
}

static inline bool cuda_end(void);
static inline void cuda_begin(EmuSetup o) {
    // bytes of scratch for a test, all of which are poisoned each time; a real device has more
    // multiprocessors, which need more
    size_t enough = test_on_device ? DEVICE_SCRATCH : 1 << 20;
    if (device_stream()) cuda_end(); // a failed test has left the device open
    emu_set(o);
    device_open(0, enough);
    cuda_poison(device_scratch(enough), enough);
}

/* cuda_begin with a limit on scratch memory. */
static inline void cuda_begin_with(EmuSetup o, size_t scratch_bytes) {
    cuda_begin(o);
    device_close();
    device_open(0, scratch_bytes);
}

/* Forgets the algorithms of matmuls that were chosen so far: the cache folder is a new one. */
static inline void cuda_forget_choices(void) {
    setenv("XDG_CACHE_HOME", test_tmpdir(), 1);
}

/* x as it is stored: rounded to bf16, or unchanged. */
static inline float rounded(float x, bool bf16) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if (bf16) u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &u, sizeof u);
    return x;
}
/* Relative error of rounding to bf16 or fp32. */
static inline double rounding_error(bool bf16) {
    return bf16 ? 0x1p-8 : 0x1p-24;
}

/* n values on the device in bf16 or fp32, and the same values as floats on the host. In tests of
 * the CPU's kernels both pointers are the same. */
typedef struct Array {
    float *device; // address on the device, of bf16 too
    float *host;
    int64_t n;
    bool bf16;
} Array;

static void *cuda_piece[SCRATCH];
static int n_cuda_pieces;
static bool arrays_on_host;  // the test is of the CPU's kernels (everywhere.h)
static uint64_t arrays_hash; // hash of all bits that array_get has read

/* Memory for n elements, filled with NaN, that begins `skew` elements behind an aligned
 * address. */
static inline void *cuda_take(int64_t n, size_t word_bytes, int64_t skew) {
    size_t bytes = (size_t)(n + skew + !arrays_on_host) * word_bytes;
    char *p = arrays_on_host ? memset(scratch_take(bytes), 0xff, bytes)
                             : cuda_poison(device_alloc(bytes), bytes);
    if (n_cuda_pieces == SCRATCH) abort();
    if (!arrays_on_host) cuda_piece[n_cuda_pieces++] = p;
    return p + (size_t)skew * word_bytes;
}
static inline Array array_empty(int64_t n, bool bf16, int64_t skew) {
    float *device = cuda_take(n, bf16 ? 2 : 4, skew);
    return (Array){device, arrays_on_host ? device : floats(n, 0, 0), n, bf16};
}
/* Copies host to device; rounds host to the stored type. */
static inline void array_put(Array *w) {
    if (arrays_on_host) return;
    uint16_t *half = scratch_take((size_t)w->n * sizeof *half);
    for (int64_t i = 0; i < w->n; i++) {
        uint32_t u;
        w->host[i] = rounded(w->host[i], w->bf16);
        memcpy(&u, &w->host[i], sizeof u);
        half[i] = (uint16_t)(u >> 16);
    }
    device_put(w->device, w->bf16 ? (void *)half : w->host, (size_t)w->n * (w->bf16 ? 2 : 4));
}
/* Copies device to host, and adds the bits to arrays_hash. */
static inline void array_get(Array *w) {
    uint32_t u;
    if (!arrays_on_host) {
        uint16_t *half = scratch_take((size_t)w->n * sizeof *half);
        device_get(w->bf16 ? (void *)half : w->host, w->device, (size_t)w->n * (w->bf16 ? 2 : 4));
        device_wait();
        for (int64_t i = 0; i < w->n && w->bf16; i++)
            u = (uint32_t)half[i] << 16, memcpy(&w->host[i], &u, sizeof u);
    }
    for (int64_t i = 0; i < w->n; i++) {
        memcpy(&u, &w->host[i], sizeof u);
        arrays_hash = (arrays_hash ^ u) * 0x100000001b3;
    }
}
/* A copy of w whose host values are those on the device now; w.host is not changed. */
static inline Array array_now(Array w) {
    w.host = floats_copy(w.host, w.n);
    array_get(&w);
    return w;
}
static inline Array array_random(int64_t n, float scale, unsigned seed, bool bf16, int64_t skew) {
    Array w = array_empty(n, bf16, skew);
    test_fill(w.host, (size_t)n, scale, seed);
    array_put(&w);
    return w;
}

/* Frees all memory of the test. False if host memory was written beyond its end (writing beyond
 * device memory ends the program). */
static inline bool cuda_end(void) {
    device_close();
    while (n_cuda_pieces > 0) device_free(cuda_piece[--n_cuda_pieces]);
    emu_set((EmuSetup){0});
    return scratch_end();
}

#endif
