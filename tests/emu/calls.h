/* calls -- how often a program called the runtime for what a step of training shall not do. */
#ifndef TESTS_EMU_CALLS_H
#define TESTS_EMU_CALLS_H

#include <stdint.h>

typedef struct EmuCalls {
    int64_t memory;   // allocations and what gives them back, of devices, pinned memory and graphs
    int64_t objects;  // streams and events that were made or destroyed
    int64_t waits;    // of the host, for a stream or an event
    int64_t unpinned; // copies of other host memory, for which the library may wait
    int64_t launches; // kernels, copies and graphs that were put into streams
    int64_t replays;  // of graphs
    int64_t choices;  // of algorithms that cuBLASLt was asked for
    int64_t matmuls, narrow;     // of cuBLASLt; those for fewer multiprocessors than there are
    int64_t blocks;              // of kernels that have run
    int64_t times, urgent_times; // that events take, in streams of low and of high priority
} EmuCalls;

/* Counts so far, of all threads; what is called adds one to its own. A program writes them to the
 * file that $EMU_CALLS names when it ends: a line of a word and a number for each. */
extern EmuCalls emu_calls;
void emu_called(int64_t *count);

#endif
