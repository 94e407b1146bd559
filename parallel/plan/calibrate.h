/* calibrate -- measures what kernels and collectives cost on the machine at hand, on all ranks at
 * once.
 *
 * All ranks run a work at the same time, as in training: ranks that share cores or memory slow each
 * other. Each work is measured at two numbers of rows. A collective is measured at a small and at
 * a large size, which give latency and bandwidth (Hockney), with all sibling groups active, and the
 * data that it brings are checked. Of groups whose ranks lie alike (machine_alike) one is measured.
 *
 * The time for all measurements is given. Latencies come first. The time left then decides how
 * large the large sizes are, predicted with the bandwidth of the links (detect_links). A collective
 * for which there is no time is derived: the formula of parallel/plan/machine.h, with its latency
 * and its bandwidth scaled as for the nearest collective that was measured. The result is the same
 * on all ranks, and is kept in the user's cache (base/cache.h) under a key of what it depends on.
 */
#ifndef PARALLEL_PLAN_CALIBRATE_H
#define PARALLEL_PLAN_CALIBRATE_H

#include "parallel/comm/ranks.h"
#include "parallel/plan/detect.h"
#include "parallel/plan/machine.h"

/* The largest collective of an op in a group, which has two ranks at least. */
typedef struct ListedCollective {
    CollGroup group;
    CollOp op;
    int64_t most; // bytes
} ListedCollective;

/* What to measure: works and collectives, each with the most important first. */
typedef struct CalibrateList {
    Work *work; // rows: the most that occur
    ListedCollective *collective;
    int n_works, n_collectives;
} CalibrateList;

typedef struct CalibrateWhere {
    World *world;
    const Kernels *kernels;
    Team *team;
    NodeShare node;         // as it was before the team was made
    const Machine *machine; // described, with measured links: for places of groups and formulas
    const char *key; // what the costs depend on: nodes, processors, binary, options; names the file
    double budget;   // seconds from now on
    bool again;      // ignore the table in the cache
    // Called on rank 0 before each measurement. what: "all_gather of 4 ranks, 64.0 KiB"; seconds:
    // since the beginning; path: the file that will keep the table, or NULL. progress may be NULL.
    void (*progress)(void *ctx, const char *path, const char *what, double seconds);
    void *ctx;
} CalibrateWhere;

/* Seconds = fixed + per_row * rows. */
typedef struct WorkCost {
    Work work; // rows: the most that was asked for
    double fixed, per_row;
    bool derived; // there was no time to measure: from the nearest measured work
} WorkCost;

/* A collective's cost as points (bytes, seconds), in this order: a small size; on far links one
 * point on either side of the eager limit (CollBackend.eager_limit);
 * a quarter of the largest measured size, and that size (their difference is bandwidth, free of
 * what a large message costs at its start); the largest size that was asked for. */
enum { COLL_SMALL = 256, COLL_POINTS = 6 };
typedef struct CollCost {
    Placement place;
    CollOp op;
    int n;            // points
    int64_t most;     // bytes that were asked for
    int64_t measured; // bytes up to which points are measured; 0: all are derived
    double bytes[COLL_POINTS], seconds[COLL_POINTS]; // [n], both ascend
} CollCost;

struct Calibration {
    WorkCost *work;
    CollCost *collective;
    int n_works, max_works, n_collectives, max_collectives;
    // Measured, so not part of the key:
    Links links;
    // Machine.oversubscription; 0: not known. Above 1 a work lasts until the last of the ranks that
    // share a core has done it.
    double oversubscription;
    double slowest; // kernel time of the slowest rank relative to the mean
    // [machine_across] time of kernels while a collective inside a node, or across nodes, is under
    // way, relative to kernels alone; 100: no kernel can hide it; 0: not measured
    double slowdown[2];
    double seconds;    // that measuring took; 0: from the cache
    char measured[24]; // time of the last measurement: "2026-01-31T12:00:00Z"
};

/* Collective over the world. The table of this key from the cache, or an empty one. Free with
 * calibration_free. */
Calibration *calibrate_open(World *w, const char *key, bool again);
void calibration_free(Calibration *c);
/* Collective over the world. Measures the works and collectives that the table lacks, derives those
 * that do not fit into the budget, and writes the cache. A table in which hardly anything could be
 * measured is not written, and a warning says so. Dies when a collective brings wrong data. */
void calibrate(Calibration *c, const CalibrateWhere *w, const CalibrateList *list);
/* Local. Without measuring: derives the listed collectives that the table lacks. False: a kind of
 * work was never measured, or no collective was. */
bool calibrate_derived(Calibration *c, const Machine *described, const CalibrateList *list);

/* Local, pure. Seconds from the table; between and beyond its points they are lines. A work that
 * the table lacks costs as many seconds a FLOP (or byte) as the nearest one of its kind and dtype;
 * nearness compares the logarithms of sizes. False: the table has no work of this kind, or not this
 * op of this group. */
bool calibration_work(const Calibration *c, const Work *w, double *seconds);
bool calibration_collective(const Calibration *c, const CollGroup *g, CollOp op, int64_t bytes,
                            double *seconds);
/* Seconds of a collective: start + rate x bytes. */
typedef struct CostLine {
    double start, rate;
} CostLine;
/* Local, pure. A line that calibration_collective never falls below. False: the table has no
 * entry for this op of the group. */
bool calibration_line(const Calibration *c, const CollGroup *g, CollOp op, CostLine *line);
/* Local, pure. The entry of a group at this place; NULL: none. */
const CollCost *calibration_find_collective(const Calibration *c, const Placement *p, CollOp op);

#endif
