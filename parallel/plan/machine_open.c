/* machine_open -- clusters that have a name, and files.
 *
 * Rates are what programs reach, not what data sheets promise:
 *
 *   h200      as h100, with 141 GB at 4.8 TB/s, of which a copy reaches 4.3
 *   h100      data sheet: bf16 989 TFLOP/s dense, fp32 67, 80 GB at 3.35 TB/s, NVLink 450 GB/s each
 *             way, and as in a DGX one 400 Gb/s adapter for each GPU. cuBLAS reaches 795 TFLOP/s at
 *             8192^3 and 716 at 4096^3 (github.com/pranjalssh/fast.cu): 820 in full waves without
 *             what surrounds them (gpu_matmul.h). Streams 3.0 TB/s (QuACK), all_reduce some 370
 *             GB/s of bus bandwidth in a node. NCCL takes up to 16 of 132 processors: slowdown
 *             132/116
 *   a100      312 TFLOP/s, 19.5, 80 GB at 2.04 TB/s, 300 GB/s, 200 Gb/s for each GPU; 108
 *             processors. llm.c trains GPT-2 at 56 to 58 % of the peak from end to end (its pull
 *             requests): large matmuls reach some 80 %, 90 % in full waves
 *   v100      125 TFLOP/s of fp16 (it has no bf16), 15.7 of fp32, 32 GB at 0.9 TB/s; four on PCIe 3
 *             x16, 16 GB/s each way, of which some 11 arrive; one 100 Gb/s adapter a node
 *   consumer  RTX 4090: 165 TFLOP/s with sums in fp32, 82.6, 24 GB at 1.01 TB/s; no peer access:
 *             through the host's memory over PCIe 4, some 10 GB/s with eight at once; one 25 Gb/s
 *             adapter a node
 *   cpu       two cores with AVX2 at 65 GFLOP/s in fp32 (4 GHz, 16 multiply-adds a cycle), bf16 by
 *             the same units after rounding, 1.4 % slower as measured with AVX2
 *             (docs/benchmarks.md); 20 GB/s of memory; gigabit Ethernet, 95.6 % of it payload, half
 *             a round trip of 31 us
 *
 * Latencies are those of NCCL's and of the kernel's transports, a launch takes 4 to 5 us.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/claim.h"
#include "base/mem.h"
#include "base/opt.h"
#include "parallel/plan/machine.h"

/* ranks of the last level, ranks and nodes follow from the number of nodes. */
static const Machine presets[] = {
    {.name = "h200",
     .ranks_per_node = 8,
     .n_levels = 2,
     .level = {{"NVLink", 8, 5e-6, 370e9, 0}, {"network", 0, 10e-6, 46e9, 368e9}},
     .flops = {50e12, 820e12},
     .flops_half = 160,
     .sms = 132,
     .memory_rate = 4.3e12,
     .call = 5e-6,
     .memory = 141000000000,
     .threads = 1,
     .slowdown = 1.14,
     .slowest = 1.02,
     .travel = TRAVEL_RING,
     .gpu = true},
    {.name = "h100",
     .ranks_per_node = 8,
     .n_levels = 2,
     .level = {{"NVLink", 8, 5e-6, 370e9, 0}, {"network", 0, 10e-6, 46e9, 368e9}},
     .flops = {50e12, 820e12},
     .flops_half = 160,
     .sms = 132,
     .memory_rate = 3e12,
     .call = 5e-6,
     .memory = 80000000000,
     .threads = 1,
     .slowdown = 1.14,
     .slowest = 1.02,
     .travel = TRAVEL_RING,
     .gpu = true},
    {.name = "a100",
     .ranks_per_node = 8,
     .n_levels = 2,
     .level = {{"NVLink", 8, 5e-6, 230e9, 0}, {"network", 0, 10e-6, 23e9, 184e9}},
     .flops = {17e12, 280e12},
     .flops_half = 115,
     .sms = 108,
     .memory_rate = 1.75e12,
     .call = 5e-6,
     .memory = 80000000000,
     .threads = 1,
     .slowdown = 1.17,
     .slowest = 1.02,
     .travel = TRAVEL_RING,
     .gpu = true},
    {.name = "v100",
     .ranks_per_node = 4,
     .n_levels = 2,
     .level = {{"PCIe", 4, 8e-6, 11e9, 0}, {"network", 0, 12e-6, 11e9, 11.5e9}},
     .flops = {14e12, 90e12},
     .flops_half = 64,
     .sms = 80,
     .memory_rate = 0.8e12,
     .call = 5e-6,
     .memory = 32000000000,
     .threads = 1,
     .slowdown = 1.05,
     .slowest = 1.02,
     .travel = TRAVEL_RING,
     .gpu = true},
    {.name = "consumer",
     .ranks_per_node = 8,
     .n_levels = 2,
     .level = {{"PCIe", 8, 10e-6, 10e9, 0}, {"network", 0, 30e-6, 2.9e9, 2.9e9}},
     .flops = {60e12, 140e12},
     .flops_half = 96,
     .sms = 128,
     .memory_rate = 0.92e12,
     .call = 5e-6,
     .memory = 24000000000,
     .threads = 1,
     .slowdown = 1.05,
     .slowest = 1.05,
     .travel = TRAVEL_RING,
     .gpu = true},
    {.name = "cpu",
     .ranks_per_node = 1,
     .n_levels = 1,
     .level = {{"network", 0, 15e-6, 119.5e6, 0}},
     .flops = {130e9, 128e9},
     .flops_half = 12,
     .memory_rate = 20e9,
     .call = 2e-6,
     .memory = 8000000000,
     .threads = 2,
     .slowdown = 1.1,
     .slowest = 1.05,
     .travel = TRAVEL_DIRECT},
};
enum { N_PRESETS = sizeof presets / sizeof *presets, MAX_NODES = 1 << 17, MAX_FILE = 1 << 16 };

