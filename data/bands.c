#include "data/bands.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "data/chart.h"

enum {
    WIDTH = 940,
    LEFT = 76,
    RIGHT = 150, // names of lines
    PLOT = WIDTH - LEFT - RIGHT,
    TOP = 78,
    GAP = 40,   // between panels
    STRIP = 24, // of the first one, for the numbers of bands
    ROW = 20    // of the legend
};
static const int heights[] = {250, 110, 90}; // of the panels

/* Light, for the bands; each next differs from its neighbours. Dark, for lines. */
static const char *const light[] = {"#dbe9f6", "#fde6cc", "#dcf0d9", "#eadcf0", "#fbe0e3",
                                    "#e6e6e6", "#d3f0ee", "#f6f0c4", "#e3d9cf", "#d9dcf5"};
static const char *const dark[] = {"#1f4e8c", "#b4530a", "#2b7a3b", "#7b3294",
                                   "#b2182b", "#555555", "#00767a", "#8a6d00"};
static const char *const parts[] = {"#4a7fb5", "#e08a3c", "#bbbbbb"};
enum { N_LIGHT = sizeof light / sizeof *light };

static const char style[] =
    "<style>text{font-family:'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;"
    "font-size:12px;fill:#333}.title{font-size:17px;font-weight:bold;fill:#111}"
    ".head{font-weight:bold}.number{font-weight:bold;fill:#666}.spec{font-family:'DejaVu Sans "
    "Mono',Menlo,Consolas,monospace}.axis{stroke:#888;fill:none}.grid{stroke:#000;stroke-opacity:"
    ".12}.line{fill:none;stroke-width:2.2;stroke-linejoin:round}</style>\n";

/* ---- where things are */

static double px(const Bands *b, double x) {
    double low = b->x[0], high = b->x[b->n - 1];
    return high > low ? LEFT + PLOT * log(x / low) / log(high / low) : LEFT + PLOT / 2.0;
}

/* The middle between two points, on the logarithmic axis; the ends of it outside. */
static double edge(const Bands *b, int i) {
    if (i <= 0) return LEFT;
    if (i >= b->n) return LEFT + PLOT;
    return (px(b, b->x[i - 1]) + px(b, b->x[i])) / 2;
}

static int top_of(int panel) {
    int y = TOP;
    for (int i = 0; i < panel; i++) y += heights[i] + GAP;
    return y;
}

/* Logarithmic axis of a panel. */
typedef struct Scale {
    double low, high;
    int top, height;
} Scale;

static double py(const Scale *s, double y) {
    double at = log(y / s->low) / log(s->high / s->low);
    return s->top + s->height * (1 - fmin(fmax(at, 0), 1));
}

/* ---- text */

static void text(FILE *f, double x, double y, const char *class, const char *anchor,
                 const char *s) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, class, anchor);
    chart_escape(f, s);
    fprintf(f, "</text>\n");
}

static void grid_line(FILE *f, double y) {
    fprintf(f, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT,
            LEFT + PLOT, y, y);
}

static void frame(FILE *f, int panel, const char *name) {
    int top = top_of(panel);
    text(f, LEFT, top - 8, "head", "start", name);
    fprintf(f, "<rect class=\"axis\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT, top,
            PLOT, heights[panel]);
}

/* ---- the bands */

/* The first point after i whose band is another. */
static int run_end(const Bands *b, int i) {
    int k = i;
    while (k < b->n && b->band[k] == b->band[i]) k++;
    return k;
}

static void draw_bands(FILE *f, const Bands *b) {
    for (int i = 0, end; i < b->n; i = end) {
        end = run_end(b, i);
        int band = b->band[i];
        double from = edge(b, i), to = edge(b, end);
        for (int panel = 0; panel < 2; panel++)
            fprintf(f, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
                    from, top_of(panel), to - from, heights[panel],
                    band < 0 ? "#ffffff" : light[band % N_LIGHT]);
        char number[16];
        snprintf(number, sizeof number, "%d", band + 1);
        if (to - from > 8 * (double)strlen(number) + 4)
            text(f, (from + to) / 2, TOP + 17, "number", "middle", band < 0 ? "-" : number);
    }
}

