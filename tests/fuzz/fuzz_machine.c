/* Any bytes as the description of a cluster. What is accepted must fit together, and must survive
 * being written and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/plan/machine.h"
#include "tests/fuzz/seeds.h"
#include "tests/machine_text.h"

static void seeds(void) {
    seed_text("lab", "# two racks of eight nodes\n"
                     "name = lab\n"
                     "nodes = 16\n"
                     "ranks_per_node = 2\n"
                     "threads = 4\n"
                     "flops_fp32 = 400G\n"
                     "flops_bf16 = 800GFLOP/s\n"
                     "flops_half = 16\n"
                     "memory = 32GiB\n"
                     "memory_rate = 20GB/s\n"
                     "call = 2us\n"
                     "slowdown = 1.1\n"
                     "slowest = 1.05\n"
                     "algorithm = ring\n"
                     "level = node ranks=2 latency=2us rank_rate=10GB/s\n"
                     "level = rack ranks=16 latency=15us rank_rate=1Gb/s port_rate=1Gb/s\n"
                     "level = trunk ranks=all latency=20us rank_rate=1Gb/s port_rate=10Gb/s\n");
    seed_text("least", "nodes=3\n"
                       "ranks_per_node=1\n"
                       "flops_fp32=1T\n"
                       "memory_rate=1G\n"
                       "level=net ranks=all latency=0us rank_rate=1kB/s\n");
}

static void check(const Machine *m) {
    if (m->ranks < 1 || m->ranks != m->nodes * m->ranks_per_node || m->threads < 1) abort();
    if (m->n_levels < 1 || m->n_levels > MAX_LEVELS) abort();
    for (int l = 0; l < m->n_levels; l++) {
        const Level *v = &m->level[l];
        if (v->ranks < 1 || v->ranks % (l ? m->level[l - 1].ranks : 1)) abort();
        if (!(v->rank_rate > 0) || !(v->port_rate >= 0) || !(v->latency >= 0)) abort();
    }
    if (m->level[m->n_levels - 1].ranks != m->ranks) abort();
    CollGroup all = {.place = {1, {m->ranks}, {1}}, .size = m->ranks};
    Collective s = {.op = COLL_ALL_REDUCE, .bytes = 1 << 20};
    double t = machine_collective(m, &all, &s);
    if (!(t >= 0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Machine m, back;
    Err e = {""};
    if (!machine_parse(&m, (const char *)p, n, &e)) {
        if (!e.text[0]) abort(); // there is always a reason
        return 0;
    }
    check(&m);
    char *once = machine_text(&m);
    if (!machine_parse(&back, once, strlen(once), &e)) abort();
    char *twice = machine_text(&back);
    if (strcmp(once, twice) != 0) abort();
    free(once);
    free(twice);
    return 0;
}
