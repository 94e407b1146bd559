/* The Machine that the detected facts describe. FLOP/s are those of the small matmul that detect.c
 * has timed; links are measured ones, if there are; the rest is that of the preset cpu, which has
 * no level inside a node. Measured costs (calibrate.h) take precedence. */
#include <string.h>

#include "base/utf8.h"
#include "parallel/plan/detect_parts.h"

/* n, if every n consecutive ranks have a socket of their own; else 0. */
static int ranks_of_socket(const Detected *d, int per_node) {
    int n = 0;
    while (n < per_node && d->rank[n].socket == d->rank[0].socket) n++;
    if (n == per_node || d->n_ranks % per_node || per_node % n) return 0;
    for (int r = 0; r < d->n_ranks; r++) {
        const RankFacts *f = &d->rank[r], *first = &d->rank[r / n * n];
        bool begins = r % n == 0 && r % per_node != 0;
        if (f->sockets != 1 || f->socket != first->socket) return 0;
        if (begins && f->socket == d->rank[r - 1].socket) return 0;
    }
    return n;
}

static void add_level(Machine *m, Level level) {
    if (level.ranks > (m->n_levels ? m->level[m->n_levels - 1].ranks : 1))
        m->level[m->n_levels++] = level;
}

/* Sets the levels. If nodes have different numbers of ranks, the levels are those of a cluster with
 * the smallest number on every node, and some ranks of the same node count as on different nodes.
 * If ranks of a node are not consecutive, all ranks count as on different nodes. */
static void add_levels(const Detected *d, Machine *m) {
    Level network = m->level[m->n_levels - 1]; // of the preset
    bool threads = strcmp(d->backend, "mpi") != 0;
    double latency = threads ? 1e-6 : 3e-6, copy = m->memory_rate / 4; // read and written, twice
    int per_socket = ranks_of_socket(d, m->ranks_per_node);
    double rate = network.rank_rate;
    const Links *links = &d->links;
    if (links->node.rate > 0) latency = links->node.latency, copy = links->node.rate;
    if (links->network.rate > 0)
        network.latency = links->network.latency, rate = links->network.rate;
    m->n_levels = 0;
    if (d->n_nodes == 1 || detect_in_blocks(d)) {
        if (per_socket) add_level(m, (Level){"socket", per_socket, latency, copy, 0});
        add_level(m, (Level){"node", d->n_nodes == 1 ? m->ranks : m->ranks_per_node, latency, copy,
                             per_socket ? copy * per_socket : 0});
        network.port_rate = rate;
    } else {
        rate /= m->ranks_per_node;
    }
    if (links->rack_nodes) {
        Level rack = network;
        snprintf(rack.name, sizeof rack.name, "rack");
        rack.ranks = links->rack_nodes * m->ranks_per_node;
        rack.latency = links->rack.latency;
        rack.rank_rate = rack.port_rate = links->rack.rate;
        add_level(m, rack);
    }
    network.ranks = m->ranks;
    network.rank_rate = rate;
    if (d->n_nodes > 1) add_level(m, network);
    if (m->n_levels == 0) m->level[m->n_levels++] = (Level){"node", 1, latency, copy, 0};
}

void detect_machine(const Detected *d, Machine *m) {
    machine_open(m, "cpu:1", NULL);
    snprintf(m->name, sizeof m->name, "%d x %.48s", d->n_nodes, d->node[0].cpu);
    utf8_repair(m->name); // the cut may have split a letter
    m->ranks = d->n_ranks;
    m->nodes = d->n_nodes;
    m->ranks_per_node = detect_fewest(d);
    double memory_per_thread = m->memory_rate / m->threads;
    int preset_threads = m->threads;
    m->slowest = 1;
    m->memory = INT64_MAX;
    m->threads = d->rank[0].threads;
    for (int r = 0; r < d->n_ranks; r++) {
        const RankFacts *f = &d->rank[r];
        int64_t share = d->node[f->node].memory / detect_ranks(d, f->node);
        if (share < m->memory) m->memory = share;
        if (f->threads < m->threads) m->threads = f->threads;
        if (f->speed > 0 && 1 / f->speed > m->slowest) m->slowest = 1 / f->speed;
    }
    for (int i = 0; i < 2; i++)
        m->flops[i] = d->flops[i] > 0 ? d->flops[i] : m->flops[i] / preset_threads * m->threads;
    m->memory_rate = memory_per_thread * m->threads;
    m->call = 2e-6;
    add_levels(d, m);
}
