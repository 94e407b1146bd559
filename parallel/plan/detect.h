/* detect -- the hardware of the ranks of this job: a tree of nodes, sockets, cores, GPUs and links;
 * and the Machine (machine.h) that follows from it.
 *
 *     4 nodes, 8 ranks (mpi) of 1 thread, avx2 kernels
 *     h0        Intel Xeon, 1 socket, 2 cores, 23.1 GiB free
 *               rank 0  core 0     rank 1  core 1
 *     h1 ... h3 like h0: ranks 2-7
 *     racks of 2 nodes: 0.95 Gbit/s from node to node, 0.19 out of a rack    (measured links)
 *
 * Cores of a node are numbered along its sockets from 0, as mpirun --report-bindings does; a core
 * with several hardware threads counts once.
 */
#ifndef PARALLEL_PLAN_DETECT_H
#define PARALLEL_PLAN_DETECT_H

#include <limits.h>

#include "parallel/plan/gpu.h"
#include "parallel/plan/machine.h"

enum { NODE_CORES = 1024, MAX_WARNINGS = 16 }; // a cpu_set_t holds no more hardware threads

typedef struct NodeFacts {
    char name[HOST_NAME_MAX + 1]; // of the host
    char cpu[64];                 // model of the processor
    int sockets, cores, threads;  // usable by the job; hardware threads
    int quota;      // CPU quota of the control group in cores, for all ranks; 0: no limit
    int64_t memory; // available bytes
} NodeFacts;

typedef struct RankFacts {
    int node;    // index
    int n_cores; // usable by this rank
    int first_core, socket;
    int sockets;                    // sockets of its cores
    int threads;                    // of its team
    double speed;                   // rate of a small matmul, relative to the median of all ranks
    uint64_t core[NODE_CORES / 64]; // bit c: core c is usable
} RankFacts;

/* Measured cost of a message between two ranks (detect_links); zero: unknown. */
typedef struct LinkCost {
    double latency; // seconds
    // bytes/s: of a rank inside a node; else out of a node to its rack, or out of a rack
    double rate;
} LinkCost;
typedef struct Links {
    int rack_nodes; // nodes of a rack, which have faster links to each other; 0: no racks
    LinkCost node, rack, network;
} Links;

typedef struct Detected {
    int n_ranks, n_nodes;
    NodeFacts *node;
    RankFacts *rank;
    char backend[16], kernels[16]; // backend of collectives; kernel set
    bool on_devices;               // ranks compute on GPUs
    // FLOP/s of a small matmul on the median rank in fp32 and bf16; 0: not measured
    double flops[2];
    Links links;
    int n_warnings;
    char warning[MAX_WARNINGS][200]; // of bad bindings, stragglers, ...
} Detected;

/* Local, before the team is made. Binds this process to one hardware thread of each core that it
 * may use, if the n ranks that may use the same cores can divide them evenly. (Two hardware threads
 * of a core share its multiply units, and the caches for which a matmul's blocks are sized.) */
void detect_use_cores(int n);
/* Collective over the world. The CPU quota of all ranks of this node together, in cores; 0: no
 * limit. Ranks whose limits are set by different control groups (a container for each rank) do not
 * share a quota: each of these containers counts like that of this rank. root: folder of the
 * system's files, "" for this machine. */
int detect_quota(World *w, const char *root);

/* Collective over the world. Detects the hardware; the result is equal on all ranks. k NULL: ranks
 * compute on GPUs, and no processor is measured. */
void detect(Detected *d, World *w, const Kernels *k, Team *team, bool bf16);
void detect_free(Detected *d);
/* Collective over the world. Measures d->links: in less than a second, or a few exchanges on slow
 * links. */
void detect_links(Detected *d, World *w);
/* Local. Prints the tree and its warnings. */
void detect_print(const Detected *d, FILE *f);
/* Local, pure. The Machine: levels, memory and rates as far as known. Links as measured;
 * the rest from the CPU preset. */
void detect_machine(const Detected *d, Machine *m);
/* The GPUs of the ranks, all of the kind of the slowest. Ranks share it: it holds no pointers. */
typedef struct Gpus {
    DeviceFacts facts;  // name, capability, multiprocessors and clock count
    int64_t memory;     // free bytes of the one with the least
    int sharing;        // ranks per GPU
    double measured[2]; // FLOP/s of matmuls in fp32, bf16 if the peak is unknown; else 0
} Gpus;
/* Local, pure. The Machine of ranks on these GPUs: the most similar preset, scaled by data
 * sheets. */
void detect_gpu_machine(const Detected *d, const Gpus *g, Machine *m);
/* Local. The key of a calibration: hardware names, bindings, options and this build. Nothing
 * measured, which would change the key at every start. */
void detect_key(const Detected *d, char key[256]);

/* Local, pure. Formats a sorted list: "0-3", "0 2 4"; ends in "..." if it does not fit. */
void detect_list(char *text, size_t n, const int *item, int n_items);

#endif
