/* detect_parts -- what one process reads about its node, and the parts of detect. Internal to
 * detect*.c and their tests. Readers of files take the root folder of the system; "": this machine.
 *
 *   detect_node.c          Linux's files                       detect_warn.c     what is wrong
 *   detect_machine.c       the Machine                         detect_print.c    the tree
 *   detect_links.c         latency and bandwidth of links; which nodes stand together
 */
#ifndef PARALLEL_PLAN_DETECT_PARTS_H
#define PARALLEL_PLAN_DETECT_PARTS_H

#include <sched.h>

#include "parallel/plan/detect.h"

/* Core and socket of every hardware thread, by its number in a cpu_set_t. */
typedef struct Cpus {
    struct {
        int16_t core, socket; // core -1: no such hardware thread
    } cpu[CPU_SETSIZE];
} Cpus;

/* Local. Reads the files; cores and sockets are numbered from 0. False: the files do not say. */
bool cpus_sysfs(Cpus *c, const char *root);
/* Local. Hardware threads of this machine, read once. If the files do not say, every hardware
 * thread is a core of a single socket. */
const Cpus *cpus_here(void);
/* Local. The hardware threads usable by this process if it were not bound. */
void cpus_allowed(cpu_set_t *set);

/* Local, pure. Counts sockets, cores and threads of a node; cores of a rank. */
void node_cpus(NodeFacts *n, const Cpus *c, const cpu_set_t *allowed);
void rank_cores(RankFacts *r, const Cpus *c, const cpu_set_t *mine);
static inline bool rank_has(const RankFacts *r, int core) {
    return r->core[core / 64] >> core % 64 & 1;
}
/* Local, pure. Leaves one hardware thread of each core in a set. */
void cpus_one_per_core(const Cpus *c, cpu_set_t *set);

/* Local, pure. seconds[i]: of an exchange between nodes 2^i apart. The i from which on
 * exchanges slow down most, and clearly, as they leave a rack of 2^i nodes; 0: none. */
int detect_rack_step(const double *seconds, int n);

/* Local, pure. Fills d->warning. */
void detect_warn(Detected *d);
/* Local, pure. Number of ranks on a node; on the node that has the fewest. */
int detect_ranks(const Detected *d, int node);
int detect_fewest(const Detected *d);
/* Local, pure. Are the ranks of each node consecutive? */
bool detect_in_blocks(const Detected *d);

#endif
