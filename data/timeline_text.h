/* timeline_text -- a file of train_gpt --trace as a picture in text: what every rank computes, what
 * is under way meanwhile, and what it is blocked on, in a step without overlap and in one with it.
 *
 *     step 5, --overlap halves: 3.85 ms
 *             0 ms     1       2       3
 *     rank 0  ▇▇▇▂▁▇▇▇▇▂▇▇▇▅▇▇▇▇▇▇▇▇    so much of the time it computes
 *             ░░░▆▇░░░░▆░░░▃       ▁    blocked on others; ░ hidden: under way meanwhile
 *
 * The bytes are Chrome's trace format as parallel/plan/trace.h writes it: an object with
 * "traceEvents", of which those of the categories step, kernel, collective and exposed are read
 * ("ts" and "dur" in microseconds), and "otherData" with the words of the title.
 */
#ifndef DATA_TIMELINE_TEXT_H
#define DATA_TIMELINE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/die.h"

enum { TIMELINE_SERIAL, TIMELINE_OVERLAP, TIMELINE_STEPS };

/* Local. Draws the n bytes p to f, `width` columns wide: `only` one of the steps, or both, on one
 * axis of time (-1). False, and nothing is drawn, when they are no trace or lack that step. */
bool timeline_draw(FILE *f, const char *p, size_t n, int only, int width, bool colours, Err *e);

#endif
