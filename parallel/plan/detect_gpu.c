/* The Machine of ranks that compute on GPUs: the preset of the most similar GPU, with the peak,
 * memory and links of the GPUs at hand. */
#include <math.h>
#include <string.h>

#include "parallel/plan/detect_parts.h"

/* The GPUs for which presets hold. */
static const struct Reference {
    const char *preset;
    DeviceFacts gpu;
} references[] = {
    {"h100:1", {.name = "NVIDIA H100", .major = 9, .minor = 0, .sms = 132, .mhz = 1980}},
    {"a100:1", {.name = "NVIDIA A100", .major = 8, .minor = 0, .sms = 108, .mhz = 1410}},
    {"consumer:1",
     {.name = "NVIDIA GeForce RTX 4090", .major = 8, .minor = 9, .sms = 128, .mhz = 2520}}};

/* The preset's GPU that is most like g. Newer kinds reach a similar share of their peak. */
static const struct Reference *reference_of(const DeviceFacts *g) {
    return &references[g->major >= 9 && g->major < 12 ? 0 : g->major == 8 && g->minor == 0 ? 1 : 2];
}

/* Scales the preset's rates: the GPU reaches the same shares of its data sheet as the preset's. */
static void set_rates(Machine *m, const Gpus *g) {
    const DeviceFacts *of = &reference_of(&g->facts)->gpu;
    const GpuSheet *mine = gpu_sheet(g->facts.name), *its = gpu_sheet(of->name);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        double peak = gpu_peak(&g->facts, bf16, NULL);
        if (peak > 0) m->flops[bf16] *= peak / gpu_peak(of, bf16, NULL);
        if (peak == 0 && g->measured[bf16] > 0) m->flops[bf16] = g->measured[bf16];
        m->flops[bf16] /= g->sharing;
    }
    if (mine) m->memory_rate *= mine->memory / its->memory;
    if (mine && mine->nvlink > 0 && its->nvlink > 0)
        m->level[0].rank_rate *= mine->nvlink / its->nvlink;
    m->memory_rate /= g->sharing;
}

/* Levels, innermost first. Ranks that share a device copy inside its memory, which reads and writes
 * each byte. Ranks of a node have the preset's links; at most PCIe 4 if the GPU's data sheet is
 * unknown or has no NVLink. A node has one network adapter for each device if the preset's node
 * has, else as many as that. */
static void set_levels(const Detected *d, Machine *m, const Gpus *g) {
    const double pcie = 20e9;
    const GpuSheet *sheet = gpu_sheet(g->facts.name);
    Level device = {"device", g->sharing, 5e-6, m->memory_rate / 4, 0}, node = m->level[0],
          network = m->level[1];
    if (network.port_rate >= node.ranks * network.rank_rate)
        network.port_rate = network.rank_rate * m->ranks_per_node / g->sharing;
    node.ranks = m->ranks_per_node, network.ranks = m->ranks;
    if (!sheet || sheet->nvlink == 0)
        snprintf(node.name, sizeof node.name, "PCIe"), node.rank_rate = fmin(pcie, node.rank_rate);
    m->n_levels = 0;
    if (g->sharing > 1) m->level[m->n_levels++] = device;
    if (m->ranks_per_node > g->sharing || m->n_levels == 0) m->level[m->n_levels++] = node;
    if (d->n_nodes > 1) m->level[m->n_levels++] = network;
    m->level[m->n_levels - 1].ranks = m->ranks;
}

void detect_gpu_machine(const Detected *d, const Gpus *g, Machine *m) {
    machine_open(m, reference_of(&g->facts)->preset, NULL);
    set_rates(m, g);
    m->ranks = d->n_ranks, m->nodes = d->n_nodes;
    m->ranks_per_node = (d->n_ranks + d->n_nodes - 1) / d->n_nodes;
    if (g->facts.sms > 0) m->sms = g->facts.sms;
    if (g->facts.major > 0) m->capability = g->facts.major * 10 + g->facts.minor;
    m->memory = g->memory / g->sharing;
    m->threads = d->rank[0].threads;
    set_levels(d, m, g);
    snprintf(m->name, sizeof m->name, "%d x %.40s", (d->n_ranks + g->sharing - 1) / g->sharing,
             g->facts.name);
}
