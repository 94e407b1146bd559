/* calibrate -- what kernels and collectives cost here, measured by all ranks at once.
 *
 * Every rank runs each work at the same time as the others, as in training: ranks that share cores
 * or memory slow each other. Works are measured at two numbers of rows. A collective is measured
 * at a small and at a large size, with all sibling groups active, and its data are checked:
 * latency and bandwidth are two numbers (Hockney). One of all groups whose ranks lie alike
 * (machine_alike) stands for them.
 *
 * The time for all this is given. Latencies come first; what is left then decides how large the
 * large sizes are: as large as fit, by the bandwidth of the links (detect_links). What did not fit
 * at all is derived: the formula of parallel/plan/machine.h for it, scaled to the nearest that was
 * measured, latency and bandwidth each. The result is the same on all ranks, and kept in the
 * user's cache (base/cache.h) by what it depends on.
 */
#ifndef PARALLEL_PLAN_CALIBRATE_H
#define PARALLEL_PLAN_CALIBRATE_H

#include "parallel/comm/ranks.h"
#include "parallel/plan/detect.h"
#include "parallel/plan/machine.h"

/* What shall be measured, each in the order of importance: works (rows: the most that occur); kinds
 * of groups, of which `most` says in which collectives they occur. */
typedef struct CalibrateList {
    Work *work;
    int n_works;
    SendGroup *group;
    int64_t (*most)[N_COLL_OPS]; // [n_groups] bytes of the largest; 0: not used
    int n_groups;
} CalibrateList;

typedef struct CalibrateWhere {
    World *world;
    const Kernels *kernels;
    Team *team;
    NodeShare node;         // before the team was made
    const Machine *machine; // as described, with its links measured: where groups lie, formulas
    const char *key; // what the costs depend on: nodes, processors, binary, options; names the file
    double budget;   // seconds from now on
    bool again;      // what the cache has is forgotten
    // called on rank 0 before each measurement ("all_gather of 4 ranks, 64.0 KiB"), so many seconds
    // since the beginning; path: of the file that will keep the table, or NULL. NULL: not called
    void (*progress)(void *ctx, const char *path, const char *what, double seconds);
    void *ctx;
} CalibrateWhere;

/* Seconds = fixed + per_row * rows. */
typedef struct WorkCost {
    Work work; // rows: the most that was asked for
    double fixed, per_row;
    bool derived; // from the nearest that was measured: there was no time for it
} WorkCost;

/* A small size; on far links both sides of the size above which receivers are asked first; a
 * quarter of the largest that is measured, and that one, between which bandwidth shows whatever a
 * large message costs at its start; the largest that was asked for. */
enum { SEND_SMALL = 256, SEND_POINTS = 6 };
typedef struct SendCost {
    Placement place;
    CollOp op;
    int n;
    int64_t most;     // bytes that were asked for
    int64_t measured; // bytes up to which points are measured; 0: all are derived
    // time of kernels while it is under way, by that of them alone: 100 where nothing is hidden
    double slowdown;
    double bytes[SEND_POINTS], seconds[SEND_POINTS]; // both ascend
} SendCost;

struct Calibration {
    WorkCost *work;
    SendCost *send;
    int n_works, max_works, n_sends, max_sends;
    // what the key cannot have, since it is measured: the links, and how kernels of ranks that
    // share cores slow each other (Machine.oversubscription; 0: not known): more than 1, a work
    // takes until the last of them is through
    Links links;
    double oversubscription;
    double slowest;    // time of the slowest rank's kernels by the mean
    double seconds;    // that measuring took, 0 from the cache
    char measured[24]; // when last: "2026-01-31T12:00:00Z"
};

/* Collective over the world. The table of this key as the cache has it, or an empty one. Free with
 * calibration_free. */
Calibration *calibrate_open(World *w, const char *key, bool again);
void calibration_free(Calibration *c);
/* Collective over the world. Measures what the table lacks within the budget, derives the rest,
 * and writes the cache. Dies when a collective brings wrong data. */
void calibrate(Calibration *c, const CalibrateWhere *w, const CalibrateList *list);
/* Local. What can be said of the listed collectives without measuring: those that the table lacks
 * are derived. False where a kind of work, or all collectives, were never measured. */
bool calibrate_derived(Calibration *c, const Machine *described, const CalibrateList *list);

/* Local, pure. Between and beyond what was measured costs are lines. A work of sizes that were not
 * measured costs what the nearest of its kind and type does, by FLOPs or bytes: sizes are
 * compared by their logarithms. False where its kind, or that op of that group, was not measured.
 */
bool calibration_work(const Calibration *c, const Work *w, double *seconds);
bool calibration_send(const Calibration *c, const SendGroup *g, CollOp op, int64_t bytes,
                      double *seconds);
/* Seconds of a collective: at 0 bytes, and a byte. */
typedef struct CostLine {
    double start, rate;
} CostLine;
/* Local, pure. A line that calibration_send never falls below. */
bool calibration_line(const Calibration *c, const SendGroup *g, CollOp op, CostLine *line);
/* Local, pure. NULL: none. */
const SendCost *calibration_find_send(const Calibration *c, const Placement *p, CollOp op);

#endif
