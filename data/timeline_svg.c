#include <math.h>
#include <string.h>

#include "data/chart.h"
#include "data/timeline.h"

enum {
    WIDTH = 1120,
    LEFT = 92,
    RIGHT = 28,
    PLOT = WIDTH - LEFT - RIGHT,
    TOP = 84,
    HEAD = 26,    // of a step, for its words
    COMPUTE = 17, // heights of the two lanes of a row
    LANE = 11,
    ROW = COMPUTE + LANE + 9,
    APART = 8, // before the prediction
    TICKS = 26,
    GAP = 20,
    BAR = 20 // of a layer
};

static const char *const part_colours[TIMELINE_PARTS] = {"#27548f", "#5686c2", "#9dbde3",
                                                         "#3c8d93", "#7a5ea8", "#c3cfdd"};
static const char hidden_colour[] = "#9ccfa4", exposed_colour[] = "#d02a2e",
                  serial_colour[] = "#e9b8b6";

static const char style[] =
    "<style>text{font-family:'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;"
    "font-size:12px;fill:#333}.title{font-size:18px;font-weight:bold;fill:#111}"
    ".head{font-weight:bold;font-size:13px}.faint{fill:#777}.gain{fill:#1d7a34;font-weight:bold}"
    ".grid{stroke:#000;stroke-opacity:.09}.edge{stroke:#1d7a34;stroke-width:1.3;"
    "stroke-dasharray:4 3}.lane{fill:#f4f5f7}</style>\n";

static void text(FILE *f, double x, double y, const char *class, const char *anchor,
                 const char *s) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, class, anchor);
    chart_escape(f, s);
    fprintf(f, "</text>\n");
}

static void box(FILE *f, double x, double y, double width, double height, const char *fill) {
    fprintf(f,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" rx=\"1\"/>\n",
            x, y, width, height, fill);
}

/* ---- a rank */

/* All spans of one colour as one path; those that are less than a fifth of a pixel apart are drawn
 * as one. */
static void draw_spans(FILE *f, const TimelineRow *r, TimelineKind kind, int part, const char *fill,
                       double y, double height, double scale) {
    const double near = 0.2;
    double begin = 0, end = -1;
    bool any = false;
    for (size_t i = 0; i <= r->n[kind]; i++) {
        const TimelineSpan *s = i < r->n[kind] ? &r->span[kind][i] : NULL;
        if (s && kind == TIMELINE_COMPUTE && s->part != part) continue;
        double from = s ? LEFT + s->begin * scale : INFINITY, to = s ? LEFT + s->end * scale : 0;
        if (end >= 0 && from - end < near) {
            end = to;
            continue;
        }
        double width = fmax(end - begin, near);
        if (end >= 0)
            fprintf(f, "%sM%.2f %.1fh%.2fv%.1fh%.2fz", any ? "" : "<path d=\"", begin, y, width,
                    height, -width);
        any |= end >= 0;
        begin = from, end = to;
    }
    if (any) fprintf(f, "\" fill=\"%s\"/>\n", fill);
}

static void draw_row(FILE *f, const TimelineRow *r, double y, double scale) {
    char name[80];
    const char *on = strstr(r->name, " on ");
    snprintf(name, sizeof name, "%.*s", on ? (int)(on - r->name) : 12, r->name);
    text(f, LEFT - 10, y + COMPUTE - 3, "", "end", name);
    fprintf(f,
            "<rect class=\"lane\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n"
            "<rect class=\"lane\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n",
            LEFT, y, r->ms * scale, COMPUTE, LEFT, y + COMPUTE + 1, r->ms * scale, LANE);
    for (int k = 0; k < TIMELINE_PARTS; k++)
        draw_spans(f, r, TIMELINE_COMPUTE, k, part_colours[k], y, COMPUTE, scale);
    draw_spans(f, r, TIMELINE_HIDDEN, 0, hidden_colour, y + COMPUTE + 1, LANE, scale);
    draw_spans(f, r, TIMELINE_EXPOSED, 0, exposed_colour, y + COMPUTE + 1, LANE, scale);
}

