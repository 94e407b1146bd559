#include "base/group.h"

#include <string.h>

#include "base/mem.h"

Group group_alone(void) {
    return (Group){.size = 1};
}

void group_barrier(const Group *g) {
    if (g->size > 1) g->barrier(g->ctx);
}

void group_all_gather(const Group *g, const void *mine, size_t n_bytes, void *all) {
    if (g->size > 1)
        g->all_gather(g->ctx, mine, n_bytes, all);
    else
        memcpy(all, mine, n_bytes);
}

bool group_all(const Group *g, bool ok) {
    unsigned char mine = ok, *all = mem_alloc((size_t)g->size);
    bool yes = true;
    group_all_gather(g, &mine, 1, all);
    for (int i = 0; i < g->size; i++) yes &= all[i];
    mem_free(all);
    return yes;
}
