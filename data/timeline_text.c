#include "data/timeline_text.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "data/chart.h"

// columns of the labels; least and most columns of the picture
enum { LABEL = 10, LEAST = 20, MOST = 1000 };
enum { FINE = 64 }; // bins of time in a column
// process ids of a trace are below it: train_gpt has at most 4096 ranks
enum { MAX_PROCESSES = 4097 };
static const double shortest = 1e-3; // microseconds: times in the file have three digits

/* What a rank does in a bin of time: 1 + the number of the part that is computed (0: none), and
 * flags for collectives. */
enum { UNDER_WAY = 16, EXPOSED = 32, PART = 15 };
enum { PARTS = 6 };
static const char *const part_names[PARTS] = {"matmuls", "attention", "norms", "embedding and loss",
                                              "update",  "the rest"};
static const int part_colours[PARTS] = {25, 68, 110, 73, 97, 146};
enum { GREEN = 71, RED = 160 };

/* The picture of one rank in one step. */
typedef struct Row {
    bool there;
    double begin, end; // us
    int64_t number;    // of the step in the run
    // [columns * FINE], from the beginning of the step on the first rank; NULL: no event
    uint8_t *bin;
} Row;

typedef struct Process {
    char name[80]; // "rank 0 on node7"
    Row row[TIMELINE_STEPS];
} Process;

typedef struct Picture {
    FILE *f;
    int only, columns;
    bool colours;
    int colour; // the terminal's present colour; 0: none
    int blanks; // blanks before the next glyph, not printed yet
    const json_t *events, *about;
    Process *process;
    int n;
    // beginning and length of each step in us; us 0: no such step
    double first[TIMELINE_STEPS], us[TIMELINE_STEPS];
    double axis; // us that all columns together span
    Err *e;
} Picture;

/* ---- events */

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* Copies text, with '?' for each character that is not printable ASCII: a terminal would act on
 * control characters. */
static void copy_text(char *to, size_t n, const char *s) {
    snprintf(to, n, "%s", s);
    for (; *to; to++)
        if (*to < 32 || *to > 126) *to = '?';
}

/* Are these possible times in microseconds, of at most 15 digits? */
static bool sane(double begin, double end) {
    return end >= begin && begin > -1e15 && end < 1e15;
}

/* The process of an event; NULL when it names none. */
static Process *process_of(Picture *d, const json_t *event) {
    json_int_t pid = json_integer_value(json_object_get(event, "pid"));
    if (!json_is_integer(json_object_get(event, "pid")) || pid < 0 || pid >= MAX_PROCESSES)
        return NULL;
    while (d->n <= pid) {
        if ((d->n & (d->n - 1)) == 0) // the array is full at 0, 1, 2, 4, ... processes
            d->process = mem_realloc(d->process, d->n ? 2 * (size_t)d->n : 1, sizeof *d->process);
        d->process[d->n++] = (Process){0};
    }
    return &d->process[pid];
}

/* Reads names of processes and beginnings and ends of steps. The other events are placed in the
 * steps. */
static bool read_frame(Picture *d, const json_t *event) {
    static const char *const names[TIMELINE_STEPS] = {"serial", "overlap"};
    const json_t *args = json_object_get(event, "args");
    const char *name = text_of(event, "name");
    Process *p = process_of(d, event);
    if (!p) return true;
    if (strcmp(text_of(event, "ph"), "M") == 0 && strcmp(name, "process_name") == 0)
        copy_text(p->name, sizeof p->name, text_of(args, "name"));
    if (strcmp(text_of(event, "cat"), "step") != 0) return true;
    for (int k = 0; k < TIMELINE_STEPS; k++) {
        Row *r = &p->row[k];
        if (strcmp(name, names[k]) != 0) continue;
        r->there = true;
        r->begin = json_number_value(json_object_get(event, "ts"));
        r->end = r->begin + json_number_value(json_object_get(event, "dur"));
        r->number = json_integer_value(json_object_get(args, "step"));
        if (!sane(r->begin, r->end) || r->end - r->begin < shortest)
            return err(d->e, "a step of %.60s has no duration", p->name);
    }
    return true;
}

/* Computes beginning and length of each step over all ranks, and the time axis that all drawn steps
 * share. */
static bool measure(Picture *d) {
    bool any = false;
    for (int k = 0; k < TIMELINE_STEPS; k++) {
        d->first[k] = INFINITY;
        for (int i = 0; i < d->n; i++)
            if (d->process[i].row[k].there)
                d->first[k] = fmin(d->first[k], d->process[i].row[k].begin), any = true;
        for (int i = 0; i < d->n; i++)
            if (d->process[i].row[k].there)
                d->us[k] = fmax(d->us[k], d->process[i].row[k].end - d->first[k]);
        if (d->only < 0 || d->only == k) d->axis = fmax(d->axis, d->us[k]);
    }
    if (!any) return err(d->e, "the file has no steps; name a file that train_gpt --trace wrote");
    return d->axis > 0 || err(d->e, "the file does not have this --step");
}

