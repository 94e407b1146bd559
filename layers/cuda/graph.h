/* graph -- CUDA graphs: the work of a rank's stream, recorded once and replayed by one call.
 *
 *     device_capture()    calls are recorded from here on, in the order of the stream; nothing runs
 *     ...kernels, copies between memory of the device, cuBLASLt, NCCL...
 *     g = device_captured()
 *     device_replay(g)    runs all of it again, with the same addresses and arguments
 *
 * A stream that follows an event of one that is recorded is recorded with it, until the end. By
 * then the rank's own stream has followed the last of what went into it. Such events are places in
 * the recording and nothing else: nobody may ask for them, not even from another thread, before
 * they are recorded anew; nor may a stream that is recorded follow an event from before. Kernels
 * keep the priorities of the streams that they were recorded in.
 *
 * While it records, a thread may neither wait for the device nor take or give back memory; CUDA
 * refuses it, and the program ends. What other threads do is their own affair (the capture is of
 * its thread: cudaStreamCaptureModeThreadLocal): other ranks of this process allocate and wait as
 * they like, and so does the thread that looks after NCCL. Nothing here touches the default stream.
 */
#ifndef LAYERS_CUDA_GRAPH_H
#define LAYERS_CUDA_GRAPH_H

#include <stdbool.h>

typedef struct CUgraphExec_st *Graph; // CUDA's cudaGraphExec_t, for C

/* Local, of the calling thread's stream. */
void device_capture(void);
Graph device_captured(void);
bool device_captures(void); // is it recording?
void device_replay(Graph g);
void device_graph_free(Graph g); // it may still be running

#endif
