/* machine_text -- prints a Machine as a description that machine_parse reads back without loss. */
#ifndef TESTS_MACHINE_TEXT_H
#define TESTS_MACHINE_TEXT_H

#include <stdio.h>
#include <stdlib.h>

#include "parallel/plan/machine.h"

/* The caller frees the text with free(). */
static inline char *machine_text(const Machine *m) {
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) die("open_memstream");
    fprintf(f, "name = %s\nnodes = %d\nranks_per_node = %d\nthreads = %d\n", m->name, m->nodes,
            m->ranks_per_node, m->threads);
    fprintf(f, "flops_fp32 = %.17g\nflops_bf16 = %.17g\nflops_half = %.17g\n", m->flops[0],
            m->flops[1], m->flops_half);
    if (m->sms) fprintf(f, "multiprocessors = %d\n", m->sms);
    fprintf(f, "memory = %lldB\nmemory_rate = %.17gB/s\ncall = %.17gs\n", (long long)m->memory,
            m->memory_rate, m->call);
    fprintf(f, "slowdown = %.17g\nslowest = %.17g\n", m->slowdown, m->slowest);
    fprintf(f, "algorithm = %s\n", m->algorithm == ALGORITHM_RING ? "ring" : "direct");
    if (m->gpu) fprintf(f, "kernels = sm_%d\n", m->capability);
    for (int l = 0; l < m->n_levels; l++) {
        const Level *v = &m->level[l];
        fprintf(f, "level = %s ranks=%d latency=%.17gs rank_rate=%.17gB/s", v->name, v->ranks,
                v->latency, v->rank_rate);
        if (v->port_rate > 0) fprintf(f, " port_rate=%.17gB/s", v->port_rate);
        fputc('\n', f);
    }
    fclose(f);
    return text;
}

#endif
