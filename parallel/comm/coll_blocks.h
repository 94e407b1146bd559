/* coll_blocks -- the blocks of a call (coll_block) as the rows that a matmul reads or writes. */
#ifndef PARALLEL_COMM_COLL_BLOCKS_H
#define PARALLEL_COMM_COLL_BLOCKS_H

#include "layers/product.h"
#include "parallel/comm/coll.h"

/* Local. Of a call that has started: so many rows of each rank, beginning with those that are here
 * or, of a reduce_scatter, ending with those that stay here. A kernel sets `of`; where several use
 * the blocks, `done` is of the last alone. Life of t: until the call is waited for. */
RowBlocks coll_row_blocks(Ticket *t, int64_t rows);

#endif