static int part_of(const char *word) {
    int k = 0;
    while (k < PARTS - 1 && strcmp(word, part_names[k]) != 0) k++;
    return k;
}

/* Paints a span of time into the bins of the step in which the span begins. Spans outside of the
 * steps are skipped. */
static bool paint_span(Picture *d, const json_t *event, size_t at) {
    const char *kind = text_of(event, "cat");
    int flag = strcmp(kind, "collective") == 0 ? UNDER_WAY
               : strcmp(kind, "exposed") == 0  ? EXPOSED
                                               : 0;
    const json_t *ts = json_object_get(event, "ts"), *dur = json_object_get(event, "dur");
    double begin = json_number_value(ts), end = begin + json_number_value(dur);
    Process *p = process_of(d, event);
    if (!flag && strcmp(kind, "kernel") != 0) return true;
    if (!p || !json_is_number(ts) || !json_is_number(dur) || !sane(begin, end))
        return err(d->e, "event %zu lacks one of pid, ts and dur, or ends before it begins", at);
    int what = flag ? flag : 1 + part_of(text_of(json_object_get(event, "args"), "part"));
    for (int k = 0; k < TIMELINE_STEPS; k++) {
        Row *r = &p->row[k];
        // ts is rounded to three digits: a span may seem to begin 0.001 us before its step
        if (!r->there || begin < r->begin - 0.01 || begin >= r->end) continue;
        if (d->only >= 0 && d->only != k) continue;
        if (!r->bin) r->bin = mem_calloc((size_t)d->columns, FINE);
        double bins = d->columns * FINE / d->axis; // bins in a microsecond
        long stop = lround((fmin(end, r->end) - d->first[k]) * bins);
        for (long i = lround((fmax(begin, r->begin) - d->first[k]) * bins); i < stop; i++)
            r->bin[i] = (uint8_t)(flag ? r->bin[i] | flag : (r->bin[i] & ~PART) | what);
    }
    return true;
}

static bool read_events(Picture *d) {
    size_t i;
    const json_t *event;
    if (!json_is_array(d->events))
        return err(d->e, "no \"traceEvents\": train_gpt --trace writes them");
    json_array_foreach(d->events, i, event) if (!read_frame(d, event)) return false;
    if (!measure(d)) return false;
    json_array_foreach(d->events, i, event) if (!paint_span(d, event, i)) return false;
    return true;
}

/* ---- what a column looks like */

/* A bar whose height is `bins` of FINE; at least one eighth when bins > 0. */
static const char *bar(int bins) {
    static const char *const bars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    int eighths = (8 * bins + FINE / 2) / FINE;
    return bars[eighths == 0 && bins > 0 ? 1 : eighths];
}

static void put_colour(Picture *d, int c) {
    if (!d->colours || c == d->colour) return;
    fprintf(d->f, c ? "\033[38;5;%dm" : "\033[0m", c);
    d->colour = c;
}

/* Puts a glyph in a colour. Blanks are only counted, and printed before the next glyph: so lines
 * have none at their end. */
static void put(Picture *d, int c, const char *glyph) {
    if (glyph[0] == ' ') {
        d->blanks++;
        return;
    }
    fprintf(d->f, "%*s", d->blanks, "");
    d->blanks = 0;
    put_colour(d, c);
    fputs(glyph, d->f);
}

static void end_line(Picture *d) {
    put_colour(d, 0);
    fputc('\n', d->f);
    d->blanks = 0;
}

/* Puts one column of a rank's first line: the height is the time in which it computes, the colour
 * the part that takes most of it. */
static void put_compute(Picture *d, const uint8_t bin[FINE]) {
    int n[1 + PARTS] = {0}, most = 1;
    for (int i = 0; i < FINE; i++) n[bin[i] & PART]++;
    for (int k = 2; k <= PARTS; k++)
        if (n[k] > n[most]) most = k;
    put(d, part_colours[most - 1], bar(FINE - n[0]));
}

/* Puts one column of a rank's second line: exposed communication as a bar, or hidden communication,
 * whichever takes longer. */
static void put_communication(Picture *d, const uint8_t bin[FINE]) {
    int hidden = 0, exposed = 0;
    for (int i = 0; i < FINE; i++) {
        exposed += (bin[i] & EXPOSED) != 0;
        hidden += (bin[i] & (EXPOSED | UNDER_WAY)) == UNDER_WAY;
    }
    if (hidden > exposed)
        put(d, GREEN, "░");
    else
        put(d, RED, bar(exposed));
}

