/* detect -- what the ranks of this job run on: a tree of nodes, sockets, cores, GPUs, links; and a Machine. */
#ifndef PARALLEL_DETECT_H
#define PARALLEL_DETECT_H

#include "parallel/machine.h"

typedef struct NodeFacts {
    char name[64], cpu[64];            // host; model of the processor
    int sockets, numa, cores, threads; // cores that the job may use there; hardware threads
    int64_t memory;                    // bytes available
    int n_nics;
    struct {
        char name[16];
        int64_t mbit; // 0: not known
    } nic[8];
    int n_gpus;
    struct {
        char name[48];
        int64_t memory;
        int links; // NVLinks to other GPUs of the node
    } gpu[16];
} NodeFacts;

typedef struct RankFacts {
    int node;    // index
    int n_cores; // that this rank may use
    int first_core, socket;
    double speed; // of one small product, relative to the median of all ranks
} RankFacts;

typedef struct Detected {
    int n_ranks, n_nodes;
    NodeFacts *node;
    RankFacts *rank;
    int n_warnings;
    char warning[16][160]; // wrong bindings, stragglers
} Detected;

/* Collective over the world. Alike on all ranks. */
void detect(Detected *d, World *w, const Kernels *k, Team *team, bool bf16);
void detect_free(Detected *d);
/* Local. The tree, and what is wrong in it. */
void detect_print(const Detected *d, FILE *f);
/* Local, pure. Levels, memory and speeds where they are known; the rest by the presets for processors. */
void detect_machine(const Detected *d, Machine *m);
/* Local, pure. What a calibration depends on. */
void detect_key(const Detected *d, char key[256]);

/* Collective over the world. Measures the bandwidth between every pair of ranks and prints it as a matrix, by level:
 * ATP's hierarchical communication matrix (parallel/matrix.c). Rank 0 prints. */
void detect_matrix(World *w, FILE *f);

#endif
