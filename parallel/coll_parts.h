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
 * Sums are taken in a tree that depends on the nodes alone, whatever the way: over the ranks of each node in their order,
 * then over nodes, in the order of their first ranks. Where nodes hold one rank of the group each, or one node all of
 * them, that is the order of ranks.
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

/* How one rank sees a collective. */
typedef struct CollWay {
    const CollNodes *nodes; // in whose order sums are taken
    const CollNodes *hops;  // the same, or each rank alone
    CollOp op;
    int rank, root;
    bool
        whole; // all_reduce, hops alone: each part is all of the buffer, which all sum: nothing is collected
} CollWay;

typedef enum { SPREAD_NEAR, SPREAD_FAR, COLLECT_FAR, COLLECT_NEAR, N_COLL_STEPS } CollStep;

/* A message of this rank. What comes to be summed is kept in a slot; what is sent on lies in one, or at home (-1). */
typedef struct CollMove {
    int part, peer, slot;
    bool receive;
} CollMove;

/* Local, pure. The first step from `step` on that this collective makes, the same on all ranks; N_COLL_STEPS: none. */
CollStep coll_step_from(const CollWay *w, int step);
/* Local, pure. The messages of this rank in a step, receives first; two between the same ranks are in one order on both. */
int coll_moves(const CollWay *w, CollStep step, CollMove *list);

/* A term of a sum: what is kept in a slot, or this rank's own (-1). */
typedef struct CollTerm {
    int slot;
    bool opens; // is the first one of a node
} CollTerm;

/* Local, pure. The parts that this rank sums in a spread step, and the terms of the i-th of them; each first sum is left in
 * slot i, the last is the owner's result. Both return how many there are. */
int coll_sums(const CollWay *w, CollStep step, int *part);
int coll_terms(const CollWay *w, CollStep step, int i, CollTerm *list);

/* Local, pure. At most so many slots of any rank, and messages of this rank in a step, whatever the op. */
int coll_most_slots(const CollNodes *hops);
int coll_most_moves(const CollNodes *hops, int rank);

#endif
