#include "data/chart.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/median.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { LEFT = 58, RIGHT = 14, TOP = 40, BOTTOM = 34, MOST_POINTS = 1200 };

typedef struct Frame {
    double x0, x1, y0, y1; // data values at the edges of the plot area
    double w, h;           // size of the plot area in the view box
} Frame;

/* View box coordinates of a data value. */
static double px(const Frame *r, double x) {
    return LEFT + r->w * (x - r->x0) / (r->x1 - r->x0);
}
static double py(const Frame *r, double y) {
    return TOP + r->h * (r->y1 - y) / (r->y1 - r->y0);
}

double chart_tick(double range, int most) {
    double rough = range / most, power = pow(10, floor(log10(rough)));
    double lead = rough / power - 1e-9; // 2.0000001 is still 2
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

void chart_number(char *buf, size_t n, double x) {
    static const struct {
        double unit;
        const char *letter;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    double a = fabs(x);
    for (int i = 0; i < 4; i++) // three digits that round up to 1000 have the next unit, if any
        if (a >= units[i].unit * (i < 3 ? 0.9995 : 1)) {
            snprintf(buf, n, "%.3g%s", x / units[i].unit, units[i].letter);
            return;
        }
    snprintf(buf, n, a > 0 && a < 1e-4 ? "%.1e" : "%.4g", x);
}

static void escape(FILE *f, const char *s) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '&')
            fputs("&amp;", f);
        else if (c == '<')
            fputs("&lt;", f);
        else if (c == '>')
            fputs("&gt;", f);
        else if (c == '"')
            fputs("&quot;", f);
        else if (c == '\'')
            fputs("&#39;", f);
        else if ((c < 32 && c != '\n' && c != '\t') || c == 127)
            fputs("&#xfffd;", f);
        else
            fputc(c, f);
    }
}

void chart_put(FILE *f, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    for (; *fmt; fmt++)
        if (strncmp(fmt, "%s", 2) == 0)
            escape(f, va_arg(ap, const char *)), fmt++;
        else
            fputc(*fmt, f);
    va_end(ap);
}

/* Widens [lo, hi] to contain the y values of a series. Of a faint series only the middle 99 %
 * count, so that one spike does not flatten the other curves. */
static void widen(const ChartSeries *s, double floor_step, double *lo, double *hi) {
    double *v = mem_calloc(s->n, sizeof *v);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (isfinite(s->y[i]) && s->x[i] >= floor_step) v[n++] = s->y[i];
    if (n > 0) {
        sort_numbers(v, (int)n);
        size_t cut = s->style == CHART_FAINT ? n / 200 : 0;
        *lo = fmin(*lo, v[cut]), *hi = fmax(*hi, v[n - 1 - cut]);
    }
    mem_free(v);
}

/* Chooses the ranges of both axes. False when no series has two finite points. */
static bool choose_axes(Frame *r, const Chart *c, const ChartSeries *s, int n_series) {
    *r = (Frame){INFINITY,
                 -INFINITY,
                 INFINITY,
                 -INFINITY,
                 c->width - LEFT - RIGHT,
                 c->height - TOP - BOTTOM};
    size_t longest = 0;
    for (int i = 0; i < n_series; i++) {
        widen(&s[i], c->floor_step, &r->y0, &r->y1);
        size_t finite = 0;
        for (size_t k = 0; k < s[i].n; k++)
            if (isfinite(s[i].y[k])) {
                r->x0 = fmin(r->x0, s[i].x[k]), r->x1 = fmax(r->x1, s[i].x[k]);
                finite++;
            }
        if (finite > longest) longest = finite;
    }
    if (longest < 2 || r->x1 <= r->x0 || r->y1 < r->y0) return false;
    double room = r->y1 - r->y0;
    if (room < 1e-12 * fabs(r->y1) || room <= 0) room = fabs(r->y1) > 0 ? fabs(r->y1) : 1;
    r->y0 = c->from_zero ? 0 : r->y0 - 0.05 * room;
    r->y1 += 0.05 * room;
    if (r->y1 - r->y0 < 1e-300) r->y1 = r->y0 + 1; // a tick of subnormal numbers would be 0
    return true;
}

