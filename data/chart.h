/* chart -- a line chart as inline SVG: axes, ticks, grid, legend. Colours come from the page's CSS
 * variables --s0 .. --s5.
 *
 * The picture is complete without scripts. A small JSON block with the points follows it, from
 * which the page's script shows the values under the pointer.
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
    int colour; // 0 .. 5: the CSS variable --s0 .. --s5
    ChartStyle style;
} ChartSeries;

typedef struct Chart {
    const char *title, *unit;
    int width, height; // size of the SVG's view box; the page scales the picture
    bool from_zero;    // the y axis begins at 0
    double floor_step; // points before this step do not widen the y axis
    // further CSS class of the <figure>, by which the page shows or hides it; NULL: none
    const char *shown;
} Chart;

/* Local. Writes <svg> and <script type="application/json">. Writes nothing and returns false when
 * no series has two finite points. */
bool chart_write(FILE *f, const Chart *c, const ChartSeries *series, int n_series);
/* Local. As fprintf, but %s is the only conversion. In its strings & < > " ' are escaped for HTML,
 * and control characters other than newline and tab become U+FFFD. */
void chart_put(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Pure: 1234567 -> 1.23M, 0.000012 -> 1.2e-05. */
void chart_number(char *buf, size_t n, double x);
/* Pure: the step 1, 2 or 5 times a power of ten that cuts `range` into at most `most` pieces. */
double chart_tick(double range, int most);

#endif
