/* mesh_run -- a few steps of training a tiny model on a mesh of thread ranks, for tests that
 * compare meshes. Everything is a function of global indices: weights, tokens, targets. */
#ifndef TESTS_MESH_RUN_H
#define TESTS_MESH_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/comm/ranks.h"
#include "parallel/plan/price.h"
#include "parallel/step/outer.h"
#include "tests/emu/emu.h"

/* Three steps: moments of two, weights that moved twice. */
enum { MESH_STEPS = 3, MESH_MOST = 4 };

typedef struct MeshRun {
    // what
    const char *model, *layout; // --model, --layout
    int64_t sequences, S;       // of a step, over the whole mesh
    int64_t micro;       // sequences of a micro-batch at each coordinate of d x z; 0: all at once
    const char *kernels; // NULL: the best of the CPU
    bool ipc;            // ranks stand for processes: by NCCL, and handles of each other's memory
    bool cuda, bf16;     // on GPUs, rank r on device r modulo their number; words of activations
    EmuSetup emu;        // of GPUs that are emulated
    int threads;         // of each rank; 0: 1
    int steps;           // at most MESH_MOST; 0: MESH_STEPS
    Recompute recompute;
    const char *overlap; // words of --overlap; NULL: none
    ReplayWhere replay;  // of micro-batches
    bool in_halves; // a micro-batch is two, of half of its sequences each, which are even in number
    void (*before)(Model *m, void *ctx); // called by every rank before step 0; or NULL
    void (*after)(Model *m, int step,
                  void *ctx); // called by every rank after step 0, 1, ...; or NULL
    void *ctx;
    Outer outer; // .every 0 is 1
    int64_t skip,
        stream; // the stream has so many sequences a step (0: `sequences`); the first are skipped
    bool alike; // every coordinate of d sees the same `sequences`
    bool exact;
    bool priced; // hold the last step against its price (not where ranks move to another layout)
    // another layout of the same ranks, to which the model moves before step `move`; or NULL
    const char *next;
    int move;
    // results, of rank 0 but the weights, which all ranks fill in
    double loss[MESH_MOST], norm[MESH_MOST];
    int64_t n_params;
    float *start,
        *weights;    // [n_params] the logical model, tensor after tensor; freed by mesh_run_free
    int unpredicted; // how much of the last step its price does not tell, if `priced`
    bool agreed;     // every rank saw the same losses and norms, bit for bit
} MeshRun;

/* The grid of a rank of a described mesh, without communicators; and a step of 4 sequences of 10
 * tokens at each coordinate of d x z. Both die of a text that is wrong. */
Grid mesh_grid(const char *spec, int rank);
ModelShape mesh_shape(const char *model, const Grid *g);

/* As ranks_run, but mostly all ranks share one core: a rank that waits for another then wakes no
 * other core, which on virtual machines takes half the time of a sweep. Every eighth call, and all
 * with sanitizers, have all cores, so that ranks also run truly beside each other. */
int mesh_ranks_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx);

/* Initial weights, larger than those of a real start, so that every path carries signal: biases and
 * norms too. */
void mesh_weights(TensorTable *table, Team *team, uint64_t seed);
/* n tokens of a stream from place `at` on, and what follows them; but for the first `real` they are
 * padding. */
void mesh_tokens(int64_t at, int64_t n, int64_t real, int64_t vocab, int32_t *inputs,
                 int32_t *targets);
AdamW mesh_rule(int64_t step);

void mesh_run(MeshRun *r);
void mesh_run_free(MeshRun *r);

/* The same step for price_lists, with all layers. Sequences divide by d x z. */
PriceShape mesh_price_shape(const MeshRun *r);
/* Collectives of such a step that this rank starts, as its price has them. */
int mesh_sends(const MeshRun *r, int rank);

/* Kernels of a step of one micro-batch, each with all that is fused into it: of its two lists. */
int mesh_kernels(const Model *m);

/* How far two runs of the same model are apart: the largest relative difference of a loss, of a
 * gradient norm, and the distance of the weights relative to how far training moved them. */
typedef struct MeshDiff {
    double loss, norm, weights;
} MeshDiff;
MeshDiff mesh_diff(const MeshRun *a, const MeshRun *b);
/* Losses, norms and weights, with the same ones on every rank. */
bool mesh_same_bits(const MeshRun *a, const MeshRun *b);
/* Are they that near, or (all 0) have the same bits? Else says how far they are apart. */
bool mesh_near(const MeshRun *a, const MeshRun *b, MeshDiff most);

/* Every mesh of `from` to `to` ranks with every combination of flags; axes in the order d, z, x, y.
 *
 *     for (EACH_LAYOUT(l, 1, 8)) check(l.spec, l.number);
 */
typedef struct EachLayout {
    int ranks, most, next; // the next combination of so many ranks
    int number;            // of this layout, from 0
    char spec[80];
} EachLayout;
bool mesh_next_layout(EachLayout *l);
#define EACH_LAYOUT(l, from, to)                                                                   \
    EachLayout l = {.ranks = (from), .most = (to), .number = -1};                                  \
    mesh_next_layout(&(l));
/* Awkward on purpose, nothing divides: GPT-2; key heads that ranks hold in copies; no biases, an
 * untied head. */
enum { N_MESH_MODELS = 3 };
extern const char *const mesh_models[N_MESH_MODELS];
/* Words of --overlap, each alone and those that go together. */
enum { N_MESH_OVERLAPS = 12 };
extern const char *const mesh_overlaps[N_MESH_OVERLAPS];
/* Is layout number i one of the sample for this one of three models? Each layout is, for one of
 * them; for all when there is time. Sanitizers take every 23rd or 46th: it is threads and memory
 * that they look at. */
bool mesh_sampled(int i, int model);
/* The same for sweeps over what mesh_exact_every_layout_... and its like have tested on each
 * layout: two of seven, next to each other none. */
bool mesh_sampled_thinly(int i);

#endif
