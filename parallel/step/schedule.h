/* schedule -- the order in which a rank runs the operations of a program: one list scheduler.
 *
 *   none   compute  [matmul dx]              [matmul dw][norm_backward]
 *          network              [reduce dx]
 *
 *   bulk   compute  [matmul dx][matmul dw]..[norm_backward]
 *          network             [reduce dx ]
 *
 * A unit is a kernel with the operations fused into it, or a collective. The scheduler looks at the
 * next `window` units of the list. A collective starts as soon as its operands are complete. The
 * compute stream runs the first kernel whose operands are complete; if there is none, it waits for
 * the operand that arrives first. While a kernel is waited for, no collective starts that only
 * later kernels read: collectives in flight together share a link, so all would arrive later. With
 * a window of 1 every collective is waited for where it starts. With a larger one the gather of the
 * next weight runs under this matmul, dx is reduced under the wgrad, and gradients are reduced
 * under the backward of the layers before. PyTorch's DDP and FSDP write each of these
 * overlaps by hand, with hooks and streams; here they follow from the one rule.
 *
 * The scheduler predicts when an operand is complete: a clock runs for the kernels, and one for the
 * links (of each level of the cluster, where the planner prices the order). Costs are the same on
 * all ranks, so all ranks find the same order and start their collectives in the same order. This
 * excludes deadlock.
 *
 * Source: list scheduling (Graham 1969).
 */
#ifndef PARALLEL_STEP_SCHEDULE_H
#define PARALLEL_STEP_SCHEDULE_H

#include "parallel/step/program.h"

enum { LINK_LEVELS = 4 }; // of a cluster: a socket, a node, ...

/* The cost of one operation: from fixed rates where the order is found (schedule.c), from
 * measurements where the planner prices it (parallel/plan/cost.h). Example: a collective of 10 ms
 * of bytes and 2 ms of latency, in each of two replicas along d that share a port (machine.c):
 *
 *   seconds  12 ms   from its start to its result: bytes and latency, while the other computes
 *   wire     10 ms   its links are busy: bytes alone, where latency is high
 *   load     20 ms   the port is busy: with the bytes of both replicas
 */
typedef struct OpCost {
    double seconds;  // of a kernel with all operations fused into it; 0 of a fused operation
    double wire;     // of a collective: seconds for which its links are busy
    double load;     // of a collective: the same when all replicas along d send at once
    double slowdown; // of a collective: factor by which kernels are slower meanwhile; at least 1
    int level;       // of a collective: the level whose links it uses; -1 of a kernel
} OpCost;

/* Sizes of the window, in units. */
enum { WINDOW_NONE = 1, WINDOW_BULK = 16, WINDOW_HALVES = 48 };

/* When an operation runs, in predicted seconds from the beginning of the list. */
typedef struct OpTime {
    double start, end; // of a collective: on its links
    double waited;     // of a kernel: seconds that the compute stream waits before it
    int awaited;       // of a kernel: the collective that ended last of those waited for; -1: none
} OpTime;

/* Sums of predicted seconds of a list. */
typedef struct Spent {
    double compute; // of kernels, with their slowdown by collectives in flight
    double exposed; // communication that no kernel hides: the compute stream waits
    double along_d; // the part of `exposed` for collectives along d
    double sent;    // of all collectives, hidden or exposed
    double own[LINK_LEVELS], busy[LINK_LEVELS]; // of links: `wire` and `load` of OpCost
} Spent;

/* The clocks of a rank: one for its kernels, and one for the links of each level, which collectives
 * of different axes share when they are in flight at the same time. A collective begins when it has
 * been started and its links are free. The links are busy for `wire` seconds; the result is there
 * after `seconds`, which include latency. Where latency is high (machine_high_latency), latencies
 * of collectives in flight overlap, their bytes do not.
 *
 *     A   wire === latency .......|          measured, all_gathers of 256 KiB between 2 hosts,
 *     B           === ............|          20 ms apart at 1 Gbit/s: one takes 21 ms,
 *                                            four together 4 ms longer (tests/mpi.sh)
 */
typedef struct Clocks {
    double now;               // of the compute stream
    double link[LINK_LEVELS]; // when a level's links are free
    double slow[LINK_LEVELS]; // factor by which kernels are slower until then
    Spent spent;
} Clocks;
/* Local, pure. A collective starts now; returns the time of its result. */
double clocks_start(Clocks *c, const OpCost *cost);
/* Local, pure. The compute stream waits until then. */
void clocks_wait(Clocks *c, double until);

/* Local, pure. Predicts the times of a rank that runs a list in its order. A collective is waited
 * for at its OP_WAIT, in a list without them (Program.ordered) where it starts. --listing prints
 * these times, the planner prices by them. last: as in op_runs. time: [operations]; set of those
 * that run, but of no OP_WAIT. */
Spent program_play(const Program *p, const OpCost *costs, bool last, OpTime *time);

/* Local, pure. WINDOW_HALVES with halves, else WINDOW_BULK with bulk, else WINDOW_NONE: `fused`
 * alone hides a collective in its matmul and under nothing else. */
int schedule_window(const Overlap *overlap);
/* Local. Orders the list: each collective stands where it starts, its OP_WAIT where it is waited
 * for.
 *
 *   before                                after
 *   h1   = all_gather x  h1               h1   = all_gather x  h1         starts
 *   dw   = matmul_at  h2, dup             dw   = matmul_at  h2, dup       meanwhile
 *   qkv  = matmul  h1, qkv.weight         wait  h1
 *                                         qkv  = matmul  h1, qkv.weight
 *
 * costs: of p's operations as they stand. Not with WINDOW_NONE, where the list is not changed. */
void program_order(Program *p, const OpCost *costs, int window);
/* Local. Orders p as every rank runs it. All ranks need the same order, and so does a machine that
 * only plans the run: costs are nominal, functions of sizes that are equal on all ranks. */
void program_order_nominal(Program *p);

#endif