/* NAME:NODES */
static bool open_preset(Machine *m, const Machine *preset, const char *nodes, Err *e) {
    char *end;
    long n = *nodes == ':' ? strtol(nodes + 1, &end, 10) : 0;
    if (*nodes != ':' || end == nodes + 1 || *end || n < 1 || n > MAX_NODES)
        return err(e, "cluster %s%s: the number of nodes is needed, from 1 to %d: %s:16",
                   preset->name, nodes, MAX_NODES, preset->name);
    *m = *preset;
    m->nodes = (int)n;
    m->ranks = m->nodes * m->ranks_per_node;
    m->level[m->n_levels - 1].ranks = m->ranks;
    return true;
}

static bool read_file(Machine *m, FILE *f, Err *e) {
    char *text = mem_alloc(MAX_FILE);
    size_t n = fread(text, 1, MAX_FILE, f);
    bool ok;
    if (ferror(f))
        ok = err(e, "%s", strerror(errno));
    else if (n == MAX_FILE)
        ok = err(e, "%d bytes or more: no description of a cluster", MAX_FILE);
    else
        ok = machine_parse(m, text, n, e);
    mem_free(text);
    return ok;
}

/* Neither a file nor a preset. */
static bool not_found(const char *given, const char *name, const char *const *names, Err *e) {
    const char *near = opt_nearest(name, names, N_PRESETS), *colon = strchr(given, ':');
    char hint[96] = "";
    if (near) snprintf(hint, sizeof hint, " Did you mean %s%.20s?", near, colon ? colon : ":16");
    return err(e,
               "cluster %.80s: no such file (%s), and no preset NAME:NODES with NAME one of h200 "
               "h100 a100 "
               "v100 consumer cpu.%s",
               given, strerror(errno), hint);
}

bool machine_open(Machine *m, const char *file_or_preset, Err *e) {
    char name[32];
    const char *names[N_PRESETS];
    size_t n = strcspn(file_or_preset, ":");
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1),
             file_or_preset);
    for (int i = 0; i < N_PRESETS; i++) {
        names[i] = presets[i].name;
        if (strcmp(name, names[i]) == 0) return open_preset(m, &presets[i], file_or_preset + n, e);
    }
    FILE *f = fopen(file_or_preset, "r");
    if (!f) return not_found(file_or_preset, name, names, e);
    Err why;
    bool ok = claim_input_path(file_or_preset, &why) && read_file(m, f, &why);
    fclose(f);
    return ok || err(e, "%.200s: %.300s", file_or_preset, why.text);
}
