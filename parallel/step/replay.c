#include "parallel/step/replay.h"

#include "parallel/comm/coll_record.h"
#include "parallel/step/model.h"

/* ---- recordings */

const char *replay_obstacle(const Model *m) {
    if (m->hook) return "every kernel is looked at";
    if (!m->k->record) return "kernels run on the host";
    if (m->shape.replay == REPLAY_NEVER) return "not asked for";
    return m->grid->mesh.p > 1
               ? world_record_obstacle(m->grid->world, m->shape.replay == REPLAY_ALWAYS)
               : NULL;
}

static void forget(Model *m, Replay *r) {
    if (r->calls) world_record_free(r->calls);
    if (r->recording) m->k->free_recording(r->recording);
    *r = (Replay){0};
}

void replay_free(Model *m) {
    for (int i = 0; i < REPLAY_KINDS; i++) forget(m, &m->replays[i]);
}

/* The entry of the micro-batch that starts now. A recording with another scale of the loss is freed
 * first. */
static Replay *kind_of(Model *m) {
    Replay *r = &m->replays[2 * (m->micro_batches_left == 1) + m->first_micro_batch];
    if (r->seen && r->scale != m->scale) forget(m, r);
    r->scale = m->scale;
    return r;
}

static void record(Model *m, Replay *r) {
    r->calls = world_record(m->grid->world);
    m->k->record();
    model_pass(m, true);
    world_recorded(r->calls);
    r->recording = m->k->recorded();
}

void replay(Model *m) {
    Replay *r = replay_obstacle(m) ? NULL : kind_of(m);
    if (!r || r->seen++ == 0) {
        model_pass(m, true);
        return;
    }
    if (!r->recording) record(m, r);
    world_replay(r->calls, m->k->replay, r->recording);
    m->first_micro_batch = false;
}

/* ---- before the first step */

// The model's kernels, for choose_and_run: Kernels.matmul has no context argument.
static _Thread_local const Kernels *kernels_of_model;

/* A Kernels.matmul that first chooses the fastest algorithm for this shape. */
static void choose_and_run(Team *t, const Matmul *p) {
    kernels_of_model->matmul_choose(p);
    kernels_of_model->matmul(t, p);
}

/* A step of at most three micro-batches, without an update. */
static void warm_up_step(Model *m, const Kernels *k, const int32_t *inputs, const int32_t *targets,
                         float scale, int64_t micro_batches) {
    int64_t n = micro_batches < 3 ? micro_batches : 3; // the first, one in between, the last
    m->k = k;
    model_zero_grads(m, micro_batches);
    m->micro_batches_left = n; // only n of them are run
    for (int64_t i = 0; i < n; i++) model_step(m, inputs, targets, scale);
    model_sums(m);
}

void replay_prepare(Model *m, const int32_t *inputs, const int32_t *targets, float scale,
                    int64_t micro_batches, bool choose) {
    const Kernels *k = m->k;
    Kernels choosing = *k;
    kernels_of_model = k;
    if (choose) choosing.matmul = choose_and_run;
    warm_up_step(m, &choosing, inputs, targets, scale, micro_batches);
    warm_up_step(m, k, inputs, targets, scale, micro_batches);
}
