/* cuda_probes -- small kernels that each show what one instruction does: input numbers tell from
 * which element a result came. Each probe knows the results that the tables of the PTX ISA demand.
 *
 * The tests run the probes in the emulator (test_cuda_ptx_sm90.cu). On a device, build/cuda/probes
 * prints the results of the hardware, which are kept in tests/golden/sm90.txt. So the emulator is
 * compared with the instructions themselves, not with one reading of their description.
 */
#ifndef TESTS_CUDA_PROBES_H
#define TESTS_CUDA_PROBES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ProbeResult {
    int n, wrong;  // words of the result; those that differ from the tables
    uint64_t hash; // hash of all words
} ProbeResult;
typedef struct Probe {
    const char *name;
    ProbeResult (*run)(void); // called between device_open and device_close
    bool dies = false;        // a device ends this kernel with an error
} Probe;
extern const Probe probes[];
extern const int n_probes;

#endif
