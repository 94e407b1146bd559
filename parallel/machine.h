/* machine -- what a cluster costs: described in a few numbers, or measured.
 *
 * Levels nest, innermost first: ranks of one socket, of one node, of all nodes. What two ranks send each
 * other crosses the level of the smallest unit that holds both. A unit reaches the world outside
 * through a port, which all its ranks share.
 *
 *     h100     level 0  "NVLink"     8 ranks       450 GB/s a rank
 *              level 1  "network"    8 x nodes      50 GB/s a rank, 400 GB/s a node
 *
 * A work costs max(flops / rate, bytes / memory bandwidth) + the time of a call; a collective what its
 * slowest level costs (machine.c has the formulas). Where parallel/calibrate.h has measured, its
 * tables go first.
 */
#ifndef PARALLEL_MACHINE_H
#define PARALLEL_MACHINE_H

#include <stdio.h>

#include "base/die.h"
#include "parallel/quantity.h"
#include "parallel/tape.h"

enum { MAX_LEVELS = 4 };

/* How collectives travel: every rank sends to every other, or inside nodes first (the trainer's own with processes and
 * threads), or in rings and trees of nodes (NCCL). */
typedef enum { TRAVEL_DIRECT, TRAVEL_RING } Travel;

typedef struct Level {
    char name[24];
    int ranks;        // in one unit of this level
    double latency;   // seconds of one message
    double rank_rate; // bytes/s that one rank can send at this level
    double
        port_rate; // bytes/s into and out of a unit of the level below, all its ranks together; 0: no limit
} Level;

typedef struct Calibration Calibration;

struct Machine {
    char name[48];
    int ranks, nodes, ranks_per_node;
    int n_levels;
    Level level[MAX_LEVELS]; // innermost first; the last one holds all ranks
    double flops[2];         // FLOP/s that a rank's large products reach, in fp32 and bf16
    double flops_half;       // size of the smallest dimension of a product that reaches half of it
    double memory_rate;      // bytes/s a rank
    double call;             // seconds of a call of a kernel
    int64_t memory;          // bytes a rank may take; 0: not known
    int threads;     // of a rank's team, for which flops and memory_rate hold; fewer do less
    double slowdown; // of kernels while a collective is under way: 1 is none
    double slowest;  // time of the slowest rank's kernels, by this rank's: 1 is alike
    double
        crowd; // time of kernels when all ranks compute at once, by that of one alone: 2 where two
               // ranks share each core; 0 or 1: none do
    Travel travel;
    bool
        gpu; // the ranks' kernels are those of CUDA: parallel/price.h takes their words and workspaces
    const Calibration *measured; // or NULL
};

/* Local, pure. Seconds. */
double machine_work(const Machine *m, const Work *w);
/* As described a collective costs the least of some lines in its bytes: c(n) >= c(0) + n lim c(k)/k. */
double machine_send(const Machine *m, const TapeGroup *g, const Send *s);
/* Local, pure. Seconds of the same where replicas send in turns (machine.c). all: machine_send of it. */
double machine_send_in_turn(const Machine *m, const TapeGroup *g, const Send *s, double all);
/* Local, pure. The share of a collective's time for bytes that is left then; 1: replicas share no port. */
double machine_turn(const Machine *m, const TapeGroup *g, CollOp op);
/* Local, pure. Whose words and workspaces a step there has, for PriceShape; NULL: this processor's. */
const Kernels *machine_kernels(const Machine *m, bool bf16);
/* Local, pure. Has a rank room for so many bytes? */
static inline bool machine_fits(const Machine *m, int64_t bytes) {
    return m->memory == 0 || bytes <= m->memory;
}
/* Local, pure. Time of kernels while such a collective is under way, by that of them alone; 1: it takes nothing from them. */
double machine_beside(const Machine *m, const TapeGroup *g, const Send *s);
/* Local, pure. The level whose links a group uses: that of the smallest unit which holds it. */
int machine_level(const Machine *m, const TapeGroup *g);

/* Local, pure. Reads a description ("key = value" lines; machine_print writes one): false with line and reason. */
bool machine_parse(Machine *m, const char *text, size_t n, Err *e);
/* Local. FILE, or NAME:NODES of a preset: h100 a100 v100 consumer cpu. False with the nearest name. */
bool machine_open(Machine *m, const char *file_or_preset, Err *e);
void machine_print(const Machine *m, FILE *f);

/* The numbers of a description, by the names that they have there; those of a level as "network.port_rate". */
typedef struct MachineNumber {
    char name[40];
    Quantity as;
} MachineNumber;
/* Local, pure. The i-th of them; false: there are no more. */
bool machine_number(const Machine *m, int i, MachineNumber *out);
/* Local, pure. Changes it, and what follows from it: all ranks, and levels of whole nodes, grow with a node and with their
 * number. False where no machine is like that. */
bool machine_set(Machine *m, int i, double x, Err *e);

#endif
