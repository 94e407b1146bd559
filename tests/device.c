/* device -- build/cuda/run_tests: the tests of CUDA kernels where a GPU runs them, compiled by
 * nvcc. What they ask of the emulator a GPU does as it likes: how threads and streams follow each
 * other, how many devices there are. What only an emulator does for them (TEST_EMULATED) they
 * leave out. */
#include "tests/emu/calls.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_cublaslt.h"
#include "tests/emu/emu_nccl.h"
#include "tests/emu/runtime.h"
#include "tests/test.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" // what it is told it does not obey

const bool test_on_device = true;

EmuSetup emu_setup;
void emu_set(EmuSetup s) {}
void emu_forget_wait(int n) {}
void emu_enqueue_when(cudaStream_t s, const char *name, bool (*ready)(const void *ctx),
                      void (*run)(void *ctx), void (*drop)(void *ctx), void *ctx) {}

EmuCalls emu_calls; // it counts none
EmuLt emu_lt;
EmuLtSetup emu_lt_setup;
EmuNcclMood emu_nccl_mood;
int emu_nccl_open(void) {
    return 0;
}
void emu_nccl_version(int version) {}
EmuNcclCounts emu_nccl_counts(void) {
    return (EmuNcclCounts){0};
}
void emu_nccl_stuck(void) {}
