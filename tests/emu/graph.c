/* Graphs: what was put into one stream while it was recorded, in that order. A capture is of its thread, as the program asks
 * for it; what goes on in other streams by their events is not played. */
#include "tests/emu/graph.h"

#include "base/die.h"
#include "base/mem.h"
#include "tests/emu/calls.h"

typedef struct Node {
    const char *name;
    void (*run)(void *ctx);
    void *ctx;
} Node;
struct CUgraph_st {
    Node *node;
    int n, room;
    bool is_void;
};
struct CUgraphExec_st {
    struct CUgraph_st calls;
    cudaStream_t last; // that it was put into
};

static __thread cudaGraph_t recording;
static __thread cudaStream_t recorded;

bool graph_refuses(void) {
    if (recording) recording->is_void = true;
    return recording;
}

void graph_add(cudaGraph_t g, const char *name, void (*run)(void *ctx), void *ctx) {
    if (!run) die("an event of a stream that is recorded: the emulator plays graphs of one stream");
    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->node = mem_realloc(g->node, (size_t)g->room, sizeof *g->node);
    }
    g->node[g->n++] = (Node){name, run, ctx};
}

static void give_back(struct CUgraph_st *g) {
    for (int i = 0; i < g->n; i++) mem_free(g->node[i].ctx);
    mem_free(g->node);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    if (!s || recording) return cudaErrorIllegalState;
    if (mode != cudaStreamCaptureModeThreadLocal) die("a capture that other ranks disturb");
    recording = mem_calloc(1, sizeof *recording), recorded = s;
    stream_divert(s, recording);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    if (!recording || s != recorded) return cudaErrorIllegalState;
    *g = recording, recording = NULL;
    stream_divert(s, NULL);
    if (!(*g)->is_void) return cudaSuccess;
    cudaGraphDestroy(*g);
    *g = NULL;
    return cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags) {
    if (flags || graph_refuses()) return cudaErrorInvalidValue;
    emu_called(&emu_calls.memory);
    *e = mem_calloc(1, sizeof **e);
    (*e)->calls = *g;
    *g = (struct CUgraph_st){0};
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    give_back(g);
    mem_free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    if (graph_refuses()) return cudaErrorStreamCaptureUnsupported;
    emu_called(&emu_calls.launches), emu_called(&emu_calls.replays);
    for (int i = 0; i < e->calls.n; i++) {
        const Node *n = &e->calls.node[i];
        stream_repeat(s, n->name, n->run, n->ctx);
    }
    e->last = s;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
    emu_called(&emu_calls.memory);
    if (e->last) stream_settle(e->last);
    give_back(&e->calls);
    mem_free(e);
    return cudaSuccess;
}