/* ---- rows */

static void put_row(Picture *d, const Process *p, const Row *r) {
    static const uint8_t nothing[FINE];
    const char *on = strstr(p->name, " on "); // "rank 0" of "rank 0 on node7"
    fprintf(d->f, "%-*.*s", LABEL, on && on - p->name < LABEL ? (int)(on - p->name) : LABEL - 1,
            p->name);
    for (int i = 0; i < d->columns; i++) put_compute(d, r->bin ? r->bin + i * FINE : nothing);
    end_line(d);
    d->blanks = LABEL;
    for (int i = 0; i < d->columns; i++) put_communication(d, r->bin ? r->bin + i * FINE : nothing);
    end_line(d);
}

/* Puts the line of labels: at 1, 2 or 5 times a power of ten, each beginning at its column. */
static void put_axis(Picture *d) {
    int n = d->columns, column = 0;
    double ms = d->axis / 1e3, tick = chart_tick(ms, n / 9 < 1 ? 1 : n / 9);
    fprintf(d->f, "%*s", LABEL, "");
    for (int k = 0; k * tick < ms; k++) {
        char label[32];
        int at = (int)lround(k * tick / ms * n);
        int width = snprintf(label, sizeof label, k ? "%g" : "%g ms", k * tick);
        if (at < column || at + width > n) continue;
        fprintf(d->f, "%*s%s", at - column, "", label);
        column = at + width;
    }
    fputc('\n', d->f);
}

static void put_title(const Picture *d) {
    static const char *const keys[] = {"layout", "backend", "model"};
    char text[3][200];
    for (int i = 0; i < 3; i++) copy_text(text[i], sizeof text[i], text_of(d->about, keys[i]));
    fprintf(d->f, "%s on %d ranks (%s): %s\n\n", text[0],
            (int)json_integer_value(json_object_get(d->about, "ranks")), text[1], text[2]);
}

static void put_step(Picture *d, int k) {
    char words[80];
    copy_text(words, sizeof words, text_of(d->about, "overlap"));
    fprintf(d->f, "step %lld, ", (long long)d->process[0].row[k].number);
    if (k == TIMELINE_SERIAL)
        fprintf(d->f, "every collective waited for where it starts: %.2f ms\n", d->us[k] / 1e3);
    else
        fprintf(d->f, "--overlap %s: %.2f ms\n", words, d->us[k] / 1e3);
    put_axis(d);
    for (int i = 0; i < d->n; i++) put_row(d, &d->process[i], &d->process[i].row[k]);
    fputc('\n', d->f);
}

static void put_picture(Picture *d) {
    put_title(d);
    for (int k = 0; k < TIMELINE_STEPS; k++)
        if (d->us[k] > 0 && (d->only < 0 || d->only == k)) put_step(d, k);
    put(d, part_colours[0], "█"), put_colour(d, 0), fputs(" computes   ", d->f);
    put(d, RED, "█"), put_colour(d, 0), fputs(" below it: exposed, blocked on others   ", d->f);
    put(d, GREEN, "░"), put_colour(d, 0), fputs(" hidden: under way meanwhile\n", d->f);
}

/* Is the first line of a file that of a record, which has a line of JSON for every step? */
static bool is_record(const char *p, size_t n) {
    json_t *first = json_loadb(p, n, JSON_DISABLE_EOF_CHECK, NULL);
    bool is = json_object_get(first, "run") != NULL;
    json_decref(first);
    return is;
}

bool timeline_draw(FILE *f, const char *p, size_t n, int only, int width, bool colours, Err *e) {
    json_error_t why;
    json_t *root = json_loadb(p, n, 0, &why);
    if (!root && is_record(p, n))
        return err(e,
                   "a record of a run (--json), which gpt-report shows: name a file that train_gpt "
                   "--trace wrote");
    if (!root) return err(e, "no JSON: line %d: %.200s", why.line, why.text);
    Picture d = {.f = f, .only = only, .colours = colours, .e = e};
    d.columns = width - LABEL < LEAST ? LEAST : width - LABEL > MOST ? MOST : width - LABEL;
    d.events = json_object_get(root, "traceEvents"), d.about = json_object_get(root, "otherData");
    bool ok = read_events(&d);
    if (ok) put_picture(&d);
    for (int i = 0; i < d.n; i++)
        for (int k = 0; k < TIMELINE_STEPS; k++) mem_free(d.process[i].row[k].bin);
    mem_free(d.process);
    json_decref(root);
    return ok;
}
