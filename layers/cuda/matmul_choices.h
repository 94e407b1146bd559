/* matmul_choices -- the algorithms of matmuls that were found to be the fastest, of the library or
 * own, kept for all ranks and all later runs: a file of the cache folder (base/cache.h) for each
 * kind of device and version of the library.
 *
 * Who times algorithms holds the file; others wait, and then find what was chosen. So ranks of one
 * machine, and one run after another, take the same algorithms and have the same bits. Who holds it
 * may wait for nothing that another rank has still to do. Where there is no such folder every rank
 * chooses for itself.
 */
#ifndef LAYERS_CUDA_MATMUL_CHOICES_H
#define LAYERS_CUDA_MATMUL_CHOICES_H

#include <stdbool.h>
#include <stdint.h>

#include "layers/cuda/cublaslt.h"

enum { CHOICE_KEY = 192 }; // bytes of what a choice depends on, zeros at its end

typedef struct AlgorithmChoice {
    unsigned char key[CHOICE_KEY];
    LtAlgorithm algorithm; // of the library; where that does nothing, the config of matmul_sm90
    uint32_t done;         // what the library does with it: MatmulDone of matmul_plan.h
    uint32_t crc;          // of all before it
} AlgorithmChoice;

/* Local. Opens and holds the file for devices of this name; -1: there is none. */
int choices_hold(const char *device, uint64_t version);
void choices_let_go(int file);
/* Local. Looks c->key up and fills in the rest; the latest one counts. Damaged entries are none. */
bool choices_find(int file, AlgorithmChoice *c);
/* Local. Adds c, whose crc is made here. */
void choices_add(int file, AlgorithmChoice *c);

#endif
