/* calibrate_parts -- what the files of the calibration share: its tables, its clock, its memory.
 *
 *   calibrate.c        what is missing is measured, in order, while the budget lasts
 *   calibrate_meter.c  the clock: one call on all ranks at once
 *   calibrate_work.c   works, on memory as cold as in training
 *   calibrate_send.c   collectives, and whether their data are right
 *   calibrate_cost.c   the tables read
 *   calibrate_cache.c  the tables kept in a file
 */
#ifndef PARALLEL_CALIBRATE_PARTS_H
#define PARALLEL_CALIBRATE_PARTS_H

#include "parallel/calibrate.h"

/* Seconds = fixed + per_row * rows. */
typedef struct WorkCost {
    Work work; // rows: the most that was asked for
    double fixed, per_row;
} WorkCost;

enum { SEND_POINTS = 8 };
typedef struct SendCost {
    Placement place;
    CollOp op;
    int n;
    int64_t most;  // bytes that were asked for
    double beside; // time of kernels while it is under way, by that of them alone
    double bytes[SEND_POINTS], seconds[SEND_POINTS]; // both ascend
} SendCost;

struct Calibration {
    WorkCost *work;
    SendCost *send;
    int n_works, max_works, n_sends, max_sends;
    double slowest;
    double seconds;    // that measuring took
    char measured[24]; // when, last
    int doubts;        // how often it was forgotten for foretelling badly
};

/* Local. Is a table that foretold so many runs badly to be forgotten? Where measuring again has not mended it before, twice
 * as many are asked for each time: then the machine is not what was wrong. */
bool calibration_doubt(const Calibration *c, const CalibrateTalk *talk);
/* Local. An empty table; entries are added or take the place of what measured the same. */
Calibration *calibration_new(void);
void calibration_add_work(Calibration *c, const WorkCost *w);
void calibration_add_send(Calibration *c, const SendCost *s);
/* Local, pure. NULL: none. */
const WorkCost *calibration_find_work(const Calibration *c, const Work *alike);
const SendCost *calibration_find_send(const Calibration *c, const Placement *p, CollOp op);

/* Local. The table as JSON (mem_free), and back: false when it is damaged or made for another key. */
char *calibration_print(const Calibration *c, const char *key);
bool calibration_parse(Calibration *c, const char *text, size_t n, const char *key, Err *e);
/* Local. From and to the file of this key; what cannot be had is told in a line and left. */
char *calibration_path(const char *key); // mem_free; NULL: nowhere
void calibration_load(Calibration *c, const char *key);
void calibration_save(const Calibration *c, const char *key);

/* The clock. All ranks agree in what it says. */
typedef void MeterCall(void *ctx);
typedef struct Meter {
    const CalibrateTalk *talk; // NULL: nobody listens
    CalibrateNews news;
    World *world;
    Group all;
    bool crowded;
    double begin, elapsed; // seconds since the beginning, by rank 0
    double barrier;        // seconds of one
    double enough;   // seconds: then one more repetition is not worth its time (15 ms always are)
    MeterCall *tidy; // called after calls, while the clock stands; NULL: nothing to do
    double *rank;    // [size][2] of the last measurement: seconds, elapsed
} Meter;
/* Seconds of a call: by the mean of the ranks, of the slowest one. */
typedef struct Took {
    double mean, most;
} Took;
/* Collective over the world. */
void meter_start(Meter *m, World *w, bool crowded);
void meter_end(Meter *m);
/* Collective over the world. The mean and the largest of what each rank says. */
Took meter_agree(Meter *m, double seconds);
/* Collective over the world. One call, for a first idea; then the lower quartile of some that last long enough for the
 * clock, `about` seconds each. together: a call is over when it is on all ranks that share cores. */
Took meter_once(Meter *m, MeterCall *call, void *ctx, bool together);
Took meter_run(Meter *m, MeterCall *call, void *ctx, double about, int repeats, bool together);

/* Local, pure. Bytes that measuring a work takes. */
WorkMemory calibrate_work_memory(const CalibrateWhere *where, const Work *w);
/* Collective over the world. Adds what the works cost, until so many seconds have elapsed. memory: a workspace for all, and
 * behind it the operands that works go round in, as many bytes as the largest needs at least. Returns the time of the slowest
 * rank by the mean. */
double calibrate_works(Meter *m, const CalibrateWhere *where, const Work *list, int n, void *memory,
                       WorkMemory bytes, double until, Calibration *c);

/* Local, pure. Sizes in bytes at which a collective of up to `most` is measured, ascending; their number. Where the backend
 * takes another way above `turn` (0: nowhere), the last before it and one behind it are among them: a line from one way to
 * the other foretold sums of 128 KiB between racks to take four times as long as they did. */
int calibrate_sizes(int64_t most, int64_t turn, int64_t size[SEND_POINTS]);
/* Local, pure. The size that is measured in place of the next one, `size`, when `before` bytes took so many seconds: less, where
 * that would take too long, as what is above the last one is foretold from the two last; 0: none that would tell more. Between
 * racks of 200 Mbit/s the last of a pair had been 31 KiB, of which a good part passes unshaped after a pause, and sums of 128
 * KiB were foretold to take 18 ms; they take 22. */
int64_t calibrate_next(int64_t size, int64_t before, double seconds);
/* Collective over the world. Measures the collective at sizes up to `most` bytes; memory: calibrate_send_bytes(). */
void calibrate_send(Meter *m, const TapeGroup *g, Comm *c, CollOp op, int64_t most, void *memory,
                    SendCost *cost);
int64_t calibrate_send_bytes(int64_t most);
/* Collective over the group. Starts one of so many bytes. */
Ticket calibrate_send_start(Comm *c, CollOp op, int64_t bytes, void *memory);
/* Local, pure. Bytes of the largest collective of all groups inside a node of so many neighbours, or across nodes. */
int64_t calibrate_largest(const CalibrateList *list, int neighbours, bool across, int *group,
                          CollOp *op);
/* Collective over the world. This rank's group of those at such a place. */
Comm *calibrate_comm(World *w, const TapeGroup *g);

#endif
