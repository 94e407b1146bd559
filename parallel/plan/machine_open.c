/* machine_open -- opens the description of a cluster: a file, or a preset by its name.
 *
 * The presets' rates are what programs reach, not what data sheets promise:
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
 *   cpu       two cores with AVX2 at 65 GFLOP/s in fp32 each, half of 16 multiply-adds a cycle at 4
 *             GHz; bf16 by the same units after rounding, a little slower (docs/benchmarks.md); 20
 *             GB/s of memory; gigabit Ethernet, 95.6 % of it payload, half a round trip of 31 us
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

#define HOPPER(memory)                                                                             \
    "ranks_per_node=8\n flops_fp32=50T\n flops_bf16=820T\n flops_half=160\n"                       \
    "multiprocessors=132\n call=5us\n slowdown=1.14\n slowest=1.02\n algorithm=ring\n"             \
    "kernels=cuda\n" memory "level=NVLink ranks=8 latency=5us rank_rate=370GB/s\n"                 \
    "level=network ranks=all latency=10us rank_rate=46GB/s port_rate=368GB/s\n"
/* Descriptions (machine_file.c) without name and nodes. */
static const struct {
    const char *name, *text;
} presets[] = {
    {"h200", HOPPER("memory=141G\n memory_rate=4.3TB/s\n")},
    {"h100", HOPPER("memory=80G\n memory_rate=3TB/s\n")},
    {"a100", "ranks_per_node=8\n flops_fp32=17T\n flops_bf16=280T\n flops_half=115\n"
             "multiprocessors=108\n memory=80G\n memory_rate=1.75TB/s\n call=5us\n"
             "slowdown=1.17\n slowest=1.02\n algorithm=ring\n kernels=sm_80\n"
             "level=NVLink ranks=8 latency=5us rank_rate=230GB/s\n"
             "level=network ranks=all latency=10us rank_rate=23GB/s port_rate=184GB/s\n"},
    {"v100", "ranks_per_node=4\n flops_fp32=14T\n flops_bf16=90T\n flops_half=64\n"
             "multiprocessors=80\n memory=32G\n memory_rate=0.8TB/s\n call=5us\n"
             "slowdown=1.05\n slowest=1.02\n algorithm=ring\n kernels=sm_70\n"
             "level=PCIe ranks=4 latency=8us rank_rate=11GB/s\n"
             "level=network ranks=all latency=12us rank_rate=11GB/s port_rate=11.5GB/s\n"},
    {"consumer", "ranks_per_node=8\n flops_fp32=60T\n flops_bf16=140T\n flops_half=96\n"
                 "multiprocessors=128\n memory=24G\n memory_rate=0.92TB/s\n call=5us\n"
                 "slowdown=1.05\n slowest=1.05\n algorithm=ring\n kernels=sm_89\n"
                 "level=PCIe ranks=8 latency=10us rank_rate=10GB/s\n"
                 "level=network ranks=all latency=30us rank_rate=2.9GB/s port_rate=2.9GB/s\n"},
    {"cpu", "ranks_per_node=1\n threads=2\n flops_fp32=130G\n flops_bf16=128G\n flops_half=12\n"
            "memory=8G\n memory_rate=20GB/s\n call=2us\n slowdown=1.1\n slowest=1.05\n"
            "level=network ranks=all latency=15us rank_rate=119.5MB/s\n"},
};
enum { N_PRESETS = sizeof presets / sizeof *presets, MAX_NODES = 1 << 17, MAX_FILE = 1 << 16 };

/* nodes: what follows NAME, ":NODES". */
static bool open_preset(Machine *m, const char *name, const char *text, const char *nodes, Err *e) {
    char *end;
    long n = *nodes == ':' ? strtol(nodes + 1, &end, 10) : 0;
    if (*nodes != ':' || end == nodes + 1 || *end || n < 1 || n > MAX_NODES)
        return err(e, "cluster %s%s: the number of nodes is needed, from 1 to %d: %s:16", name,
                   nodes, MAX_NODES, name);
    char *all = mem_printf("name=%s\nnodes=%ld\n%s", name, n, text);
    bool ok = machine_parse(m, all, strlen(all), e);
    mem_free(all);
    return ok;
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

/* The message for a name that is neither that of a file nor that of a preset. */
static bool not_found(const char *given, const char *name, const char *const *names, Err *e) {
    const char *near = opt_nearest(name, names, N_PRESETS), *colon = strchr(given, ':');
    char hint[96] = "";
    if (near) snprintf(hint, sizeof hint, " Did you mean %s%.20s?", near, colon ? colon : ":16");
    return err(e,
               "cluster %.80s: no such file (%s), and no preset NAME:NODES with NAME one of h200 "
               "h100 a100 v100 consumer cpu.%s",
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
        if (strcmp(name, names[i]) == 0)
            return open_preset(m, name, presets[i].text, file_or_preset + n, e);
    }
    FILE *f = fopen(file_or_preset, "r");
    if (!f) return not_found(file_or_preset, name, names, e);
    Err why;
    bool ok = claim_input_path(file_or_preset, &why) && read_file(m, f, &why);
    fclose(f);
    return ok || err(e, "%s: %s", file_or_preset, why.text);
}
