/* chart -- a line chart as inline SVG: axes, ticks, grid, legend; colours come from the page's CSS
 * variables --s0 .. --s5.
 *
 * The picture stands on its own; beside it goes a small JSON block with the points, from which the
 * page's script shows values under the pointer.
 */
#ifndef DATA_CHART_H
#define DATA_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum { CHART_LINE, CHART_FAINT, CHART_DOTS, CHART_DASHED } ChartStyle;

/* x ascends; a y that is not finite makes a gap. */
typedef struct ChartSeries {
    const char *label; // any text: it is escaped
    const double *x, *y;
    size_t n;
    int colour;
    ChartStyle style;
} ChartSeries;

typedef struct Chart {
    const char *title, *unit;
    int width, height; // of the drawing's own coordinates; the page scales it
    bool from_zero;    // the axis begins at 0
    double floor_step; // points before this step do not widen the y axis
    const char *shown; // another class of the figure, by which the page chooses; NULL: none
} Chart;

/* Local. Writes <svg> and <script type="application/json">; nothing is drawn when no series has two
 * finite points, false then. */
bool chart_write(FILE *f, const Chart *c, const ChartSeries *series, int n_series);
/* Local. As fprintf with no conversion but %s, whose strings have & < > " ' escaped for HTML;
 * control characters other than newline and tab become U+FFFD. */
void chart_put(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Pure: 1234567 -> 1.23M, 0.000012 -> 1.2e-05. */
void chart_number(char *buf, size_t n, double x);
/* Pure: the step 1, 2 or 5 times a power of ten that cuts `range` into at most `most` pieces. */
double chart_tick(double range, int most);

#endif
