/* calls -- counts the calls of the emulated runtime, so that tests can check what a step of
 * training does not do. */
#ifndef TESTS_EMU_CALLS_H
#define TESTS_EMU_CALLS_H

#include <stdint.h>

typedef struct EmuCalls {
    // allocations and frees of device memory, pinned memory and graphs
    int64_t memory;
    int64_t objects;  // streams and events created or destroyed
    int64_t waits;    // waits of the host for a stream or an event
    int64_t unpinned; // copies of host memory that is not pinned: the library may block the host
    int64_t launches; // kernels, copies and graphs put into streams
    int64_t replays;  // launches of graphs
    int64_t choices;  // requests to cuBLASLt for algorithms
    // matmuls: of cuBLASLt; narrow: those of them that are limited to fewer multiprocessors
    int64_t matmuls, narrow;
    int64_t blocks; // blocks of kernels that have run
    // times that events recorded: times in streams of low priority, urgent_times in high
    int64_t times, urgent_times;
} EmuCalls;

/* Counts so far, of all threads. emu_called adds one to a count. If $EMU_CALLS is set, the program
 * writes all counts but matmuls, narrow and blocks to that file at its end: lines WORD NUMBER. */
extern EmuCalls emu_calls;
void emu_called(int64_t *count);

#endif
