/* graph -- between streams and graphs of the emulator. */
#ifndef TESTS_EMU_GRAPH_H
#define TESTS_EMU_GRAPH_H

#include <stdbool.h>

#include "tests/emu/runtime.h"

/* Does the calling thread record? Then the call that asks is one that CUDA refuses, and the recording is void. */
bool graph_refuses(void);
/* A piece of work that was put into a stream which is recorded; ctx is the graph's from now on. */
void graph_add(cudaGraph_t g, const char *name, void (*run)(void *ctx), void *ctx);

/* Streams: what is put into s from now on goes to g; NULL: into s, as usual. */
void stream_divert(cudaStream_t s, cudaGraph_t g);
/* Puts run(ctx) into s; ctx stays the caller's, until stream_settle returns. */
void stream_repeat(cudaStream_t s, const char *name, void (*run)(void *ctx), void *ctx);
void stream_settle(cudaStream_t s);

#endif
