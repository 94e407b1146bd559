/* Measures the machine at hand for the candidates of a plan. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/plan.h"

/* Rank 0's entries, to all: on other ranks a new array. */
static void *share_entries(const Group *g, void *entries, int n, size_t each) {
    if (g->rank > 0) entries = mem_calloc((size_t)n, each);
    if (n > 0) group_broadcast(g, entries, (size_t)n * each);
    return entries;
}

/* Rank 0's list, to all. */
static void share_list(const Group *g, CalibrateList *l) {
    group_broadcast(g, l, sizeof *l);
    l->work = share_entries(g, l->work, l->n_works, sizeof *l->work);
    l->collective = share_entries(g, l->collective, l->n_collectives, sizeof *l->collective);
}

/* Collective. Seconds until all ranks have done their matmuls. times: of this rank. */
static double matmuls(const CalibrateWhere *w, const Group *all, const Work *work, const Arena *a,
                      int times) {
    char *workspace = a->base + work_memory(work, w->kernels, team_size(w->team)).operands;
    group_barrier(all);
    double begin = now_s();
    for (int i = 0; i < times; i++) work_run(work, w->kernels, w->team, a->base, workspace);
    group_barrier(all);
    return now_s() - begin;
}

/* Machine.oversubscription: the time of kernels while all ranks compute, relative to rank 0 alone;
 * 1: ranks do not share cores. If a node has more threads than cores, the ratio of these. Else it
 * is measured with matmuls, as containers and virtual machines may share cores without knowing: on
 * all ranks at once, and on rank 0 alone. Enough matmuls to last longer than a turn on a core, as
 * rank 0 may leave the first barrier when the others have had their turns. */
static double measure_oversubscription(const CalibrateWhere *w, const Group *all) {
    const double enough = 20e-3;
    const Work work = {.kind = WORK_MATMUL, .rows = 512, .K = 512, .N = 768};
    double alone = INFINITY, together = INFINITY;
    double known = (double)(w->node.local_size * team_size(w->team)) / w->node.cores;
    if (!group_all(all, known <= 1)) {
        group_broadcast(all, &known, sizeof known);
        return known > 1 ? known : 2; // ranks of another node share cores
    }
    if (all->size == 1) return 1;
    WorkMemory n = work_memory(&work, w->kernels, team_size(w->team));
    Arena a = arena_block("matmul", NULL, n.operands + n.workspace);
    bool lead = all->rank == 0;
    for (int i = 0; i < 2; i++) alone = fmin(alone, matmuls(w, all, &work, &a, lead));
    int times = (int)fmax(1, fmin(16, enough / alone));
    group_broadcast(all, &times, sizeof times);
    alone = INFINITY;
    for (int i = 0; i < 4; i++) {
        alone = fmin(alone, matmuls(w, all, &work, &a, lead ? times : 0));
        together = fmin(together, matmuls(w, all, &work, &a, times));
    }
    arena_free(&a);
    double ratio = together / alone;
    group_broadcast(all, &ratio, sizeof ratio); // rank 0 has measured itself alone
    return ratio < 1.5 ? 1 : ratio;             // less: ranks share memory bandwidth, not cores
}

/* Kernels are measured by all ranks together: their teams must be alike. */
static bool teams_alike(const CalibrateWhere *w, const Group *all) {
    int mine = team_size(w->team), first = mine;
    group_broadcast(all, &first, sizeof first);
    if (group_all(all, mine == first)) return true;
    if (all->rank == 0)
        warn("ranks have different numbers of threads: nothing is measured, and the plan goes by "
             "what is known of the nodes; --threads makes them alike");
    return false;
}

/* Collective over the world. The table of this machine, with its links and oversubscription, which
 * are measured if the cache lacks them. NULL: the cache lacks them, and `measure` is false. */
static Calibration *open_table(const CalibrateWhere *w, Detected *d, const char *key,
                               bool measure) {
    Group all = comm_group(world_comm(w->world));
    Calibration *c = calibrate_open(w->world, key, w->again);
    if (c->oversubscription == 0 && !measure) return calibration_free(c), NULL;
    if (c->oversubscription == 0) {
        detect_links(d, w->world);
        group_broadcast(&all, &d->links, sizeof d->links);
        c->links = d->links, c->oversubscription = measure_oversubscription(w, &all);
    }
    d->links = c->links;
    return c;
}

/* Collective. The key by rank 0, which reads and writes the file: other ranks may run another
 * build. */
static void share_key(const Group *all, const Detected *d, char key[256]) {
    detect_key(d, key);
    group_broadcast(all, key, 256);
}

static void use_table(Machine *m, const Calibration *c) {
    m->measured = c, m->oversubscription = c->oversubscription, m->slowest = c->slowest;
}

Calibration *plan_measure(Plan *p, const CalibrateWhere *w, Detected *d) {
    CalibrateList list = {0};
    Group all = comm_group(world_comm(w->world));
    char key[256];
    double begin = now_s();
    if (!teams_alike(w, &all)) return NULL;
    share_key(&all, d, key);
    Calibration *c = open_table(w, d, key, true);
    detect_machine(d, &p->machine); // with its links
    if (all.rank == 0) plan_list(&p->space, &p->machine, &list);
    share_list(&all, &list);
    double left = PLAN_MEASURE_S - (now_s() - begin);
    group_broadcast(&all, &left, sizeof left);
    CalibrateWhere where = *w;
    where.machine = &p->machine, where.key = key, where.budget = left;
    calibrate(c, &where, &list);
    use_table(&p->machine, c);
    plan_list_free(&list);
    return c;
}

Calibration *plan_measured(Machine *m, const CalibrateWhere *w, Detected *d, const StepLists *s) {
    CalibrateList list;
    char key[256];
    Group all = comm_group(world_comm(w->world));
    share_key(&all, d, key);
    Calibration *c = open_table(w, d, key, false);
    if (!c) return NULL;
    detect_machine(d, m);
    plan_list_step(m, s, &list);
    bool known = calibrate_derived(c, m, &list);
    plan_list_free(&list);
    if (!group_all(&all, known)) return calibration_free(c), NULL;
    use_table(m, c);
    return c;
}
