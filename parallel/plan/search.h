/* search -- exhaustive search over all layouts of p ranks for the fastest that fits.
 *
 * All factorizations of p into d, z, x, y; every order of the axes that differs; flags of storage
 * and heads; stages of ZeRO; micro-batch, recompute; and what runs under what
 * (parallel/step/overlap.h). A candidate is first judged by a bound that no price of it undercuts
 * (search_bound.c); the best bounds are priced until no bound is left below what was found. So the
 * search is exhaustive: brute force finds the same (tests). Time does not grow with layers, which
 * are alike: as in TAPAS (Shi et al., arXiv 2302.00247) a structure that repeats is judged once.
 * The family of layouts: parallel/README.md.
 */
#ifndef PARALLEL_PLAN_SEARCH_H
#define PARALLEL_PLAN_SEARCH_H

#include "parallel/plan/machine.h"
#include "parallel/plan/price.h"

/* What may be chosen. */
typedef struct Space {
    PriceShape shape;   // micro, recompute, overlap: used where they are fixed
    int p;              // ranks, all of which are used
    const Layout *only; // this layout; NULL: any
    bool free_micro, free_recompute, free_overlap;
    bool exact;   // --exact
    bool fuses;   // may a trial fuse matmuls with collectives (plan_trials)? Ranks share memory
    double close; // share: all that take so much longer than the best; 0: any
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

/* Local. The fastest that fit, at most max, best first; returns how many there are, 0: nothing
 * fits. Among equals the one with less memory, then the earlier in the order of enumeration. With
 * s->close those that take longer than that are the best of what was priced. */
int search_best(const Space *s, const Machine *m, Choice *best, int max, SearchCount *count);
/* Local. Prices one choice; fits is set. */
void search_price(const Space *s, const Machine *m, Choice *c);
/* Local. Calls f for every candidate, in order. */
void search_each(const Space *s, void (*f)(const Choice *c, void *ctx), void *ctx);
/* Local. The named schemes that p ranks allow, priced: name[i] of them, the best factorization of
 * each; where there are many, the best of the hundred with the least bounds. Returns how many.
 * best: what search_best has found (n_best 0: nothing); a scheme that is among them is not
 * searched. */
int search_presets(const Space *s, const Machine *m, const Choice *best, int n_best,
                   Choice out[N_SCHEMES], const char *name[N_SCHEMES]);
/* Local. The same for one of them: false when these ranks do not allow it. */
bool search_preset(const Space *s, const Machine *m, const NamedScheme *f, Choice *out);

#endif
