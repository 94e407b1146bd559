/* search_parts -- what the files of the search share: the candidates before their axes have an order.
 */
#ifndef PARALLEL_SEARCH_PARTS_H
#define PARALLEL_SEARCH_PARTS_H

#include "parallel/search.h"

/* A candidate in any order of its axes. */
typedef struct Seed {
    double bound;        // seconds that none of its prices undercuts
    int32_t size[N_AXES];
    int32_t micro, number; // number: in the order of enumeration
    uint8_t words, zero, recompute, threads;
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

/* Local, pure. parallel/search_bound.c */
double seed_bound(const Space *s, const Machine *m, const Choice *c, int64_t *memory);

#endif
