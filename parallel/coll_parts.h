/* coll_parts -- who sends what to whom in a collective, and what is summed in which order: lists, for a backend that
 * sends messages. Nothing here sends.
 *
 * What a collective carries is cut into parts. Each has an owner:
 *
 *     reduce_scatter, all_gather    part j is block j of the whole     rank j
 *     all_reduce                    part j is slice j of the buffer    rank j
 *     reduce, broadcast             one part is all of it              the root
 *
 * Ranks of one node are close to each other, and share the link between nodes. So in each node one rank *carries* a
 * part for those beside it, and the part crosses the link once for each node, not once for each rank. The owner
 * carries it in its own node. Two nodes of two ranks, and part 0, which is rank 0's:
 *
 *     spread, near      1 > 0         3 > 2        all of a node send it to the rank that carries it, which sums
 *     spread, far             0 < 2                sums of nodes go to the owner, which sums them
 *     collect, far      0 > 1,     0 > 2           the owner sends it to its node, and to who carries it in others
 *     collect, near                   2 > 3        who carries it sends it to its node
 *
 * A rank carries a k-th of the parts in a node of k ranks, as far as numbers divide. The hops of a way are the nodes in
 * which ranks do that for each other; where each rank is a hop of its own, near steps are empty, and all send
 * to each other directly. Racks are no level here, since nobody tells of them: their nodes send to each other directly, too.
 *
 * Far steps may go in rounds instead, in each of which a rank has one partner: fewer messages, one after the other. Hops stand
 * in a row of 2^k. Halving spreads: in round i the partner is the one whose number differs in bit i, each gives the other all
 * parts that are on the other's side, and adds what comes to those that it keeps. Doubling collects, the same way back:
 * both send all that they have got. Four ranks:
 *
 *     halving    0 <> 1, 2 <> 3     0 and 2 give parts 1 3, 1 and 3 give parts 0 2
 *                0 <> 2, 1 <> 3     0 gives part 2, 2 gives part 0, ...
 *     doubling   0 <> 2, 1 <> 3     both send the part that they own
 *                0 <> 1, 2 <> 3     0 and 2 send parts 0 2, 1 and 3 send parts 1 3
 *
 * Sums are taken in a tree that depends on the nodes alone, whatever the way and the size: over the ranks of each node, then
 * over nodes, in the order of their first ranks; each as coll_fold.h draws it. Halving adds in this tree where nodes are alike,
 * and there are 2^k of them, of 2^i ranks if ranks go alone (coll_may_halve). Where all ranks are on one node, or nodes hold
 * one rank of the group each, or each the next 2^i of them, it is the tree over ranks, in which ranks that are threads add.
 */
#ifndef PARALLEL_COLL_PARTS_H
#define PARALLEL_COLL_PARTS_H

#include "parallel/coll_backend.h"

/* The nodes of a group, numbered in the order of their first ranks. */
typedef struct CollNodes {
    int size, n;       // ranks, nodes
    int *of, *place;   // [size] a rank's node, and its place among the ranks of that node
    int *first, *rank; // ranks of node i, ascending: rank[first[i]] .. rank[first[i + 1] - 1]
} CollNodes;

/* Local. name[size] is equal for ranks of one node; NULL: each rank has its own. Free with coll_nodes_free. */
CollNodes coll_nodes_make(const int *name, int size);
void coll_nodes_free(CollNodes *n);
/* Local, pure. Is there more than one node, and one with several ranks? */
static inline bool coll_nodes_nest(const CollNodes *n) {
    return n->n > 1 && n->n < n->size;
}

/* Local, pure. Does halving between these hops, which are the nodes or each rank alone, add in the tree of the nodes? */
bool coll_may_halve(const CollNodes *nodes, const CollNodes *hops);

/* How one rank sees a collective. */
typedef struct CollWay {
    const CollNodes *nodes; // in whose order sums are taken
    const CollNodes *hops;  // the same, or each rank alone
    CollOp op;
    int rank, root;
    bool whole;  // all_reduce, hops alone: each part is all of the buffer, so nothing is collected
    bool halves; // far steps go in rounds; not of ops that have a root, nor of shift
} CollWay;

typedef enum { SPREAD_NEAR, SPREAD_FAR, COLLECT_FAR, COLLECT_NEAR, N_COLL_STEPS } CollStep;

/* Local, pure. The first step from `step` on that this collective makes, the same on all ranks; N_COLL_STEPS: none. */
CollStep coll_step_from(const CollWay *w, int step);

/* ---- steps without rounds */

/* A message of this rank. What comes to be summed is kept in a slot; what is sent on lies in one, or at home (-1). */
typedef struct CollMove {
    int part, peer, slot;
    bool receive;
} CollMove;

/* Local, pure. The messages of this rank in a step, receives first; two between the same ranks are in one order on both. */
int coll_moves(const CollWay *w, CollStep step, CollMove *list);

/* A term of a sum: what is kept in a slot, or this rank's own (-1). Terms are put on a stack one by one; after each the two
 * on top are added so many times. */
typedef struct CollTerm {
    int slot, adds;
} CollTerm;

/* Local, pure. The parts that this rank sums in a spread step, and the terms of the i-th of them; each first sum is left in
 * slot i, the last is the owner's result. Both return how many there are. */
int coll_sums(const CollWay *w, CollStep step, int *part);
int coll_terms(const CollWay *w, CollStep step, int i, CollTerm *list);
/* Local, pure. Where a node's sum of a part lies that this rank carries; -1: at home, the node has one rank. */
int coll_slot_of(const CollWay *w, int part);

/* Local, pure. At most so many slots of any rank, and messages of this rank in a step, whatever the op. */
int coll_most_slots(const CollNodes *hops);
int coll_most_moves(const CollNodes *hops, int rank);

/* ---- far steps in rounds */

/* What this rank carries lies in places, of which it sends and takes `n` that follow each other. */
typedef struct CollRound {
    int peer, n, give, take; // places from which on it sends, and takes or adds what comes
    bool first;              // in a sum, this rank's own is the first term
} CollRound;

/* Local, pure. How many rounds, and places, there are; and the part that lies in a place. */
int coll_rounds(const CollWay *w);
int coll_places(const CollWay *w);
int coll_part_at(const CollWay *w, int place);
CollRound coll_round(const CollWay *w, CollStep step, int i);

#endif
