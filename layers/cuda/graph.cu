extern "C" {
#include "layers/cuda/device.h"
#include "layers/cuda/graph.h"
}

#include <cuda_runtime.h>

namespace {
thread_local bool captures;
}

extern "C" {

void device_capture(void) {
    device_check(cudaStreamBeginCapture(device_stream(), cudaStreamCaptureModeThreadLocal));
    captures = true;
}

Graph device_captured(void) {
    cudaGraph_t calls;
    Graph g;
    captures = false;
    device_check(cudaStreamEndCapture(device_stream(), &calls));
    device_check(cudaGraphInstantiate(&g, calls, cudaGraphInstantiateFlagUseNodePriority));
    device_check(cudaGraphDestroy(calls));
    return g;
}

bool device_captures(void) {
    return captures;
}

void device_replay(Graph g) {
    device_check(cudaGraphLaunch(g, device_stream()));
}

void device_graph_free(Graph g) {
    device_check(cudaGraphExecDestroy(g));
}
}
