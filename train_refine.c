/* --refine: the first steps on each of the layouts that the plan cannot tell apart (parallel/refine.h). */
#include "train_gpt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "data/machine.h"
#include "parallel/refine.h"
#include "parallel/relayout.h"

typedef struct Trial {
    Run *r;
    const Choice *choice; // [n]
} Trial;

void use_threads(Run *r, int n) {
    if (team_size(r->team) == n) return;
    team_destroy(r->team);
    r->team = team_create(n);
    r->m.team = r->team;
    if (r->m.twin) r->m.twin->team = r->team;
    world_set_team(r->world, r->team);
}

static bool move(void *ctx, int candidate) {
    Trial *t = ctx;
    Run *r = t->r;
    const Choice *c = &t->choice[candidate];
    char text[128];
    int threads = team_size(r->team);
    double begin = machine_clock();
    ModelShape s = r->m.shape;
    s.B = c->micro, s.recompute = c->recompute, s.overlap = c->overlap;
    use_threads(r, c->threads);
    if (!relayout_model(&r->m, &r->grid, &c->layout, &s, r->team)) {
        use_threads(r, threads);
        note(r, "refine: no memory to move to %s", choice_print(c, text));
        return false;
    }
    r->micro = c->micro;
    r->places = mesh_blocks(&r->grid.mesh, axes_of("d.z"));
    make_room_for_tokens(r);
    rehearse(r);
    r->predicted_ms = 1e3 * c->price.seconds;
    r->measured.n = 0;
    world_count_reset(r->world); // its rows are of groups that nobody uses any more
    note(r, "step %" PRId64 ": from here on %s (moved in %.2f s)", r->state.step,
         choice_print(c, text), machine_clock() - begin);
    return true;
}

static bool step(void *ctx, double *seconds) {
    Trial *t = ctx;
    if (!train_on(t->r)) return false;
    *seconds = t->r->measured.last_ms / 1e3;
    return true;
}

/* Seconds that a move takes: what goes round, and pages that are touched for the first time (a virtual machine made
 * 1 GB/s of them; it is the first of these steps, too, that pays for the others). */
static double move_seconds(const Run *r) {
    const double page_rate = 1e9;
    int p = r->group.size;
    int64_t state = 3 * (int64_t)sizeof(float) * config_parameters(&r->config);
    TapeGroup all = {.place = {1, {p}, {1}}, .size = p, .label = "all"};
    Send send = {.op = COLL_ALL_REDUCE,
                 .type_bytes = sizeof(float),
                 .bytes = state,
                 .received = relayout_bytes(&r->config, p),
                 .what = "weights and moments that move"};
    double touched = (double)(r->m.arena[ARENA_PARAMS].used + r->m.arena[ARENA_OPTIMIZER].used);
    return (p > 1 ? machine_send(&r->plan->machine, &all, &send) : 0) + touched / page_rate;
}

static void tell(Run *r, const Choice *c, int n, const double *seconds, int chosen) {
    char text[128];
    for (int i = 0; i < n; i++)
        if (seconds[i] > 0)
            note(r, "refine: %s: predicted %.2f ms, measured %.2f%s", choice_print(&c[i], text),
                 1e3 * c[i].price.seconds, 1e3 * seconds[i], i == chosen ? ", chosen" : "");
}

void refine(Run *r) {
    const Plan *p = r->plan;
    int n = plan_close(p);
    double seconds[REFINE_MAX], step_s = p->best[0].price.seconds;
    double left = (double)(o.steps - r->state.step), move_s = move_seconds(r);
    if (n > o.refine) n = (int)o.refine;
    if (n < 2 || r->outer.every > 1) return; // replicas that train apart hold more than one state
    if (!refine_pays(n, p->error, step_s, left, move_s)) {
        note(r,
             "refine: %d layouts lie within %.0f %%, but %.0f steps do not earn the moves, %.2f s "
             "each",
             n, 100 * p->error, left, move_s);
        return;
    }
    int steps = refine_steps(n, step_s, left);
    note(r,
         "refine: %d layouts lie within %.0f %%: %d steps on each, and the others on the fastest; "
         "a move takes about "
         "%.2f s",
         n, 100 * p->error, steps, move_s);
    Trial t = {r, p->best};
    int chosen = refine_run(&r->group, &(Refine){n, steps, &t, move, step}, seconds);
    tell(r, p->best, n, seconds, chosen);
}
