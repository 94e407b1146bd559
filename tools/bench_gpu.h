/* bench_gpu -- what the parts of tools/bench_gpu*.c share: memory with random numbers, the clock,
 * the lines that are written.
 */
#ifndef TOOLS_BENCH_GPU_H
#define TOOLS_BENCH_GPU_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "layers/kernels.h"

typedef struct GpuOptions {
    int64_t tokens, seq, vocab, rounds, parameters, sets;
    double round_ms;
    const char *channels, *libraries, *json;
} GpuOptions;
extern GpuOptions gpu_options;

/* Local. Memory of the device: words of bf16 from a normal distribution (floats, then, of the same
 * kind), or zeros; all of it is given back together. */
typedef enum GpuFill { GPU_RANDOM, GPU_ZEROS } GpuFill;
void *gpu_take(int64_t n_bytes, GpuFill fill);
int32_t *gpu_tokens(const int32_t *host, int64_t n);
void gpu_give_all(void);

/* Sets of operands of so many bytes, used in turns, so that none is found in the cache. */
int gpu_sets(int64_t bytes_of_a_set);

/* Work for the clock: run(ctx, set) puts it into the stream. */
typedef struct GpuJob {
    void (*run)(void *ctx, int set);
    void *ctx;
    int sets;
    double seconds; // of one run
} GpuJob;
/* Local. Fills in the seconds of n jobs: medians of rounds in which they take turns. In a round
 * runs stand in line behind each other between two events, so that what a launch costs the host is
 * not in them. */
void gpu_time(GpuJob *jobs, int n);
/* Local. The same with so many rounds. */
void gpu_time_rounds(GpuJob *jobs, int n, int rounds);

/* Local. A line of the file of results; takes row. */
void gpu_write(const char *stage, json_t *row);

/* Local. What there is to measure: layers bound by memory, beside the rate of a copy; attention by
 * the kernels of a device of at most this capability; matmuls beside the library's best. */
void gpu_memory(const Kernels *k);
void gpu_attention(const Kernels *k, int major);
void gpu_matmuls(const Kernels *k, int64_t C);
/* Local. Matmuls with collectives, those of a rank of 2 and of 4, where the link is emulated. */
void gpu_fused(const Kernels *k, int64_t C);

/* Local. The library's best of up to 16 algorithms for p in bf16 words: a job that runs it, and
 * what it does of p. */
typedef struct GpuLibrary GpuLibrary;
enum { GPU_ALGORITHMS = 16 };
GpuLibrary *gpu_library_open(void); // NULL: it is not here
void gpu_library_close(GpuLibrary *l);
/* Finds it for `sets` matmuls alike but for their addresses. `whole`: with p's epilogue; false
 * when it has none like it. */
bool gpu_library_best(GpuLibrary *l, const Matmul *p, int sets, GpuJob *job);

#endif
