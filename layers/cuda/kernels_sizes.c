/* Tables with the sizes of CUDA kernels, for every build: plans need them without CUDA. */
#include "layers/cuda/sizes.h"
#include "layers/kernels.h"

static size_t matmul_bytes(int n_threads) {
    (void)n_threads;
    return MATMUL_WORKSPACE + WORKSPACE_ALIGN;
}
static size_t attention_bytes(int n_threads, int64_t B, int64_t S, int64_t H, int64_t Hkv,
                              int64_t D) {
    (void)n_threads, (void)Hkv, (void)D;
    return (size_t)(B * H * attention_rows(S)) * 2 * sizeof(float);
}
/* Sums for dgamma and dbeta of each panel. */
static size_t norm_bytes(int64_t T, int64_t C) {
    return (size_t)(norm_panels(T) * 2 * C) * sizeof(float);
}

/* Set only to tell that sums stay in device memory; never called, as these tables have no
 * kernels. */
static void sum_elsewhere(double *sum, const float *x, int64_t n, bool add) {
    (void)sum, (void)x, (void)n, (void)add;
}

const Kernels *kernels_cuda_sizes(bool bf16) {
    static const ArenaMemory elsewhere; // without functions: nothing can be allocated
#define SIZES(bytes)                                                                               \
    {                                                                                              \
        .elem_bytes = (bytes), .memory = &elsewhere, .bias_with_dw = true,                         \
        .matmul_workspace = matmul_bytes, .attention_workspace = attention_bytes,                  \
        .norm_workspace = norm_bytes, .embedding_workspace = embedding_bytes,                      \
        .sum_to = sum_elsewhere                                                                    \
    }
    static const Kernels of_floats = SIZES(4), of_bf16 = SIZES(2);
#undef SIZES
    return bf16 ? &of_bf16 : &of_floats;
}
