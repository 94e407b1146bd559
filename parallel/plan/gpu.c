#include "parallel/plan/gpu.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "parallel/plan/work.h"

/* Data sheets: dense bf16 TFLOP/s (0: by clock), TB/s of memory, GB/s of NVLink in each direction
 * (0: none, or only bridges between two cards). A device has the first row whose words are all in
 * its name, so rows with longer names stand before rows with their parts. */
static const struct {
    const char *word[2];
    GpuSheet sheet;
} known[] = {
    {{"GB300"}, {2500, 8, 900}},        {{"B300"}, {2250, 8, 900}},
    {{"GB200"}, {2500, 8, 900}},        {{"B200"}, {2250, 8, 900}},
    {{"B100"}, {1750, 8, 900}},         {{"GH200", "144G"}, {989, 4.9, 450}},
    {{"GH200"}, {989, 4, 450}},         {{"H200", "NVL"}, {835, 4.8, 450}},
    {{"H200"}, {989, 4.8, 450}},        {{"H100", "PCIe"}, {756, 2, 0}},
    {{"H100", "NVL"}, {835, 3.9, 300}}, {{"H100"}, {989, 3.35, 450}},
    {{"H800", "PCIe"}, {756, 2, 0}},    {{"H800"}, {989, 3.35, 200}},
    {{"H20"}, {148, 4, 450}},           {{"A100", "40GB"}, {312, 1.555, 300}},
    {{"A100", "PCIe"}, {312, 1.94, 0}}, {{"A100"}, {312, 2.04, 300}},
    {{"A800"}, {312, 2.04, 200}},       {{"A30"}, {165, 0.933, 0}},
    {{"L40S"}, {362, 0.864, 0}},        {{"L40"}, {181, 0.864, 0}},
    {{"A10G"}, {70, 0.6, 0}},           {{"5090"}, {0, 1.79, 0}},
    {{"4090"}, {0, 1.01, 0}},           {{"3090"}, {0, 0.936, 0}},
};

static bool in_word(char c) {
    return isalnum((unsigned char)c) != 0;
}

/* Is the word in the name, and not as a part of a longer one? An A3000 is not an A30. */
static bool named(const char *name, const char *word) {
    if (!word) return true;
    for (const char *at = name; (at = strstr(at, word)); at++)
        if (!in_word(at[strlen(word)]) && (at == name || !in_word(at[-1]))) return true;
    return false;
}

const GpuSheet *gpu_sheet(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (named(name, known[i].word[0]) && named(name, known[i].word[1])) return &known[i].sheet;
    return NULL;
}

/* FLOPs of a multiprocessor in a cycle; 0: not known. On GeForce cards tensor cores sum bf16 in
 * fp32 at half the rate of cards for servers and workstations. */
static double per_cycle(const DeviceFacts *g, bool bf16) {
    bool geforce = strstr(g->name, "GeForce") != NULL;
    switch (g->major * 10 + g->minor) {
    case 80:
        return bf16 ? 2048 : 128;
    case 86:
    case 89:
    case 120:
        return bf16 ? geforce ? 512 : 1024 : 256;
    case 90:
        return bf16 ? 4096 : 256;
    case 100:
    case 103:
        return bf16 ? 8192 : 256;
    }
    return 0;
}

double gpu_peak(const DeviceFacts *g, bool bf16, const char **how) {
    const GpuSheet *sheet = bf16 ? gpu_sheet(g->name) : NULL;
    bool named = sheet && sheet->tflops > 0;
    if (how) *how = named ? "by name" : "by clock";
    if (named) return 1e12 * sheet->tflops;
    return per_cycle(g, bf16) * g->sms * 1e6 * g->mhz;
}

double gpu_measure(const Kernels *k, bool bf16) {
    enum { LEAST = 256, MOST = 8192, TIMES = 4 }; // TIMES: the first call also makes a plan
    const double enough = 5e-3; // seconds of a matmul, beside which its launch is short
    double best = 0, least = 0;
    for (int64_t n = LEAST; n <= MOST && least < enough; n *= 2) {
        Work w = {.kind = WORK_MATMUL, .flags = bf16 ? WORK_BF16 : 0, .rows = n, .K = n, .N = n};
        least = work_seconds(&w, k, NULL, TIMES);
        best = fmax(best, work_flops(&w) / least);
    }
    return best;
}
