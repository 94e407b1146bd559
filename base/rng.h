/* rng -- random numbers as a function of (seed, stream, index): Philox4x32-10.
 *
 * There is no state to carry: initial weights, shuffles and samples are functions of global
 * indices, so they are the same on any number of ranks and threads and a resumed run needs to
 * remember nothing. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
 * 3", SC11.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* Four words that depend on all of (seed, stream, index). */
void rng_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);
/* 64 bits, uniform. */
uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, 1), 53 bits. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* x[i], for the global elements first .. first+n-1: normal with mean 0 and standard deviation std
 * (Box-Muller on words). */
void rng_normal(float *x, int64_t n, uint64_t first, float std, uint64_t seed, uint64_t stream);
/* rng_stream: a stream number from a name, e.g. of a tensor (FNV-1a). rng_hash: continues hash h
 * over the n bytes at p. Equal hashes mean equal texts, unless somebody searches for a
 * collision. */
uint64_t rng_stream(const char *name);
uint64_t rng_hash(uint64_t h, const void *p, size_t n);
/* Position of `index` in a random permutation of 0 .. n-1 that depends on (seed, stream) alone.
 * O(1), no table. */
uint64_t rng_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t stream);

#endif
