/* coll_parts -- algorithms of collectives by messages, as lists: which rank sends which part to
 * which rank, and which terms are summed in which order. Sends nothing itself.
 *
 * The data of a collective is split into parts. Each part has an owner:
 *
 *     reduce_scatter, all_gather    part j is block j of the whole     rank j
 *     all_reduce                    part j is slice j of the buffer    rank j
 *     reduce, broadcast             one part is all of it              the root
 *
 * Ranks of one node share the link to other nodes. So in each node one rank *carries* a part for
 * the others, and the part crosses the link once per node instead of once per rank. In its own node
 * the owner carries the part. Two nodes of two ranks, and part 0, owned by rank 0:
 *
 *     spread, near      1 > 0         3 > 2        ranks of a node send to its carrier, which sums
 *     spread, far             0 < 2                carriers send to the owner, which sums
 *     collect, far      0 > 1,     0 > 2           the owner sends to its node and to the carriers
 *     collect, near                   2 > 3        carriers send to their nodes
 *
 * In a node of k ranks each rank carries a k-th of the parts, as far as numbers divide. The hops of
 * an algorithm are the nodes within which ranks carry parts for each other. If every rank is a hop
 * of its own, near steps are empty and all ranks send to each other directly. Racks are no level
 * here: their nodes send to each other directly.
 *
 * Far steps may go in rounds instead, with one partner per round: fewer messages, one after the
 * other. There are 2^k hops. Recursive halving spreads: in round i the partner differs in bit i;
 * each partner sends the parts of the other's half and adds the received parts to those it keeps.
 * Recursive doubling collects, in the opposite order: both send all parts that they have. Four
 * ranks:
 *
 *     halving    0 <> 1, 2 <> 3     0 and 2 give parts 1 3, 1 and 3 give parts 0 2
 *                0 <> 2, 1 <> 3     0 gives part 2, 2 gives part 0, ...
 *     doubling   0 <> 2, 1 <> 3     both send the part that they own
 *                0 <> 1, 2 <> 3     0 and 2 send parts 0 2, 1 and 3 send parts 1 3
 *
 * The tree of a sum depends on the nodes alone, not on the algorithm or the size: first over the
 * ranks of each node, then over nodes in the order of their first ranks, each as in coll_fold.h.
 * Halving adds in this tree if there are 2^k nodes of equal size, and of 2^i ranks if every rank is
 * a hop (coll_may_halve). If all ranks are on one node, or each node has one rank, or each has 2^i
 * consecutive ranks, the tree is the one over ranks, as between threads.
 */
#ifndef PARALLEL_COMM_COLL_PARTS_H
#define PARALLEL_COMM_COLL_PARTS_H

#include "parallel/comm/coll_backend.h"

/* The nodes of a group, numbered in the order of their first ranks. */
typedef struct CollNodes {
    int size, n;       // ranks, nodes
    int *of, *place;   // [size] node of a rank, and its index in that node
    int *first, *rank; // ranks of node i, ascending: rank[first[i]] .. rank[first[i + 1] - 1]
} CollNodes;

/* Local. name[size] is equal for ranks of one node; NULL: a node for each rank. Free with
 * coll_nodes_free. */
CollNodes coll_nodes_make(const int *name, int size);
void coll_nodes_free(CollNodes *n);
/* Local, pure. Is there more than one node, and one with several ranks? */
static inline bool coll_nodes_nest(const CollNodes *n) {
    return n->n > 1 && n->n < n->size;
}

/* Local, pure. Does recursive halving between these hops (the nodes, or every rank) add in the tree
 * of the nodes? */
bool coll_may_halve(const CollNodes *nodes, const CollNodes *hops);

/* A collective as seen by one rank, with the algorithm chosen. */
typedef struct CollAlgorithm {
    const CollNodes *nodes; // define the tree of sums
    const CollNodes *hops;  // the nodes, or every rank
    CollOp op;
    int rank, root;
    // all_reduce, every rank a hop: each part is the whole buffer, nothing is collected
    bool whole;
    bool halves; // far steps go in rounds; not with a root, nor for shift
} CollAlgorithm;

typedef enum { SPREAD_NEAR, SPREAD_FAR, COLLECT_FAR, COLLECT_NEAR, N_COLL_STEPS } CollStep;

/* Local, pure. The first step >= `step` that is not empty, the same on all ranks; N_COLL_STEPS:
 * none. */
CollStep coll_step_from(const CollAlgorithm *w, int step);

/* ---- steps without rounds */

/* A message of this rank. A received term of a sum goes into a slot. A sent part is read from a
 * slot, or from src (-1). */
typedef struct CollMove {
    int part, peer, slot;
    bool receive;
} CollMove;

/* Local, pure. The messages of this rank in a step, receives first. Messages between the same two
 * ranks have the same order on both. */
int coll_moves(const CollAlgorithm *w, CollStep step, CollMove *list);

/* A term of a sum: a slot, or this rank's src (-1); and the additions after the term is pushed
 * (coll_fold.h). */
typedef struct CollTerm {
    int slot, adds;
} CollTerm;

/* Local, pure. The parts that this rank sums in a spread step, and the terms of the i-th part. The
 * sum of a near step stays in slot i; that of a far step is the owner's result. Both return a
 * count. */
int coll_sums(const CollAlgorithm *w, CollStep step, int *part);
int coll_terms(const CollAlgorithm *w, CollStep step, int i, CollTerm *list);
/* Local, pure. Slot of the node's sum of a part that this rank carries; -1: src, in a node of one
 * rank. */
int coll_slot_of(const CollAlgorithm *w, int part);

/* Local, pure. Upper bounds for all operations: slots of any rank; messages of this rank in a
 * step. */
int coll_most_slots(const CollNodes *hops);
int coll_most_moves(const CollNodes *hops, int rank);

/* ---- far steps in rounds */

/* Carried parts are stored in consecutive places; a round sends n of them and receives n. */
typedef struct CollRound {
    int peer, n, give, take; // first place that is sent; first that is received or added to
    bool first;              // in a sum, this rank's part is the first term
} CollRound;

/* Local, pure. Number of rounds; number of places; the part in a place. */
int coll_rounds(const CollAlgorithm *w);
int coll_places(const CollAlgorithm *w);
int coll_part_at(const CollAlgorithm *w, int place);
CollRound coll_round(const CollAlgorithm *w, CollStep step, int i);

#endif
