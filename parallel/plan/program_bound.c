#include "base/mem.h"
#include "parallel/plan/program_price.h"
#include "parallel/step/passes.h"

/* Seconds of kernels and of the links of each level; how much slower collectives make kernels, at
 * most. */
typedef struct Use {
    double kernels, links[LINK_LEVELS], beside;
} Use;

static Use use_of(const Program *p, const OpCost *costs) {
    Use u = {.beside = 1};
    for (int i = 0; i < p->n_ops; i++) {
        if (costs[i].level < 0) {
            u.kernels += costs[i].seconds;
            continue;
        }
        u.links[costs[i].level] += costs[i].wire;
        if (costs[i].beside > u.beside) u.beside = costs[i].beside;
    }
    return u;
}

/* Seconds of a step whose links are in use so long: what kernels do not fill is waited for. Where
 * ranks share cores, a rank that waits leaves its core to others, and their kernels take less
 * time. */
static double waited_for(const Use *u, double links, double crowd) {
    double kernels = u->kernels * u->beside;
    if (kernels > links) kernels = links;
    return tape_crowded(kernels, links - kernels, crowd) + links - kernels;
}

static double most(const Use *u, double crowd) {
    double seconds = u->kernels;
    for (int l = 0; l < LINK_LEVELS; l++) {
        double s = u->links[l] > u->kernels ? waited_for(u, u->links[l], crowd) : 0;
        if (s > seconds) seconds = s;
    }
    return seconds;
}

double list_bound(const Program *p, const OpCost *costs) {
    Use u = use_of(p, costs);
    return most(&u, 1);
}

static Use layers_use(const ModelShape *shape, int64_t layers, const Machine *m, int threads) {
    ModelShape few;
    OpCost *costs;
    Program p = program_of_layers(shape, layers, m, threads, &few, &costs);
    Use u = use_of(&p, costs);
    mem_free(costs);
    program_free(&p);
    return u;
}

/* One layer and what each further one adds. */
double program_bound(const ModelShape *shape, const Machine *m, int threads) {
    Use one = layers_use(shape, 1, m, threads), two = layers_use(shape, 2, m, threads);
    double more = (double)(shape->config.layers - 1);
    one.kernels += more * (two.kernels - one.kernels);
    for (int l = 0; l < LINK_LEVELS; l++) one.links[l] += more * (two.links[l] - one.links[l]);
    return most(&one, m->crowd);
}
