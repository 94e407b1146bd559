/* search_parts -- what the files of the search share: the candidates before their axes have an
 * order.
 */
#ifndef PARALLEL_PLAN_SEARCH_PARTS_H
#define PARALLEL_PLAN_SEARCH_PARTS_H

#include "parallel/plan/search.h"

/* A candidate in any order of its axes. */
typedef struct Seed {
    double bound; // seconds that none of its prices undercuts
    int size[N_AXES];
    int place;             // of these sizes among all
    int32_t micro, number; // number: in the order of enumeration
    uint8_t flags, zero, recompute;
    uint8_t schedule; // index into schedules
} Seed;
enum { SEED_SP = 1, SEED_HEADS = 2, SEED_STAY = 4 };
uint8_t seed_flags(const Layout *l); // local, pure

/* A named scheme: axes that may have more than one rank, the flags that it has; zero -1: any
 * stage. */
typedef struct Family {
    const char *name, *axes;
    int flags, zero;
} Family;
extern const Family families[];
enum { N_FAMILIES = 10 };

/* Local, pure. Calls f for each candidate of the space, of one family (NULL: of any). */
void seed_each(const Space *s, const Family *family, void (*f)(const Seed *seed, void *ctx),
               void *ctx);
/* Local, pure. Is a candidate of the whole space one of the family's? */
bool family_has(const Family *f, const Layout *l);
/* What may run under what. Bulk is free of cost but for memory, and for kernels that are slower
 * beside a collective; the others take its place under what it leaves exposed, so they come with
 * it. Chunks and rings cut what a product waits for; halves hide that and all else: more of them at
 * once have nothing left to hide. Fused matmuls come with bulk where they were measured. */
enum {
    N_SCHEDULES = 7,
    ANY_SCHEDULE = N_SCHEDULES
}; // ANY: a seed that stands for all of its schedules
extern const Overlap schedules[N_SCHEDULES];
/* Local, pure. Those of a seed: where there is nothing to hide none, on d and z alone none and
 * bulk, ring and fused with sp, halves of an even micro-batch; the one that is asked for where it
 * is fixed. Returns how many. */
int seed_schedules(const Space *s, const Seed *seed, uint8_t out[N_SCHEDULES]);
Choice seed_choice(const Space *s, const Seed *seed); // with its axes in the order d, z, x, y
PriceShape seed_shape(const Space *s, const Choice *c);

/* The orders of a mesh's axes, tiles among them, and what collectives cost along the axes in each.
 */
enum { ALONG_X, ALONG_Y, ALONG_Z, ALONG_D, ALONG_ZD, STREAM_X, STREAM_Y, N_ALONG };
/* A line in the bytes of the whole, of a collective that gathers or scatters (an all_reduce does
 * both) or streams a panel: seconds at 0 bytes, and a byte. wire: the part that keeps links busy
 * (clocks_start); load: the same with all replicas. */
typedef struct AlongLine {
    double start, rate, wire_start, wire_rate, load_start, load_rate;
    uint8_t level; // whose links it takes
} AlongLine;
typedef struct Order {
    AlongLine along[N_ALONG];
} Order;
typedef struct Orders {
    int size[N_AXES];
    int n;
    Layout *layout; // [n] without flags
    Order *at;      // [n]
} Orders;
/* Local. All of them, in place of those that o has, or zero; does nothing when it has these sizes
 * already. */
void orders_of(Orders *o, const Space *s, const Machine *m, const int size[N_AXES]);
void orders_free(Orders *o); // to zero
/* Local, pure. The flags of one layout in the order of another. */
Layout reorder(const Layout *flags, const Layout *order);

#endif
