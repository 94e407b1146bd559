/* coll_nccl_record -- calls of NCCL in CUDA graphs. As outside of a recording, the communication
 * stream forks from the rank's own stream by one event and joins it by another; both streams are
 * captured into the graph. The watchdog cannot query these events: they are nodes of the graph. Nor
 * can it use events that a graph records for the outside (cudaEventRecordExternal): such an event
 * shows only the replay that was launched last, and the host is several replays ahead. So the graph
 * itself writes its progress before and after each call to a number in host memory:
 *
 *     own      matmul --o                         o-- norm, reads dst
 *     comm               \ o -- all_reduce -- o --/
 *     progress              \ 2i + 1           \ 2i + 2
 *
 * Replays run one after the other, so the number belongs to the oldest replay that is not done. At
 * the end of a replay the number says that the last call is done. No call waits for a write.
 *
 * NCCL's guide, "Using NCCL with CUDA Graphs": calls are recorded on all ranks or on none, and a
 * replay counts as a call. Calls that are not recorded may come in between
 * (NCCL_GRAPH_MIXING_SUPPORT, on by default). With several GPUs in a process, a graph launch may
 * block and keep the other GPUs from theirs. A communicator can be destroyed when the graphs with
 * its calls are gone: ncclCommDestroy waits for that (NCCL's source: localPersistentRefs).
 */
#include "base/mem.h"
#include "parallel/comm/coll_nccl.h"
#include "parallel/comm/coll_record.h"

static const char *obstacle(const World *w, bool risk) {
    if (nccl_shares(w->device_impl)) return "flags of matmuls with collectives count calls";
    return risk || w->backend != &coll_threads
               ? NULL
               : "there are several GPUs in this process (--graphs all takes the risk)";
}

static void *record(World *w) {
    NcclWorld *n = w->device_impl;
    Recorded *r = mem_calloc(1, sizeof *r);
    r->progress = device_pin(sizeof *r->progress);
    *r->progress = 0;
    return n->recording = r;
}

/* Loads the kernel that writes progress before the first recording: loading it later would wait for
 * all work in flight. */
void nccl_record_open(const NcclWorld *n) {
    uint32_t *nowhere = device_pin(sizeof *nowhere);
    device_write_progress(n->progress, nowhere, 0);
    device_record(n->fork, n->progress);
    device_event_synchronize(n->fork);
    device_unpin(nowhere);
}

/* Puts a write of the progress into its own stream, after this event of the communication
 * stream. */
static void write_progress(const NcclWorld *n, Event here, int value) {
    device_stream_wait(n->progress, here);
    device_write_progress(n->progress, n->recording->progress, (uint32_t)value);
}

void nccl_record_begin(NcclWorld *n, const Comm *c, const CollCall *call) {
    Recorded *r = n->recording;
    mem_grow(r->called, r->n, r->cap);
    r->called[r->n++] = (Called){*call, c};
    device_record(n->fork, n->device.comm);
    write_progress(n, n->fork, 2 * r->n - 1);
}

void nccl_record_end(NcclWorld *n, Event done) {
    write_progress(n, done, 2 * n->recording->n);
}

/* The rank's own stream has joined the communication stream. Here it joins the stream of progress
 * too. */
static void recorded(World *w, void *recording) {
    NcclWorld *n = w->device_impl;
    const Recorded *r = recording;
    if (r->n > 0) {
        device_record(n->fork, n->progress);
        device_stream_wait(device_stream(), n->fork);
    }
    n->recording = NULL;
}

static void replay(World *w, void *r, void (*launch)(void *recording), void *recording) {
    NcclWorld *n = w->device_impl;
    if (((Recorded *)r)->n == 0) {
        launch(recording);
        return;
    }
    Queued *t = queue_take(n->device.queue, &(Queued){.replay = r, .limit = w->limit});
    launch(recording);
    device_record(t->done, device_stream());
    queue_enqueued(n->device.queue, t);
}

static void forget(World *w, void *recording) {
    NcclWorld *n = w->device_impl;
    Recorded *r = recording;
    queue_drain(n->device.queue);
    pthread_mutex_lock(&n->device.queue->lock);
    n->device.queue->first = n->device.queue->end; // the watchdog no longer reads the recording
    pthread_mutex_unlock(&n->device.queue->lock);
    device_unpin(r->progress);
    mem_free(r->called);
    mem_free(r);
}

const CollRecorder nccl_recorder = {
    .obstacle = obstacle, .record = record, .recorded = recorded, .replay = replay, .free = forget};
