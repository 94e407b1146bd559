/* replay -- records the calls of a micro-batch once, on CUDA as a graph, and enqueues the recording
 * in later ones. Micro-batches of one kind enqueue the same calls on a device's stream, so one call
 * (Kernels.replay) takes the place of all of them.
 *
 *     first micro-batch of a kind   runs the calls. Plans are made and kernels are loaded now,
 *                                   which a recording does not allow
 *     second                        records the calls, then runs the recording
 *     all others                    run the recording
 *
 * A recording contains addresses and numbers. The addresses are those of the model, so the
 * recording is freed with the model. Tokens are copied to a fixed address before the recording
 * starts. A kind is what else differs between micro-batches: is it the first of a step, which
 * overwrites gradients; is it the last, in which gradients become complete (sums.c); and the scale
 * of the loss. Values that change from step to step (rate, step, clipping, stochastic rounding)
 * belong to the update, which is not recorded. Passes without backward and passes with a hook
 * (Model.hook: --trace, --profile, checks) are not recorded either.
 *
 * A replay counts the bytes of its collectives as the calls do (coll_record.h).
 *
 * With several ranks:
 *
 *     nccl    each rank records its own calls, collectives included (coll_nccl_record.c). All ranks
 *             record the same micro-batches, because kinds depend on the count and the scale of
 *             the loss. If one process has several GPUs, NCCL's guide warns of deadlocks: only with
 *             --graphs all
 *     peers   do not record. Their streams wait for each other's events. In a recording such a
 *             wait joins two streams into one graph, which one thread would have to record and
 *             start for all ranks
 *
 * Known from documents (CUDA 13 runtime API and programming guide, NCCL's guide and source) and
 * from emulation: what may be recorded, forked and joined, which queries of events are allowed, in
 * which order streams and replays run, what must be freed before what. Not measured on a device:
 * the cost of a graph's nodes and of the notes' nodes (coll_nccl_record.c). Not checked on a
 * device: that NCCL chooses the same algorithm inside a graph, so that the bits equal those of
 * --graphs none.
 */
#ifndef PARALLEL_STEP_REPLAY_H
#define PARALLEL_STEP_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Model Model;

enum { REPLAY_KINDS = 4 }; // {not last, last} x {not first, first}; a run has one to three of them
typedef enum { REPLAY_NEVER, REPLAY_AUTO, REPLAY_ALWAYS } ReplayWhere; // auto: where it is safe

/* The recording of one kind of micro-batch of a Model. */
typedef struct Replay {
    void *recording;             // of Kernels.record; NULL: not recorded yet
    struct CollRecording *calls; // the host's side of the collectives in the recording
    int64_t seen;                // micro-batches of this kind so far; 0: entry is unused
    float scale;                 // of the loss
} Replay;

/* Collective over the mesh. Runs forward and backward of a micro-batch (model_pass), or its
 * recording. */
void replay(Model *m);
/* Local. The reason why micro-batches of the model are not recorded; NULL: they are recorded. */
const char *replay_obstacle(const Model *m);
void replay_free(Model *m);

/* Collective over the mesh, on a device, before the first step. Runs two steps of one to three
 * micro-batches whose gradients are discarded, so that plans of matmuls, groups of ranks and
 * recordings exist before the first step. choose: each matmul measures its algorithms and
 * keeps the fastest (layers/cuda/matmuls.h). */
void replay_prepare(Model *m, const int32_t *inputs, const int32_t *targets, float scale,
                    int64_t micro_batches, bool choose);

#endif
