/* reduce -- sums, gathers and copies of matrices in the memory of several devices: the data
 * movement of collectives between ranks that access each other's memory. The caller gives the
 * stream. Addresses may be of any device that this thread's device can access.
 *
 *     reduce   dst = (src_0 + src_1) + (src_2 + src_3) ...    a tree; every sum is rounded to the
 *              dtype. An element is read from all src before any dst is written: dst may be a src
 *     gather   dst_i = src_i
 *     blocks   a gather of any number of blocks at equal distances
 *
 * Bound by memory: n_src + n_dst accesses for each reduced element, two for each gathered one.
 */
#ifndef LAYERS_CUDA_REDUCE_H
#define LAYERS_CUDA_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "layers/cuda/device.h"

enum { REDUCE_MOST = 64 };

/* Matrices of rows x cols elements. Rows of a src are src_ld elements apart; rows of a dst are
 * contiguous. */
typedef struct Reduce {
    int n_src, n_dst;
    int64_t rows, cols, src_ld;
    const void *src[REDUCE_MOST];
    void *dst[REDUCE_MOST];
} Reduce;

/* Matrices of rows x cols bytes. Rows of src i are src_ld[i] bytes apart, rows of a dst dst_ld. */
typedef struct Gather {
    int n;
    int64_t rows, cols, dst_ld;
    int64_t src_ld[REDUCE_MOST];
    const void *src[REDUCE_MOST];
    void *dst[REDUCE_MOST];
} Gather;

/* A sequence of blocks. p: the first block. Its rows are ld bytes apart, blocks `stride` bytes. */
typedef struct Blocks {
    char *p;
    int64_t ld, stride;
} Blocks;

typedef enum { REDUCE_BF16, REDUCE_F32, REDUCE_F64, REDUCE_I32 } ReduceType;

/* Local. Puts one kernel into stream s. */
void device_reduce(Stream s, const Reduce *f, ReduceType type);
void device_gather(Stream s, const Gather *g);
/* Local. Copies n blocks of rows x cols bytes, by one kernel for every REDUCE_MOST of them. */
void device_move_blocks(Stream s, int n, int64_t rows, int64_t cols, Blocks dst, Blocks src);

#endif
