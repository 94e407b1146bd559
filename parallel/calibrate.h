/* calibrate -- what kernels and collectives cost here, measured by all ranks at once.
 *
 * Every rank runs each work at the same time as the others, as in training: ranks that share cores or
 * memory slow each other. Works are measured at two numbers of rows, collectives at up to 8 sizes with all sibling
 * groups active, and their data are checked. The result is the same on all ranks, and kept in the user's
 * cache (base/cache.h) by what it depends on.
 */
#ifndef PARALLEL_CALIBRATE_H
#define PARALLEL_CALIBRATE_H

#include "parallel/machine.h"

/* What shall be measured, each in the order of importance: works (rows: the most that occur; of the team's number of
 * threads, others are passed over) and kinds of groups, of which `most` says in which collectives they occur. */
typedef struct CalibrateList {
    Work *work;
    int n_works;
    TapeGroup *group;
    int64_t (*most)[N_COLL_OPS]; // [n_groups] bytes of the largest; 0: not used
    int n_groups;
} CalibrateList;

typedef struct CalibrateWhere {
    World *world;
    const Kernels *kernels;
    Team *team;
    const char *key; // what the costs depend on: nodes, processors, binary, options; names the file
    double budget;   // seconds
    bool again;      // measure although the cache has it
    bool crowded;    // ranks share cores: a work takes until the last of them is through
} CalibrateWhere;

/* Collective over the world. Reads the cache, measures what it lacks within the budget, writes the cache; what a file
 * cannot give is measured. Dies when a collective brings wrong data. Free with calibration_free. */
Calibration *calibrate(const CalibrateWhere *w, const CalibrateList *list);
void calibration_free(Calibration *c);
double calibration_seconds(const Calibration *c); // that measuring took, 0 from the cache

/* Local, pure. Between and beyond what was measured costs are lines. A work of sizes that were not measured costs what
 * the nearest of its kind, threads and type does, by FLOPs or bytes: sizes are compared by their logarithms. False
 * where its kind, or that op of that group, was not measured. */
bool calibration_work(const Calibration *c, const Work *w, double *seconds);
bool calibration_send(const Calibration *c, const TapeGroup *g, CollOp op, int64_t bytes,
                      double *seconds);
/* Factor on kernels while a collective is under way; time of the slowest rank's kernels by the mean. */
double calibration_slowdown(const Calibration *c);
double calibration_slowest(const Calibration *c);

#endif
