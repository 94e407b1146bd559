/* search_bound -- what no price of a candidate undercuts: kernels and bytes of a step, and the
 * moves of its blocks.
 */
#ifndef PARALLEL_PLAN_SEARCH_BOUND_H
#define PARALLEL_PLAN_SEARCH_BOUND_H

#include "parallel/plan/search_parts.h"

static inline int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* One linear layer of a pass: local features and weights; which of its operands are brought
 * together; seconds of its products in their pieces, of what its bias adds up under dw, of the
 * kernels after its forward and its backward, and of what selective recompute does before that. */
typedef struct PassLayer {
    int64_t K, N, weights, panels; // panels: with stay=y
    bool x_gathers, y_scatters;
    double xw, dx, dw, bias, front, back, again;
    double front_norm,
        back_norm; // of these kernels, those behind the statistics of a norm; 0: there are none
    double xw_piece, dx_piece;                   // of it the smallest piece; 0: they are whole
    double x_share, y_share, dy_share, dx_share; // Wire.share
} PassLayer;

/* What candidates with the same axes, words, micro-batch, threads and schedule have in common: a
 * pass over the sequences of a micro-batch, or over half of them. */
typedef struct Pass {
    const Space *s;
    const Machine *m;
    Layout layout;
    int64_t micro;
    int threads;
    Overlap overlap;
    int64_t word;   // bytes of an activation
    uint32_t words; // WORK_WORDS where they are bf16 elements
    bool device;    // kernels have memory of their own
    bool any;       // schedule
    bool timed;     // seconds are known
    int of_step;    // passes of a micro-batch
    int64_t micro_steps;
    Widths w;
    int X, Y;
    int64_t T, T_x, rows;    // with padding, of the stream, of the middle
    int64_t sequences;       // as attention sees them
    int64_t of_block, table; // weights
    PassLayer layer[4];
    double head, embed, embed_back; // seconds, with matmuls
    double last;                    // of kernels that run when the last block is through, or more
} Pass;
/* Local, pure. parallel/plan/search_pass.c. The pass of this choice; does nothing when it is that
 * already. */
void pass_of(Pass *p, const Space *s, const Machine *m, const Choice *c, bool any);
/* Local, pure. Bytes of collectives along z and d, whatever the words of a layout of these sizes:
 * between the words of the smallest matrix and the gradient of the largest; between none and the
 * gradients of a block, or of the tables. */
void pass_ranges(const Space *s, const int size[N_AXES], Range *along_z, Range *along_d);
/* Local, pure. Its seconds. */
void pass_time(Pass *p);
/* Local, pure. Seconds of kernels beside a product. */
double pass_beside(const Pass *p, WorkKind kind, uint32_t flags, int64_t rows, int64_t x);

/* Gathers and scatters along each axis, or panels: how many, and bytes of the wholes. */
typedef struct Traffic {
    double calls[N_ALONG], bytes[N_ALONG];
} Traffic;

/* A collective beside a product. share: of it, under which nothing runs: of pieces the first one to
 * come, or the last one to go. */
typedef struct Wire {
    int along;
    double calls, bytes, share;
} Wire;

/* What a pass does in one of its blocks, in order, as far as it is known here: kernels run,
 * collectives start, each with a ticket, and are waited for. Links carry what was started first. */
typedef enum { MOVE_RUN, MOVE_START, MOVE_WAIT } MoveKind;
typedef struct Move {
    uint8_t kind, ticket, along;
    bool ahead; // of the next block's first weight: the last block has none
    bool plain; // START: nothing hides it, and it is counted elsewhere
    bool sure;  // START: it begins here, and not later, so kernels are slower from here on
    double seconds;
    double calls, bytes;
} Move;

/* The moves of a block: so many times in a step `blocks` of them, each with the next one at its
 * heels. Two passes take turns: whoever comes to a wait first lets the other one go on
 * (base/turns.h). */
enum { MAX_MOVES = 176 };
typedef struct Program {
    double times;
    int64_t blocks;
    int n, passes;
    Move move[MAX_MOVES];
} Program;

/* Collectives along one axis. */
typedef struct Line {
    double calls, bytes;
} Line;

/* What no price of a candidate undercuts. */
typedef struct Bound {
    double compute;         // seconds
    double early;           // of it, before gradients can be summed over d
    double squares, update; // of it: the gradients' norm, which needs all sums, and AdamW after it
    Traffic all;
    Traffic exposed;       // those of them under which no kernel runs, whatever comes
    Line sums, fresh;      // over d: of gradients, and of weights that AdamW has changed
    Line last;             // of these sums: those that begin when the last block is through,
    Traffic meanwhile;     // of exposed: what is waited for then anyway,
    double beneath;        // seconds of kernels that run then, or more
    double crowd, slowest; // Machine's
    double slowdown;       // Machine's, where it is the same beside all collectives; else 1
    Program front, back;   // of a block: forward, and backward; last, as most bounds have none
} Bound;
/* Local, pure. search_bound.c. any: whatever schedule; else the choice's, with its programs for
 * BOUND_PROGRAMS. p: of any candidate before, or zero. */
void seed_bound(Bound *b, Pass *p, const Space *s, const Machine *m, const Choice *c, bool any,
                Closeness close);
/* Local, pure. Bytes: not more than it takes. */
int64_t seed_memory(Pass *p, const Space *s, const Machine *m, const Choice *c, bool any);
double bound_in(const Bound *b, const Orders *o, int order); // seconds, in that order of the axes
double bound_under(const Bound *b, const Orders *o, int order); // the same, quickly: not more
double bound_least(const Bound *b, const Orders *o);            // in any order
double bound_rough(const Bound *b, const Orders *o);            // the same, at once: not more

#endif
