#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "data/chart.h"
#include "data/timeline_file.h"

enum { LABEL = 10, LEAST = 20, MOST = 1000 }; // columns before the picture, and of it

/* Shares of the time of one column. */
typedef struct Cell {
    double part[TIMELINE_PARTS], hidden, exposed;
} Cell;

static void fill_cells(Cell *cell, int n, double ms_each, const TimelineRow *r) {
    memset(cell, 0, (size_t)n * sizeof *cell);
    for (int kind = 0; kind < TIMELINE_KINDS; kind++)
        for (size_t i = 0; i < r->n[kind]; i++) {
            const TimelineSpan *s = &r->span[kind][i];
            int first = (int)(s->begin / ms_each);
            for (int k = first < 0 ? 0 : first; k < n && k * ms_each < s->end; k++) {
                double share = fmin(s->end, (k + 1) * ms_each) - fmax(s->begin, k * ms_each);
                double *to = kind == TIMELINE_COMPUTE  ? &cell[k].part[s->part]
                             : kind == TIMELINE_HIDDEN ? &cell[k].hidden
                                                       : &cell[k].exposed;
                *to += fmax(0, share) / ms_each;
            }
        }
}

/* ---- what a column looks like */

/* A bar of that height; what is there at all is seen. */
static const char *bar(double share) {
    static const char *const bars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    int eighths = (int)lround(8 * fmin(share, 1));
    return bars[eighths == 0 && share > 0.01 ? 1 : eighths];
}

static const int part_colours[TIMELINE_PARTS] = {25, 68, 110, 73, 97, 146};
enum { GREEN = 71, RED = 160 };

typedef struct Screen {
    FILE *f;
    bool colours;
    int now;    // colour; 0: none
    int blanks; // not put yet
} Screen;

static void colour(Screen *s, int c) {
    if (!s->colours || c == s->now) return;
    fprintf(s->f, c ? "\033[38;5;%dm" : "\033[0m", c);
    s->now = c;
}

/* Blanks have no colour, and none are put at the end of a line. */
static void put(Screen *s, int c, const char *glyph) {
    if (glyph[0] == ' ') {
        s->blanks++;
        return;
    }
    fprintf(s->f, "%*s", s->blanks, "");
    s->blanks = 0;
    colour(s, c);
    fputs(glyph, s->f);
}

static void end_line(Screen *s) {
    colour(s, 0);
    fputc('\n', s->f);
    s->blanks = 0;
}

static void put_compute(Screen *s, const Cell *c) {
    int most = 0;
    double sum = 0;
    for (int k = 0; k < TIMELINE_PARTS; k++) {
        sum += c->part[k];
        if (c->part[k] > c->part[most]) most = k;
    }
    put(s, part_colours[most], bar(sum));
}

static void put_communication(Screen *s, const Cell *c) {
    if (c->hidden > c->exposed)
        put(s, GREEN, "░");
    else
        put(s, RED, bar(c->exposed));
}

/* ---- rows */

/* "rank 0" of "rank 0 on node7". */
static void put_label(Screen *s, const char *name) {
    const char *on = strstr(name, " on ");
    fprintf(s->f, "%-*.*s", LABEL, on && on - name < LABEL ? (int)(on - name) : LABEL - 1, name);
}

static void put_row(Screen *s, Cell *cell, int n, double ms_each, const TimelineRow *r) {
    fill_cells(cell, n, ms_each, r);
    put_label(s, r->name);
    for (int i = 0; i < n; i++) put_compute(s, &cell[i]);
    end_line(s);
    s->blanks = LABEL;
    for (int i = 0; i < n; i++) put_communication(s, &cell[i]);
    end_line(s);
}

/* Ticks of 1, 2 or 5 times a power of ten, each where its label begins. */
static void put_axis(Screen *s, int n, double ms_each) {
    double tick = chart_tick(n * ms_each, n / 9 < 1 ? 1 : n / 9);
    int column = 0;
    fprintf(s->f, "%*s", LABEL, "");
    for (int k = 0; k * tick < n * ms_each; k++) {
        char label[32];
        int at = (int)lround(k * tick / ms_each);
        int width = snprintf(label, sizeof label, k ? "%g" : "%g ms", k * tick);
        if (at < column || at + width > n) continue;
        fprintf(s->f, "%*s%s", at - column, "", label);
        column = at + width;
    }
    fputc('\n', s->f);
}

void timeline_text(FILE *f, const Timeline *t, int only, int width, bool colours) {
    Screen s = {.f = f, .colours = colours};
    int n = width - LABEL < LEAST ? LEAST : width - LABEL > MOST ? MOST : width - LABEL;
    double ms_each = timeline_axis(t, only) / n;
    Cell *cell = mem_calloc((size_t)n, sizeof *cell);
    for (int k = 0; k < TIMELINE_STEPS; k++) {
        const TimelineStep *step = &t->step[k];
        if (step->n == 0 || (only >= 0 && only != k)) continue;
        fprintf(f, "step %lld, ", (long long)step->number);
        if (k == TIMELINE_SERIAL)
            fprintf(f, "every collective waited for where it starts: %.2f ms\n", step->ms);
        else
            fprintf(f, "--overlap %s: %.2f ms\n", t->overlap, step->ms);
        put_axis(&s, n, ms_each);
        for (int i = 0; i < step->n; i++) put_row(&s, cell, n, ms_each, &step->row[i]);
        fputc('\n', f);
    }
    put(&s, part_colours[0], "█"), colour(&s, 0), fputs(" computes   ", f);
    put(&s, RED, "█"), colour(&s, 0), fputs(" below it: exposed, blocked on others   ", f);
    put(&s, GREEN, "░"), colour(&s, 0), fputs(" hidden: under way meanwhile\n", f);
    mem_free(cell);
}
