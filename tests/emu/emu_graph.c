/* emu_graph -- CUDA graphs. A graph holds what was put into a stream while it was recorded, and
 * into the streams that followed it meanwhile by events. Each of these streams is a lane of the
 * graph. A lane keeps its order, as a stream does; between lanes only the recorded waits hold. When
 * a graph is launched, lane 0 runs in the stream of the launch and each other lane in a stream of
 * its own.
 *
 * As in CUDA (programming guide, "Creating a Graph Using Stream Capture"), the following makes a
 * recording void: a host that waits for or queries a stream or an event that is recorded; a wait
 * for work outside of the recording; and an end before all lanes have been joined to lane 0.
 * Captures are of mode ThreadLocal, the mode that the program uses. */
#include "tests/emu/emu_graph.h"

#include <pthread.h>

#include "base/die.h"
#include "base/mem.h"
#include "tests/emu/calls.h"

enum { LANES = 8, RECORDINGS = 64, KERNELS = 4096 };

typedef struct Op {
    Task task;
    int lane, at;  // at: number of ops before this one in its lane
    int of, until; // of >= 0: no task, but a wait until lane `of` has done `until` ops
} Op;
struct CUgraph_st {
    uint64_t number;
    Op *op;
    int n, room;
    int n_lanes, length[LANES];
    cudaStream_t from[LANES];
    bool is_void;
};
struct CUgraphExec_st {
    struct CUgraph_st calls;
    // lane[0]: the stream of the last launch; the others belong to the graph
    cudaStream_t lane[LANES];
};

static __thread cudaGraph_t recording;
static cudaGraph_t made[RECORDINGS]; // recordings in progress, of all threads
static uint64_t n_ever;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // protects made and n_ever

/* ---- what CUDA refuses */

bool graph_refuses(void) {
    if (recording) recording->is_void = true;
    return recording;
}

bool graph_refuses_stream(cudaStream_t s) {
    int lane;
    cudaGraph_t g = s ? stream_graph(s, &lane) : NULL;
    if (g) g->is_void = true;
    return g;
}

cudaError_t graph_asked(GraphPlace p) {
    cudaError_t e = cudaErrorInvalidValue; // the recording has ended
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RECORDINGS; i++)
        if (made[i] && made[i]->number == p.number)
            made[i]->is_void = true, e = cudaErrorCapturedEvent;
    pthread_mutex_unlock(&lock);
    return e;
}

/* ---- recordings */

static void add(cudaGraph_t g, Op op) {
    mem_grow(g->op, g->n, g->room);
    op.at = g->length[op.lane]++;
    g->op[g->n++] = op;
}

void graph_add(cudaGraph_t g, int lane, Task t) {
    add(g, (Op){.task = t, .lane = lane, .of = -1});
}

GraphPlace graph_place(cudaGraph_t g, int lane) {
    return (GraphPlace){g->number, lane, g->length[lane]};
}

/* From now on g records s, as a new lane. */
static int add_lane(cudaGraph_t g, cudaStream_t s) {
    if (g->n_lanes == LANES) die("more than %d streams are recorded", LANES);
    stream_divert(s, g, g->n_lanes);
    g->from[g->n_lanes] = s;
    return g->n_lanes++;
}

cudaError_t graph_follow(cudaStream_t s, GraphPlace p) {
    int lane;
    cudaGraph_t g = stream_graph(s, &lane);
    bool mine = recording && p.number == recording->number && (!g || g == recording);
    if (!mine) {
        if (g) g->is_void = true;
        return p.number ? cudaErrorInvalidValue : cudaErrorStreamCaptureIsolation;
    }
    if (!g) lane = add_lane(recording, s);
    add(recording, (Op){.lane = lane, .of = p.lane, .until = p.at});
    return cudaSuccess;
}

/* Does the end of lane 0 come after the ends of all other lanes? Goes backwards: a wait covers only
 * what was recorded before it. */
