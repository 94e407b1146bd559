/* The tokens, the update rule and the counters of a step. */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "parallel/plan/count.h"
#include "parallel/step/learning_rate.h"

float run_loss_scale(const Run *r) {
    return (float)grid_replicas(&r->grid) / (float)r->batch;
}

/* The first sequence of a step that this rank reads. Replicas have the sequences of a step in
 * contiguous shares, so that these depend neither on z nor on --micro. */
static int64_t sequence_offset(const Run *r) {
    const Mesh *mesh = &r->grid.mesh;
    int64_t replica = r->grid.local_steps ? mesh->coord[AXIS_D] : 0;
    return replica * (r->batch / r->seq / grid_replicas(&r->grid)) +
           mesh_block(mesh, grid_summed_axes(&r->grid, axes_of("d.z"))) * r->micro;
}

void run_set_phase(Run *r, const char *what, int64_t step) {
    char phase[96], saved[64] = "";
    if (*r->o->save && r->saved_step >= 0)
        snprintf(saved, sizeof saved, " (--resume goes on from %" PRId64 ")", r->saved_step);
    snprintf(phase, sizeof phase, "%s %" PRId64 "%s", what, step, saved);
    world_set_phase(r->world, phase);
}

void run_warm_up(Run *r) {
    if (!r->device.used) return; // a CPU has no one-time costs
    batch_fill_padded(&r->train, r->state.step, sequence_offset(r), r->micro, r->inputs,
                      r->targets);
    replay_prepare(&r->m, r->inputs, r->targets, run_loss_scale(r), run_micro_batches(r),
                   r->o->tune);
}

void run_read_step(Run *r) {
    int64_t step = r->state.step, first = sequence_offset(r);
    int64_t round = r->micro * r->data_size / grid_replicas(&r->grid), n = run_micro_batches(r);
    for (int64_t i = 0, at = 0; i < n; i++, first += round, at += r->micro * r->seq) {
        batch_fill_padded(&r->train, step, first, r->micro, r->inputs + at, r->targets + at);
        batch_prefetch(&r->train, step + 1, first, r->micro);
    }
}

double run_learning_rate(const Run *r, int64_t step) {
    LrSchedule s = {.kind = (LrKind)r->o->schedule,
                    .lr = r->o->lr,
                    .min_lr = r->o->min_lr,
                    .warmup = r->o->warmup,
                    .steps = r->o->steps,
                    .wsd_decay = r->o->wsd_decay};
    return learning_rate(&s, step);
}

AdamW run_update_rule(const Run *r, int64_t step) {
    return (AdamW){.lr = (float)run_learning_rate(r, step),
                   .beta1 = (float)r->o->beta1,
                   .beta2 = (float)r->o->beta2,
                   .eps = (float)r->o->eps,
                   .weight_decay = (float)r->o->weight_decay,
                   .grad_scale = 1,
                   .step = step + 1};
}

int64_t run_received(const Run *r) {
    CollCount rows[COUNT_ROWS];
    int n = world_counts(r->world, rows, COUNT_ROWS);
    int64_t sum = 0;
    for (int i = 0; i < n; i++) // agreements (has a signal arrived?) are no part of a step
        if (strcmp(rows[i].what, COLL_AGREEMENT) != 0) sum += rows[i].bytes;
    return sum;
}

void run_print_counts(Run *r) {
    CollCount rows[COUNT_ROWS], predicted[COUNT_ROWS];
    int n = world_counts(r->world, rows, COUNT_ROWS);
    if (!r->lead) return;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) die("out of memory for the table of --count");
    StepLists s;
    run_step_lists(r, &s);
    count_print(f, r->group.size, predicted, price_counts(&s, predicted, COUNT_ROWS), rows, n);
    fclose(f);
    text[size - 1] = 0; // progress_note adds the newline
    run_note(r, "%s", text);
    mem_free(text);
    price_free(&s);
}
