/* check_parts -- what check.c (steps and table) and check_point.c (one tensor, what it lacks)
 * share. */
#ifndef PARALLEL_STEP_CHECK_PARTS_H
#define PARALLEL_STEP_CHECK_PARTS_H

#include "parallel/step/check.h"
#include "parallel/step/program.h"
#include "parallel/step/run.h"

/* How far some elements are from the reference. */
typedef struct Diff {
    double max, square; // largest absolute difference; sum of squared differences
    double reference;   // sum of squares of the reference
    int64_t n;
} Diff;

/* A value of the reference's first micro-batch, [tokens, width]. */
typedef struct Point {
    int64_t width; // 0: no rank of the mesh has it in memory, complete
    float *values; // NULL: not yet
    double max;    // of the reordering's differences, relative to the RMS
} Point;

/* Elements of an array, and where they lie in the logical tensor. */
typedef struct Ranges {
    struct {
        int64_t at, global, n;
    } * s;
    int64_t n, cap;
} Ranges;

/* A collective that a tensor has gone through. */
typedef struct Cause {
    Comm *over;
    const char *op, *what;
} Cause;

/* The whole models: the reference, and its sums in another order. */
enum { REFERENCE, REORDERED, N_WHOLE };

typedef struct Check {
    const CheckJob *job;
    Model *m;             // of the mesh
    const Program *p;     // of its micro-batches
    Group group;          // all ranks
    int64_t round;        // sequences of a micro-batch of the whole mesh
    int64_t tokens;       // of it
    Model whole[N_WHOLE]; // of rank 0
    Point *points;        // [n_points], by StepTensor.value
    int n_points;
    bool *agreed;      // [tensors of p] the reference has the same, or a tensor made of it agrees
    int64_t first;     // sequence of the micro-batch of all ranks at which a model is
    float *want, *sum; // memory for a logical tensor, for a local one
    int64_t want_cap, sum_cap;
    Ranges ranges;
    double moved;      // learning rate of the last update; 0: there was none
    char verdict[512]; // "" while all agrees; the same on all ranks
} Check;

/* What a tensor could lack. */
enum { MAX_CAUSES = 12 };
typedef struct Suspect {
    const char *name;
    const float *local;      // [n] of this rank
    int64_t n;               // 0: it cannot be partial
    const Op *op;            // that made it; or NULL
    const Tensor *gradient;  // whose it is; or NULL
    Cause cause[MAX_CAUSES]; // besides those of op and gradient
    int n_causes;
} Suspect;

/* What is accepted of the difference on one rank: of its largest element, of its RMS. */
typedef struct Limit {
    double max, rms;
} Limit;

/* What rounding alone may do, relative to the RMS of a tensor. */
double check_accepted(const Check *c, double reordered);
/* Local. Adds the difference of one range. */
void diff_add(Diff *d, const float *a, const float *b, int64_t n);
double diff_max(const Diff *d); // relative to the RMS of the reference
void ranges_of(Check *c, const Tensor *t, TensorPart part);
double diff_distance(const Diff *d); // RMS of the difference
/* Collective. Compares what every rank holds (c->ranges) with rank 0's logical tensor of n
 * elements; d is over all ranks. False, with a verdict unless there is one, when it is further than
 * rank 0's limit. */
bool check_tensor(Check *c, const Suspect *s, const float *reference, int64_t n, Limit limit,
                  Diff *d);
/* Local. Of rank 0: so many times the RMS of the reference in every element. */
Limit check_limit(double accepted, const float *reference, int64_t n);
/* Local. Finds what of the reference is to be kept: the values that a rank of the mesh has in
 * memory. c->p is set. Freed by mem_free: points, agreed. */
void check_plan(Check *c);
/* Local. Floats of all of it. */
int64_t check_floats(const Check *c);

/* Hooks of step_run: the reference, which is kept; its reordering; the mesh. ctx: the Check. */
void check_keep(void *ctx, Model *m, const StepResult *r);
void check_reorder(void *ctx, Model *m, const StepResult *r);
void check_mesh(void *ctx, Model *m, const StepResult *r);

/* Local. A cause more, unless it is one already; over NULL: there is no such collective here. */
void check_add_cause(Suspect *s, Comm *over, const char *op, const char *what);

#endif
