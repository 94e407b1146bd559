/* replay -- micro-batches of one kind put the same calls into a device's stream: they are recorded
 * once and then put in again by one call (Kernels.record, on CUDA a graph).
 *
 *     the first of its kind     the calls themselves: plans are made and kernels loaded by the
 *                               first call, not in a recording
 *     the second                the calls, recorded; then the recording
 *     all others                the recording
 *
 * A recording holds addresses and numbers. Addresses are the model's, and it goes with the model;
 * tokens are copied, before it begins, to where it reads them. The kind is what else differs: do
 * gradients begin or are they added to, is it the last one, in which they become complete (sums.c),
 * and the scale of the loss. What changes from step to step (rate, step, clipping, chances of
 * rounding) belongs to the update, which is not recorded; nor are passes without backward, or
 * passes that somebody looks at (Model.hook: --trace, --profile, checks).
 *
 * What the host does beside the calls it does in a replay, too: bytes are counted
 * (coll_record.h).
 *
 * Of ranks among several:
 *
 *     nccl    each records its own, collectives included (coll_nccl_record.c); all of them the same
 *             micro-batches, for kinds depend on nothing but the count. Where several GPUs belong
 *             to one process, NCCL's guide foresees deadlocks: only on request (--graphs all)
 *     peers   record nothing. Their streams wait for each other's events. In a recording such a
 *             wait joins two streams into one graph, which one thread would have to record and
 *             start for all ranks
 *
 * From documents (CUDA 13 runtime API and programming guide, NCCL's guide and source) and emulation
 * is known: what may be recorded, forked and joined, what may be asked of events, which order
 * streams and replays keep, who has to forget before whom. A device has yet to show what the nodes
 * of notes cost, and a launch of so many nodes; and that NCCL takes the same algorithm for a call
 * in a graph, so that the bits are those of --graphs none there as well.
 */
#ifndef PARALLEL_STEP_REPLAY_H
#define PARALLEL_STEP_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Model Model;

enum { REPLAY_KINDS = 4 }; // a run has one to three of them
typedef enum { REPLAY_NEVER, REPLAY_AUTO, REPLAY_ALWAYS } ReplayWhere; // auto: where it is safe

/* Of a Model. */
typedef struct Replay {
    void *recording; // NULL: not yet
    struct CollRecording *calls;
    int64_t seen; // micro-batches of this kind; 0: a free place
    float scale;
} Replay;

/* Collective over the mesh. Runs pass(m), forward and backward of a micro-batch, or what was
 * recorded of it. */
void replay(Model *m, void (*pass)(Model *m));
/* Local. Why the model's micro-batches are not recorded, as a message; NULL: they are. */
const char *replay_obstacle(const Model *m);
void replay_free(Model *m);

/* Collective over the mesh. On a device: makes before the first step what that step would make,
 * plans of matmuls, groups of ranks, recordings, in two steps of one to three micro-batches each,
 * whose gradients nobody uses. choose: each matmul takes the fastest of its algorithms
 * (layers/cuda/matmuls.h). */
void replay_prepare(Model *m, const int32_t *inputs, const int32_t *targets, float scale,
                    int64_t micro_batches, bool choose);

#endif
