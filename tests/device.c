/* device -- functions of the emulator (tests/emu/) for build/cuda/run_tests, the tests of CUDA
 * kernels on a GPU, compiled by nvcc. They do nothing: a GPU chooses itself in which order threads
 * and streams run, and how many devices exist. Tests that need the emulator (TEST_EMULATED) are not
 * run. */
#include "tests/emu/calls.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_cublaslt.h"
#include "tests/emu/emu_nccl.h"
#include "tests/emu/runtime.h"
#include "tests/test.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" // settings of the emulator are ignored

const bool test_on_device = true;

EmuSetup emu_setup;
void emu_set(EmuSetup s) {}
void emu_forget_wait(int n) {}
void emu_enqueue_when(cudaStream_t s, const char *name, bool (*ready)(const void *ctx),
                      void (*run)(void *ctx), void (*drop)(void *ctx), void *ctx) {}

EmuCalls emu_calls; // counts no calls
EmuLt emu_lt;
EmuLtSetup emu_lt_setup;
EmuNcclFault emu_nccl_fault;
int emu_nccl_open(void) {
    return 0;
}
void emu_nccl_version(int version) {}
EmuNcclCounts emu_nccl_counts(void) {
    return (EmuNcclCounts){0};
}
void emu_nccl_stuck(void) {}
