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

/* What rank 0 is told before anything is measured, and again after each measurement. */
typedef struct CalibrateNews {
    const char *path; // of the file that will keep the table; NULL: there is no place for it
    bool doubted;     // there was a table, which is forgotten
    double seconds;   // since the beginning
} CalibrateNews;

/* What the caller says and hears; zero: nothing. All of it but `again` counts on rank 0. */
typedef struct CalibrateTalk {
    bool again;        // measure although the cache has it
    char doubtful[24]; // a table that was measured then has foretold steps badly:
    int doubtful_times; // so often. It is forgotten, if that is more than its last measuring again made likely
    void (*tell)(void *ctx, const CalibrateNews *news);
    void *ctx;
} CalibrateTalk;

typedef struct CalibrateWhere {
    World *world;
    const Kernels *kernels;
    Team *team;
    const char *key; // what the costs depend on: nodes, processors, binary, options; names the file
    double budget;   // seconds
    CalibrateTalk talk;
    bool crowded; // ranks share cores: a work takes until the last of them is through
} CalibrateWhere;

/* Collective over the world. Reads the cache, measures what it lacks within the budget, writes the cache; what a file
 * cannot give is measured. Dies when a collective brings wrong data. Free with calibration_free. */
Calibration *calibrate(const CalibrateWhere *w, const CalibrateList *list);
/* Collective over the world. What the cache has; nothing is measured. NULL: it lacks some of what this rank lists. */
Calibration *calibrate_kept(const CalibrateWhere *w, const CalibrateList *list);
void calibration_free(Calibration *c);
double calibration_seconds(const Calibration *c);       // that measuring took, 0 from the cache
const char *calibration_measured(const Calibration *c); // when last: "2026-01-31T12:00:00Z"

/* Local, pure. Between and beyond what was measured costs are lines. A work of sizes that were not measured costs what
 * the nearest of its kind, threads and type does, by FLOPs or bytes: sizes are compared by their logarithms. False
 * where its kind, or that op of that group, was not measured. */
bool calibration_work(const Calibration *c, const Work *w, double *seconds);
bool calibration_send(const Calibration *c, const TapeGroup *g, CollOp op, int64_t bytes,
                      double *seconds);
/* Local, pure. A line that calibration_send never falls below: start + rate * bytes. */
bool calibration_line(const Calibration *c, const TapeGroup *g, CollOp op, double *start,
                      double *rate);
/* Local, pure. Time of kernels while such a collective is under way, by that of them alone: 100 where nothing is hidden. */
bool calibration_beside(const Calibration *c, const TapeGroup *g, CollOp op, double *slow);
/* Time of the slowest rank's kernels by the mean. */
double calibration_slowest(const Calibration *c);

/* Local. The lower quartile of x[n], which is sorted: what else runs on a machine only adds. */
double quartile(double *x, int n);

#endif
