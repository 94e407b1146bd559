/* detect -- what the ranks of this job run on: a tree of nodes, sockets, cores, GPUs, links; and a Machine.
 *
 *     2 nodes, 4 ranks (mpi) of 1 thread
 *     h0        Intel Xeon, 1 socket, 2 cores, 23.1 GiB free, eth0 1 Gbit/s
 *               rank 0  core 0     rank 1  core 1
 *     h1        like h0, ranks 2-3
 *     racks of 2 nodes: 0.95 Gbit/s from node to node, 0.19 out of a rack            (from 4 nodes on, where it shows)
 *
 * Cores of a node are numbered along its sockets from 0, as mpirun --report-bindings does; a core with several
 * hardware threads counts once.
 */
#ifndef PARALLEL_DETECT_H
#define PARALLEL_DETECT_H

#include "parallel/gpu.h"
#include "parallel/machine.h"

enum { NODE_CORES = 512, MAX_WARNINGS = 16 };

typedef struct NodeFacts {
    char name[64], cpu[64];            // host; model of the processor
    int sockets, numa, cores, threads; // that the job may use there; hardware threads
    int quota;      // cores' worth of time that a control group grants to all ranks; 0: no limit
    int64_t memory; // bytes available
    int n_nics;
    struct {
        char name[16];
        int64_t mbit; // 0: not known
    } nic[8];
    int n_gpus;
    struct {
        char name[48];
        int64_t memory;
        int links;       // NVLinks to other GPUs of the node
        double flops[2]; // of fp32 and bf16 at best (parallel/gpu.h); 0: not known
    } gpu[16];
} NodeFacts;

typedef struct RankFacts {
    int node;    // index
    int n_cores; // that this rank may use
    int first_core, socket;
    int sockets;                    // over which its cores lie
    int threads;                    // of its team
    double speed;                   // of one small product, relative to the median of all ranks
    uint64_t core[NODE_CORES / 64]; // bit c: it may use core c
} RankFacts;

typedef struct Detected {
    int n_ranks, n_nodes;
    NodeFacts *node;
    RankFacts *rank;
    char backend[16], kernels[16]; // of collectives; set of instructions
    bool bf16;
    double flops; // FLOP/s of the median rank's small product; 0: not measured
    struct {
        int nodes; // of a rack: neighbours that reach each other quicker than others; 0: no racks
        double inside, between; // bytes/s out of a node to one of its rack, and out of a rack
    } rack;
    int n_warnings;
    char warning[MAX_WARNINGS][200]; // wrong bindings, stragglers
} Detected;

/* Collective over the world. Alike on all ranks. */
void detect(Detected *d, World *w, const Kernels *k, Team *team, bool bf16);
void detect_free(Detected *d);
/* Local. The tree, and what is wrong in it. */
void detect_print(const Detected *d, FILE *f);
/* Local, pure. Levels, memory and speeds where they are known; the rest by the preset for processors. */
void detect_machine(const Detected *d, Machine *m);
/* The devices of ranks that compute on GPUs, which are alike. */
typedef struct Gpus {
    GpuFacts facts;
    int64_t memory;     // bytes of one that are free
    int sharing;        // ranks of one
    bool linked;        // by NVLink
    double measured[2]; // FLOP/s of products in fp32, bf16, where nobody knows its peak; else 0
} Gpus;
/* Local, pure. The Machine of such ranks, as data sheets have it. */
void detect_gpu_machine(const Detected *d, const Gpus *g, Machine *m);
/* Local. What a calibration depends on, this very program included, in letters that a file's name may have. */
void detect_key(const Detected *d, char key[256]);

/* Collective over the world. Measures the bandwidth between every pair of ranks and prints it as a matrix, by level:
 * ATP's hierarchical communication matrix (parallel/matrix.c). Rank 0 prints. */
void detect_matrix(World *w, FILE *f);

#endif
