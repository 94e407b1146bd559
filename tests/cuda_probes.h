/* cuda_probes -- small kernels that show what an instruction does, with numbers that tell where
 * they came from, and what they should give by the tables of the PTX ISA.
 *
 * The tests run them in the emulator (test_cuda_ptx_sm90.cu). On a device, build/cuda/probes prints
 * what the hardware gives, as tests/golden/sm90.txt: so the emulator is compared with the
 * instructions themselves, not with one reading of their description.
 */
#ifndef TESTS_CUDA_PROBES_H
#define TESTS_CUDA_PROBES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ProbeResult {
    int n, wrong;  // words that came out, those that should be others
    uint64_t hash; // of all
} ProbeResult;
typedef struct Probe {
    const char *name;
    ProbeResult (*run)(void); // between device_open and device_close
    bool dies = false;        // the kernel is one that a device ends
} Probe;
extern const Probe probes[];
extern const int n_probes;

#endif
