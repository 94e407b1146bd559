/* timeline_file -- a file of train_gpt --trace as a picture in text: what every rank computes, what
 * is under way meanwhile, and what it is blocked on, in a step without overlap and in one with it.
 *
 *     step 5, --overlap halves: 3.85 ms
 *             0 ms     1       2       3
 *     rank 0  ▇▇▇▂▁▇▇▇▇▂▇▇▇▅▇▇▇▇▇▇▇▇    so much of the time it computes
 *             ░░░▆▇░░░░▆░░░▃       ▁    blocked on others; ░ hidden: under way meanwhile
 *
 * The bytes are Chrome's trace format as parallel/plan/trace.h writes it: an object with
 * "traceEvents", of which those with "ph":"X" and the categories step, kernel, collective and
 * exposed are read ("ts" and "dur" in microseconds), and "otherData" with the words of the title
 * and the table "layers".
 */
#ifndef DATA_TIMELINE_FILE_H
#define DATA_TIMELINE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/die.h"

enum { TIMELINE_SERIAL, TIMELINE_OVERLAP, TIMELINE_STEPS };
typedef enum { TIMELINE_COMPUTE, TIMELINE_HIDDEN, TIMELINE_EXPOSED, TIMELINE_KINDS } TimelineKind;
enum { TIMELINE_PARTS = 6 };
extern const char *const timeline_parts[TIMELINE_PARTS]; // of what is computed: "products", ...

/* Milliseconds from the step's beginning on. */
typedef struct TimelineSpan {
    double begin, end;
    int part; // of TIMELINE_COMPUTE
} TimelineSpan;

/* A process in a step: spans of a kind ascend and do not overlap, and what is hidden is not
 * exposed. */
typedef struct TimelineRow {
    char name[80]; // "rank 0 on node7"
    double ms;     // when its step ends
    size_t n[TIMELINE_KINDS];
    TimelineSpan *span[TIMELINE_KINDS];
} TimelineRow;

typedef struct TimelineStep {
    int64_t number;
    double ms; // of the slowest rank; 0: there is no such step
    int n;     // rows: ranks in their order
    TimelineRow *row;
} TimelineStep;

typedef struct TimelineLayer {
    char name[24];
    double collectives, bytes, serial_ms, exposed_ms; // of the mean rank
} TimelineLayer;

typedef struct Timeline {
    char layout[80], overlap[80], model[200], backend[24];
    int ranks, n_layers; // the last layer is the sum
    TimelineStep step[TIMELINE_STEPS];
    TimelineLayer layer[16];
    double kernels_ms[TIMELINE_STEPS]; // of the mean rank; 0: not known
    bool says_hidden; // how much overlap hides: else the two steps differ for other reasons
} Timeline;

/* Local, pure but for memory (timeline_free). */
bool timeline_parse(Timeline *t, const char *p, size_t n, Err *e);
void timeline_free(Timeline *t);

/* Pure. The time axis of a picture in ms, which all of its steps share: `only` one of them, or both
 * (-1). */
double timeline_axis(const Timeline *t, int only);

/* Local. width: columns of the terminal. */
void timeline_text(FILE *f, const Timeline *t, int only, int width, bool colours);

#endif
