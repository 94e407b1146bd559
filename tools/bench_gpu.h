/* bench_gpu -- shared by tools/bench_gpu*.c: device memory with random numbers, the clock, the
 * output. */
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

/* Local. Device memory: random bf16 from a normal distribution (read as fp32, the values are
 * similar), or zeros. gpu_give_all frees all of it. */
typedef enum GpuFill { GPU_RANDOM, GPU_ZEROS } GpuFill;
void *gpu_take(int64_t n_bytes, GpuFill fill);
int32_t *gpu_tokens(const int32_t *host, int64_t n);
void gpu_give_all(void);

/* Number of sets of operands that a benchmark uses in turns, so that no operand is found in the
 * cache. */
int gpu_sets(int64_t bytes_of_a_set);

/* Work that is timed: run(ctx, set) puts it into the stream. */
typedef struct GpuJob {
    void (*run)(void *ctx, int set);
    void *ctx;
    int sets;
    double seconds; // seconds of one run
} GpuJob;
/* Local. Measures the seconds of n jobs: medians of rounds in which the jobs take turns. In a round
 * many runs are queued between two events, so the host's cost of a launch is not included. */
void gpu_time(GpuJob *jobs, int n);
/* Local. gpu_time with this number of rounds. */
void gpu_time_rounds(GpuJob *jobs, int n, int rounds);

/* Local. Writes a line of the file of results; takes ownership of row. */
void gpu_write(const char *stage, json_t *row);

/* Local. The benchmarks. gpu_memory: layers bound by memory, compared with a copy. gpu_attention:
 * attention with the kernels of a device of at most capability `major`. gpu_matmuls: matmuls
 * compared with the library's best. */
void gpu_memory(const Kernels *k);
void gpu_attention(const Kernels *k, int major);
void gpu_matmuls(const Kernels *k, int64_t C);
/* Local. Matmuls fused with collectives, as on a rank of 2 and of 4; the link is emulated. */
void gpu_fused(const Kernels *k, int64_t C);

/* Local. cuBLASLt's fastest of up to 16 algorithms for a bf16 matmul. */
typedef struct GpuLibrary GpuLibrary;
enum { GPU_ALGORITHMS = 16 };
GpuLibrary *gpu_library_open(void); // NULL: the library is missing
void gpu_library_close(GpuLibrary *l);
/* Finds the fastest for `sets` matmuls that differ only in their addresses, and makes a job that
 * runs it in p's workspace. True: with p's epilogue; false: the library has no such epilogue. */
bool gpu_library_best(GpuLibrary *l, const Matmul *p, int sets, GpuJob *job);

#endif