static bool joined(const struct CUgraph_st *g) {
    int awaited[LANES] = {g->length[0]};
    bool all = true;
    for (int i = g->n - 1; i >= 0; i--) {
        const Op *o = &g->op[i];
        if (o->of >= 0 && o->at < awaited[o->lane] && o->until > awaited[o->of])
            awaited[o->of] = o->until;
    }
    for (int i = 0; i < g->n_lanes; i++) all &= awaited[i] == g->length[i];
    return all;
}

static void put_in_list(cudaGraph_t g) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < RECORDINGS && made[i]) i++;
    if (i == RECORDINGS) die("more than %d recordings at the same time", RECORDINGS);
    made[i] = g, g->number = ++n_ever;
    pthread_mutex_unlock(&lock);
}

static void take_from_list(const struct CUgraph_st *g) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RECORDINGS; i++)
        if (made[i] == g) made[i] = NULL;
    pthread_mutex_unlock(&lock);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    if (!s || recording || graph_refuses_stream(s)) return cudaErrorIllegalState;
    if (mode != cudaStreamCaptureModeThreadLocal) die("a capture that other ranks disturb");
    recording = mem_calloc(1, sizeof *recording);
    put_in_list(recording);
    add_lane(recording, s);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    if (!recording || s != recording->from[0]) return cudaErrorIllegalState;
    *g = recording, recording = NULL;
    take_from_list(*g);
    for (int i = 0; i < (*g)->n_lanes; i++) stream_divert((*g)->from[i], NULL, 0);
    cudaError_t e = (*g)->is_void ? cudaErrorStreamCaptureInvalidated
                    : !joined(*g) ? cudaErrorStreamCaptureUnjoined
                                  : cudaSuccess;
    if (e != cudaSuccess) cudaGraphDestroy(*g), *g = NULL;
    return e;
}

bool graph_records(cudaStream_t s) {
    int lane;
    return s && stream_graph(s, &lane);
}

/* Dies if a kernel is launched for the first time in a recording. `loaded` is a hash table of the
 * launched kernels by address. */
void emu_load(cudaStream_t s, const char *name, const void *kernel) {
    static const void *loaded[KERNELS];
    size_t i = ((uintptr_t)kernel >> 4) % KERNELS, n = 0;
    pthread_mutex_lock(&lock);
    while (loaded[i] && loaded[i] != kernel && n++ < KERNELS) i = (i + 1) % KERNELS;
    if (n > KERNELS) die("more than %d kernels", KERNELS);
    bool is_first = !loaded[i];
    loaded[i] = kernel;
    pthread_mutex_unlock(&lock);
    if (is_first && graph_records(s)) die("%s: a kernel is loaded in a recording", name);
}

/* ---- graphs */

static void give_back(struct CUgraph_st *g) {
    for (int i = 0; i < g->n; i++)
        if (g->op[i].task.drop) g->op[i].task.drop(g->op[i].task.ctx);
    mem_free(g->op);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags) {
    if (graph_refuses()) return cudaErrorInvalidValue;
    if (flags != cudaGraphInstantiateFlagUseNodePriority)
        die("a graph all of which has the priority of the stream that it is put into");
    emu_called(&emu_calls.memory);
    *e = mem_calloc(1, sizeof **e);
    (*e)->calls = *g;
    *g = (struct CUgraph_st){0};
    for (int i = 1; i < (*e)->calls.n_lanes; i++) (*e)->lane[i] = stream_take();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    give_back(g);
    mem_free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    uint64_t before[LANES];
    if (graph_refuses() || graph_refuses_stream(s)) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.launches), emu_called(&emu_calls.replays);
    e->lane[0] = s;
    for (int i = 0; i < e->calls.n_lanes; i++) before[i] = stream_length(e->lane[i]);
    for (int i = 0; i < e->calls.n; i++) {
        const Op *o = &e->calls.op[i];
        if (o->of < 0)
            stream_repeat(e->lane[o->lane], o->task);
        else
            stream_wait(e->lane[o->lane], e->lane[o->of], before[o->of] + (uint64_t)o->until);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
    emu_called(&emu_calls.memory);
    if (e->lane[0]) stream_settle(e->lane[0]);
    for (int i = 1; i < e->calls.n_lanes; i++) stream_give(e->lane[i]);
    give_back(&e->calls);
    mem_free(e);
    return cudaSuccess;
}
