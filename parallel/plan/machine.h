/* machine -- cost model of a cluster: described by a few numbers, or measured.
 *
 * Levels are nested units, innermost first: the ranks of a socket, of a node, of all nodes. A
 * message between two ranks uses the level of the smallest unit that holds both. A unit is
 * connected to the level outside it by a port, which its ranks share.
 *
 *     h100     level 0  "NVLink"     8 ranks       370 GB/s a rank
 *              level 1  "network"    8 x nodes      46 GB/s a rank, 368 GB/s a node
 *
 * A kernel costs max(FLOPs / rate, bytes / memory bandwidth) + the time of a call; a bf16 matmul of
 * a GPU costs the waves of its tiles (gpu_matmul.h). A collective costs the time of its slowest
 * level (formulas: machine.c). Measured tables (calibrate.h) take precedence.
 */
#ifndef PARALLEL_PLAN_MACHINE_H
#define PARALLEL_PLAN_MACHINE_H

#include <stdio.h>

#include "base/die.h"
#include "parallel/comm/coll.h"
#include "parallel/mesh/layout.h"
#include "parallel/plan/quantity.h"
#include "parallel/plan/work.h"

enum { MAX_LEVELS = 4 }; // of a cluster: sockets, nodes, ...

/* One collective call as numbers, as Work is one kernel call. bytes: of the whole tensor (dst of
 * all_gather, src of reduce_scatter, else the buffer). */
typedef struct Collective {
    CollOp op;
    int64_t bytes;
} Collective;

/* The ranks of a collective. */
typedef struct CollGroup {
    Placement place;    // of `size` ranks; of more for copies of key heads that do not divide a
                        // factor of the mesh
    Placement replicas; // of this group along d; n = 0: the group itself lies along d
    int size, rank;     // rank: within the group, of the rank that is priced
    char label[12];     // the axes; "kv": copies of key heads; "all"
} CollGroup;

/* Algorithms of collectives. DIRECT (threads, MPI): every rank sends to every other, or first
 * inside nodes. RING (NCCL): rings, and trees of nodes. */
typedef enum { ALGORITHM_DIRECT, ALGORITHM_RING } CollAlgorithm;

typedef struct Level {
    char name[24];
    int ranks;        // in one unit of this level
    double latency;   // seconds per message
    double rank_rate; // bytes/s that one rank can send
    // bytes/s in and out of a unit of the level below, shared by its ranks; 0: no limit
    double port_rate;
} Level;

typedef struct Calibration Calibration;

typedef struct Machine {
    char name[64];
    int ranks, nodes, ranks_per_node;
    int n_levels;
    Level level[MAX_LEVELS]; // innermost first; the last one holds all ranks
    double flops[2];         // FLOP/s of large matmuls of a rank, in fp32 and bf16
    double flops_half;       // smallest dimension of a matmul that reaches half of flops
    int sms;                 // multiprocessors of a GPU: its bf16 matmuls are priced by their
                             // waves (gpu_matmul.h), not by flops_half; 0: unknown
    double memory_rate;      // bytes/s per rank
    double call;             // seconds of a kernel call
    int64_t memory;          // bytes available per rank; 0: unknown
    int threads;             // team size for which flops and memory_rate hold
    double slowdown;         // factor of kernel time while a collective is in flight; 1: none
    double slowest;          // kernel time of the slowest rank relative to this rank
    // oversubscription: kernel time when all ranks compute, relative to one alone: 2 if two ranks
    // share each core; 0 or 1: none
    double oversubscription;
    CollAlgorithm algorithm;
    // CUDA kernels: parallel/plan/price.h uses their element sizes and workspaces
    bool gpu;
    int capability;   // compute capability of a GPU, 90 for 9.0: the tiles of its matmuls
    bool low_latency; // made by machine_low_latency
    const Calibration *measured; // cost tables; NULL: described only
} Machine;

/* Local, pure. Seconds of a kernel call. */
double machine_work(const Machine *m, const Work *w);
/* Local, pure. Seconds of a collective. By description they are the least f(n) of some lines in its
 * bytes n, so f(n) >= f(0) + n lim f(k)/k. */
double machine_collective(const Machine *m, const CollGroup *g, const Collective *c);
/* Local, pure. Seconds of a collective while the other replicas leave it the ports that they share
 * (machine.c). all: its machine_collective, with all replicas at once. */
double machine_collective_in_turn(const Machine *m, const CollGroup *g, const Collective *c,
                                  double all);
/* Local, pure. The share of the time for bytes that remains in turns; 1: replicas share no port. */
double machine_turn(const Machine *m, const CollGroup *g, CollOp op);
/* Local, pure. Is a latency between ranks of the group above 30 us? Then it is longer than the CPU
 * time of a message, and for the rest of it links and CPUs are free for other collectives. False
 * for rings too, whose collectives run one after the other in a stream of a device. */
bool machine_high_latency(const Machine *m, const CollGroup *g);
/* Local, pure. The same machine with latencies of at most 30 us. A collective on it takes the time
 * for which links and CPUs are busy: that of the formula, or, if less, what was measured beyond the
 * time of no bytes. (Where latency is high TCP may have been slow when the rate was measured.) */
Machine machine_low_latency(const Machine *m);
/* Local, pure. PriceShape.kernels for this machine: CUDA's table of sizes, or NULL. */
const Kernels *machine_kernels(const Machine *m, bool bf16);
/* Local, pure. Do these bytes fit into the memory of a rank? */
static inline bool machine_fits(const Machine *m, int64_t bytes) {
    return m->memory == 0 || bytes <= m->memory;
}
/* Local, pure. Does a group span nodes? By ranks_per_node, which all ranks know alike; a node may
 * have more. */
bool machine_across(const Machine *m, const CollGroup *g);
/* Local, pure. Time of kernels while a collective of the group is in flight, relative to kernels
 * alone; 1: it does not slow them. */
double machine_slowdown(const Machine *m, const CollGroup *g);
/* Local, pure. Do two groups have equally many ranks in the units of every level? Then a collective
 * costs the same in both. */
bool machine_alike(const Machine *m, const CollGroup *a, const CollGroup *b);
/* Local, pure. Index of the level whose units are the smallest that hold the group. */
int machine_level(const Machine *m, const CollGroup *g);

/* Local, pure. Reads a description of "key = value" lines (machine_file.c has an example). False,
 * with line and reason, if malformed. */
bool machine_parse(Machine *m, const char *text, size_t n, Err *e);
/* Local. Reads FILE, or a preset NAME:NODES: h200 h100 a100 v100 consumer cpu. False, with the
 * nearest name, if unknown. */
bool machine_open(Machine *m, const char *file_or_preset, Err *e);

/* A number of a description: its name, "network.port_rate" for one of a level, and its unit. */
typedef struct MachineNumber {
    char name[40];
    Quantity as;
} MachineNumber;
/* Local, pure. The i-th number; false: there are no more. */
bool machine_number(const Machine *m, int i, MachineNumber *out);
/* Local, pure. Sets the i-th number to x. With nodes and ranks_per_node the total of ranks and the
 * levels of whole nodes change, too. False: no machine can have this value. */
bool machine_set(Machine *m, int i, double x, Err *e);

#endif
