/* Calls that are recorded: the urgent stream leaves the rank's own by an event and comes back by one, as always, and with it
 * they become a graph. What the watchdog asks of a call it cannot ask of such events, for they are places in the recording; nor
 * would events that a graph records for others do (cudaEventRecordExternal): each tells of the last replay that was put in,
 * and the host is several of them ahead. So every call says itself where the graph is, in a word of the host's memory:
 *
 *     own      product --o                         o-- norm, reads dst
 *     urgent              \ o -- all_reduce -- o --/
 *     notes                  \ note 2i + 1      \ note 2i + 2
 *
 * Replays run one after the other, so the word is of the oldest that is not done; after it, the word says that its last call is
 * done. No call waits for a note.
 *
 * Of NCCL's guide, "Using NCCL with CUDA Graphs": calls are recorded on all ranks or on none, and replays count as calls; between
 * them there may be calls that are not recorded (NCCL_GRAPH_MIXING_SUPPORT, on by itself); with several GPUs in a process, a
 * launch of a graph may block and keep the others from theirs. A communicator ends when the graphs with its calls are gone:
 * ncclCommDestroy waits for that (its source: localPersistentRefs).
 */
#include "base/mem.h"
#include "parallel/coll_nccl.h"
#include "parallel/coll_record.h"

static const char *obstacle(const World *w, bool risk) {
    return risk || w->backend != &coll_threads
               ? NULL
               : "there are several GPUs in this process (--graphs all takes the risk)";
}

static void *record(World *w) {
    NcclWorld *n = w->device_impl;
    NcclRecording *r = mem_calloc(1, sizeof *r);
    r->note = device_pin(sizeof *r->note);
    *r->note = 0;
    return n->recording = r;
}

/* The kernel that notes runs in recordings alone. It is loaded before, while nothing is under way for that to wait for. */
void nccl_record_open(const NcclWorld *n) {
    uint32_t *nowhere = device_pin(sizeof *nowhere);
    device_note(n->notes, nowhere, 0);
    device_record(n->fork, n->notes);
    device_await(n->fork);
    device_unpin(nowhere);
}

/* The stream of notes goes on from here as this note. */
static void note(const NcclWorld *n, Event here, int value) {
    device_follow(n->notes, here);
    device_note(n->notes, n->recording->note, (uint32_t)value);
}

void nccl_record_begin(NcclWorld *n, const Comm *c, const CollCall *call) {
    NcclRecording *r = n->recording;
    if (r->n == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        r->called = mem_realloc(r->called, (size_t)r->room, sizeof *r->called);
    }
    r->called[r->n++] = (Called){*call, c};
    device_record(n->fork, n->urgent);
    note(n, n->fork, 2 * r->n - 1);
}

void nccl_record_end(NcclWorld *n, Event done) {
    note(n, done, 2 * n->recording->n);
}

/* The rank's own stream has followed all calls, and now their notes. */
static void recorded(World *w, void *recording) {
    NcclWorld *n = w->device_impl;
    const NcclRecording *r = recording;
    if (r->n > 0) {
        device_record(n->fork, n->notes);
        device_follow(device_stream(), n->fork);
    }
    n->recording = NULL;
}

static void replay(World *w, void *r, void (*launch)(void *recording), void *recording) {
    NcclWorld *n = w->device_impl;
    if (((NcclRecording *)r)->n == 0) {
        launch(recording);
        return;
    }
    Turn *t = nccl_turn_take(n, &(Turn){.replay = r, .limit = w->limit});
    launch(recording);
    device_record(t->done, device_stream());
    nccl_turn_given(n, t);
}

static void forget(World *w, void *recording) {
    NcclWorld *n = w->device_impl;
    NcclRecording *r = recording;
    nccl_settle(n);
    pthread_mutex_lock(&n->lock);
    n->first = n->end; // the watchdog looks at it no more
    pthread_mutex_unlock(&n->lock);
    device_unpin(r->note);
    mem_free(r->called);
    mem_free(r);
}

const CollRecorder nccl_recorder = {
    .obstacle = obstacle, .record = record, .recorded = recorded, .replay = replay, .free = forget};
