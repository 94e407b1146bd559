/* reduce -- sums, gathers and copies of matrices in several places: the data movement of
 * collectives between ranks that access each other's memory. Streams are the caller's. Addresses
 * may be of any device that this thread's device can access.
 *
 *     reduce   dst = (src_0 + src_1) + (src_2 + src_3) ...    a tree; every sum is rounded to the
 *              dtype. An element is read from all src before any dst is written: dst may be a src
 *     gather   dst_i = src_i
 *     blocks   a gather of any number of blocks at equal distances
 *
 * Bound by memory: n_src + n_dst accesses for each element, two for each that is gathered.
 */
#ifndef LAYERS_CUDA_REDUCE_H
#define LAYERS_CUDA_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "layers/cuda/device.h"

enum { REDUCE_MOST = 64 };

/* Rows of so many elements; those of a src lie src_ld apart, those of a dst touch. */
typedef struct Reduce {
    int n_src, n_dst;
    int64_t rows, cols, src_ld;
    const void *src[REDUCE_MOST];
    void *dst[REDUCE_MOST];
} Reduce;

/* The same in bytes; those of a dst lie dst_ld apart. */
typedef struct Gather {
    int n;
    int64_t rows, cols, dst_ld;
    int64_t src_ld[REDUCE_MOST];
    const void *src[REDUCE_MOST];
    void *dst[REDUCE_MOST];
} Gather;

/* Of the first block; rows lie ld bytes apart, blocks `apart`. */
typedef struct Blocks {
    char *p;
    int64_t ld, apart;
} Blocks;

typedef enum { REDUCE_BF16, REDUCE_F32, REDUCE_F64, REDUCE_I32 } ReduceType;

/* Local. One kernel, put into s. */
void device_reduce(Stream s, const Reduce *f, ReduceType type);
void device_gather(Stream s, const Gather *g);
/* Local. n blocks of rows x cols bytes: a kernel for every REDUCE_MOST of them. */
void device_move_blocks(Stream s, int n, int64_t rows, int64_t cols, Blocks dst, Blocks src);

#endif
