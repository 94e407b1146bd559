/* emu_graph -- between streams and graphs of the emulator. */
#ifndef TESTS_EMU_EMU_GRAPH_H
#define TESTS_EMU_EMU_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/emu/runtime.h"

/* What waits in a stream, or is kept in a graph: runs once ready(ctx); drop(ctx) when nobody will
 * want it again. */
typedef struct Task {
    const char *name;
    bool (*ready)(const void *ctx); // NULL: always
    void (*run)(void *ctx);
    void (*drop)(void *ctx); // NULL: nothing
    void *ctx;
    bool copies; // no kernel: it needs no multiprocessor
} Task;
/* Behind so many pieces of work of a stream that is recorded; number is the recording's, 0:
 * none. */
typedef struct GraphPlace {
    uint64_t number;
    int lane, at;
} GraphPlace;

/* Does the calling thread record? Then the call that asks is one that CUDA refuses, and the
 * recording is void. */
bool graph_refuses(void);
/* The same of a stream that somebody records, if any does. */
bool graph_refuses_stream(cudaStream_t s);
/* What CUDA says to a host that asks for a place in a recording, which is void if it is still
 * made. */
cudaError_t graph_asked(GraphPlace p);

/* Is s recorded? */
bool graph_records(cudaStream_t s);
/* For a stream that is recorded as this lane of g: one more task, which is the graph's from now on;
 * where it is. */
void graph_add(cudaGraph_t g, int lane, Task t);
GraphPlace graph_place(cudaGraph_t g, int lane);
/* s follows a place, and one of them at least is recorded: s becomes, or is, a lane of that
 * graph. */
cudaError_t graph_follow(cudaStream_t s, GraphPlace p);

/* Streams: which graph records s, and as which lane (NULL: none does); from now on so. */
cudaGraph_t stream_graph(cudaStream_t s, int *lane);
void stream_divert(cudaStream_t s, cudaGraph_t g, int lane);
/* One of the calling thread's device, for a lane; empty when it is given back. */
cudaStream_t stream_take(void);
void stream_give(cudaStream_t s);
/* What was ever put into s; puts a task into s that stays the caller's, or a wait until `of` has
 * come so far. */
uint64_t stream_length(cudaStream_t s);
void stream_repeat(cudaStream_t s, Task t);
void stream_wait(cudaStream_t s, cudaStream_t of, uint64_t until);
/* Returns when s has come to its end. */
void stream_settle(cudaStream_t s);

#endif
