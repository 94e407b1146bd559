/* matmul_choices -- the fastest algorithms of matmuls, of the library or of own kernels, kept for
 * all ranks and all later runs: a file in the cache folder (base/cache.h) for each kind of device
 * and version of the library.
 *
 * The rank that times algorithms locks the file. Others wait, and then find the choices. So the
 * ranks of one machine, and one run after another, take the same algorithms and have the same bits.
 * While a rank holds the lock it may not wait for work that another rank has still to do. Without a
 * cache folder every rank chooses for itself.
 */
#ifndef LAYERS_CUDA_MATMUL_CHOICES_H
#define LAYERS_CUDA_MATMUL_CHOICES_H

#include <stdbool.h>
#include <stdint.h>

#include "layers/cuda/cublaslt.h"

enum { CHOICE_KEY = 192 }; // bytes of the key, with zeros at its end

typedef struct AlgorithmChoice {
    unsigned char key[CHOICE_KEY];
    LtAlgorithm algorithm; // of the library; with DONE_NOTHING the config of the own kernel
    uint32_t done; // MatmulDone of matmul_plan.h: the part of the matmul that the library does
    uint32_t crc;  // CRC-32C of all bytes before it
} AlgorithmChoice;

/* Local. Opens and locks the file for devices of this name; -1: there is no file. choices_unlock
 * unlocks and closes it. */
int choices_lock(const char *device, uint64_t version);
void choices_unlock(int file);
/* Local. Looks up c->key and fills in the rest of c from the latest entry with this key; damaged
 * entries are skipped. */
bool choices_find(int file, AlgorithmChoice *c);
/* Local. Appends c, and sets c->crc. */
void choices_add(int file, AlgorithmChoice *c);

#endif