/* ---- a step */

static double rows_height(const TimelineStep *s) {
    double height = 0;
    for (int i = 0; i < s->n; i++) height += ROW + (s->row[i].predicted ? APART : 0);
    return height;
}

static void draw_ticks(FILE *f, double y, double height, double ms, double scale) {
    double tick = chart_tick(ms, 10);
    for (int k = 0; k * tick <= ms * 1.0001; k++) {
        double x = LEFT + k * tick * scale;
        char label[32];
        snprintf(label, sizeof label, k ? "%g" : "%g ms", k * tick);
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x,
                y, y + height + 3);
        text(f, x, y + height + 17, "faint", "middle", label);
    }
}

/* Seconds that the mean rank is blocked on others: of the rows, for the words above them. */
static double exposed_ms(const TimelineStep *s) {
    double sum = 0;
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->row[i].predicted) continue;
        n++;
        for (size_t k = 0; k < s->row[i].n[TIMELINE_EXPOSED]; k++)
            sum +=
                s->row[i].span[TIMELINE_EXPOSED][k].end - s->row[i].span[TIMELINE_EXPOSED][k].begin;
    }
    return n ? sum / n : 0;
}

static void draw_step_words(FILE *f, const Timeline *t, int which, double y) {
    const TimelineStep *s = &t->step[which];
    char words[200];
    if (which == TIMELINE_SERIAL)
        snprintf(words, sizeof words, "Step %lld: every collective is waited for where it starts",
                 (long long)s->number);
    else
        snprintf(words, sizeof words, "Step %lld: --overlap %s", (long long)s->number, t->overlap);
    text(f, LEFT, y - 9, "head", "start", words);
    snprintf(words, sizeof words, "%.2f ms, blocked on others for %.2f ms", s->ms, exposed_ms(s));
    text(f, WIDTH - RIGHT, y - 9, "head", "end", words);
}

/* Where the other step ended. */
static void draw_gain(FILE *f, const Timeline *t, double y, double height, double scale) {
    double before = t->step[TIMELINE_SERIAL].ms, now = t->step[TIMELINE_OVERLAP].ms;
    double x = LEFT + before * scale, from = LEFT + now * scale;
    char words[64];
    fprintf(f, "<line class=\"edge\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x, y,
            y + height);
    snprintf(words, sizeof words, "%.1f %% sooner", 100 * (1 - now / before));
    if (x - from > 90) text(f, (x + from) / 2, y + height / 2 + 4, "gain", "middle", words);
}

static double draw_step(FILE *f, const Timeline *t, int which, double y, double scale, double ms) {
    const TimelineStep *s = &t->step[which];
    double height = rows_height(s), at = y + HEAD;
    draw_step_words(f, t, which, at);
    draw_ticks(f, at, height, ms, scale);
    for (int i = 0; i < s->n; i++) {
        if (s->row[i].predicted) at += APART;
        draw_row(f, &s->row[i], at, scale);
        at += ROW;
    }
    if (which == TIMELINE_OVERLAP && t->step[TIMELINE_SERIAL].n &&
        s->ms < t->step[TIMELINE_SERIAL].ms)
        draw_gain(f, t, y + HEAD, height - 9, scale);
    return y + HEAD + height + TICKS;
}

/* ---- what holds a rank up, by layer */

