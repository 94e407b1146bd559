/* Any bytes as the description of a cluster. What is accepted must fit together, and must survive
 * being written and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/plan/machine.h"
#include "tests/machine_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check(const Machine *m) {
    if (m->ranks < 1 || m->ranks != m->nodes * m->ranks_per_node || m->threads < 1) abort();
    if (m->n_levels < 1 || m->n_levels > MAX_LEVELS) abort();
    for (int l = 0; l < m->n_levels; l++) {
        const Level *v = &m->level[l];
        if (v->ranks < 1 || v->ranks % (l ? m->level[l - 1].ranks : 1)) abort();
        if (!(v->rank_rate > 0) || !(v->port_rate >= 0) || !(v->latency >= 0)) abort();
    }
    if (m->level[m->n_levels - 1].ranks != m->ranks) abort();
    SendGroup all = {.place = {1, {m->ranks}, {1}}, .size = m->ranks};
    Send s = {.op = COLL_ALL_REDUCE, .bytes = 1 << 20};
    double t = machine_send(m, &all, &s);
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
