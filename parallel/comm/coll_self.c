/* coll_self -- groups of one rank: every collective is a copy, or nothing if src is dst. */
#include "parallel/comm/coll_backend.h"

static void self_start(Comm *c, uint64_t number, const CollCall *call) {
    (void)number;
    if (call->src == call->dst || coll_elements(call) == 0) return;
    int64_t bytes = coll_block_bytes(call);
    coll_copy(c->world->team, call->dst, bytes, call->src, bytes, 1, bytes);
}

const CollBackend coll_self = {.name = "self", .start = self_start};

World *world_self_open(void) {
    return world_create(&coll_self, 0, 1, NULL);
}