static void draw_ticks(FILE *f, const Bands *b) {
    int bottom = top_of(2) + heights[2];
    double last = -1e9;
    for (int i = 0; i < b->n; i++) {
        double x = px(b, b->x[i]), half = 3.6 * (double)strlen(b->x_text[i]);
        bool wide = x - half > last + 10;
        fprintf(f, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x,
                bottom, bottom + (wide ? 6 : 3));
        if (!wide) continue;
        text(f, x, bottom + 20, "tick", "middle", b->x_text[i]);
        last = x + half;
    }
    text(f, LEFT + PLOT / 2.0, bottom + 42, "head", "middle", b->x_name);
}

/* ---- the lines */

/* A polyline with gaps. */
static void polyline(FILE *f, const Bands *b, const Scale *s, const double *y, const char *colour) {
    for (int i = 0; i < b->n; i++) {
        int end = i;
        while (end < b->n && isfinite(y[end])) end++;
        if (end - i > 1) {
            fprintf(f, "<polyline class=\"line\" stroke=\"%s\" points=\"", colour);
            for (int k = i; k < end; k++) fprintf(f, "%.1f,%.1f ", px(b, b->x[k]), py(s, y[k]));
            fprintf(f, "\"/>\n");
        }
        for (int k = i; k < end; k++)
            if (y[k] <= s->high)
                fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" fill=\"%s\"/>\n",
                        px(b, b->x[k]), py(s, y[k]), colour);
        i = end;
    }
}

static int last_point(const Bands *b, const double *y) {
    int i = b->n - 1;
    while (i >= 0 && !isfinite(y[i])) i--;
    return i;
}

/* Names at the right ends of their lines, pushed apart where these meet. */
static void line_names(FILE *f, const Bands *b, const Scale *s) {
    int order[BANDS_LINES], n = 0;
    double at[BANDS_LINES];
    for (int i = 0; i < b->n_lines; i++) {
        int last = last_point(b, b->line[i]), k = n;
        double y = last < 0 ? 0 : py(s, b->line[i][last]);
        if (last < 0) continue;
        for (; k > 0 && at[k - 1] > y; k--) at[k] = at[k - 1], order[k] = order[k - 1];
        at[k] = y, order[k] = i, n++;
    }
    for (int k = n - 1; k >= 0; k--) // from the bottom up
        at[k] = fmin(at[k], k == n - 1 ? s->top + s->height : at[k + 1] - 16);
    for (int k = 0; k < n; k++) {
        int i = order[k], last = last_point(b, b->line[i]);
        double x = px(b, b->x[last]), y = b->line[i][last];
        char words[96];
        if (y > s->high)
            snprintf(words, sizeof words, "%.40s %.3gx", b->line_name[i], y);
        else
            snprintf(words, sizeof words, "%.40s", b->line_name[i]);
        fprintf(f,
                "<path d=\"M%.1f %.1f L%d %.1f\" fill=\"none\" stroke=\"%s\" stroke-dasharray=\"2 "
                "2\"/><g style=\"fill:%s\">",
                x, py(s, y), LEFT + PLOT + 12, at[k], dark[i], dark[i]);
        text(f, LEFT + PLOT + 16, at[k] + 4, "head", "start", words);
        fprintf(f, "</g>\n");
    }
}

static void draw_lines(FILE *f, const Bands *b) {
    static const double ticks[] = {1, 1.1, 1.2, 1.3, 1.5, 2, 3, 4, 5};
    const double most = 4; // what takes longer does not flatten the rest: it runs along the top
    Scale s = {1, 1.2, top_of(0) + STRIP, heights[0] - STRIP};
    for (int i = 0; i < b->n_lines; i++)
        for (int k = 0; k < b->n; k++)
            if (b->line[i][k] <= most) s.high = fmax(s.high, b->line[i][k]);
    s.high *= 1.02;
    s.low = 1 / pow(s.high, 0.04);
    double above = 1e9;
    for (size_t i = 0; i < sizeof ticks / sizeof *ticks && ticks[i] <= s.high; i++) {
        double y = py(&s, ticks[i]);
        char label[16];
        if (y > above - 18) continue;
        snprintf(label, sizeof label, "%gx", ticks[i]);
        grid_line(f, y);
        text(f, LEFT - 8, y + 4, "tick", "end", label);
        above = y;
    }
    for (int i = b->n_lines; i-- > 0;) polyline(f, b, &s, b->line[i], dark[i]);
    line_names(f, b, &s);
}

/* ---- the rate of the best */

