/* Where hardware threads are, by hwloc: on systems other than Linux, too, and as HWLOC_XMLFILE or
 * HWLOC_SYNTHETIC in the environment say. */
#include <hwloc.h>
#include <string.h>

#include "parallel/plan/detect_parts.h"

static void place(Cpus *c, hwloc_topology_t t, hwloc_obj_t pu) {
    unsigned i = pu->os_index;
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, pu);
    hwloc_obj_t socket = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_PACKAGE, pu);
    int numa = hwloc_bitmap_first(pu->nodeset);
    if (i >= CPU_SETSIZE) return;
    c->cpu[i].core = (int16_t)hwloc_bitmap_first(core ? core->cpuset : pu->cpuset);
    c->cpu[i].socket = (int16_t)(socket ? socket->logical_index : 0);
    c->cpu[i].numa = (int16_t)(numa >= 0 && numa < CPU_SETSIZE ? numa : 0);
}

bool cpus_hwloc(Cpus *c) {
    hwloc_topology_t t;
    bool ok = hwloc_topology_init(&t) == 0;
    if (!ok) return false;
    hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    ok = hwloc_topology_load(t) == 0;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < CPU_SETSIZE; i++) c->cpu[i].core = -1;
    for (hwloc_obj_t pu = NULL; ok && (pu = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_PU, pu));)
        place(c, t, pu);
    hwloc_topology_destroy(t);
    if (ok) cpus_number(c);
    return ok;
}
