/* progress -- what a person sees while the trainer runs.
 *
 * Into a file or pipe, a line per step, or for every so many steps and the last one:
 *
 *     step   40/18865 | loss 6.500000 (+0.12z) | norm 1.2000 (-0.30z) | lr 1.00e-05 | 220.10 ms
 * | 61.3% peak | 178000 tok/s | ETA 3:20
 *
 * A z-score appears once its window of 128 steps is full.
 *
 * On a terminal, one bar redrawn in place, cut to the width of the window, and a line that stays
 * every twentieth of the run:
 *
 *     [=======>                  ]  27%  step 2700/10000  loss 3.2841  178000 tok/s  ETA 12:40
 *
 * Nothing of the terminal's state is changed (no hidden cursor, no raw mode), so there is nothing
 * to restore when the program is killed; lines of warn() and die() first wipe the bar. tok/s and
 * ETA come from a moving average over about 20 steps that leaves out the first one (it pays for
 * page faults and cold caches).
 */
#ifndef DATA_PROGRESS_H
#define DATA_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "data/metrics.h"

typedef struct Progress Progress;

/* Local, before progress_open: may there be a bar? And steps between lines that stay; 0: every step
 * in a file, every twentieth of the run on a terminal. */
void progress_set(bool bar, int64_t every);
/* Local. Writes to f (stdout). The bar is used when f is a terminal and the environment does not
 * say TERM=dumb. */
Progress *progress_open(FILE *f, int64_t steps);
void progress_step(Progress *p, const StepRecord *s);
/* Local. Lines of other things (losses, samples, saved checkpoints): printed as they are, above the
 * bar. */
void progress_note(Progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Local. A part of something other than steps is done, after so many seconds: from the second one
 * on a bar on a terminal, elsewhere a line every ten. */
void progress_part(Progress *p, const char *what, double done, double seconds);
/* Local. Wipes the bar and frees. NULL is fine. */
void progress_close(Progress *p);

/* Pure: the step line without newline; eta_s < 0 leaves out the last column. */
void progress_line(char *buf, size_t n, const StepRecord *s, int64_t steps, double tokens_per_s,
                   double eta_s);
/* Pure: the bar, at most `width` columns of ASCII. */
void progress_bar(char *buf, size_t n, int width, const StepRecord *s, int64_t steps,
                  double tokens_per_s, double eta_s);
/* Pure: 59 -> 0:59, 3725 -> 1:02:05, 100000 -> 1d 3h. */
void progress_time(char *buf, size_t n, double seconds);

/* Pure: "searching, 0:12, ETA 0:34"; without an ETA where nothing is done yet. */
void progress_part_line(char *buf, size_t n, const char *what, double done, double seconds);

#endif
