/* emu_nccl -- a library that takes the place of NCCL in the tests: ranks are threads of one process
 * with an emulated device each or, where a launcher says so, processes of one machine, which send
 * each other what they ask for through a file: each then does its own part of the call.
 *
 * Memory is registered as the version has it: in windows, of memory that the library gave, or as
 * buffers. A call has the same place in it on all ranks, and memory that was freed or moved since
 * then ends the program.
 *
 * A call runs on the device when all ranks of its communicator have come to it in their streams,
 * and then does what all of them asked for at once; partners that ask for different things end the
 * program. Sums are taken from the last rank to the first. Arguments are checked as strictly as
 * hardware is.
 */
#ifndef TESTS_EMU_EMU_NCCL_H
#define TESTS_EMU_EMU_NCCL_H

#include <stdint.h>

/* What goes wrong from now on: nothing; there are no windows, without an error; calls are broken,
 * as a lost link makes them (their communicators report it); also aborts never return. Every abort
 * writes a line to stderr: "abort of rank 1 of 2". */
typedef enum EmuNcclMood {
    EMU_NCCL_FINE,
    EMU_NCCL_APART,
    EMU_NCCL_BROKEN,
    EMU_NCCL_DEAF
} EmuNcclMood;
extern EmuNcclMood emu_nccl_mood;
/* The calling rank never comes to its next communicator. */
void emu_nccl_stuck(void);
/* Communicators that are open. */
int emu_nccl_open(void);
/* Of which version it is from now on: it has the functions of that one. 0: there is none. At
 * first the newest, or what EMU_NCCL says in the environment. */
void emu_nccl_version(int version);
/* Since the last version: calls, and those whose src and dst were registered memory; such memory
 * now. */
typedef struct EmuNcclCounts {
    int64_t calls, direct, urgent; // urgent: in a stream of the highest priority
    int registered, most_ctas;     // most_ctas: of the last communicator
} EmuNcclCounts;
EmuNcclCounts emu_nccl_counts(void);

#endif
