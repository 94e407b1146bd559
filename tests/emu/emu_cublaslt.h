/* emu_cublaslt -- a cuBLASLt for the emulator. It computes with plain loops and checks strictly:
 * every call is checked against the library's reference for layouts, types, epilogues, alignments
 * and workspaces. A call whose result would be undefined ends the program with a line.
 *
 * It proposes six algorithms, in this order, where the alignments allow them:
 *
 *     0   marked as not supported in its own proposal
 *     1   proposed, but refused when it is run with beta = 1
 *     2   sums K from the last to the first; requires addresses aligned to 128 bytes
 *     3   sums two halves of K separately; needs 1 MiB of workspace
 *     4   sums K from the first to the last
 *     5   sums two halves of K separately and rounds the first to bf16, if the caller allows sums
 *         in the type of the output
 */
#ifndef TESTS_EMU_EMU_CUBLASLT_H
#define TESTS_EMU_EMU_CUBLASLT_H

#include <stdbool.h>

enum { EMU_LT_ALGORITHMS = 6 };
/* Local. Runs of each algorithm; multiprocessor limit and epilogue of the latest run. */
typedef struct EmuLt {
    int runs[EMU_LT_ALGORITHMS], sms, epilogue;
} EmuLt;
extern EmuLt emu_lt;
/* How the library behaves. BARE: refuses every epilogue but bias when run, as some devices do.
 * NO_SUMS: refuses the epilogue that sums the bias gradient. NOTHING: refuses every matmul when
 * algorithms are chosen. REFUSES_ALL: proposes algorithms but refuses to run them. BROKEN: fails
 * with an error. */
typedef enum EmuLtFault {
    EMU_LT_NO_FAULT,
    EMU_LT_BARE,
    EMU_LT_NO_SUMS,
    EMU_LT_NOTHING,
    EMU_LT_REFUSES_ALL,
    EMU_LT_BROKEN
} EmuLtFault;
/* Set by tests. */
typedef struct EmuLtSetup {
    EmuLtFault fault;
    int slow, slow_epilogue; // algorithm and epilogue that take 30 ms longer; 0: none
} EmuLtSetup;
extern EmuLtSetup emu_lt_setup;

#endif
