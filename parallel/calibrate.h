/* calibrate -- what kernels and collectives cost here, measured by all ranks at once.
 *
 * Every rank runs each work at the same time as the others, as in training: ranks that share cores or
 * memory slow each other. Works are measured at two numbers of rows, collectives at up to 8 sizes with all sibling
 * groups active, and their data are checked. The result is the same on all ranks (rank 0's), and kept
 * under the user's cache directory ($XDG_CACHE_HOME or ~/.cache, train_gpt/) by what it depends on.
 */
#ifndef PARALLEL_CALIBRATE_H
#define PARALLEL_CALIBRATE_H

#include "parallel/machine.h"

/* What shall be measured: works (rows: the most that occur) and kinds of groups, of which `use` says in which
 * collectives and up to how many bytes they occur. */
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
} CalibrateWhere;

/* Collective over the world. Reads the cache, measures what it lacks within the budget (the list is in order of
 * importance), writes the cache. Dies when a collective brings wrong data. Free with calibration_free. */
Calibration *calibrate(const CalibrateWhere *w, const CalibrateList *list);
void calibration_free(Calibration *c);
double calibration_seconds(const Calibration *c); // that measuring took, 0 from the cache

/* Local, pure. False where nothing alike was measured; between and beyond what was measured costs are lines. */
bool calibration_work(const Calibration *c, const Work *w, double *seconds);
bool calibration_send(const Calibration *c, const TapeGroup *g, CollOp op, int64_t bytes,
                      double *seconds);
/* Factor on kernels while a collective is under way; time of the slowest rank's kernels by the mean. */
double calibration_slowdown(const Calibration *c);
double calibration_slowest(const Calibration *c);

#endif
