/* replay -- micro-steps of one kind put the same calls into a device's stream: they are recorded once and then put in again by
 * one call (Kernels.record, on CUDA a graph).
 *
 *     the first of its kind     the calls themselves: plans are made and kernels loaded by the first call, not in a recording
 *     the second                the calls, recorded; then the recording
 *     all others                the recording
 *
 * A recording holds addresses and numbers. Addresses are the model's, and it goes with the model; tokens are copied, before
 * it begins, to where it reads them. The kind is what else differs: do gradients begin or are they added to, and the scale
 * of the loss. What changes from step to step (rate, step, clipping, chances of rounding) belongs to the update, which
 * is not recorded; nor are passes without backward, or passes that somebody looks at (probes; --trace and --profile, whose
 * tables of kernels record nothing).
 *
 * A rank among several records nothing:
 *
 *     peers   its stream waits for events of the others' streams, and theirs for its own. In a recording such a wait joins
 *             the two streams into one graph, which one thread would have to record and start for all ranks
 *     nccl    the library's calls can be recorded; the events around them, by which a thread sees that a call is
 *             under way for too long (coll_nccl.c), would then belong to the graph, and nobody may ask for them
 */
#ifndef PARALLEL_REPLAY_H
#define PARALLEL_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Model Model;

enum { REPLAY_KINDS = 2 }; // that a run has

/* Of a Model. */
typedef struct Replay {
    void *recording; // NULL: not yet
    int64_t seen;    // micro-steps of this kind; 0: a free place
    bool fresh;
    float scale;
} Replay;

/* Local. Runs pass(ctx), forward and backward of a micro-step, or what was recorded of it. */
void replay(Model *m, void (*pass)(void *ctx), void *ctx);
/* Local. Why the model's micro-steps are not recorded, in words; NULL: they are. */
const char *replay_obstacle(const Model *m);
void replay_free(Model *m);

/* Collective over the mesh. What the first step would meet for the first time it meets here: plans of products, groups of
 * ranks, recordings. Two steps of one or two micro-steps each, whose gradients nobody uses; nothing where kernels compute on
 * the host. choose: each product takes the fastest of its algorithms (layers/cuda/products.h). */
void replay_prepare(Model *m, const int32_t *inputs, const int32_t *targets, float scale,
                    int64_t micro_steps, bool choose);

#endif
