/* coll_call -- builds the call of a collective of fp32 on contiguous blocks. For sums in place
 * there is coll_sum of parallel/comm/coll.h. */
#ifndef TESTS_COLL_CALL_H
#define TESTS_COLL_CALL_H

#include "parallel/comm/coll.h"

#define COLL_CALL(op_, rows_, cols_, src_, dst_, what_)                                            \
    ((CollCall){.op = (op_),                                                                       \
                .rows = (rows_),                                                                   \
                .cols = (cols_),                                                                   \
                .src = (src_),                                                                     \
                .dst = (dst_),                                                                     \
                .what = (what_)})

#endif
