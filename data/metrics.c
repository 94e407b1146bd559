#include "data/metrics.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/version.h"
#include "data/logfile.h"
#include "data/stamp.h"
#include "data/tfevents.h"

struct Metrics {
    LogFile json, csv, events;
    int64_t resume_step;
};

/* --- JSON lines --- */

/* JSON has no NaN or infinity: null in their place, for instance for HellaSwag's accuracy over no
 * examples. */
static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static void add(json_t *o, const char *key, double x) {
    json_object_set_new(o, key, number(x));
}

/* As add, but a number that is not finite is unknown, and its key is left out. */
static void add_known(json_t *o, const char *key, double x) {
    if (isfinite(x)) add(o, key, x);
}

static void add_int(json_t *o, const char *key, int64_t x) {
    json_object_set_new(o, key, json_integer(x));
}

static void write_json(LogFile *f, json_t *o) {
    const size_t how = JSON_COMPACT | JSON_REAL_PRECISION(17);
    size_t n = json_dumpb(o, NULL, 0, how); // measures
    char *text = mem_alloc(n + 1);
    json_dumpb(o, text, n, how);
    json_decref(o);
    text[n] = '\n';
    logfile_write(f, text, n + 1);
    mem_free(text);
}

static json_t *clean_string(const char *s) {
    char *clean = utf8_clean(s);
    json_t *j = json_string(clean);
    mem_free(clean);
    return j;
}

static json_t *option_value(const Opt *o) {
    switch (o->type) {
    case OPT_INT:
        return json_integer(*(int64_t *)o->value);
    case OPT_FLOAT:
        return number(*(double *)o->value);
    case OPT_BOOL:
        return json_boolean(*(bool *)o->value);
    case OPT_STR:
    case OPT_CONFIG:
        return clean_string(*(const char **)o->value);
    case OPT_CHOICE: {
        char text[64];
        return json_string(opt_text(o, text, sizeof text));
    }
    case OPT_GROUP:
        break;
    }
    return json_null();
}

static void add_options(json_t *run, const Opt *table) {
    json_t *values = json_object(), *changed = json_array();
    for (const Opt *o = table; o->help; o++) {
        if (o->type == OPT_GROUP) continue;
        json_object_set_new(values, o->name, option_value(o));
        if (opt_changed(o)) json_array_append_new(changed, json_string(o->name));
    }
    json_object_set_new(run, "options", values);
    json_object_set_new(run, "changed", changed);
}

void metrics_run(Metrics *m, const RunRecord *r) {
    char text[256];
    json_t *run = json_object(), *line = json_object();
    json_object_set_new(line, "run", run);
    json_object_set_new(run, "program", json_string("train_gpt"));
    json_object_set_new(run, "commit", json_string(version_commit()));
    stamp_time(text, sizeof text);
    json_object_set_new(run, "time", json_string(text));
    stamp_host(text, sizeof text);
    json_object_set_new(run, "host", clean_string(text));
    stamp_cpu(text, sizeof text);
    json_object_set_new(run, "cpu", clean_string(text));
    add_int(run, "cores", r->cores);
    add_int(run, "threads", r->threads);
    add_int(run, "ranks", r->ranks);
    json_object_set_new(run, "layout", json_string(r->layout));
    json_object_set_new(run, "overlap", json_string(r->overlap));
    if (r->digest) json_object_set_new(run, "weights_hash", json_string(r->digest));
    json_object_set_new(run, "kernels", json_string(r->kernels));
    if (r->device) json_object_set_new(run, "device", clean_string(r->device));
    json_object_set_new(run, "model", clean_string(r->model));
    add_int(run, "parameters", r->parameters);
    add_int(run, "tokens_per_step", r->tokens_per_step);
    if (r->steps) add_int(run, "steps", r->steps);
    add(run, "flops_per_token", r->flops_per_token);
    if (r->peak_flops > 0) add(run, "peak_flops", r->peak_flops);
    if (m->resume_step > 0) add_int(run, "resumed_step", m->resume_step);
    if (r->options) add_options(run, r->options);
    write_json(&m->json, line);
}

/* --- the part of an older file that a resumed run keeps --- */

typedef bool Later(const char *line, size_t n, int64_t step);

/* Number of bytes before the first whole line of a later step, or before a torn last line. */
static size_t keep_lines(const char *p, size_t n, int64_t step, Later *is_later) {
    size_t at = 0;
    while (at < n) {
        const char *newline = memchr(p + at, '\n', n - at);
        if (!newline) break;
        size_t len = (size_t)(newline - (p + at));
        if (is_later(p + at, len, step)) break;
        at += len + 1;
    }
    return at;
}

static bool json_is_later(const char *line, size_t n, int64_t step) {
    json_t *o = json_loadb(line, n, 0, NULL); // a line that is no JSON has step 0 and stays
    bool later = json_integer_value(json_object_get(o, "step")) > step;
    json_decref(o);
    return later;
}

/* The newline behind the line ends the number at the latest. */
static bool csv_is_later(const char *line, size_t n, int64_t step) {
    char *end;
    return n > 0 && isdigit((unsigned char)*line) && strtoll(line, &end, 10) > step && *end == ',';
}

/* Does the file begin with this text? A file that ends inside the text counts, too: its first line
 * was cut off. */
static bool begins(const char *p, size_t n, const char *with) {
    size_t m = strlen(with);
    return memcmp(p, with, n < m ? n : m) == 0;
}

int64_t metrics_keep_json(const char *p, size_t n, int64_t step) {
    return begins(p, n, "{\"run\":") || begins(p, n, "{\"step\":")
               ? (int64_t)keep_lines(p, n, step, json_is_later)
               : -1;
}
int64_t metrics_keep_csv(const char *p, size_t n, int64_t step) {
    return begins(p, n, "step,") ? (int64_t)keep_lines(p, n, step, csv_is_later) : -1;
}

