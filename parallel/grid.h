/* grid -- the mesh with its communicators: what a rank needs to talk along its axes.
 *
 * One Grid per rank. Groups are made once, for every list of axes that the model uses; a list whose
 * axes all have size 1 has no group, and code that asks for it gets NULL: nothing to do.
 */
#ifndef PARALLEL_GRID_H
#define PARALLEL_GRID_H

#include "base/config.h"
#include "parallel/coll.h"
#include "parallel/layout.h"

enum { MAX_COMMS = 16, MAX_Y = 256 }; // ranks on y: each merges the statistics of all

typedef struct Grid {
    Layout layout;
    Mesh mesh;
    World *world; // NULL: one rank
    struct {
        Axes axes;
        Comm *comm;
    } comms[MAX_COMMS];
    int n_comms;
    Comm *all;  // NULL: one rank
    Comm *kv;   // ranks that hold copies of the same key and value heads; NULL: there is one copy
    bool apart; // each of several coordinates of d trains a model of its own: grid_set_apart
} Grid;

/* Collective over the world, whose size is layout_ranks. Dies when it is not. */
void grid_make(Grid *g, World *w, const Layout *l, const Config *c);
/* Collective over the world. Gives its groups back. */
void grid_free(Grid *g);
/* Local. The grid of one rank. */
const Grid *grid_one(void);
/* Collective over the world, after grid_make: from now on a step is of the ranks of one coordinate of d alone
 * (parallel/outer.h). */
void grid_set_apart(Grid *g);
/* Local. Those of the axes over which a step sums: all, but for d where replicas are apart. */
Axes grid_summed(const Grid *g, Axes axes);
/* Local. The ranks of one model: all, or those of one replica where replicas are apart; NULL: one rank. */
Comm *grid_model(const Grid *g);
/* Local. How many models train: the size of d where replicas are apart, else 1. */
int grid_replicas(const Grid *g);
/* Local. The group along these axes, NULL when it has one rank. Dies for a list that was not made. */
Comm *grid_comm(const Grid *g, Axes axes);

/* Local. How heads are cut in n blocks: `heads` query heads in each, with the `kv_heads` key and value
 * heads that they read. With copies > 1 so many neighbouring blocks hold the same key and value head
 * (fewer of them than blocks); with `whole` key heads are never copied: blocks may stay empty instead. */
typedef struct HeadBlocks {
    int64_t heads, kv_heads, copies;
} HeadBlocks;
HeadBlocks head_blocks(const Config *c, int64_t n, bool whole);
/* Local. Axes that cut heads and the MLP's features where they are stored: x, x.y with heads, y with
 * stay=y. */
Axes grid_middle(const Grid *g);

#endif