/* Number of multiples of tick in [lo, hi]; *first: the first one is *first * tick. Callers count
 * them: above 2^53 a double may stay the same when 1 is added. */
static double ticks(double lo, double hi, double tick, double *first) {
    *first = ceil(lo / tick);
    return floor(hi / tick) - *first + 1;
}

static void draw_axes(FILE *f, const Chart *c, const Frame *r) {
    char text[32];
    double tick = chart_tick(r->y1 - r->y0, 5), k;
    for (double n = ticks(r->y0, r->y1, tick, &k); n > 0; n--, k++) {
        double y = py(r, k * tick);
        chart_number(text, sizeof text, k * tick);
        fprintf(f, "<line class='grid' x1='%d' x2='%d' y1='%.1f' y2='%.1f'/>", LEFT,
                c->width - RIGHT, y, y);
        fprintf(f, "<text class='tick' x='%d' y='%.1f' text-anchor='end'>%s</text>\n", LEFT - 8,
                y + 4, text);
    }
    tick = chart_tick(r->x1 - r->x0, c->width > 600 ? 9 : 5);
    for (double n = ticks(r->x0, r->x1, tick, &k); n > 0; n--, k++) {
        chart_number(text, sizeof text, k * tick);
        fprintf(f, "<text class='tick' x='%.1f' y='%d' text-anchor='middle'>%s</text>\n",
                px(r, k * tick), c->height - BOTTOM + 20, text);
    }
    fprintf(f, "<line class='axis' x1='%d' x2='%d' y1='%d' y2='%d'/>\n", LEFT, c->width - RIGHT,
            c->height - BOTTOM, c->height - BOTTOM);
}

/* Reduces a series of more than MOST_POINTS points: of each bucket of neighbours only the lowest
 * and the highest point are kept, so that spikes stay visible. Returns the number of points in x,
 * y. */
static size_t decimate(const ChartSeries *s, double *x, double *y) {
    size_t bucket = s->n <= MOST_POINTS ? 1 : (2 * s->n + MOST_POINTS - 1) / MOST_POINTS, n = 0;
    for (size_t b = 0; b < s->n; b += bucket) {
        size_t end = b + bucket < s->n ? b + bucket : s->n, low = b, high = b;
        for (size_t i = b; i < end; i++) {
            if (!(s->y[i] >= s->y[low])) low = i; // a NaN counts as both: the gap stays
            if (!(s->y[i] <= s->y[high])) high = i;
        }
        size_t first = low < high ? low : high, second = low < high ? high : low;
        x[n] = s->x[first], y[n++] = s->y[first];
        if (second != first) x[n] = s->x[second], y[n++] = s->y[second];
    }
    return n;
}

static void draw(FILE *f, const Frame *r, const ChartSeries *s, const double *x, const double *y,
                 size_t n) {
    static const char *const classes[] = {"line", "line faint", "line", "line dashed"};
    bool pen_down = false;
    fprintf(f, "<path class='%s' style='stroke:var(--s%d)' d='", classes[s->style], s->colour);
    for (size_t i = 0; i < n; i++) {
        bool finite = isfinite(y[i]);
        if (finite) fprintf(f, "%c%.1f %.1f", pen_down ? 'L' : 'M', px(r, x[i]), py(r, y[i]));
        pen_down = finite;
    }
    fputs("'/>\n", f);
    if (s->style != CHART_DOTS || n > 60) return;
    for (size_t i = 0; i < n; i++)
        if (isfinite(y[i]))
            fprintf(f, "<circle r='3' cx='%.1f' cy='%.1f' style='fill:var(--s%d)'/>", px(r, x[i]),
                    py(r, y[i]), s->colour);
}

