/* bench_gpu -- measures the kernels of a GPU against its limits, at the sizes of GPT-2:
 *
 *     layers that are bound by memory    share of the rate of a copy, measured in the same run
 *     attention                          TFLOP/s of the causal half, forward and backward, by
 *                                        matmuls of warpgroups and of warps
 *     matmuls                            TFLOP/s, beside the fastest of 16 algorithms of cuBLASLt
 *                                        with the same epilogue
 *     matmuls with collectives           share of a transfer that is hidden; the link is emulated
 *
 * Numbers are random, sets of operands that are larger than the cache take turns, times are medians
 * from events of the device. Prints tables, and writes a line of JSON for each row to --json.
 * tools/bench_gpu.py runs this program with all other GPU benchmarks.
 */
#include "tools/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/die.h"
#include "base/library.h"
#include "base/median.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/rng.h"
#include "layers/cuda/cublaslt.h"
#include "layers/cuda/device.h"
#include "layers/cuda/streams.h"

GpuOptions gpu_options;
enum { MEMORY, ATTENTION, MATMULS, FUSED, ALL };
static int what;
static const Opt options[] = {
    {"what", OPT_CHOICE, &what, "all", 0, 0, "memory|attention|matmuls|fused|all",
     "kernels to measure"},
    {"tokens", OPT_INT, &gpu_options.tokens, "32768", 16, 1e8, "N", "tokens of a micro-batch"},
    {"seq", OPT_INT, &gpu_options.seq, "1024", 1, 1e6, "N", "positions of a sequence"},
    {"channels", OPT_STR, &gpu_options.channels, "768,1024,1280,1600", 0, 0, "LIST",
     "channels of the models whose matmuls are measured; the first is also used for layers and "
     "attention"},
    {"vocab", OPT_INT, &gpu_options.vocab, "50257", 1, 1e8, "N", "tokens of the vocabulary"},
    {"parameters", OPT_INT, &gpu_options.parameters, "124439808", 1, 1e10, "N",
     "parameters that AdamW updates"},
    {"rounds", OPT_INT, &gpu_options.rounds, "7", 1, 100, "N",
     "measurements of each row; the median is printed"},
    {"round-ms", OPT_FLOAT, &gpu_options.round_ms, "4", 0, 1000, "X",
     "least length of a measurement in milliseconds; 0: one call"},
    {"sets", OPT_INT, &gpu_options.sets, "0", 0, 8, "N",
     "sets of operands, used in turns; 0: more than the cache holds"},
    {"libraries", OPT_STR, &gpu_options.libraries, "", 0, 0, "FOLDER:...|none",
     "folders of cuBLASLt, as of train_gpt; none: only kernels of this program"},
    {"json", OPT_STR, &gpu_options.json, "", 0, 0, "FILE", "write each row as a line of JSON"},
    {0}};

/* ---- memory */

enum { MOST_PIECES = 256, BLOCK = 1 << 20 }; // BLOCK: words of the block of random numbers
static void *piece[MOST_PIECES];
static int n_pieces;

static void *piece_new(int64_t n_bytes) {
    if (n_pieces == MOST_PIECES) die("more than %d pieces of memory", MOST_PIECES);
    return piece[n_pieces++] = device_alloc((size_t)n_bytes);
}

/* The block of random bf16. Every call returns the same block. */
static const uint16_t *random_block(void) {
    static uint16_t words[BLOCK];
    static float x[4096];
    for (uint64_t i = 0; i < BLOCK && !words[BLOCK - 1]; i += 4096) {
        rng_normal(x, 4096, i, 1, 1, 1);
        for (unsigned j = 0; j < 4096; j++) {
            uint32_t u;
            memcpy(&u, &x[j], sizeof u);
            words[i + j] = (uint16_t)(u >> 16) | 1; // no word is 0
        }
    }
    return words;
}

void *gpu_take(int64_t n_bytes, GpuFill fill) {
    int64_t block = BLOCK * 2, first = n_bytes < block ? n_bytes : block;
    char *p = piece_new(n_bytes);
    if (fill == GPU_ZEROS) {
        device_zero(p, (size_t)n_bytes);
        return p;
    }
    device_put(p, random_block(), (size_t)first);
    // doubles the filled part by copying it behind itself
    for (int64_t at = first; at < n_bytes; at += at)
        device_copy(p + at, p, (size_t)(at < n_bytes - at ? at : n_bytes - at));
    return p;
}

int32_t *gpu_tokens(const int32_t *host, int64_t n) {
    int32_t *p = piece_new(n * (int64_t)sizeof *p);
    device_put(p, host, (size_t)n * sizeof *p);
    return p;
}

void gpu_give_all(void) {
    device_wait();
    while (n_pieces > 0) device_free(piece[--n_pieces]);
}

