/* detect_parts -- what one process reads about its node, and what detect makes of it. For detect*.c and their
 * tests: readers of files take the folder in which the system's root lies, "" for this machine.
 *
 *   detect_node.c          Linux's files                       detect_warn.c     what is wrong
 *   detect_hwloc.c         hwloc, or detect_hwloc_absent.c     detect_print.c    the tree
 *   detect_nvml.c          NVIDIA's library, if it is there    detect_machine.c  the Machine
 *   detect_racks.c         which nodes stand together
 */
#ifndef PARALLEL_DETECT_PARTS_H
#define PARALLEL_DETECT_PARTS_H

#include <sched.h>

#include "parallel/detect.h"

/* Where every hardware thread is, by its number in a cpu_set_t. */
typedef struct Cpus {
    struct {
        int16_t core, socket, numa; // core: -1 where there is no such hardware thread
    } cpu[CPU_SETSIZE];
} Cpus;

/* Local. False where files (the build: hwloc) do not say. While they read, .core is any hardware thread of
 * the core; cpus_number turns that into numbers of cores, and numbers sockets from 0. */
bool cpus_sysfs(Cpus *c, const char *root);
bool cpus_hwloc(Cpus *c);
void cpus_number(Cpus *c);
/* Local. Of this machine: by hwloc, else by files, else every hardware thread is a core of one socket. Read once. */
const Cpus *cpus_here(void);
/* Local. The hardware threads that this process might use when nobody bound it. */
void cpus_allowed(cpu_set_t *set);

/* Local, pure. Counts of sockets, cores, threads of a node; the place of a rank. */
void node_cpus(NodeFacts *n, const Cpus *c, const cpu_set_t *allowed);
void rank_cores(RankFacts *r, const Cpus *c, const cpu_set_t *mine);
static inline bool rank_has(const RankFacts *r, int core) {
    return r->core[core / 64] >> core % 64 & 1;
}
/* Local. What stays zero or empty is not known. */
void node_model(NodeFacts *n, const char *root);
void node_nics(NodeFacts *n, const char *root);
void node_quota(NodeFacts *n, const char *root);
/* Local. library: its file ("libnvidia-ml.so.1"); without it, or without a driver, there are no GPUs. */
void node_gpus(NodeFacts *n, const char *library);

/* Collective over the world. Fills d->rack: measured in less than a second. */
void detect_racks(Detected *d, World *w);
/* Local, pure. seconds[n] of exchanges between nodes that are 2^i apart: from which i on they are clearly slower; 0: none. */
int detect_rack_step(const double *seconds, int n);

/* Local, pure. Fills d->warning. */
void detect_warn(Detected *d);
/* Local, pure. How many ranks are on a node. */
int detect_ranks(const Detected *d, int node);
/* Local, pure. Are the ranks of each node consecutive? */
bool detect_in_blocks(const Detected *d);
/* Local, pure. "0-3", "0 2 4", shortened by "..." where it does not fit; in order. */
void detect_list(char *text, size_t n, const int *item, int n_items);
/* Local, pure. Whom a rank of p meets in a round of p - 1 (p even) or p; -1: nobody. */
int matrix_partner(int rank, int p, int round);

#endif
