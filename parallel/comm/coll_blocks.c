#include "parallel/comm/coll_blocks.h"

#include "parallel/comm/coll_backend.h"

static Act *begin(void *ticket, int block) {
    return coll_block(*(Ticket *)ticket, block);
}
static void done(void *ticket, int block) {
    coll_block_done(*(Ticket *)ticket, block);
}

RowBlocks coll_row_blocks(Ticket *t, int64_t rows) {
    const Comm *c = t->comm;
    bool gather = c->open[t->number % COLL_IN_FLIGHT].call.op == COLL_ALL_GATHER;
    RowBlocks blocks = {.rows = rows,
                        .n = c->size,
                        .first = (c->rank + !gather) % c->size,
                        .begin = begin,
                        .done = done,
                        .ctx = t};
    if (gather) blocks.flags = coll_flags(*t, &blocks.said);
    return blocks;
}
