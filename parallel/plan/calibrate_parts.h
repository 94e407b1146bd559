/* calibrate_parts -- what the files of the calibration share: its tables, its clock, its memory.
 *
 *   calibrate.c        what is missing is measured, in order, while the budget lasts
 *   calibrate_meter.c  the clock: one call on all ranks at once
 *   calibrate_work.c   works, on memory as cold as in training
 *   calibrate_send.c   one collective, and whether its data are right
 *   calibrate_sizes.c  which collectives at which sizes fit into the time; the others derived
 *   calibrate_cost.c   the tables read
 *   calibrate_cache.c  the tables kept in a file
 */
#ifndef PARALLEL_PLAN_CALIBRATE_PARTS_H
#define PARALLEL_PLAN_CALIBRATE_PARTS_H

#include "parallel/comm/coll_backend.h"
#include "parallel/plan/calibrate.h"

/* Local. An empty table; entries are added or take the place of what measured the same. */
Calibration *calibration_new(void);
void calibration_add_work(Calibration *c, const WorkCost *w);
void calibration_add_send(Calibration *c, const SendCost *s);
/* Local, pure. NULL: none. */
const WorkCost *calibration_find_work(const Calibration *c, const Work *alike);

/* Local. The table as JSON (mem_free), and back: false when it is damaged or of another key. */
char *calibration_print(const Calibration *c, const char *key);
bool calibration_parse(Calibration *c, const char *text, size_t n, const char *key, Err *e);
/* Local. To the file of this key; where that cannot be, a line says so. */
char *calibration_path(const char *key); // mem_free; NULL: nowhere
void calibration_save(const Calibration *c, const char *key);

/* The clock. All ranks agree in what it says. */
typedef void MeterCall(void *ctx);
typedef struct Meter {
    const CalibrateWhere *where;
    char *path; // of the file that will keep the table, or NULL
    Group all;
    bool oversubscribed;
    double begin, elapsed; // seconds since the beginning, by rank 0
    double barrier;        // seconds of one
    MeterCall *tidy;       // called after calls, while the clock stands; NULL: nothing to do
    double *rank;          // [size][2] of the last measurement: seconds, elapsed
} Meter;
/* Seconds of a call: by the mean of the ranks, of the slowest one. */
typedef struct Took {
    double mean, most;
} Took;
/* Collective over the world. */
void meter_start(Meter *m, const CalibrateWhere *w, bool oversubscribed);
void meter_end(Meter *m);
/* Local. What comes next, for rank 0's listener. */
void meter_progress(Meter *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
Took meter_agree(Meter *m, double seconds); // collective over the world: of what each rank says
/* Collective over the world. One call, for a first idea; then the lower quartile of some that last
 * long enough for the clock, `about` seconds each. together: a call is over when it is on all
 * ranks that share cores. */
Took meter_once(Meter *m, MeterCall *call, void *ctx, bool together);
Took meter_run(Meter *m, MeterCall *call, void *ctx, double about, int repeats, bool together);

/* Local, pure. Bytes that measuring a work takes. */
WorkMemory calibrate_work_memory(const CalibrateWhere *where, const Work *w);
/* Collective over the world. Adds what the works cost, until so many seconds have elapsed. memory:
 * a workspace for all, and behind it the operands that works go round in, as many bytes as the
 * largest needs at least. Returns the time of the slowest rank by the mean. */
double calibrate_works(Meter *m, const Work *list, int n, void *memory, WorkMemory bytes,
                       double until, Calibration *c);

/* ---- one collective (calibrate_send.c) */

/* Collective over the world. Checks the data of one of about so many bytes, then times it; adds
 * the point to the cost. */
void calibrate_send(Meter *m, const SendGroup *g, Comm *c, int64_t bytes, void *memory,
                    SendCost *cost);
bool calibrate_far(double latency);          // does a link take long for so small a message?
int calibrate_calls(double latency);         // that this takes at least, at a large size
int64_t calibrate_send_bytes(int64_t bytes); // of memory for that
/* Collective over the group. Starts one of so many bytes. */
Ticket calibrate_send_start(Comm *c, CollOp op, int64_t bytes, void *memory);

/* ---- which, and how large (calibrate_sizes.c) */

/* A collective that is to be measured, for all groups that lie alike. */
typedef struct SendJob {
    SendGroup group; // the one that is measured
    Comm *comm;
    SendCost cost;
    double wall; // seconds that measuring the small size took, all told
} SendJob;
/* Local. What the table lacks, in the order of importance (mem_free); *n: how many. */
SendJob *calibrate_jobs(const Calibration *c, const Machine *m, const CalibrateList *list, int *n);
/* Local, pure. Bytes with which a job takes so many seconds beyond its latency, which is known.
 * slow: seconds on these links by those of the formula. */
int64_t calibrate_size(const SendJob *job, const Machine *m, double seconds, double slow);
/* Local, pure. Such seconds with which all large sizes of a job fit into the time that is left for
 * it; 0: too little is. */
double calibrate_seconds(const SendJob *job, double left);
/* Local, pure. The sizes between the small one and this one, and this one; how many. */
int calibrate_points(const SendJob *job, int64_t largest, const CollBackend *way,
                     int64_t size[SEND_POINTS]);
/* Local. Continues a measured cost to the size that was asked for, by the formula. */
void calibrate_extend(SendCost *cost, const Machine *m);
/* Local. Entries for all collectives of the list that the table lacks: of a group that lies alike,
 * or derived from the nearest that was measured. */
void calibrate_fill(Calibration *c, const Machine *m, const CalibrateList *list);

/* Local, pure. Bytes of the largest collective of all groups inside a node of so many neighbours,
 * or across nodes. */
int64_t calibrate_largest(const CalibrateList *list, int neighbours, bool across, int *group,
                          CollOp *op);

#endif