int gpu_sets(int64_t bytes_of_a_set) {
    if (gpu_options.sets) return (int)gpu_options.sets;
    int64_t cache = (int64_t)device_facts(0).l2_bytes, sets = 1 + 4 * cache / bytes_of_a_set;
    return sets < 8 ? (int)sets : 8;
}

/* ---- the clock */

enum { MOST_ROUNDS = 100, MOST_JOBS = GPU_ALGORITHMS, MOST_RUNS = 2000 };

/* Seconds of one of `runs` runs, measured by two events. */
static double round_of(const GpuJob *j, int runs, const Event clock[2]) {
    device_record(clock[0], device_stream());
    for (int i = 0; i < runs; i++) j->run(j->ctx, i % j->sets);
    device_record(clock[1], device_stream());
    device_event_synchronize(clock[1]);
    return device_seconds(clock[0], clock[1]) / runs;
}

void gpu_time_rounds(GpuJob *jobs, int n, int rounds) {
    Event clock[2] = {device_clock(), device_clock()};
    double seconds[MOST_JOBS][MOST_ROUNDS];
    int runs[MOST_JOBS];
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < jobs[j].sets; i++) jobs[j].run(jobs[j].ctx, i); // warm-up
        runs[j] = 1;
        if (gpu_options.round_ms <= 0) continue;
        // as many runs as fill a round of --round-ms
        double fill = 1e-3 * gpu_options.round_ms / (round_of(&jobs[j], 2, clock) + 1e-9);
        runs[j] = fill < 2 ? 2 : fill > MOST_RUNS ? MOST_RUNS : (int)fill;
    }
    for (int r = 0; r < rounds; r++)
        for (int j = 0; j < n; j++) seconds[j][r] = round_of(&jobs[j], runs[j], clock);
    for (int j = 0; j < n; j++) {
        sort_numbers(seconds[j], rounds);
        jobs[j].seconds = seconds[j][rounds / 2];
    }
    device_event_free(clock[0]), device_event_free(clock[1]);
}

void gpu_time(GpuJob *jobs, int n) {
    gpu_time_rounds(jobs, n, (int)gpu_options.rounds);
}

/* ---- lines */

void gpu_write(const char *stage, json_t *row) {
    static FILE *f;
    if (*gpu_options.json && !f) {
        f = fopen(gpu_options.json, "w");
        if (!f) die("cannot write %s", gpu_options.json);
        // line buffered: finished rows are in the file even if a later one fails
        setvbuf(f, NULL, _IOLBF, 0);
    }
    json_object_set_new(row, "stage", json_string(stage));
    if (f && (json_dumpf(row, f, JSON_REAL_PRECISION(6)) || fputc('\n', f) == EOF))
        die("cannot write %s", gpu_options.json);
    json_decref(row);
}

static bool asked_for(int stage) {
    return what == stage || what == ALL;
}

/* Opens the device with kernels for at most this capability. */
static void open_device(int major) {
    device_at_most(major);
    device_open(0, DEVICE_SCRATCH);
}
static void close_device(void) {
    gpu_give_all();
    device_close();
}

static void name_library(void) {
    int64_t version = cublaslt() ? (int64_t)cublaslt()->version() : 0;
    printf("\ncuBLASLt %lld\n", (long long)version);
    gpu_write("library",
              json_pack("{s:s, s:I}", "name", "cuBLASLt", "version", (json_int_t)version));
}

int main(int argc, char **argv) {
    die_set_program(argv[0]);
    opt_parse(options, argc, argv,
              "bench_gpu: the rates of the kernels on a GPU, beside its peaks\n\n");
    library_folders(gpu_options.libraries);
    Err e;
    if (device_count(&e) == 0 || !device_works(0, &e)) die("no GPU: %s", e.text);
    DeviceFacts f = device_facts(0);
    const Kernels *k = kernels_cuda(true);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s, %d multiprocessors, %.1f GiB, %.0f MiB of cache\n", f.name, f.sms,
           (double)f.memory_bytes / (1 << 30), (double)f.l2_bytes / (1 << 20));
    open_device(f.major);
    if (asked_for(MEMORY)) gpu_memory(k);
    close_device();
    for (int major = 9; major >= 8; major--) {
        if (!asked_for(ATTENTION) || major > f.major) continue;
        open_device(major);
        gpu_attention(k, major);
        close_device();
    }
    device_at_most(f.major);
    if (asked_for(MATMULS)) name_library();
    for (const char *c = gpu_options.channels; *c; c += strcspn(c, ","), c += *c == ',') {
        int64_t channels = strtoll(c, NULL, 10);
        open_device(f.major);
        if (asked_for(MATMULS)) gpu_matmuls(k, channels);
        if (asked_for(FUSED)) gpu_fused(k, channels);
        close_device();
    }
    return 0;
}
