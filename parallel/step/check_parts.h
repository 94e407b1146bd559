/* check_parts -- what check.c (steps and table) and check_point.c (one tensor) share. */
#ifndef PARALLEL_STEP_CHECK_PARTS_H
#define PARALLEL_STEP_CHECK_PARTS_H

#include "parallel/step/check.h"
#include "parallel/step/probe.h"

/* How far some elements are from the reference. */
typedef struct Diff {
    double max, square; // largest absolute difference; sum of squared differences
    double reference;   // sum of squares of the reference
    int64_t n;
} Diff;

/* A tensor of the reference's first micro-step, [tokens, width]. */
typedef struct Point {
    const char *name;
    int layer;
    bool gathered;
    int64_t n, width;
    const float *at; // where it was seen: a tensor seen twice in a row is kept once
    float *values;
    double max; // of the reordering's differences, relative to the RMS
} Point;

/* Elements of an array, and where they lie in the logical tensor. */
typedef struct Stretches {
    struct {
        int64_t at, global, n;
    } * s;
    int64_t n, room;
} Stretches;

typedef struct Check {
    const CheckJob *job;
    Model *m;          // of the mesh
    Group group;       // all ranks
    int64_t round;     // sequences of a micro-step of the whole mesh
    Model one, other;  // of rank 0: the reference, and its sums in another order
    Point *points;     // [n_points] of rank 0
    int n_points, at;  // the next one
    int at_second;     // that of the second half, where halves take turns
    int64_t first;     // sequence of the micro-step at which `other` is
    float *want, *sum; // room for a logical tensor, for a local one
    int64_t want_room, sum_room;
    Stretches stretches;
    double moved;      // learning rate of the last update; 0: there was none
    char verdict[512]; // "" while all agrees; the same on all ranks
} Check;

/* What a tensor could lack. */
enum { MAX_CAUSES = 12 };
typedef struct Suspect {
    const char *name;
    const float *local; // [n] of this rank
    int64_t n;
    const float *base; // [n] of it was added after all sums; or NULL
    Cause cause[MAX_CAUSES];
    int n_causes;
    bool may_be_partial;
} Suspect;

/* What is accepted of the difference on one rank: of its largest element, of its RMS. */
typedef struct Limit {
    double max, rms;
} Limit;

/* What rounding alone may do, relative to the RMS of a tensor. */
double check_accepted(const Check *c, double reordered);
/* Local. Adds the difference of one stretch. */
void diff_add(Diff *d, const float *a, const float *b, int64_t n);
double diff_rms(const Diff *d); // of the reference
double diff_max(const Diff *d); // relative to it
void stretches_of(Check *c, const Tensor *t, TensorPart part);
double diff_distance(const Diff *d); // RMS of the difference
/* Collective. Compares what every rank holds (c->stretches) with rank 0's logical tensor of n
 * elements; d is over all ranks. False, with a verdict unless there is one, when it is further than
 * rank 0's limit. */
bool check_tensor(Check *c, const Suspect *s, const float *reference, int64_t n, Limit limit,
                  Diff *d);
/* Local. Of rank 0: so many times the RMS of the reference in every element. */
Limit check_limit(double accepted, const float *reference, int64_t n);

/* Who looks at: the reference, which is kept; its reordering; the mesh. ctx: the Check. */
void check_keep(void *ctx, Model *m, const Probe *p);
void check_reorder(void *ctx, Model *m, const Probe *p);
void check_mesh(void *ctx, Model *m, const Probe *p);

#endif
