/* emu_nccl -- a library that replaces NCCL in the tests. Ranks are threads of one process with an
 * emulated device each. Under a launcher ranks are processes of one machine: they exchange the
 * arguments and the source data of each call through a file, and each process then computes its own
 * part of the result.
 *
 * Memory is registered as the emulated version does it: as windows, of memory that the library has
 * allocated, or as buffers. Registered memory that a call accesses on other ranks must have one
 * offset on all ranks. A call on memory freed or moved after its registration ends the program.
 *
 * A call runs when all ranks of its communicator have come to it in their streams. The emulator
 * then executes what all of them asked for at once; ranks that ask for different things end the
 * program. Sums are taken from the last rank to the first. Arguments are checked as strictly as
 * hardware does. */
#ifndef TESTS_EMU_EMU_NCCL_H
#define TESTS_EMU_EMU_NCCL_H

#include <stdint.h>

/* What goes wrong from now on. NO_FAULT: nothing. NO_WINDOW: registering a window succeeds without
 * a window. BROKEN: calls never end, as after a lost link, and their communicators report an error.
 * HUNG: in addition aborts never return. Every abort writes a line to stderr: "abort of rank 1 of
 * 2". */
typedef enum EmuNcclFault {
    EMU_NCCL_NO_FAULT,
    EMU_NCCL_NO_WINDOW,
    EMU_NCCL_BROKEN,
    EMU_NCCL_HUNG
} EmuNcclFault;
extern EmuNcclFault emu_nccl_fault;
/* The calling rank hangs before its next communicator. */
void emu_nccl_stuck(void);
/* Number of open communicators. */
int emu_nccl_open(void);
/* Sets the version of the library from now on: the library has the functions of that version. 0:
 * there is no library. The default is $EMU_NCCL, else the newest version. */
void emu_nccl_version(int version);
/* Counts since emu_nccl_version. direct: calls whose src and dst are registered memory. registered:
 * pieces of memory that are registered now. */
typedef struct EmuNcclCounts {
    int64_t calls, direct, urgent; // urgent: calls in a stream of the highest priority
    int registered, most_ctas;     // most_ctas: max_ctas of the last communicator
} EmuNcclCounts;
EmuNcclCounts emu_nccl_counts(void);

#endif
