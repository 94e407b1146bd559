/* simulated -- all ranks of a mesh in one place, with whole numbers: what dist and layout derive is
 * carried out step by step, and must give what one rank computes. */
#ifndef TESTS_SIMULATED_H
#define TESTS_SIMULATED_H

#include <stddef.h>

#include "parallel/mesh/dist.h"
#include "tests/page.h"

enum { SIM_RANKS = 64, SIM_SIZE = 36 };

typedef struct Whole {
    int rows, cols;
    long v[SIM_SIZE * SIM_SIZE];
} Whole;

/* A tensor on every rank; n: elements that each rank has received since it was cut. */
typedef struct Cut {
    Dist dist;
    Whole rank[SIM_RANKS];
    int n;
} Cut;

void whole_fill(Whole *m, int rows, int cols, unsigned seed); // numbers from -3 to 3
void whole_product(Whole *y, const Whole *a, const Whole *b);
void whole_transpose(Whole *t, const Whole *m);
bool whole_equal(const Whole *a, const Whole *b);

/* Each rank's block of a tensor; the sizes must divide. */
void cut_whole(Cut *c, const Mesh *m, const Dist *d, const Whole *w);
/* Each rank's product of its blocks, distributed as dist_matmul says. */
void cut_product(Cut *y, const Mesh *m, const char *name, const Cut *a, const Cut *b);
void cut_transpose(Cut *t, const Mesh *m, const Cut *c);
/* Names of ChangeKind. */
static const char *const change_names[] = {"all_gather", "reduce_scatter", "all_reduce", "slice"};

/* One collective, and all from one storage to another. */
void cut_change(Cut *c, const Mesh *m, const Change *change);
void cut_bring(Cut *c, const Mesh *m, const Dist *to);

#endif
