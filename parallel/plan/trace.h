/* trace -- timeline of two steps on every rank, to show overlap (--trace).
 *
 * Of two consecutive ordinary steps, the first waits for every collective where it starts (serial),
 * the second follows the schedule. The communication exposed in the first and not in the second is
 * hidden by overlap:
 *
 *   serial    compute    ▓▓▓▓      ▓▓▓▓▓      ▓▓▓▓
 *             exposed        ██████     ██████       time in start and wait
 *   overlap   compute    ▓▓▓▓  ▓▓▓▓▓   ▓▓▓▓
 *             in flight      ░░░░░░ ░░░░░░           started, not complete
 *             exposed                ██              E = 1 - exposed / exposed of serial
 *
 * Spans go to memory allocated before, so tracing does not change a step. Clocks of all ranks are
 * converted to that of rank 0. With kernels on a device, times are those of its streams: marks
 * (layers/device_clock.h) that are read when the step is done, for which the host waits once.
 * Source of E: FLUX (Chang et al. 2024).
 */
#ifndef PARALLEL_PLAN_TRACE_H
#define PARALLEL_PLAN_TRACE_H

#include "parallel/plan/price.h"
#include "parallel/step/program.h"
#include "parallel/step/run.h"

/* Names are constants. Times: seconds of this rank's CLOCK_MONOTONIC, or marks while a step is
 * traced on a device. */
typedef struct TraceSpan {
    const char *name;  // of the operation; or what the collective sends
    const char *label; // group of the collective; NULL: a kernel
    Moment begin, end; // kernel; or collective: coll_start to complete
    int step;          // TRACE_SERIAL, TRACE_OVERLAP
    union {
        struct {
            char result[DIST_NAME]; // tensor that it makes
            int layer;              // -1: of none
            Phase phase;
            double flops; // 0: not counted
        };
        struct {
            CollOp op;
            int size;                     // of the group
            int64_t bytes;                // received
            Moment started, wait, waited; // exposed: [begin, started) and [wait, waited)
        };
    };
} TraceSpan;

enum { TRACE_SERIAL, TRACE_OVERLAP, TRACE_STEPS };

typedef struct Trace {
    TraceSpan *span;      // [max], n in use; sorted by begin after trace_end
    int64_t n, max, lost; // lost: spans beyond max
    struct {
        int64_t number;
        double begin, end;
    } step[TRACE_STEPS];
    int now;              // TRACE_SERIAL or TRACE_OVERLAP: the step that is traced
    bool open;            // between trace_begin and trace_end
    StepHook hook;        // of the model while a step is traced
    int64_t marks;        // marks per step to allocate on a device
    double offset, error; // this rank's clock minus that of rank 0; bound of its error
    double device_error;  // error of device times on this rank's clock
} Trace;

/* Local. Allocates spans of both steps. marks per step on a device: two for each kernel, four for
 * each collective; more are allocated when needed. */
void trace_create(Trace *t, int64_t max, int64_t marks);
void trace_free(Trace *t);
/* Collective over the world. From trace_begin to trace_end all kernels of m and collectives of w
 * are recorded as step `which`. With TRACE_SERIAL every collective is waited for where it
 * starts. */
void trace_begin(Trace *t, int which, int64_t number, Model *m, World *w);
void trace_end(Trace *t, Model *m, World *w);

/* Pure. This rank's clock minus another rank's. Each has read its clock before ([i][0]) and after
 * ([i][1]) the same n barriers. No rank leaves a barrier before all have entered it, which bounds
 * the difference from both sides. Returns 0 if the bounds allow 0, else their middle; *error: half
 * of their distance. */
double trace_offset(double (*mine)[2], double (*other)[2], int n, double *error);

/* Seconds of exposed communication. */
static inline double trace_exposed(const TraceSpan *s) {
    return s->label ? s->started - s->begin + s->waited - s->wait : 0;
}

/* ---- trace_table.c: per type of layer */

typedef struct TraceLayer {
    const char *name;       // "qkv", ..., "norms", "gradients", "weights"
    double calls, bytes;    // of the second step, mean over ranks
    double serial, exposed; // exposed seconds in the first step; in the second
} TraceLayer;

/* Means over the ranks. */
typedef struct TraceTable {
    int n; // rows; the last one is the sum
    TraceLayer row[16];
    double kernels[TRACE_STEPS]; // seconds
} TraceTable;

/* Collective over the ranks, alike on all. */
void trace_table(TraceTable *table, const Trace *t, const Group *g);
/* Pure. E. 1: all communication is hidden; 0: none; below 0: it takes longer than in the serial
 * step. NAN: the serial step waits for less than 50 us, about what waking a thread takes. */
double trace_efficiency(const TraceLayer *l);
/* Pure. E of the whole step with the time that kernels lose beside communication counted as
 * exposed, as FLUX does. Kernels that were faster beside communication count as equally fast. */
double trace_charged(const TraceTable *table);
/* Local. efficiency: with the column of E. */
void trace_print(FILE *f, const TraceTable *table, bool efficiency);

/* ---- trace_write.c: events of Chrome's trace format, one a line, each followed by a comma */

/* Local. Writes this rank's events. zero: the time on rank 0's clock that becomes 0. node: name of
 * the rank's node. */
void trace_events(FILE *f, const Trace *t, int rank, const char *node, double zero);
#endif
