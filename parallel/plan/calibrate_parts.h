/* calibrate_parts -- what the files of the calibration share: its tables and its clock.
 *
 *   calibrate.c             measures what the table lacks, in order, while the budget lasts
 *   calibrate_meter.c       the clock: times one call on all ranks at once
 *   calibrate_work.c        measures works, on memory as cold as in training
 *   calibrate_collective.c  measures one collective and checks its data
 *   calibrate_sizes.c       which collectives at which sizes fit into the time; derives the others
 *   calibrate_cost.c        fills and reads the tables
 *   calibrate_cache.c       keeps the tables in a file
 */
#ifndef PARALLEL_PLAN_CALIBRATE_PARTS_H
#define PARALLEL_PLAN_CALIBRATE_PARTS_H

#include "parallel/comm/coll_backend.h"
#include "parallel/plan/calibrate.h"

/* Local. An empty table. An added entry replaces the one of the same work, or of the same op and
 * place. */
Calibration *calibration_new(void);
void calibration_add_work(Calibration *c, const WorkCost *w);
void calibration_add_collective(Calibration *c, const CollCost *s);
/* Local, pure. The entry of a work that is equal but for rows; NULL: none. */
const WorkCost *calibration_find_work(const Calibration *c, const Work *alike);

/* Local. The table as JSON (mem_free), and back. False: the text is damaged or has another key. */
char *calibration_print(const Calibration *c, const char *key);
bool calibration_parse(Calibration *c, const char *text, size_t n, const char *key, Err *e);
/* Local. The file of a key (mem_free); NULL: the environment names no cache folder. */
char *calibration_path(const char *key);
/* Local. Writes that file; warns if it cannot. */
void calibration_save(const Calibration *c, const char *key);

/* The clock of the calibration. Its readings are the same on all ranks. */
typedef void MeterCall(void *ctx);
typedef struct Meter {
    const CalibrateWhere *where;
    char *path; // the file that will keep the table, or NULL
    Group all;
    bool oversubscribed; // ranks share cores
    double begin;        // now_s() of meter_start
    double elapsed;      // seconds since then, by rank 0's clock
    double barrier;      // seconds of a barrier; 0 unless oversubscribed
    MeterCall *tidy;     // called after timed calls, outside of their time; NULL: nothing to do
    double *rank;        // [size][2] of the last measurement: seconds, elapsed
} Meter;
/* Seconds of a call: the mean over the ranks, and the slowest rank's. */
typedef struct CallTime {
    double mean, slowest;
} CallTime;
/* Collective over the world. */
void meter_start(Meter *m, const CalibrateWhere *w, bool oversubscribed);
void meter_end(Meter *m);
/* Local. Tells CalibrateWhere.progress which measurement comes next. */
void meter_progress(Meter *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Collective over the world. Mean and maximum of the ranks' `seconds`; sets m->elapsed. */
CallTime meter_agree(Meter *m, double seconds);
/* Collective over the world. meter_once times one call, for an estimate; one that shows no time is
 * repeated 10, 100 or 1000 times. meter_run takes the lower quartile of several measurements;
 * `about`: estimated seconds of a call, of which each measurement makes as many as the clock needs.
 * together: on shared cores the time ends when all ranks are done. */
CallTime meter_once(Meter *m, MeterCall *call, void *ctx, bool together);
CallTime meter_run(Meter *m, MeterCall *call, void *ctx, double about, int repeats, bool together);

/* Local, pure. Bytes that measuring a work takes. */
WorkMemory calibrate_work_memory(const CalibrateWhere *where, const Work *w);
/* Collective over the world. Measures the listed works, one at least, and adds their costs to c.
 * Measuring takes this share of the time that the first touch of memory leaves before m->elapsed
 * reaches `end`. memory: bytes.workspace bytes, shared by all works; behind them a window of
 * bytes.operands bytes from which the works take operands in turn, at least as large as the largest
 * work's. Sets c->slowest. Returns how many works were measured: the first ones of the list. */
int calibrate_works(Meter *m, const Work *list, int n, void *memory, WorkMemory bytes, double share,
                    double end, Calibration *c);

/* ---- one collective (calibrate_collective.c) */

/* Collective over the world. Checks the data of the collective of cost->op with about this number
 * of bytes, then times it; adds a point to the cost. memory: calibrate_collective_bytes(bytes). */
void calibrate_collective(Meter *m, const CollGroup *g, Comm *c, int64_t bytes, void *memory,
                          CollCost *cost);
/* Local, pure. Is a small message's latency above a millisecond? */
bool calibrate_far(double latency);
/* Local, pure. Calls that calibrate_collective makes at least at a large size. */
int calibrate_calls(double latency);
/* Local, pure. Bytes of memory that calibrate_collective needs. */
int64_t calibrate_collective_bytes(int64_t bytes);
/* Collective over the group. Starts a collective of this number of bytes. */
Ticket calibrate_collective_start(Comm *c, CollOp op, int64_t bytes, void *memory);

/* ---- which, and how large (calibrate_sizes.c) */

/* A collective to measure, for all groups that lie alike. */
typedef struct CollJob {
    CollGroup group; // the group that is measured
    Comm *comm;
    bool borrowed; // comm is that of an earlier job
    CollCost cost;
    double wall; // seconds for measuring the small size, with the split of the world and the check
} CollJob;
/* Local. The collectives that the table lacks, the most important first (mem_free); *n: their
 * number. */
CollJob *calibrate_jobs(const Calibration *c, const Machine *m, const CalibrateList *list, int *n);
/* Local, pure. Bytes with which a job takes `seconds` beyond its latency, which is measured. slow:
 * seconds for bytes on these links relative to the formula's. */
int64_t calibrate_size(const CollJob *job, const Machine *m, double seconds, double slow);
/* Local, pure. The `seconds` of calibrate_size for which all large sizes of a job can be measured
 * in the time `left`; 0: too little time is left. */
double calibrate_seconds(const CollJob *job, double left);
/* Local, pure. The sizes to measure beyond the small one, up to `largest`. Returns their number. */
int calibrate_points(const CollJob *job, int64_t largest, const CollBackend *backend,
                     int64_t size[COLL_POINTS]);
/* Local. Adds to a measured cost the size that was asked for, by the formula. */
void calibrate_extend(CollCost *cost, const Machine *m);
/* Local. Adds entries for all collectives of the list that the table lacks: that of a group that
 * lies alike, or one derived from the nearest measured collective. False: none was measured. */
bool calibrate_fill(Calibration *c, const Machine *m, const CalibrateList *list);

/* Local, pure. The largest listed collective of groups that span several nodes (across), or of
 * groups inside a node. NULL: there is none. */
const ListedCollective *calibrate_largest(const CalibrateList *list, const Machine *m, bool across);

#endif
