/* schedule -- the order in which a rank runs the operations of a program: one list scheduler.
 *
 *   none   compute  [matmul dx]              [matmul dw][norm_backward]
 *          network              [reduce dx]
 *
 *   bulk   compute  [matmul dx][matmul dw]..[norm_backward]
 *          network             [reduce dx ]
 *
 * A collective starts when its operands are there. The compute stream looks at the next `window`
 * units of the list (a kernel with what is fused into it, or a collective) and runs the first
 * kernel whose operands are there; when there is none, it waits for the first that arrives. While
 * it waits, it starts no further collective that only kernels behind the awaited one read:
 * collectives under way together share a link, and all would arrive late. With a window of 1 every
 * collective is waited for where it starts. So with a window the gather of the next weight runs
 * under this matmul, dx is reduced under dw, and gradients are reduced under the backward of the
 * layers before: none of it is coded by hand.
 *
 * What is "there" is predicted: clocks run along, one of the kernels and one for the links (of
 * each level of the cluster, where the planner prices the order). The costs are alike on all
 * ranks, so all ranks find the same order, and come to their collectives in the same order: no
 * rank waits for one that waits for it.
 *
 * Source: list scheduling (Graham 1969).
 */
#ifndef PARALLEL_STEP_SCHEDULE_H
#define PARALLEL_STEP_SCHEDULE_H

#include "parallel/step/program.h"

enum { LINK_LEVELS = 4 }; // of a cluster: a socket, a node, ...

/* Of one operation: by fixed rates where the order is found (schedule.c), as measured where the
 * planner prices it (parallel/plan/cost.h). A collective of 10 ms of bytes and 2 ms of latency, in
 * each of two replicas along d that share a port (machine.c):
 *
 *   seconds  12 ms   from its start to its result: bytes and latency, while the other computes
 *   wire     10 ms   its links are busy: bytes alone, where latency is high
 *   load     20 ms   the port is busy: with the bytes of both replicas
 */
typedef struct OpCost {
    double seconds;  // of a kernel with all that is fused into it; 0 of a fused operation
    double wire;     // of a collective: for so long its links are busy with it
    double load;     // of a collective: its links' seconds when all replicas along d send at once
    double slowdown; // of a collective: how many times as long kernels take meanwhile; at least 1
    int level;       // of a collective: whose links it uses; -1 of a kernel
} OpCost;

/* Units of the list that the compute stream looks at. */
enum { WINDOW_NONE = 1, WINDOW_BULK = 16, WINDOW_HALVES = 48 };

/* Predicted seconds from the beginning of the list. */
typedef struct OpTime {
    double start, end; // of a collective: on its links
    double waited;     // of a kernel: by the compute stream, before it runs
    int awaited;       // of a kernel: the collective that came last, of those waited for; -1
} OpTime;

/* Seconds of a list. */
typedef struct Spent {
    double compute;                             // kernels, slower while collectives are under way
    double exposed;                             // the compute stream waits
    double along_d;                             // the part of it for collectives along d
    double sent;                                // of all collectives
    double own[LINK_LEVELS], busy[LINK_LEVELS]; // links of each level: of this replica, of all
} Spent;

/* The clocks of a rank: one of its kernels; one for the links of each level, so that collectives of
 * different axes share links when they are under way at the same time. A collective begins when it
 * was started and its links are free. It keeps them busy for its `wire` seconds and ends after its
 * `seconds`, which have latency, too. Where that is high (machine_high_latency) latencies of
 * collectives that are under way together overlap, their bytes do not.
 *
 *     A   wire === latency .......|          measured, all_gathers of 256 KiB between 2 hosts,
 *     B           === ............|          20 ms apart at 1 Gbit/s: one takes 21 ms,
 *                                            four together 4 ms longer (tests/mpi.sh)
 */
typedef struct Clocks {
    double now;               // of the compute stream
    double link[LINK_LEVELS]; // when a level's links are free
    double slow[LINK_LEVELS]; // how many times as long kernels take until then
    Spent spent;
} Clocks;
/* Local, pure. The compute stream runs a kernel. */
void clocks_run(Clocks *c, double seconds);
/* Local, pure. A collective starts now; returns when its result is there. */
double clocks_start(Clocks *c, const OpCost *cost);
/* Local, pure. The compute stream waits until then. */
void clocks_wait(Clocks *c, double until);

/* Local, pure. The clocks of a rank that runs a list: in the order in which it stands, each
 * collective until its OP_WAIT, or where it stands if the list has none (Program.ordered). What
 * --listing prints and what the planner prices. time: [operations]; of an OP_WAIT it has none. */
Spent program_play(const Program *p, const OpCost *costs, OpTime *time);

/* Local, pure. WINDOW_HALVES with halves, WINDOW_BULK with bulk, chunk or ring; else WINDOW_NONE:
 * `fused` alone hides a collective in its matmul and under nothing else. */
int schedule_window(const Overlap *overlap);
/* Local. Puts the list in order: a collective where it starts, an OP_WAIT where it is waited for.
 *
 *   before                                after
 *   h1   = all_gather x  h1               h1   = all_gather x  h1         starts
 *   dw   = matmul_at  h2, dup             dw   = matmul_at  h2, dup       meanwhile
 *   qkv  = matmul  h1, qkv.weight         wait  h1
 *                                         qkv  = matmul  h1, qkv.weight
 *
 * costs: of p's operations as they stand. Not with WINDOW_NONE, where the list is not changed. */
void program_order(Program *p, const OpCost *costs, int window);
/* Local. The order in which every rank runs p. It has to be the same on all ranks, and on a
 * machine that only plans it, so costs are nominal ones: functions of sizes that all ranks have
 * alike. */
void program_order_nominal(Program *p);

#endif
