/* emu_graph -- the interface between streams (stream.c) and graphs (emu_graph.c) of the
 * emulator. */
#ifndef TESTS_EMU_EMU_GRAPH_H
#define TESTS_EMU_EMU_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/emu/runtime.h"

/* A piece of work that waits in a stream or is kept in a graph. run(ctx) is called once ready(ctx)
 * is true; drop(ctx) frees ctx after the last run. */
typedef struct Task {
    const char *name;
    bool (*ready)(const void *ctx); // NULL: always
    void (*run)(void *ctx);
    void (*drop)(void *ctx); // NULL: nothing
    void *ctx;
    bool copies; // not a kernel: it needs no multiprocessor
} Task;
/* A point in a recording: behind the first `at` ops of a lane. number: the number of the recording;
 * 0: none. */
typedef struct GraphPlace {
    uint64_t number;
    int lane, at;
} GraphPlace;

/* Is the calling thread recording? The caller is a function that CUDA refuses meanwhile, so the
 * recording becomes void. */
bool graph_refuses(void);
/* The same for a stream: is any thread recording it? */
bool graph_refuses_stream(cudaStream_t s);
/* The error that CUDA returns to a host that queries or waits for a point in a recording. If the
 * recording is in progress, it becomes void. */
cudaError_t graph_asked(GraphPlace p);

/* Is s being recorded? */
bool graph_records(cudaStream_t s);
/* graph_add: adds a task to a lane of g; the graph owns the task from then on. graph_place: the
 * point behind the last op of a lane. */
void graph_add(cudaGraph_t g, int lane, Task t);
GraphPlace graph_place(cudaGraph_t g, int lane);
/* Stream s waits for a point; the stream, the point or both are recorded. s becomes a lane of that
 * graph, unless it is one. */
cudaError_t graph_follow(cudaStream_t s, GraphPlace p);

/* stream_graph: the graph that records s (NULL: none), and its lane. stream_divert: sets them. */
cudaGraph_t stream_graph(cudaStream_t s, int *lane);
void stream_divert(cudaStream_t s, cudaGraph_t g, int lane);
/* stream_take: a stream on the calling thread's device. stream_give: waits until the stream is
 * empty and gives it back. */
cudaStream_t stream_take(void);
void stream_give(cudaStream_t s);
/* stream_length: number of tasks and waits ever put into s. stream_repeat: puts a task into s that
 * the caller keeps. stream_wait: puts a wait into s until stream `of` has done `until` of its
 * work. */
uint64_t stream_length(cudaStream_t s);
void stream_repeat(cudaStream_t s, Task t);
void stream_wait(cudaStream_t s, cudaStream_t of, uint64_t until);
/* Returns when all work of s is done. */
void stream_settle(cudaStream_t s);

#endif