static void draw_layers(FILE *f, const Timeline *t, double y) {
    enum { BARS = 720, SERIAL = LEFT + BARS + 90, EXPOSED = SERIAL + 100 };
    double most = 0;
    for (int i = 0; i < t->n_layers; i++)
        most = fmax(most, fmax(t->layer[i].serial_ms, t->layer[i].exposed_ms));
    if (!(most > 0)) return;
    text(f, LEFT, y + 14, "head", "start", "What holds the mean rank up, by layer");
    text(f, SERIAL, y + 14, "faint", "end", "serial ms");
    text(f, EXPOSED, y + 14, "faint", "end", "exposed ms");
    text(f, WIDTH - RIGHT, y + 14, "faint", "end", "E");
    y += HEAD;
    for (int i = 0; i < t->n_layers; i++, y += BAR) {
        const TimelineLayer *l = &t->layer[i];
        char words[64], e[32] = "-";
        const char *class = i == t->n_layers - 1 ? "head" : "";
        text(f, LEFT - 10, y + 12, class, "end", l->name);
        box(f, LEFT, y + 1, l->serial_ms / most * BARS, 14, serial_colour);
        box(f, LEFT, y + 5, l->exposed_ms / most * BARS, 6, exposed_colour);
        snprintf(words, sizeof words, "%.3f", l->serial_ms);
        text(f, SERIAL, y + 12, class, "end", words);
        snprintf(words, sizeof words, "%.3f", l->exposed_ms);
        text(f, EXPOSED, y + 12, class, "end", words);
        if (t->says_hidden && l->serial_ms >= 0.05) // less is noise (parallel/plan/trace.h)
            snprintf(e, sizeof e, "%.2f", 1 - l->exposed_ms / l->serial_ms);
        text(f, WIDTH - RIGHT, y + 12, class, "end", e);
    }
    char words[120];
    snprintf(words, sizeof words, "Kernels take %.2f ms, beside communication %.2f.",
             t->kernels_ms[TIMELINE_SERIAL], t->kernels_ms[TIMELINE_OVERLAP]);
    if (t->kernels_ms[TIMELINE_SERIAL] > 0) text(f, LEFT, y + 16, "faint", "start", words);
}

/* ---- the whole */

static void draw_legend(FILE *f, double y) {
    static const int widths[] = {82, 86, 70, 154, 78, 82, 190, 150};
    double x = LEFT;
    for (int i = 0; i < TIMELINE_PARTS + 2; i++) {
        const char *fill = i < TIMELINE_PARTS    ? part_colours[i]
                           : i == TIMELINE_PARTS ? hidden_colour
                                                 : exposed_colour;
        const char *name = i < TIMELINE_PARTS    ? timeline_parts[i]
                           : i == TIMELINE_PARTS ? "hidden: under way meanwhile"
                                                 : "exposed: blocked on others";
        box(f, x, y - 10, 12, 12, fill);
        text(f, x + 18, y, "", "start", name);
        x += widths[i];
    }
}

static double height_of(const Timeline *t, int only) {
    double height = TOP + 4;
    for (int k = 0; k < TIMELINE_STEPS; k++)
        if (t->step[k].n && (only < 0 || only == k))
            height += HEAD + rows_height(&t->step[k]) + TICKS + GAP;
    return height + (t->n_layers ? HEAD + BAR * t->n_layers + GAP : 0);
}

void timeline_svg(FILE *f, const Timeline *t, int only) {
    double height = height_of(t, only), ms = timeline_axis(t, only), scale = PLOT / ms, y = TOP;
    char words[400];
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 "
            "%d %.0f\">\n%s<rect width=\"%d\" height=\"%.0f\" fill=\"#fff\"/>\n",
            WIDTH, height, WIDTH, height, style, WIDTH, height);
    snprintf(words, sizeof words, "Where the time of a step goes: %s, --overlap %s", t->layout,
             t->overlap);
    text(f, LEFT, 30, "title", "start", words);
    snprintf(words, sizeof words, "%d ranks (%s), %.160s", t->ranks, t->backend, t->model);
    text(f, LEFT, 50, "faint", "start", words);
    draw_legend(f, 72);
    for (int k = 0; k < TIMELINE_STEPS; k++)
        if (t->step[k].n && (only < 0 || only == k)) y = draw_step(f, t, k, y, scale, ms) + GAP;
    draw_layers(f, t, y);
    fprintf(f, "</svg>\n");
}
