/* probe -- a look at the tensors of a step where they lie, in the order in which a step makes them.
 *
 *   forward    x   h1  qkv  att  x2   h2  pre  act  x'  ...  h   losses
 *   backward   dh  dx'  dact  dpre  dh2  dx2  datt  dqkv  dh1  dx  ...
 *
 * and again where a product wants more of one than is stored, `gathered`. Nobody looks unless a
 * Model has a Probing: then it is called at each of these points, on every rank.
 * parallel/step/check.c does, to find where two layouts first differ.
 */
#ifndef PARALLEL_STEP_PROBE_H
#define PARALLEL_STEP_PROBE_H

#include "parallel/step/model.h"

typedef enum {
    ROWS_STREAM, // the residual stream's: T_x from t0 on
    ROWS_MIDDLE, // those of qkv, att, pre, act
    ROWS_ALL     // of all tokens of this coordinate of d x z
} ProbeRows;

/* A collective that a tensor has gone through; over NULL: there is none here. */
typedef struct Cause {
    Comm *over;
    CollOp op;
    const char *what;
} Cause;

typedef struct Probe {
    const char *name;
    int layer;     // -1 outside the blocks
    bool gathered; // for a product: the stored one was seen before
    // columns of key and value heads that others hold as well are partial, and stay so
    bool copies_owe;
    const Act *at;
    ProbeRows rows;
    SideKind side;
    const Tensor *weight; // at is the whole local block of this weight instead
    // What made it of the tensors of earlier points.
    const Path *path;
    Cause cause[2];
    const Act *addend;
    const float *bias; // added after its sums were made: as the tensor, one row; or NULL
} Probe;

typedef struct Probing {
    void (*look)(void *ctx, Model *m, const Probe *p); // Collective over the mesh
    void *ctx;
} Probing;

static inline void probe(Model *m, const Probe *p) {
    if (m->probing) m->probing->look(m->probing->ctx, m, p);
}

#endif
