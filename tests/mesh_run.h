/* mesh_run -- trains a tiny model for a few steps on a mesh of ranks that are threads, for tests
 * that compare meshes. Weights, tokens and targets are functions of global indices, so that every
 * mesh trains the same model on the same data. */
#ifndef TESTS_MESH_RUN_H
#define TESTS_MESH_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/comm/ranks.h"
#include "parallel/plan/price.h"
#include "parallel/step/outer.h"
#include "tests/emu/emu.h"

/* MESH_STEPS: three steps; the last one starts from moments of two steps and weights that moved
 * twice. */
enum { MESH_STEPS = 3, MESH_MOST = 4 };

/* Steps in a sweep over layouts: two, of which the last one starts from moments and weights of
 * another; MESH_STEPS if there is time. */
int mesh_sweep_steps(void);

typedef struct MeshRun {
    // the run
    const char *model, *layout; // --model, --layout
    int64_t sequences, S;       // sequences of a step over the whole mesh, of S tokens each
    int64_t micro;       // sequences of a micro-batch at each coordinate of d x z; 0: all of a step
    const char *kernels; // instruction set; NULL: the best of the CPU
    bool ipc; // ranks stand for processes: they use NCCL and IPC handles of each other's memory
    // cuda: on GPUs, rank r on device r modulo their number. bf16: activations are bf16
    bool cuda, bf16;
    EmuSetup emu; // settings of the emulated GPUs
    int threads;  // threads of each rank; 0: 1
    int steps;    // at most MESH_MOST; 0: MESH_STEPS
    Recompute recompute;
    const char *overlap; // flags of --overlap; NULL: none
    ReplayWhere replay;  // where micro-batches are replayed as graphs
    // each micro-batch is split into two of half of its sequences, whose number must be even
    bool in_halves;
    void (*before)(Model *m, void *ctx); // called by every rank before step 0; or NULL
    // called by every rank after each step; or NULL
    void (*after)(Model *m, int step, void *ctx);
    void *ctx;
    Outer outer; // .every 0 means 1
    // stream: sequences of a step in the stream of tokens (0: `sequences`). skip: sequences at the
    // start of the stream that are skipped
    int64_t skip, stream;
    bool alike; // every coordinate of d gets the same `sequences`
    bool exact;
    // compare the last step with its prediction, collectives and memory (not if ranks change their
    // layout)
    bool priced;
    // another layout of the same ranks, to which the model is resharded before step `move`; or NULL
    const char *next;
    int move;
    // results of rank 0; all ranks fill in the weights
    double loss[MESH_MOST], norm[MESH_MOST];
    int64_t n_params;
    // [n_params] the logical model before and after training, tensor after tensor; freed by
    // mesh_run_free
    float *start, *weights;
    int unpredicted; // if `priced`: number of differences between the last step and its prediction
    bool agreed;     // every rank has the same losses and norms, bit for bit
} MeshRun;

/* mesh_grid: the grid of a rank of a mesh that is described by text, without communicators.
 * mesh_shape: a step of 4 sequences of 10 tokens at each coordinate of d x z. Both die if the text
 * is wrong. */
Grid mesh_grid(const char *spec, int rank);
ModelShape mesh_shape(const char *model, const Grid *g);

/* As ranks_run, but most calls run all ranks on one core. A rank that waits for another then wakes
 * no other core, which on virtual machines halves the time of a sweep. Every eighth call, and every
 * call with sanitizers, uses all cores, so that ranks also run in parallel. */
int mesh_ranks_run(int n, int (*rank_main)(World *w, void *ctx), void *ctx);

/* Initial weights, biases and norms included. They are larger than those of a real start, so that
 * an error on any path changes the result. */
void mesh_weights(TensorTable *table, Team *team, uint64_t seed);
/* n inputs from position `at` of the stream on, and their targets. Tokens from number `real` on are
 * padding. */
void mesh_tokens(int64_t at, int64_t n, int64_t real, int64_t vocab, int32_t *inputs,
                 int32_t *targets);
/* The hyperparameters of a step. */
AdamW mesh_rule(int64_t step);

void mesh_run(MeshRun *r);
void mesh_run_free(MeshRun *r);

/* The step of a run as price_lists takes it, with all layers. Sequences must divide by d x z. */
PriceShape mesh_price_shape(const MeshRun *r);
/* Number of collectives that this rank starts in such a step, as predicted. */
int mesh_collectives(const MeshRun *r, int rank);

/* Kernels in the two lists of a step of one micro-batch; fused operations count as one. */
int mesh_kernels(const Model *m);

/* Differences between two runs of the same model: the largest relative difference of a loss, and of
 * a gradient norm; the distance between the weights relative to how far training moved them. */
typedef struct MeshDiff {
    double loss, norm, weights;
} MeshDiff;
MeshDiff mesh_diff(const MeshRun *a, const MeshRun *b);
/* Do losses, norms and weights have the same bits, on every rank? */
bool mesh_same_bits(const MeshRun *a, const MeshRun *b);
/* Are the differences at most `most` (all 0: the same bits)? Else prints them. */
bool mesh_near(const MeshRun *a, const MeshRun *b, MeshDiff most);

/* Every mesh of `from` to `to` ranks with every combination of flags; axes in the order d, z, x, y.
 *
 *     for (EACH_LAYOUT(l, 1, 8)) check(l.spec, l.number);
 */
typedef struct EachLayout {
    int ranks, most, next; // next combination of flags for `ranks` ranks
    int number;            // number of this layout, from 0
    char spec[80];
} EachLayout;
bool mesh_next_layout(EachLayout *l);
#define EACH_LAYOUT(l, from, to)                                                                   \
    EachLayout l = {.ranks = (from), .most = (to), .number = -1};                                  \
    mesh_next_layout(&(l));
/* Models whose sizes divide by nothing, on purpose: GPT-2; one with key-value heads that several
 * ranks hold in copies; one without biases and with an untied head. */
enum { N_MESH_MODELS = 3 };
extern const char *const mesh_models[N_MESH_MODELS];
/* Flags of --overlap, each alone and those that can be combined. */
enum { N_MESH_OVERLAPS = 12 };
extern const char *const mesh_overlaps[N_MESH_OVERLAPS];
/* Is layout number i in the sample for this one of the three models? Each layout is in the sample
 * of one model; in long tests in all. Sanitizers check threads and memory: they take every 92nd
 * layout, in long tests every 23rd, and different layouts for each model. */
bool mesh_sampled(int i, int model);
/* A thinner sample, two of seven layouts and no two neighbours, for sweeps over what
 * mesh_exact_every_layout_... and similar tests have checked on each layout. */
bool mesh_sampled_thinly(int i);

#endif
