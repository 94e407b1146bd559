/* emu_cublaslt -- a cuBLASLt for the emulator. It computes plainly and refuses strictly: what the
 * library's reference says of layouts, types, epilogues, alignments and workspaces is checked in
 * every call, and what would be undefined ends the program with a line.
 *
 * It proposes six algorithms, in this order, where the alignments allow them:
 *
 *     0   marked as not supported in its own proposal
 *     1   proposed, but refused when it is run with beta = 1
 *     2   sums K from the last to the first; wants addresses aligned to 128 bytes
 *     3   sums two halves of K apart; needs 1 MiB of workspace
 *     4   sums K from the first to the last
 *     5   sums two halves of K apart and rounds them to bf16 words of y, where those may be added
 */
#ifndef TESTS_EMU_EMU_CUBLASLT_H
#define TESTS_EMU_EMU_CUBLASLT_H

#include <stdbool.h>

enum { EMU_LT_ALGORITHMS = 6 };
/* Local. How often each algorithm was run; the latest cap on multiprocessors and epilogue. */
typedef struct EmuLt {
    int runs[EMU_LT_ALGORITHMS], sms, epilogue;
} EmuLt;
extern EmuLt emu_lt;
/* The library refuses every epilogue but bias (as some devices do when it is run), or that
 * which sums, or everything, or all that it proposes when it is run; it breaks down. */
typedef enum EmuLtMood {
    EMU_LT_FINE,
    EMU_LT_BARE,
    EMU_LT_NO_SUMS,
    EMU_LT_NOTHING,
    EMU_LT_REFUSES_ALL,
    EMU_LT_BROKEN
} EmuLtMood;
/* How it is from now on. */
typedef struct EmuLtSetup {
    EmuLtMood mood;
    int slow, slow_epilogue; // algorithm and epilogue that take 30 ms more; 0: none
} EmuLtSetup;
extern EmuLtSetup emu_lt_setup;

#endif
