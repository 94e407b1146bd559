/* bands -- a picture of which choice is the best where: an SVG file that stands on its own.
 *
 *     ┌──────────┬────────┬─────┐
 *     │    1     │   2    │  3  │    bands of the varied number, each with the best choice
 *     │  ╲____   │   ___──┼─────│─ b    times of others, as multiples of the best
 *     │──╱────╲──┼──────────────│─ a
 *     ├──────────┴────────┴─────┤
 *     │              ___────────│    the rate of the best
 *     ├─────────────────────────┤
 *     │▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒░│    where its time goes
 *     └─────────────────────────┘
 *       1 d2.x4   10 to 40 ...      what the numbers stand for
 */
#ifndef DATA_BANDS_H
#define DATA_BANDS_H

#include <stdio.h>

enum { BANDS_PARTS = 3, BANDS_LINES = 8 };

typedef struct Bands {
    const char *title, *subtitle;
    const char *x_name, *rate_name;
    int n;                              // points
    const double *x;                    // [n] ascending, above 0: the axis is logarithmic
    const char *const *x_text;          // [n]
    const int *band;                    // [n] index into names; -1: there is none
    const char *const *name;            // [n_names]
    const double *rate;                 // [n] above 0, or NAN
    const double *part[BANDS_PARTS];    // [n] shares of the time, 1 together
    const char *part_name[BANDS_PARTS]; //
    const double *line[BANDS_LINES];    // [n] multiples of the best time, or NAN
    const char *line_name[BANDS_LINES]; //
    int n_names, n_lines;
} Bands;

/* Local. All texts are escaped. */
void bands_write(FILE *f, const Bands *b);

#endif
