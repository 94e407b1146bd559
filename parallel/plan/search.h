/* search -- exhaustive search over all layouts of p ranks for the fastest that fits.
 *
 * The space: all factorizations of p into d, z, x, y; every order of the axes that differs; the
 * flags sp, heads and stay=y; stages of ZeRO; micro-batch; recompute; overlap
 * (parallel/step/overlap.h). Each candidate first gets a lower bound of its prices
 * (search_bound.c). Candidates are priced in the order of their bounds, until the next bound is
 * above the prices found. So the search is exhaustive: brute force finds the same (tests). Its time
 * does not grow with the number of layers, which are alike: as in TAPAS (Shi et al., arXiv
 * 2302.00247) a structure that repeats is judged once. The family of layouts: parallel/README.md.
 */
#ifndef PARALLEL_PLAN_SEARCH_H
#define PARALLEL_PLAN_SEARCH_H

#include "parallel/plan/machine.h"
#include "parallel/plan/price.h"

/* What the search may choose. */
typedef struct Space {
    PriceShape shape;   // micro-batch, recompute, overlap: used where they are not free
    int p;              // ranks, all of which are used
    const Layout *only; // this layout; NULL: any
    bool free_micro, free_recompute, free_overlap;
    bool exact;   // --exact
    bool fuses;   // ranks share memory: a trial may fuse matmuls with collectives (plan_trials)
    double close; // candidates up to this share slower than the best are searched; 0: all
} Space;

typedef struct Choice {
    Layout layout;
    int64_t micro;
    Recompute recompute;
    Overlap overlap;
    Price price;
    bool fits; // into the machine's memory
} Choice;

typedef struct SearchCount {
    int64_t candidates; // in the space
    int64_t too_large;  // refused by memory
    int64_t priced;
    double seconds;
} SearchCount;

/* Local. The fastest choices that fit, at most max, best first. Returns their number; 0: nothing
 * fits. Of equally fast ones the one with less memory comes first, then the earlier in the order of
 * enumeration. With s->close, choices that are slower than that share are the best of those priced,
 * not of all. */
int search_best(const Space *s, const Machine *m, Choice *best, int max, SearchCount *count);
/* Local. Sets c->price and c->fits. */
void search_price(const Space *s, const Machine *m, Choice *c);
/* Local. Prices n choices from lists of five and six layers and sorts them by these prices, fastest
 * first. A search prices each candidate from lists of two and three layers, some of three and four
 * (price_lists). The last of these layers may hide collectives that the others expose, and every
 * further layer is then priced like it: prices of d12 were up to 10 % wrong. */
void search_reprice(const Space *s, const Machine *m, Choice *c, int n);
/* Local. Calls f for every choice of the space, with its axes in the order d, z, x, y, in the order
 * of enumeration. */
void search_each(const Space *s, void (*f)(const Choice *c, void *ctx), void *ctx);
/* Local. The named schemes that p ranks allow: the best choice of each, priced, and its name. Of
 * schemes with many candidates at most a hundred are priced, those with the least bounds. Returns
 * the number of schemes. best: the result of search_best; n_best 0: not known. A scheme of one of
 * these choices is not searched again. */
int search_presets(const Space *s, const Machine *m, const Choice *best, int n_best,
                   Choice out[N_SCHEMES], const char *name[N_SCHEMES]);

#endif
