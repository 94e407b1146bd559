/* trace -- what every rank did in two steps, and when: the picture of overlap (--trace).
 *
 * Of two steps that follow each other, both ordinary ones, the first waits for every collective where it starts it, the
 * second as the schedule has it. What the first is held up and the second is not, is what overlap hides:
 *
 *   serial    compute    ▓▓▓▓      ▓▓▓▓▓      ▓▓▓▓
 *             exposed        ██████     ██████           held up: time in coll_start and coll_wait
 *   overlap   compute    ▓▓▓▓  ▓▓▓▓▓   ▓▓▓▓
 *             under way      ░░░░░░ ░░░░░░               started, and not complete
 *             exposed                ██                  E = 1 - exposed / exposed of the serial step
 *
 * Spans go to memory that was there before; a step that is traced does what it does untraced. Clocks of all ranks are
 * brought to that of rank 0. Where kernels run on a device, all of this is of its streams: marks (layers/clock.h) that become
 * times when the step is done, for which its host waits once.
 * Source of E: FLUX (Chang et al. 2024).
 */
#ifndef PARALLEL_TRACE_H
#define PARALLEL_TRACE_H

#include "parallel/machine.h"
#include "parallel/model.h"

/* Names are constants of the program; seconds of this rank's CLOCK_MONOTONIC, but while its step is traced on a device. */
typedef struct TraceSpan {
    const char *name;  // of the kernel; of a collective what it sends
    const char *label; // of the collective's group; NULL: a kernel
    Moment begin, end; // of the kernel; of the collective: coll_start, nothing under way any more
    int step;          // TRACE_SERIAL, TRACE_OVERLAP
    union {
        struct {
            const char *form; // of a product; else NULL
            int64_t M, N, K;
            double flops; // 0: not counted
        };
        struct {
            CollOp op;
            int size;                     // of the group
            int64_t bytes;                // received
            Moment started, wait, waited; // held up in [begin, started) and [wait, waited)
        };
    };
} TraceSpan;

enum { TRACE_SERIAL, TRACE_OVERLAP, TRACE_STEPS };

typedef struct Trace {
    TraceSpan *span; // [max], the first n in use; in the order of their beginning after trace_end
    int64_t n, max, lost; // lost: there was no room for them
    struct {
        int64_t number;
        double begin, end;
    } step[TRACE_STEPS];
    int now;              // the step that is being traced
    int64_t marks;        // that the clock of a device is to have room for in a step
    double offset, error; // this rank's clock minus that of rank 0, wrong by at most error
    double device_error;  // of times of the device by this rank's clock
    const Kernels *inner; // of the model while a step is traced; else NULL
} Trace;

/* Local. Memory for so many spans of both steps. marks: of one on a device, two for each kernel and four for each collective;
 * what lacks is made while the step goes on. */
void trace_create(Trace *t, int64_t max, int64_t marks);
void trace_free(Trace *t);
/* Collective over the world. From trace_begin to trace_end all that m computes and w sends is written down as step
 * `which`; with TRACE_SERIAL, w is blocking between them. */
void trace_begin(Trace *t, int which, int64_t number, Model *m, World *w);
void trace_end(Trace *t, Model *m, World *w);

/* Pure. A clock minus another one, both read n times just before and just after the same barriers (mine[i][0],
 * mine[i][1]): nobody leaves before all have entered, which bounds it from both sides. 0 where it may be 0; error: half
 * the width of the bounds. */
double trace_offset(double (*mine)[2], double (*other)[2], int n, double *error);

/* Seconds that the rank was held up. */
static inline double trace_exposed(const TraceSpan *s) {
    return s->label ? s->started - s->begin + s->waited - s->wait : 0;
}

/* ---- trace_table.c: per type of layer */

typedef struct TraceLayer {
    const char *name;       // "qkv", ..., "norms", "gradients", "weights"
    double calls, bytes;    // of the second step, as the mean rank has them
    double serial, exposed; // seconds that it is held up in the first step, and in the second
} TraceLayer;

/* Means over the ranks. */
typedef struct TraceTable {
    int n; // rows; the last one is the sum
    TraceLayer row[16];
    double kernels[TRACE_STEPS]; // seconds
} TraceTable;

/* Collective over the ranks, alike on all. */
void trace_table(TraceTable *table, const Trace *t, const Group *g);
/* Pure. E: 1: all is hidden; 0: nothing; below: it takes longer. NAN where the serial step is held up by nothing. */
double trace_efficiency(const TraceLayer *l);
/* Pure. E of the whole step when what kernels lose beside communication is charged to it, as FLUX does. */
double trace_charged(const TraceTable *table);
/* E is left out where it would say nothing. */
void trace_print(FILE *f, const TraceTable *table, bool efficiency);

/* ---- trace_write.c: events of Chrome's trace format, one a line, each followed by a comma */

/* Local. Those of this rank; times from rank 0's `zero` on. node: where it runs. */
void trace_events(FILE *f, const Trace *t, int rank, const char *node, double zero);
/* Local. What the machine foretells of a recorded step (PriceShape.whole), as one more process. begin: seconds. */
void trace_foretold(FILE *f, const Tape *tape, const Machine *m, int pid, double begin);

#endif
