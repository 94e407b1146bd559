#include "data/timeline_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *const timeline_parts[TIMELINE_PARTS] = {"products",           "attention", "norms",
                                                    "embedding and loss", "update",    "the rest"};

static const char *const step_names[TIMELINE_STEPS] = {"serial", "overlap"};
static const double shortest = 1e-3; // us; times have three digits
enum { MAX_PROCESSES = 4097 };       // train_gpt's ranks

/* ---- spans */

static void add(TimelineRow *r, int kind, TimelineSpan s) {
    size_t n = r->n[kind];
    if ((n & (n - 1)) == 0) // 0, 1, 2, 4, ...: full
        r->span[kind] = mem_realloc(r->span[kind], n ? 2 * n : 1, sizeof s);
    r->span[kind][r->n[kind]++] = s;
}

static int by_begin(const void *a, const void *b) {
    const TimelineSpan *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* In their order, each from where those before it have ended; of communication those that touch
 * become one. */
static void put_in_order(TimelineRow *r, int kind) {
    TimelineSpan *s = r->span[kind];
    size_t n = 0;
    double end = 0;
    if (r->n[kind]) qsort(s, r->n[kind], sizeof *s, by_begin);
    for (size_t i = 0; i < r->n[kind]; i++) {
        TimelineSpan v = {fmax(s[i].begin, end), s[i].end, s[i].part};
        if (v.end <= v.begin) continue;
        end = v.end;
        if (kind != TIMELINE_COMPUTE && n > 0 && v.begin <= s[n - 1].end)
            s[n - 1].end = v.end;
        else
            s[n++] = v;
    }
    r->n[kind] = n;
}

/* What is under way and does not hold the rank up. */
static void subtract_exposed(TimelineRow *r) {
    size_t n = r->n[TIMELINE_HIDDEN], k = 0;
    TimelineSpan *under_way = r->span[TIMELINE_HIDDEN];
    const TimelineSpan *out = r->span[TIMELINE_EXPOSED];
    r->n[TIMELINE_HIDDEN] = 0, r->span[TIMELINE_HIDDEN] = NULL;
    for (size_t i = 0; i < n; i++) {
        double begin = under_way[i].begin, end = under_way[i].end;
        while (k < r->n[TIMELINE_EXPOSED] && out[k].end <= begin) k++;
        for (; k < r->n[TIMELINE_EXPOSED] && out[k].begin < end; k++) {
            if (out[k].begin > begin)
                add(r, TIMELINE_HIDDEN, (TimelineSpan){begin, out[k].begin, 0});
            begin = out[k].end;
            if (begin >= end) break; // it may reach into the next one
        }
        if (begin < end) add(r, TIMELINE_HIDDEN, (TimelineSpan){begin, end, 0});
    }
    mem_free(under_way);
}

double timeline_axis(const Timeline *t, int only) {
    double ms = 0;
    for (int k = 0; k < TIMELINE_STEPS; k++)
        for (int i = 0; i < t->step[k].n && (only < 0 || only == k); i++)
            ms = fmax(ms, t->step[k].row[i].ms);
    return ms;
}

/* ---- events */

/* What the events say of a process. */
typedef struct Process {
    char name[80];
    struct {
        bool there;
        double begin, end; // us
        int64_t number;
        TimelineRow row;
    } step[TIMELINE_STEPS];
} Process;

typedef struct Reader {
    Process *process;
    int n;
    const json_t *events;
    Err *e;
} Reader;

/* Terminals obey some characters: only those that are seen stay. */
static void copy_text(char *to, size_t n, const char *s) {
    snprintf(to, n, "%s", s);
    for (; *to; to++)
        if (*to < 32 || *to > 126) *to = '?';
}

/* Times have 15 digits at most; more would be no microseconds of a step. */
static bool sane(double begin, double end) {
    return end >= begin && begin > -1e15 && end < 1e15;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* The process of an event; NULL when it names none. */
static Process *process_of(Reader *r, const json_t *event) {
    json_int_t pid = json_integer_value(json_object_get(event, "pid"));
    if (!json_is_integer(json_object_get(event, "pid")) || pid < 0 || pid >= MAX_PROCESSES)
        return NULL;
    while (r->n <= pid) {
        if ((r->n & (r->n - 1)) == 0)
            r->process = mem_realloc(r->process, r->n ? 2 * (size_t)r->n : 1, sizeof *r->process);
        r->process[r->n++] = (Process){0};
    }
    return &r->process[pid];
}

/* Names and steps, which the other events lie in. */
static bool read_frame(Reader *r, const json_t *event) {
    const json_t *args = json_object_get(event, "args");
    const char *name = text_of(event, "name");
    Process *p = process_of(r, event);
    if (!p) return true;
    if (strcmp(text_of(event, "ph"), "M") == 0 && strcmp(name, "process_name") == 0)
        copy_text(p->name, sizeof p->name, text_of(args, "name"));
    if (strcmp(text_of(event, "cat"), "step") != 0) return true;
    for (int i = 0; i < TIMELINE_STEPS; i++) {
        if (strcmp(name, step_names[i]) != 0) continue;
        p->step[i].there = true;
        p->step[i].begin = json_number_value(json_object_get(event, "ts"));
        p->step[i].end = p->step[i].begin + json_number_value(json_object_get(event, "dur"));
        p->step[i].number = json_integer_value(json_object_get(args, "step"));
        if (!sane(p->step[i].begin, p->step[i].end) || p->step[i].end - p->step[i].begin < shortest)
            return err(r->e, "a step of %.60s takes no time", p->name);
    }
    return true;
}

static int kind_of(const char *category) {
    static const char *const words[TIMELINE_KINDS] = {"kernel", "collective", "exposed"};
    int k = 0;
    while (k < TIMELINE_KINDS && strcmp(category, words[k]) != 0) k++;
    return k;
}

static int part_of(const char *word) {
    int k = 0;
    while (k < TIMELINE_PARTS - 1 && strcmp(word, timeline_parts[k]) != 0) k++;
    return k;
}

/* A span goes to the step in which it begins; what lies outside of the steps is passed over. */
static bool read_span(Reader *r, const json_t *event, size_t at) {
    int kind = kind_of(text_of(event, "cat"));
    Process *p = process_of(r, event);
    const json_t *ts = json_object_get(event, "ts"), *dur = json_object_get(event, "dur");
    if (kind == TIMELINE_KINDS) return true;
    double begin = json_number_value(ts), end = begin + json_number_value(dur);
    if (!p || !json_is_number(ts) || !json_is_number(dur) || !sane(begin, end))
        return err(r->e, "event %zu lacks one of pid, ts and dur, or ends before it begins", at);
    for (int i = 0; i < TIMELINE_STEPS; i++) {
        double from = p->step[i].begin;
        // ts has three digits: a span may begin a thousandth before its step
        if (!p->step[i].there || begin < from - 0.01 || begin >= p->step[i].end) continue;
        int part = part_of(text_of(json_object_get(event, "args"), "part"));
        double until = fmin(end, p->step[i].end);
        add(&p->step[i].row, kind,
            (TimelineSpan){(fmax(begin, from) - from) / 1e3, (until - from) / 1e3, part});
    }
    return true;
}

static bool read_events(Reader *r) {
    size_t i;
    const json_t *event;
    json_array_foreach(r->events, i, event) if (!read_frame(r, event)) return false;
    json_array_foreach(r->events, i, event) if (!read_span(r, event, i)) return false;
    for (int p = 0; p < r->n; p++)
        for (int k = 0; k < TIMELINE_STEPS; k++)
            if (r->process[p].step[k].there) return true;
    return err(r->e, "no step is in it: train_gpt --trace writes such files");
}

/* ---- the whole */

static void move(TimelineRow *r, double ms) {
    for (int k = 0; k < TIMELINE_KINDS; k++)
        for (size_t i = 0; i < r->n[k]; i++) r->span[k][i].begin += ms, r->span[k][i].end += ms;
}

/* The rows of a step are those of the processes that made it; the first one to begin is at 0. */
static void take_step(Timeline *t, Reader *r, int which) {
    TimelineStep *s = &t->step[which];
    double first = INFINITY;
    s->row = mem_calloc((size_t)r->n + 1, sizeof *s->row);
    for (int i = 0; i < r->n; i++)
        if (r->process[i].step[which].there) first = fmin(first, r->process[i].step[which].begin);
    for (int i = 0; i < r->n; i++) {
        Process *p = &r->process[i];
        TimelineRow *row = &s->row[s->n];
        if (!p->step[which].there) continue;
        *row = p->step[which].row;
        p->step[which].row = (TimelineRow){0};
        memcpy(row->name, p->name, sizeof row->name);
        for (int k = 0; k < TIMELINE_KINDS; k++) put_in_order(row, k);
        subtract_exposed(row);
        move(row, (p->step[which].begin - first) / 1e3);
        row->ms = (p->step[which].end - first) / 1e3;
        s->ms = fmax(s->ms, row->ms);
        if (s->n++ == 0) s->number = p->step[which].number;
    }
}

static void read_about(Timeline *t, const json_t *about) {
    size_t i;
    const json_t *layer;
    copy_text(t->layout, sizeof t->layout, text_of(about, "layout"));
    copy_text(t->overlap, sizeof t->overlap, text_of(about, "overlap"));
    copy_text(t->model, sizeof t->model, text_of(about, "model"));
    copy_text(t->backend, sizeof t->backend, text_of(about, "backend"));
    t->kernels_ms[0] = json_number_value(json_object_get(about, "kernels_serial_ms"));
    t->kernels_ms[1] = json_number_value(json_object_get(about, "kernels_overlap_ms"));
    t->ranks = (int)json_integer_value(json_object_get(about, "ranks"));
    json_array_foreach(json_object_get(about, "layers"), i, layer) {
        TimelineLayer *l = &t->layer[t->n_layers];
        if (t->n_layers == sizeof t->layer / sizeof *t->layer) break;
        t->n_layers++;
        copy_text(l->name, sizeof l->name, text_of(layer, "layer"));
        l->collectives = json_number_value(json_object_get(layer, "collectives"));
        l->bytes = json_number_value(json_object_get(layer, "bytes"));
        l->serial_ms = json_number_value(json_object_get(layer, "serial_ms"));
        l->exposed_ms = json_number_value(json_object_get(layer, "exposed_ms"));
        t->says_hidden |= !json_is_null(json_object_get(layer, "efficiency"));
    }
}

static void free_row(TimelineRow *r) {
    for (int k = 0; k < TIMELINE_KINDS; k++) mem_free(r->span[k]);
}

static void reader_free(Reader *r) {
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < TIMELINE_STEPS; k++) free_row(&r->process[i].step[k].row);
    mem_free(r->process);
}

bool timeline_parse(Timeline *t, const char *p, size_t n, Err *e) {
    json_error_t why;
    *t = (Timeline){0};
    json_t *root = json_loadb(p, n, 0, &why);
    if (!root) return err(e, "no JSON: line %d: %.200s", why.line, why.text);
    Reader r = {.events = json_object_get(root, "traceEvents"), .e = e};
    bool ok = json_is_array(r.events) ? read_events(&r)
                                      : err(e, "no \"traceEvents\": train_gpt --trace writes them");
    if (ok) {
        read_about(t, json_object_get(root, "otherData"));
        for (int k = 0; k < TIMELINE_STEPS; k++) take_step(t, &r, k);
    }
    reader_free(&r);
    json_decref(root);
    return ok;
}

void timeline_free(Timeline *t) {
    for (int k = 0; k < TIMELINE_STEPS; k++) {
        for (int i = 0; i < t->step[k].n; i++) free_row(&t->step[k].row[i]);
        mem_free(t->step[k].row);
    }
    *t = (Timeline){0};
}
