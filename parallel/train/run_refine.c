/* --refine: runs the first steps on each near-optimal layout, then keeps the fastest (plan_trials,
 * parallel/plan/refine.h). */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "parallel/plan/quantity.h"
#include "parallel/plan/refine.h"
#include "parallel/step/relayout.h"

typedef struct Trial {
    Run *r;
    const Choice *choice; // the candidates
} Trial;

/* Collective. Changes the run to a candidate's layout, micro-batch and flags. False: not enough
 * memory; the layout stays. */
static bool move_to(void *ctx, int candidate) {
    Trial *t = ctx;
    Run *r = t->r;
    const Choice *c = &t->choice[candidate];
    char text[128], moved[64];
    double begin = now_s();
    PriceShape s = {.model = r->m.shape, .batch = r->batch};
    s.model.B = c->micro, s.model.recompute = c->recompute, s.model.overlap = c->overlap;
    if (!relayout_model(&r->m, &r->grid, &c->layout, &s.model, r->team)) {
        run_note(r, "refine: not enough memory for %s", choice_print(c, text));
        return false;
    }
    r->micro = c->micro;
    r->data_size = mesh_blocks(&r->grid.mesh, axes_of("d.z"));
    run_allocate_tokens(r);
    run_warm_up(r);
    r->predicted_ms = 1e3 * c->price.seconds;
    r->measured.n = 0;
    run_note(r, "step %" PRId64 ": from here on %s (moved in %s)", r->state.step,
             choice_print(c, text), quantity_short(now_s() - begin, AS_SECONDS, "", moved));
    return true;
}

/* Collective. Makes one training step. False: training has ended. */
static bool step(void *ctx, double *seconds) {
    Trial *t = ctx;
    if (!run_train_on(t->r)) return false;
    *seconds = t->r->measured.last_ms / 1e3;
    return true;
}

/* Estimated seconds of a layout change: sending weights and moments, and the first touch of their
 * new pages (1 GB/s in a virtual machine). */
static double move_seconds(const Run *r) {
    const double page_rate = 1e9;
    int p = r->group.size;
    int64_t state = 3 * (int64_t)sizeof(float) * config_parameters(&r->config);
    CollGroup all = {.place = {1, {p}, {1}}, .size = p, .label = "all"};
    Collective call = {.op = COLL_ALL_REDUCE, .bytes = state};
    double touched = (double)(r->m.arena[ARENA_PARAMS].used + r->m.arena[ARENA_OPTIMIZER].used);
    return (p > 1 ? machine_collective(&r->plan->machine, &all, &call) : 0) + touched / page_rate;
}

static void print_trials(Run *r, const Choice *c, int n, const double *seconds, int chosen) {
    char text[128];
    for (int i = 0; i < n; i++)
        if (seconds[i] > 0)
            run_note(r, "refine: %s: predicted %.2f ms, measured %.2f%s", choice_print(&c[i], text),
                     1e3 * c[i].price.seconds, 1e3 * seconds[i], i == chosen ? ", chosen" : "");
}

void run_refine(Run *r) {
    const Plan *p = r->plan;
    Choice trial[REFINE_MAX];
    int n = plan_trials(p, trial, (int)r->o->refine);
    double seconds[REFINE_MAX], step_s = p->best[0].price.seconds;
    double left = (double)(r->o->steps - r->state.step), move_s = move_seconds(r);
    char move[64];
    if (n < 2 || r->outer.every > 1) return; // with local steps each replica has its own state
    group_broadcast(&r->group, &move_s, sizeof move_s); // ranks may hold unequal parts
    quantity_short(move_s, AS_SECONDS, "", move);
    if (!refine_pays(n, plan_error(p), step_s, left, move_s)) {
        run_note(r,
                 "refine: %d layouts may be the fastest, but too few steps are left (%.0f) for "
                 "layout changes of %s to pay off",
                 n, left, move);
        return;
    }
    int steps = refine_steps(n, step_s, left);
    run_note(r,
             "refine: %d layouts may be the fastest: %d steps on each, and the others on the "
             "fastest; a layout change takes about %s",
             n, steps, move);
    Trial t = {r, trial};
    r->measured.on_trial = true;
    int chosen = refine_run(&r->group, &(Refine){n, steps, &t, move_to, step}, seconds);
    r->measured.on_trial = false;
    print_trials(r, trial, n, seconds, chosen);
}