/* 1 2 5 10 20 ... */
static double next_tick(double y) {
    double lead = y / pow(10, floor(log10(y * 1.01)));
    return lead > 1.5 && lead < 3 ? 2.5 * y : 2 * y;
}

static void draw_rate(FILE *f, const Bands *b) {
    Scale s = {INFINITY, 0, top_of(1), heights[1]};
    for (int i = 0; i < b->n; i++) {
        if (!isfinite(b->rate[i])) continue;
        s.low = fmin(s.low, b->rate[i]), s.high = fmax(s.high, b->rate[i]);
    }
    if (!(s.high > 0)) return;
    s.low /= 1.1, s.high *= 1.1;
    double above = 1e9, even = s.high < 4 * s.low ? chart_tick(s.high - s.low, 4) : 0;
    for (double y = even > 0 ? even : pow(10, floor(log10(s.low))); y <= s.high;
         y = even > 0 ? y + even : next_tick(y)) {
        double at = py(&s, y);
        char label[32];
        if (y < s.low || at > above - 16) continue;
        chart_number(label, sizeof label, y);
        grid_line(f, at);
        text(f, LEFT - 8, at + 4, "tick", "end", label);
        above = at;
    }
    polyline(f, b, &s, b->rate, "#222222");
}

/* ---- where the time goes */

static void draw_parts(FILE *f, const Bands *b) {
    int top = top_of(2), height = heights[2];
    for (int i = 0; i < b->n; i++) {
        double y = top + height, from = round(edge(b, i)), to = round(edge(b, i + 1));
        for (int k = 0; k < BANDS_PARTS && b->band[i] >= 0; k++) {
            double h = height * b->part[k][i];
            y -= h;
            fprintf(f, "<rect x=\"%.0f\" y=\"%.1f\" width=\"%.0f\" height=\"%.1f\" fill=\"%s\"/>\n",
                    from, y, to - from, h, parts[k]);
        }
    }
    for (int k = 0; k <= 2; k++) {
        char label[16];
        snprintf(label, sizeof label, "%d %%", 50 * k);
        text(f, LEFT - 8, top + height - height * k / 2.0 + 4, "tick", "end", label);
    }
    for (int k = 0; k < BANDS_PARTS; k++) {
        int y = top + 16 + 26 * (BANDS_PARTS - 1 - k);
        fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n",
                LEFT + PLOT + 16, y - 10, parts[k]);
        text(f, LEFT + PLOT + 34, y, "tick", "start", b->part_name[k]);
    }
}

/* ---- what the numbers stand for */

static int legend_top(void) {
    return top_of(2) + heights[2] + 74;
}

static void draw_legend(FILE *f, const Bands *b) {
    for (int band = 0; band < b->n_names; band++) {
        int y = legend_top() + ROW * band, n = 0;
        char number[16], where[160] = "";
        for (int i = 0, end; i < b->n; i = end) {
            end = run_end(b, i);
            if (b->band[i] != band || n > 100) continue;
            n += snprintf(where + n, sizeof where - (size_t)n, "%s%s", n ? ", " : "", b->x_text[i]);
            if (end - i > 1)
                n += snprintf(where + n, sizeof where - (size_t)n, " to %s", b->x_text[end - 1]);
        }
        fprintf(f,
                "<rect x=\"%d\" y=\"%d\" width=\"24\" height=\"15\" fill=\"%s\" "
                "stroke=\"#999\"/>\n",
                LEFT, y - 12, light[band % N_LIGHT]);
        snprintf(number, sizeof number, "%d", band + 1);
        text(f, LEFT + 12, y, "number", "middle", number);
        text(f, LEFT + 36, y, "spec", "start", b->name[band]);
        text(f, LEFT + 300, y, "tick", "start", where);
    }
}

void bands_write(FILE *f, const Bands *b) {
    int height = legend_top() + ROW * b->n_names + 4;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 "
            "%d %d\">\n%s<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height, style, WIDTH, height);
    text(f, LEFT, 26, "title", "start", b->title);
    text(f, LEFT, 46, "tick", "start", b->subtitle);
    draw_bands(f, b);
    draw_lines(f, b);
    draw_rate(f, b);
    draw_parts(f, b);
    frame(f, 0, "time of a step, as a multiple of the best layout's");
    frame(f, 1, b->rate_name);
    frame(f, 2, "where the time of the best layout goes");
    draw_ticks(f, b);
    draw_legend(f, b);
    fprintf(f, "</svg>\n");
}
