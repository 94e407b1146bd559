/* device -- build/cuda/run_tests: the tests of CUDA kernels where a GPU runs them, compiled by
 * nvcc. What they ask of the emulator a GPU does as it likes: how threads and streams follow each
 * other, how many devices there are. What only an emulator does for them (NEEDS_EMULATION) they
 * leave out. */
#include "tests/emu/calls.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_cublaslt.h"
#include "tests/emu/emu_nccl.h"
#include "tests/emu/runtime.h"
#include "tests/test.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" // what it is told it does not obey

const bool test_on_device = true;

void emu_set_order(EmuOrder order, unsigned seed) {}
void emu_set_late(bool late) {}
void emu_set_shuffle(unsigned seed) {}
void emu_set_devices(int n) {}
void emu_set_peers(bool reach) {}
void emu_set_ipc_within(bool yes) {}
void emu_lose_flags(bool lost) {}
void emu_forget_flags(bool forgotten) {}
void emu_forget_wait(int n) {}
void emu_enqueue_when(cudaStream_t s, const char *name, bool (*ready)(const void *ctx),
                      void (*run)(void *ctx), void (*drop)(void *ctx), void *ctx) {}

EmuCalls emu_calls; // it counts none
EmuLt emu_lt;
void emu_lt_slow(int algorithm) {}
void emu_lt_slow_epilogue(int epilogue) {}
void emu_lt_mood(EmuLtMood mood) {}
void emu_nccl_mood(EmuNcclMood mood) {}
int emu_nccl_open(void) {
    return 0;
}
void emu_nccl_version(int version) {}
EmuNcclCounts emu_nccl_counts(void) {
    return (EmuNcclCounts){0};
}
void emu_nccl_stuck(void) {}
