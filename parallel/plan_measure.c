/* What the machine at hand costs: measured for what the candidates of a plan do. */
#include <math.h>

#include "base/arena.h"
#include "base/mem.h"
#include "parallel/coll_backend.h"
#include "parallel/plan.h"

enum { BUDGET = 10 }; // seconds

/* Rank 0's list, to all. */
static void share_list(const Group *g, CalibrateList *l) {
    group_share(g, &l->n_works, sizeof l->n_works);
    group_share(g, &l->n_groups, sizeof l->n_groups);
    if (g->rank > 0) {
        l->work = mem_calloc((size_t)l->n_works, sizeof *l->work);
        l->group = mem_calloc((size_t)l->n_groups, sizeof *l->group);
        l->most = mem_calloc((size_t)l->n_groups, sizeof *l->most);
    }
    group_share(g, l->work, (size_t)l->n_works * sizeof *l->work);
    group_share(g, l->group, (size_t)l->n_groups * sizeof *l->group);
    group_share(g, l->most, (size_t)l->n_groups * sizeof *l->most);
}

/* Do ranks take turns on cores? Containers and virtual machines do not say. The time of a product of some milliseconds on
 * all ranks at once, until the last one is through, by that of rank 0's alone; 1: they do not. */
static double take_turns(const PlanWhere *w, const Group *all) {
    const Work work = {
        .kind = WORK_XW, .threads = team_size(*w->team), .rows = 512, .a = 512, .b = 768};
    double least[2] = {INFINITY, INFINITY}; // alone, together
    Arena a = arena_measure("product");
    WorkMemory n = work_memory(&work, w->kernels, team_size(*w->team));
    arena_take(&a, n.operands + n.workspace);
    arena_commit(&a);
    for (int i = 0; i < 10; i++) {
        bool together = i % 2, mine = together || all->rank == 0;
        group_barrier(all);
        double begin = coll_now();
        if (mine) work_run(&work, w->kernels, *w->team, a.base, a.base + n.operands);
        group_barrier(all);
        if (i > 1) least[together] = fmin(least[together], coll_now() - begin);
    }
    arena_free(&a);
    double ratio = least[1] / least[0];
    group_share(all, &ratio, sizeof ratio); // rank 0 was the one alone
    return ratio < 1.5 ? 1 : ratio;         // memory that they share is no core
}

/* One number of threads; what others have measured comes from the cache. */
static Calibration *measure_with(const PlanWhere *w, const CalibrateList *list, const char *key,
                                 double budget, double *crowd) {
    Group all = comm_group(world_comm(w->world));
    *crowd = take_turns(w, &all);
    CalibrateWhere where = {.world = w->world,
                            .kernels = w->kernels,
                            .team = *w->team,
                            .key = key,
                            .budget = budget,
                            .again = w->again,
                            .crowded = *crowd > 1};
    return calibrate(&where, list);
}

/* One team at a time: a team ties the threads of its rank to cores. */
static void use_team(const PlanWhere *w, int threads) {
    team_destroy(*w->team);
    *w->team = team_create(threads);
    world_set_team(w->world, *w->team);
}

/* Without a cache the first measurements are lost: then the team stays as it is. */
static bool knows(const Calibration *c, const CalibrateList *list) {
    double seconds;
    for (int i = 0; i < list->n_works && i < 8; i++)
        if (!calibration_work(c, &list->work[i], &seconds)) return false;
    return true;
}

Calibration *plan_measure(Plan *p, const PlanWhere *w, const Detected *d) {
    CalibrateList list = {0};
    Group all = comm_group(world_comm(w->world));
    Space *s = &p->space;
    char key[256];
    detect_machine(d, &p->machine);
    detect_key(d, key);
    if (!w->measure) return NULL;
    if (all.rank == 0) plan_list(s, &p->machine, &list);
    share_list(&all, &list);
    double budget = BUDGET / (s->n_threads > 1 ? s->n_threads : 1);
    int threads = team_size(*w->team);
    double crowd;
    for (int i = 0; i < s->n_threads; i++) {
        if (s->threads[i] == threads) continue;
        use_team(w, s->threads[i]);
        calibration_free(measure_with(w, &list, key, budget, &crowd));
        use_team(w, threads);
    }
    Calibration *c = measure_with(w, &list, key, budget, &crowd);
    if (!group_all(&all, knows(c, &list))) s->n_threads = 0;
    p->machine.measured = c;
    p->machine.crowd = crowd;
    p->machine.slowdown = calibration_slowdown(c);
    p->machine.slowest = calibration_slowest(c);
    plan_list_free(&list);
    return c;
}
