/* Which nodes stand together? No file says it, so it is measured: nodes that are k = 1, 2, 4, ... apart exchange blocks, all
 * ranks at once, as in a step. Where a cable is shared by all that stand on one side of it, it shows from some k on:
 *
 *     nodes     0   1   2   3   |   4   5   6   7        k = 1   0-1  2-3  4-5  6-7
 *                     rack      |                        k = 2   0-2  1-3  4-6  5-7      as quick
 *                                                        k = 4   0-4  1-5  2-6  3-7      slower: racks of 4 nodes
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "parallel/coll_backend.h"
#include "parallel/detect_parts.h"

enum { RACK_BLOCK = 64 << 10, RACK_TURNS = 16, RACK_STEPS = 20 };

int detect_rack_step(const double *seconds, int n) {
    const double slower =
        1.8; // by so much, or it may be chance; a trunk for half of what its nodes send shows
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

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Collective over the world. Seconds of an exchange of blocks, of the median rank: others may have lost their core. */
static double exchange(const Group *all, Comm *pair, char *memory, double *of) {
    CollCall call = {.op = COLL_ALL_GATHER,
                     .type = COLL_U8,
                     .rows = 1,
                     .cols = RACK_BLOCK,
                     .src = memory,
                     .dst = memory + RACK_BLOCK,
                     .what = "search for racks",
                     .file = __FILE__,
                     .line = __LINE__};
    group_barrier(all);
    double begin = coll_now();
    coll_run(pair, &call);
    double mine = coll_now() - begin;
    group_all_gather(all, &mine, sizeof mine, of);
    qsort(of, (size_t)all->size, sizeof *of, by_size);
    return of[all->size / 2];
}

/* Nodes 2^i apart, in turns: what disturbs one distance disturbs the others. The least of all turns, the first of which
 * opens connections. */
static int measure(World *w, int nodes, int per_node, double *seconds) {
    Comm *pair[RACK_STEPS];
    Group all = comm_group(world_comm(w));
    int n = 0, rank = world_rank(w), at = rank % per_node;
    char *memory = mem_calloc(3, RACK_BLOCK);
    double *of = mem_alloc((size_t)all.size * sizeof *of);
    for (; n < RACK_STEPS && nodes % (2 << n) == 0; n++) {
        int partner = (rank / per_node ^ 1 << n) * per_node + at;
        pair[n] = world_split(w, rank < partner ? rank : partner, rank, "pair");
        seconds[n] = INFINITY;
    }
    for (int turn = 0; turn < RACK_TURNS; turn++)
        for (int i = 0; i < n; i++)
            seconds[i] = fmin(seconds[i], exchange(&all, pair[i], memory, of));
    for (int i = 0; i < n; i++) comm_free(pair[i]);
    mem_free(of);
    mem_free(memory);
    return n;
}

void detect_racks(Detected *d, World *w) {
    double seconds[RACK_STEPS];
    int per_node = d->n_ranks / d->n_nodes;
    d->rack.nodes = 0;
    if (d->n_nodes < 4 || d->n_ranks % d->n_nodes || !detect_in_blocks(d)) return;
    for (int i = 0; i < d->n_nodes; i++)
        if (detect_ranks(d, i) != per_node) return;
    int step = detect_rack_step(seconds, measure(w, d->n_nodes, per_node, seconds));
    if (step == 0) return;
    double of_node = per_node * (double)RACK_BLOCK;
    d->rack.nodes = 1 << step;
    d->rack.inside = of_node / seconds[0];
    d->rack.between = of_node * d->rack.nodes / seconds[step];
}
