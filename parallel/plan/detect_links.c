/* Measures links: pairs of ranks exchange a small block and two large ones, all pairs at once, as
 * in a step. The small block takes the latency of a message. The difference of the two large blocks
 * gives the bandwidth, free of what a large message costs at its start. Pairs are neighbours in a
 * node, and ranks of nodes that are k = 1, 2, 4, ... apart. A cable that all nodes on one side of
 * it share shows from some k on:
 *
 *     nodes     0   1   2   3   |   4   5   6   7        k = 1   0-1  2-3  4-5  6-7
 *                     rack      |                        k = 2   0-2  1-3  4-6  5-7   as fast
 *                                                        k = 4   0-4  1-5  2-6  3-7   racks of 4
 */
#include <math.h>

#include "base/median.h"
#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/detect_parts.h"

enum { SMALL = 64, LARGE = 64 << 10, LARGEST = 4 << 20, TIMES = 4 }; // bytes of a block
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 16, MAX_DISTANCES = 20 };
static const double enough = 0.2; // seconds of all exchanges
// seconds of a large block beyond latency, at least: less would say little of the bandwidth
static const double large_time = 1e-3;

int detect_rack_step(const double *seconds, int n) {
    // A ratio of times below this may be chance. Links out of a rack with half of the bandwidth
    // that its nodes need have a ratio of 2.
    const double slower = 1.8;
    double most = slower;
    int best = 0;
    for (int i = 1; i < n; i++) {
        double near = 0, far = INFINITY;
        for (int j = 0; j < i; j++) near = fmax(near, seconds[j]);
        for (int j = i; j < n; j++) far = fmin(far, seconds[j]);
        if (far >= most * near) most = far / near, best = i;
    }
    return best;
}

typedef struct Pairs {
    Group all;
    char *memory;    // three blocks
    double *by_rank; // [ranks] seconds of the last exchange
    double spent;    // seconds of exchanges so far, equal on all ranks
    int64_t large;   // bytes of the large block; the larger one has TIMES as many
    Comm *pair[MAX_DISTANCES];
    double seconds[MAX_DISTANCES][3]; // least times of the small, large and larger block
    int n;                            // distances
} Pairs;

/* Collective over the world. Seconds of an exchange of blocks: the median over the ranks that have
 * a partner, as some ranks may have lost their core meanwhile. */
static double exchange(Pairs *p, Comm *pair, int64_t bytes) {
    CollCall call = {.op = COLL_ALL_GATHER,
                     .type = COLL_U8,
                     .rows = 1,
                     .cols = bytes,
                     .src = p->memory,
                     .dst = p->memory + bytes,
                     .what = "measuring links"};
    group_barrier(&p->all);
    double begin = now_s();
    coll_run(pair, &call);
    double mine = comm_size(pair) > 1 ? now_s() - begin : INFINITY;
    int with_partner = 0;
    group_all_gather(&p->all, &mine, sizeof mine, p->by_rank);
    sort_numbers(p->by_rank, p->all.size);
    while (with_partner < p->all.size && isfinite(p->by_rank[with_partner])) with_partner++;
    double seconds = with_partner ? p->by_rank[with_partner / 2] : 0;
    p->spent += seconds;
    return seconds;
}

static void add_pairs(Pairs *p, World *w, int partner) {
    int rank = world_rank(w), first = partner >= 0 && partner < rank ? partner : rank;
    p->pair[p->n] = world_split(w, first, rank, "pair");
    for (int i = 0; i < 3; i++) p->seconds[p->n][i] = INFINITY;
    p->n++;
}

/* Measures all distances, one after the other in each round, so that a disturbance hits all of
 * them. The first exchange, which opens connections, does not count. */
static void measure(Pairs *p) {
    p->memory = mem_calloc(3, TIMES * LARGEST);
    p->by_rank = mem_alloc((size_t)p->all.size * sizeof *p->by_rank);
    for (int i = 0; i < p->n; i++) exchange(p, p->pair[i], LARGE);
    p->spent = 0, p->large = LARGE;
    double some = large_time + 2 * exchange(p, p->pair[p->n - 1], SMALL);
    while (p->large < LARGEST && exchange(p, p->pair[p->n - 1], p->large) < some) p->large *= TIMES;
    for (int round = 0; round < LEAST_ROUNDS || (round < MOST_ROUNDS && p->spent < enough); round++)
        for (int i = 0; i < 3 * p->n; i++) {
            const int64_t bytes[] = {SMALL, p->large, TIMES * p->large};
            double *least = &p->seconds[i / 3][i % 3];
            *least = fmin(*least, exchange(p, p->pair[i / 3], bytes[i % 3]));
        }
    for (int i = 0; i < p->n; i++) comm_free(p->pair[i]);
    mem_free(p->by_rank);
    mem_free(p->memory);
}

/* The cost of the links between the i-th pairs, which `sharing` ranks share. */
static LinkCost link_of(const Pairs *p, int i, int sharing) {
    const double *s = p->seconds[i];
    double least = s[2] / 100; // a smaller difference of times is noise
    return (LinkCost){.latency = s[0],
                      .rate =
                          sharing * (double)((TIMES - 1) * p->large) / fmax(s[2] - s[1], least)};
}

/* The rank with index `at` among the ranks of a node; -1: the node has fewer. */
static int rank_at(const Detected *d, int node, int at) {
    for (int r = 0; r < d->n_ranks; r++)
        if (d->rank[r].node == node && at-- == 0) return r;
    return -1;
}

/* If nodes have different numbers of ranks, only as many of each as the smallest node has take part
 * in exchanges between nodes, and share a node's link. */
void detect_links(Detected *d, World *w) {
    int rank = world_rank(w), node = d->rank[rank].node, at = 0, fewest = detect_fewest(d);
    Pairs p = {.all = comm_group(world_comm(w))};
    d->links = (Links){0};
    if (d->n_ranks < 2) return;
    for (int r = 0; r < rank; r++) at += d->rank[r].node == node;
    int inside = d->n_ranks > d->n_nodes; // some node has two ranks
    if (inside) add_pairs(&p, w, rank_at(d, node, at ^ 1));
    for (int k = 1; k < d->n_nodes; k *= 2)
        add_pairs(&p, w, at < fewest ? rank_at(d, node ^ k, at) : -1);
    measure(&p);
    if (inside) d->links.node = link_of(&p, 0, 1);
    if (d->n_nodes == 1) return;
    double large[MAX_DISTANCES];
    int n = p.n - inside, step, slowest = 0;
    for (int i = 0; i < n; i++) {
        large[i] = p.seconds[inside + i][2];
        if (large[i] > large[slowest]) slowest = i;
    }
    bool alike = fewest * d->n_nodes == d->n_ranks; // in their numbers of ranks
    bool blocks = alike && detect_in_blocks(d) && d->n_nodes % 2 == 0;
    step = blocks ? detect_rack_step(large, n) : 0;
    d->links.network = link_of(&p, inside + (step ? step : slowest), fewest << step);
    if (step == 0) return;
    d->links.rack_nodes = 1 << step;
    d->links.rack = link_of(&p, inside, fewest);
}
