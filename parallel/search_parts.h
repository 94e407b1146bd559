/* search_parts -- what the files of the search share: the candidates before their axes have an order.
 */
#ifndef PARALLEL_SEARCH_PARTS_H
#define PARALLEL_SEARCH_PARTS_H

#include "parallel/search.h"

/* A candidate in any order of its axes. */
typedef struct Seed {
    double bound; // seconds that none of its prices undercuts
    int size[N_AXES];
    int place;             // of these sizes among all
    int32_t micro, number; // number: in the order of enumeration
    int32_t threads;
    uint8_t words, zero, recompute;
    uint8_t schedule; // index into schedules
    bool large;       // does not fit
} Seed;
enum { SEED_SP = 1, SEED_HEADS = 2, SEED_STAY = 4 };

/* A named scheme: axes that may have more than one rank, the words that it has; zero -1: any stage. */
typedef struct Family {
    const char *name, *axes;
    int words, zero;
} Family;
extern const Family families[];
enum { N_FAMILIES = 10 };

/* Local, pure. Calls f for each candidate of the space, of one family (NULL: of any). */
void seed_each(const Space *s, const Family *family, void (*f)(const Seed *seed, void *ctx),
               void *ctx);
/* What may run under what. Bulk is free of cost but for memory, and for kernels that are slower beside a collective; the
 * others take its place under what it leaves exposed, so they come with it. Chunks and rings cut what a product waits
 * for; halves hide that and all else: more of them at once have nothing left to hide. */
enum {
    N_SCHEDULES = 6,
    ANY_SCHEDULE = N_SCHEDULES
}; // ANY: a seed that stands for all of its schedules
extern const Overlap schedules[N_SCHEDULES];
/* Local, pure. Those of a seed: where there is nothing to hide none, on d and z alone none and bulk, ring with sp, halves of an
 * even micro-batch; the one that is asked for where it is fixed. Returns how many. */
int seed_schedules(const Space *s, const Seed *seed, uint8_t out[N_SCHEDULES]);
Choice seed_choice(const Space *s, const Seed *seed); // with its axes in the order d, z, x, y
PriceShape seed_shape(const Space *s, const Choice *c);

/* The orders of a mesh's axes, tiles among them, and what collectives cost along the axes in each: seconds of one that
 * gathers or scatters (an all_reduce does both) or streams a panel, and seconds a byte of its whole. */
enum { ALONG_X, ALONG_Y, ALONG_Z, ALONG_D, ALONG_ZD, STREAM_X, STREAM_Y, N_ALONG };
enum { SEARCH_ORDERS = 128 };
typedef struct Orders {
    int size[N_AXES];
    int n, n_levels;
    Layout layout[SEARCH_ORDERS]; // without words
    double start[SEARCH_ORDERS][N_ALONG], rate[SEARCH_ORDERS][N_ALONG];
    double load_start[SEARCH_ORDERS][N_ALONG]; // the same with all replicas
    double load_rate[SEARCH_ORDERS][N_ALONG];
    uint8_t level[SEARCH_ORDERS][N_ALONG]; // whose links they take
} Orders;
/* Local, pure. Does nothing when o has these sizes already. */
void orders_of(Orders *o, const Space *s, const Machine *m, const int size[N_AXES]);
/* Local, pure. The words of one layout in the order of another. */
Layout reorder(const Layout *words, const Layout *order);

/* Gathers and scatters along each axis, or panels: how many, and bytes of the wholes. */
typedef struct Traffic {
    double calls[N_ALONG], bytes[N_ALONG];
} Traffic;

/* A collective beside a product. share: of it, under which nothing runs: of pieces the first one to come, or the last one
 * to go. */
typedef struct Wire {
    int along;
    double calls, bytes, share;
} Wire;

/* One linear layer with bulk, from its own weight's arrival to the next one's. Links carry what was started first.
 *
 *     ahead   the next layer's weight           in    what its first product waits for
 *     again   x, for the second product         out   the sum of what the first made
 *     gone    the weight's gradient, which is awaited two layers later
 *     first   y = x w; or dx = dy w'            second   nothing; or dw = x' dy
 */
typedef struct Window {
    double first, second, after;      // seconds of kernels
    Wire ahead, again, in, out, gone; // calls 0: there is none
} Window;
enum { MAX_WINDOWS = 8 }; // forward, or backward with a second forward before it

/* The windows of a block: so many times in a step `blocks` of them in turn, each with the next one at its heels. */
typedef struct Windows {
    double times;
    int64_t blocks;
    int n;
    Window window[MAX_WINDOWS];
} Windows;

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
    int64_t memory;        // bytes
    Windows front, back;   // of a block: forward, and backward
} Bound;
/* Local, pure. parallel/search_bound.c. any: whatever schedule; else the choice's. */
void seed_bound(Bound *b, const Space *s, const Machine *m, const Choice *c, bool any);
double bound_in(const Bound *b, const Orders *o, int order); // seconds, in that order of the axes
double bound_under(const Bound *b, const Orders *o, int order); // the same, quickly: not more
double bound_least(const Bound *b, const Orders *o);            // in any order

#endif
