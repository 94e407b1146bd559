/* progress -- what a person sees while the trainer runs.
 *
 * In a file or pipe, a line per step, or per `every` steps (progress_set) and for the
 * first and the last one:
 *
 *     step   40/18865 | loss 6.500000 (+0.12z) | norm 1.2000 (-0.30z) | lr 1.00e-05 | ...
 *     ... | 220.10 ms | 61.3% peak | 178000 tok/s | ETA 3:20
 *
 * A z-score appears once its window of 128 steps is full.
 *
 * On a terminal, a bar that is redrawn in place, cut to the width of the window, and 20 times in a
 * run a line that stays:
 *
 *     [=======>                  ]  27%  step 2700/10000  loss 3.2841  178000 tok/s  ETA 12:40
 *
 * The state of the terminal is not changed (no hidden cursor, no raw mode), so nothing needs to be
 * restored when the program is killed. warn() and die() wipe the bar before their line. tok/s and
 * ETA are moving averages over about 20 steps without the first one, which is slow from page faults
 * and cold caches.
 */
#ifndef DATA_PROGRESS_H
#define DATA_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "data/metrics.h"

typedef struct Progress Progress;

/* Local. Called before progress_open. bar: a bar is allowed. every: steps between lines that stay;
 * 0: every step in a file, 20 lines in a run on a terminal. */
void progress_set(bool bar, int64_t every);
/* Local. Writes to f (stdout). The bar is used when f is a terminal and the environment does not
 * say TERM=dumb. */
Progress *progress_open(FILE *f, int64_t steps);
void progress_step(Progress *p, const StepRecord *s);
/* Local. Prints a line of another kind (validation loss, sample, saved checkpoint), on a terminal
 * above the bar. */
void progress_note(Progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Local. Reports work other than steps, of which the share `done` is finished after so many
 * seconds. Shows nothing in the first 1.5 seconds; then a bar on a terminal, elsewhere a line every
 * ten seconds. */
void progress_part(Progress *p, const char *what, double done, double seconds);
/* Local. Wipes the bar and frees. NULL is fine. */
void progress_close(Progress *p);

/* Local. Columns of the terminal that f is; `otherwise` where it is none. */
int progress_columns(FILE *f, int otherwise);

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
