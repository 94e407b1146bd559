/* search_parts -- what the files of the search share: the candidates before their axes have an order.
 */
#ifndef PARALLEL_SEARCH_PARTS_H
#define PARALLEL_SEARCH_PARTS_H

#include "parallel/search.h"

/* A candidate in any order of its axes. */
typedef struct Seed {
    double bound; // seconds that none of its prices undercuts
    int32_t size[N_AXES];
    int32_t micro, number; // number: in the order of enumeration
    int32_t threads;
    uint8_t words, zero, recompute;
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
Choice seed_choice(const Seed *seed); // with its axes in the order d, z, x, y
PriceShape seed_shape(const Space *s, const Choice *c);

/* The orders of a mesh's axes, tiles among them, and what collectives cost along the axes in each: seconds of one that
 * gathers or scatters (an all_reduce does both) or streams a panel, and seconds a byte of its whole. */
enum { ALONG_X, ALONG_Y, ALONG_Z, ALONG_D, ALONG_ZD, STREAM_X, STREAM_Y, N_ALONG };
enum { SEARCH_ORDERS = 128 };
typedef struct Orders {
    int32_t size[N_AXES];
    int n;
    Layout layout[SEARCH_ORDERS]; // without words
    double start[SEARCH_ORDERS][N_ALONG], rate[SEARCH_ORDERS][N_ALONG];
} Orders;
/* Local, pure. Does nothing when o has these sizes already. */
void orders_of(Orders *o, const Space *s, const Machine *m, const int32_t size[N_AXES]);

/* What no price of a candidate undercuts. */
typedef struct Bound {
    double compute;        // seconds
    double calls[N_ALONG]; // gathers and scatters, or panels
    double bytes[N_ALONG]; // of wholes, gathered or scattered
    int64_t memory;        // bytes
} Bound;
/* Local, pure. parallel/search_bound.c */
void seed_bound(Bound *b, const Space *s, const Machine *m, const Choice *c);
double bound_in(const Bound *b, const Orders *o, int order); // seconds, in that order of the axes

#endif