/* Labels from the right edge leftwards, in reading order. */
static void draw_legend(FILE *f, const Chart *c, const ChartSeries *s, int n_series) {
    double x = c->width - RIGHT;
    if (n_series < 2 || (c->width < 600 && n_series < 3 && s[0].style == CHART_FAINT)) return;
    for (int i = n_series - 1; i >= 0; i--) {
        char label[32];
        snprintf(label, sizeof label, "%.28s", s[i].label);
        utf8_repair(label); // its last character may be cut
        x -= 6.6 * (double)strlen(label) + 30;
        // no room for the label: it shows only under the pointer
        if (x < LEFT + 8.0 * (double)strlen(c->title)) return;
        fprintf(f,
                "<line class='%s' x1='%.1f' x2='%.1f' y1='18' y2='18' style='stroke:var(--s%d)'/>",
                s[i].style == CHART_FAINT    ? "line faint"
                : s[i].style == CHART_DASHED ? "line dashed"
                                             : "line",
                x, x + 16, s[i].colour);
        fprintf(f, "<text class='key' x='%.1f' y='22'>", x + 21);
        chart_put(f, "%s</text>\n", label);
    }
}

/* A JSON string that is also safe inside <script>. */
static void put_json(FILE *f, const char *s) {
    fputc('"', f);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 32 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&')
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static void put_points(FILE *f, const ChartSeries *s, const double *x, const double *y, size_t n) {
    fputs("{\"label\":", f);
    put_json(f, s->label);
    fprintf(f, ",\"colour\":%d,\"points\":[", s->colour);
    bool first = true;
    for (size_t i = 0; i < n; i++)
        if (isfinite(y[i])) {
            fprintf(f, "%s%.10g,%.6g", first ? "" : ",", x[i], y[i]);
            first = false;
        }
    fputs("]}", f);
}

bool chart_write(FILE *f, const Chart *c, const ChartSeries *series, int n_series) {
    static int serial; // numbers the ids of clip paths, which must be unique in a page
    Frame r;
    if (!choose_axes(&r, c, series, n_series)) return false;
    int id = serial++;
    fprintf(f, "<figure class='chart%s%s'><svg viewBox='0 0 %d %d' role='img' aria-label='",
            c->shown ? " " : "", c->shown ? c->shown : "", c->width, c->height);
    chart_put(f, "%s'>\n", c->title);
    fprintf(f,
            "<clipPath id='clip%d'><rect x='%d' y='%d' width='%.0f' height='%.0f'/></clipPath>\n",
            id, LEFT, TOP - 4, r.w, r.h + 4);
    chart_put(f, "<text class='title' x='14' y='23'>%s</text>\n", c->title);
    draw_axes(f, c, &r);
    draw_legend(f, c, series, n_series);
    fprintf(f, "<g clip-path='url(#clip%d)'>\n", id);
    size_t longest = 0;
    for (int i = 0; i < n_series; i++) longest = series[i].n > longest ? series[i].n : longest;
    double *x = mem_calloc(longest + 2, sizeof *x), *y = mem_calloc(longest + 2, sizeof *y);
    for (int i = 0; i < n_series; i++) draw(f, &r, &series[i], x, y, decimate(&series[i], x, y));
    fputs("</g>\n<g class='hover'></g></svg><div class='tip'></div>\n<script "
          "type='application/json'>",
          f);
    fprintf(
        f,
        "{\"x0\":%.10g,\"x1\":%.10g,\"y0\":%.10g,\"y1\":%.10g,\"left\":%d,\"top\":%d,\"w\":%.10g,"
        "\"h\":%.10g,\"unit\":",
        r.x0, r.x1, r.y0, r.y1, LEFT, TOP, r.w, r.h);
    put_json(f, c->unit);
    fputs(",\"series\":[", f);
    for (int i = 0; i < n_series; i++) {
        if (i) fputc(',', f);
        put_points(f, &series[i], x, y, decimate(&series[i], x, y));
    }
    fputs("]}</script></figure>\n", f);
    mem_free(x), mem_free(y);
    return true;
}
