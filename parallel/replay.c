#include "parallel/replay.h"

#include "parallel/model.h"

/* ---- recordings */

const char *replay_obstacle(const Model *m) {
    if (!m->k->record) return "every call is looked at";
    if (!m->shape.replay) return "not asked for";
    if (m->grid->mesh.p > 1) return "a recording is of one rank";
    return NULL;
}

static void forget(Model *m, Replay *r) {
    if (r->recording) m->k->forget(r->recording);
    *r = (Replay){0};
}

void replay_free(Model *m) {
    for (int i = 0; i < REPLAY_KINDS; i++) forget(m, &m->replays[i]);
}

/* Of a micro-step that begins now. Another scale takes the place of the one before. */
static Replay *kind_of(Model *m) {
    Replay *r = &m->replays[m->grads_fresh];
    if (r->seen && r->scale != m->scale) forget(m, r);
    r->scale = m->scale;
    return r;
}

void replay(Model *m, void (*pass)(void *ctx), void *ctx) {
    Replay *r = replay_obstacle(m) || m->probing ? NULL : kind_of(m);
    if (!r || r->seen++ == 0) {
        pass(ctx);
        return;
    }
    if (!r->recording) {
        m->k->record();
        pass(ctx);
        r->recording = m->k->recorded();
    }
    m->k->replay(r->recording);
    m->grads_fresh = false;
}

/* ---- before the first step */

static _Thread_local const Kernels *inner; // the table's functions have no room for it

static void choose_and_run(Team *t, const Product *p) {
    inner->product_choose(p);
    inner->product(t, p);
}

static void step_for_nobody(Model *m, const Kernels *k, const int32_t *inputs,
                            const int32_t *targets, float scale, int64_t micro_steps) {
    m->k = k;
    if (m->twin) m->twin->k = k;
    model_zero_grads(m);
    for (int64_t i = 0; i < micro_steps && i < REPLAY_KINDS; i++)
        model_step(m, inputs, targets, scale);
    model_reduce_grads(m);
    model_sums(m);
}

void replay_prepare(Model *m, const int32_t *inputs, const int32_t *targets, float scale,
                    int64_t micro_steps, bool choose) {
    const Kernels *k = m->k;
    Kernels choosing = *k;
    if (!k->memory) return;
    inner = k;
    if (choose) choosing.product = choose_and_run;
    step_for_nobody(m, &choosing, inputs, targets, scale, micro_steps);
    step_for_nobody(m, k, inputs, targets, scale, micro_steps);
}