/* --- opening, and the records --- */

static const char csv_header[] =
    "step,tokens,loss,loss_z,norm,norm_z,lr,ms,tokens_per_s,peak,skipped,val_loss,hellaswag\n";

static void put_event(LogFile *f, TfRecord r) {
    logfile_write(f, r.p, r.n);
    mem_free(r.p);
}

static void open_events(Metrics *m, const char *dir) {
    if (!dir || !dir[0]) return;
    char host[128];
    stamp_host(host, sizeof host);
    double now = stamp_clock();
    // the process id keeps two runs of the same second apart
    char *path = mem_printf("%s/events.out.tfevents.%" PRId64 ".%s.%d.train_gpt", dir, (int64_t)now,
                            host, (int)getpid());
    logfile_open(&m->events, path, 0, NULL);
    mem_free(path);
    put_event(&m->events, tfevents_version(now));
    put_event(&m->events, tfevents_start(now, m->resume_step > 0 ? m->resume_step + 1 : 0));
}

Metrics *metrics_open(const MetricsFiles *f, int64_t resume_step) {
    Metrics *m = mem_calloc(1, sizeof *m);
    m->resume_step = resume_step;
    m->events.fd = -1;
    logfile_open(&m->json, f->json, resume_step, metrics_keep_json);
    logfile_open(&m->csv, f->csv, resume_step, metrics_keep_csv);
    if (m->csv.size == 0) logfile_write(&m->csv, csv_header, sizeof csv_header - 1);
    open_events(m, f->tensorboard);
    return m;
}

static void step_json(LogFile *f, const StepRecord *s) {
    json_t *o = json_object();
    add_int(o, "step", s->step);
    add_int(o, "tokens", s->tokens);
    add(o, "loss", s->loss);
    add_known(o, "loss_z", s->loss_z);
    add(o, "norm", s->norm);
    add_known(o, "norm_z", s->norm_z);
    add(o, "lr", s->lr);
    add(o, "ms", s->ms);
    add(o, "tokens_per_s", s->tokens_per_s);
    if (s->peak > 0) add(o, "peak", s->peak);
    if (s->received > 0) add_int(o, "received", s->received);
    if (s->skipped) json_object_set_new(o, "skipped", json_true());
    write_json(f, o);
}

/* The text of a number, "" where it is not known; nan and inf are words that readers of CSV
 * know. */
static const char *field(char buf[32], double x, bool known) {
    if (known)
        snprintf(buf, 32, "%.17g", x);
    else
        buf[0] = 0;
    return buf;
}

static void step_csv(LogFile *f, const StepRecord *s) {
    char line[512], loss_z[32], norm_z[32], peak[32];
    int n = snprintf(line, sizeof line,
                     "%" PRId64 ",%" PRId64 ",%.17g,%s,%.17g,%s,%.17g,%.17g,%.17g,%s,%d,,\n",
                     s->step, s->tokens, s->loss, field(loss_z, s->loss_z, isfinite(s->loss_z)),
                     s->norm, field(norm_z, s->norm_z, isfinite(s->norm_z)), s->lr, s->ms,
                     s->tokens_per_s, field(peak, s->peak, s->peak > 0), s->skipped);
    logfile_write(f, line, (size_t)n);
}

static void step_events(LogFile *f, const StepRecord *s) {
    TfScalar v[6] = {{"train/loss", s->loss},
                     {"train/norm", s->norm},
                     {"train/lr", s->lr},
                     {"speed/ms", s->ms},
                     {"speed/tokens_per_s", s->tokens_per_s},
                     {"speed/peak", s->peak}};
    put_event(f, tfevents_scalars(stamp_clock(), s->step, v, s->peak > 0 ? 6 : 5));
}

void metrics_step(Metrics *m, const StepRecord *s) {
    if (m->json.fd >= 0) step_json(&m->json, s);
    if (m->csv.fd >= 0) step_csv(&m->csv, s);
    if (m->events.fd >= 0) step_events(&m->events, s);
}

void metrics_eval(Metrics *m, int64_t step, const char *name, double x) {
    bool is_loss = strcmp(name, "val_loss") == 0;
    write_json(&m->json, json_pack("{s:I,s:o}", "step", (json_int_t)step, name, number(x)));
    char line[128];
    int n = snprintf(line, sizeof line, "%" PRId64 ",,,,,,,,,,,%s%.17g%s\n", step,
                     is_loss ? "" : ",", x, is_loss ? "," : "");
    logfile_write(&m->csv, line, (size_t)n);
    TfScalar v = {is_loss ? "val/loss" : "val/hellaswag", x};
    if (m->events.fd >= 0) put_event(&m->events, tfevents_scalars(stamp_clock(), step, &v, 1));
}

void metrics_sample(Metrics *m, int64_t step, const char *text) {
    char *clean = utf8_clean(text);
    write_json(&m->json, json_pack("{s:I,s:s}", "step", (json_int_t)step, "sample", clean));
    if (m->events.fd >= 0)
        put_event(&m->events, tfevents_text(stamp_clock(), step, "sample", clean));
    mem_free(clean);
}

void metrics_sync(Metrics *m) {
    LogFile *files[] = {&m->json, &m->csv, &m->events};
    for (int i = 0; i < 3; i++) logfile_sync(files[i]);
}

void metrics_close(Metrics *m) {
    if (!m) return;
    LogFile *files[] = {&m->json, &m->csv, &m->events};
    for (int i = 0; i < 3; i++) logfile_close(files[i]);
    mem_free(m);
}
