/* graph -- CUDA graphs: the work of a rank's stream, recorded once and replayed by one call.
 *
 *     device_capture()    calls are recorded from here on, in the order of the stream; nothing runs
 *     ...kernels, copies between memory of the device, cuBLASLt, NCCL...
 *     g = device_captured()
 *     device_replay(g)    runs all of it again, with the same addresses and arguments
 *
 * A stream that follows an event of a recorded stream is recorded, too, until the end. By then the
 * rank's own stream must have followed the last work of that stream. Events that are recorded in a
 * graph are positions in the recording only: no thread may query them before they are recorded
 * again, and a recorded stream may not follow an event from before the
 * recording. Kernels keep the priorities of the streams in which they were recorded.
 *
 * While a thread records it may neither wait for the device nor allocate or free memory: CUDA
 * refuses these calls, and the program ends. Other threads are not restricted, as the capture is of
 * its thread (cudaStreamCaptureModeThreadLocal): other ranks of this process, and the thread that
 * watches NCCL, may allocate and wait. Nothing here uses the default stream.
 */
#ifndef LAYERS_CUDA_GRAPH_H
#define LAYERS_CUDA_GRAPH_H

#include <stdbool.h>

typedef struct CUgraphExec_st *Graph; // CUDA's cudaGraphExec_t, for C

/* Local. For the calling thread's stream. */
void device_capture(void);
Graph device_captured(void);
bool device_captures(void); // is the stream being recorded?
void device_replay(Graph g);
void device_graph_free(Graph g); // the last replay may still be running

#endif
