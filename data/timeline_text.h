/* timeline_text -- a trace of train_gpt --trace as a picture in text. For each rank it shows
 * computation, communication hidden behind it, and communication that the rank is blocked on, in a
 * step without overlap and in a step with overlap.
 *
 *     step 5, --overlap halves: 3.85 ms
 *             0 ms     1       2       3
 *     rank 0  ▇▇▇▂▁▇▇▇▇▂▇▇▇▅▇▇▇▇▇▇▇▇    height: time in which it computes
 *             ░░░▆▇░░░░▆░░░▃       ▁    height: time in which it is blocked
 *                                       ░ hidden communication
 *
 * The bytes are Chrome's trace format as parallel/plan/trace.h writes it: an object with
 * "traceEvents", of which the categories step, kernel, collective and exposed are read ("ts" and
 * "dur" in microseconds), and "otherData" with the words of the title.
 */
#ifndef DATA_TIMELINE_TEXT_H
#define DATA_TIMELINE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/die.h"

enum { TIMELINE_SERIAL, TIMELINE_OVERLAP, TIMELINE_STEPS };

/* Local. Draws the trace in the n bytes at p to f, `width` columns wide. `only` selects one of the
 * steps, or with -1 both on one time axis. Draws nothing and returns false when the bytes are no
 * trace or lack that step. */
bool timeline_draw(FILE *f, const char *p, size_t n, int only, int width, bool colours, Err *e);

#endif
