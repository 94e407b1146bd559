/* --trace: timeline of two steps, one without overlap and one with it (parallel/plan/trace.h). */
#include "parallel/train/train.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/io.h"
#include "data/output.h"

enum { SETTLED = 2 };     // steps that are not traced: page faults, cold caches
enum { SPANS = 1 << 17 }; // least number of spans: COLL_AGREEMENT is in no program

/* Allocates the spans of two steps and the events of one: two for each kernel, and for the start
 * and the wait of each collective. */
static void allocate_spans(Run *r) {
    const StepRun *s = r->m.program;
    int64_t events = run_micro_batches(r) * step_run_micro_batch(s)->n_ops + step_run_end(s)->n_ops;
    r->trace = mem_calloc(1, sizeof *r->trace);
    trace_create(r->trace, TRACE_STEPS * events > SPANS ? TRACE_STEPS * events : SPANS, 2 * events);
}

void run_trace_prepare(Run *r) {
    int64_t left = r->o->steps - r->state.step;
    if (!*r->o->trace || left < 1) return;
    if (left < SETTLED + TRACE_STEPS) {
        run_note(r, "trace: needs %d steps, the run has %" PRId64, SETTLED + TRACE_STEPS, left);
        return;
    }
    allocate_spans(r);
    r->trace_after = r->state.step + SETTLED;
}

void run_trace_before(Run *r) {
    int64_t which = r->state.step - r->trace_after;
    if (r->trace && which >= 0)
        trace_begin(r->trace, (int)which, r->state.step + 1, &r->m, r->world);
}

/* ---- the file */

/* Metadata of the file as JSON, with the number of lost spans and the error of the clocks: here in
 * seconds, in the file in microseconds. */
static char *about(const Run *r, double lost, double error) {
    char model[512], spec[64], flags[OVERLAP_TEXT], dtype[16];
    config_print(&r->config, model, sizeof model);
    opt_text(opt_find(r->options, "dtype"), dtype, sizeof dtype);
    json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:I,s:I,s:f,s:f}", "model", model,
                          "layout", layout_print(&r->grid.layout, spec), "overlap",
                          overlap_print(&r->m.shape.overlap, flags), "recompute",
                          recompute_name(r->m.shape.recompute), "dtype", dtype, "backend",
                          world_backend(r->world), "ranks", r->group.size, "threads",
                          team_size(r->team), "micro", (json_int_t)r->micro, "batch",
                          (json_int_t)r->batch, "clock_error_us", 1e6 * error, "spans_lost", lost);
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) die("out of memory for the file of --trace");
    json_decref(j);
    return text;
}

/* Appends to the file on rank 0; does nothing on other ranks or after an error. */
typedef struct Out {
    Output out;
    IoFile file;
    bool open;
    Err e;
} Out;

static void append(Out *out, const char *text, size_t n) {
    if (!out->open || io_put(&out->file, out->file.n_bytes, text, n, &out->e)) return;
    io_abandon(&out->file);
    out->open = false;
}

/* The spans of this rank as JSON text of *size bytes; times count from `zero`. */
static char *events(const Run *r, double zero, size_t *size) {
    const Trace *t = r->trace;
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    if (!f) die("out of memory for the file of --trace");
    trace_events(f, t, r->group.rank, world_node(r->world), zero);
    fclose(f);
    return text;
}

/* Collective. The events of all ranks go through rank 0, one rank after the other. */
static void put_events(Run *r, Out *out) {
    double zero = r->trace->step[TRACE_SERIAL].begin; // all ranks take that of rank 0
    group_broadcast(&r->group, &zero, sizeof zero);
    size_t mine, *sizes = mem_calloc((size_t)r->group.size, sizeof *sizes), most = 0;
    char *text = events(r, zero, &mine);
    group_all_gather(&r->group, &mine, sizeof mine, sizes);
    for (int i = 0; i < r->group.size; i++) most = sizes[i] > most ? sizes[i] : most;
    char *theirs = mem_alloc(most);
    for (int i = 0; i < r->group.size; i++) {
        char *piece = i == r->group.rank ? text : theirs;
        coll_run(world_comm(r->world), &(CollCall){.op = COLL_BROADCAST,
                                                   .type = COLL_U8,
                                                   .rows = 1,
                                                   .cols = (int64_t)sizes[i],
                                                   .root = i,
                                                   .src = piece,
                                                   .dst = piece,
                                                   .what = COLL_AGREEMENT});
        append(out, piece, sizes[i]);
    }
    mem_free(text), mem_free(theirs), mem_free(sizes);
}

/* Collective. The file appears complete or not at all; training continues without it. */
static void write_file(Run *r, const char *about_text) {
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    char *tail =
        mem_printf("{\"ph\":\"M\",\"name\":\"end\",\"pid\":0}\n],\"otherData\":%s}\n", about_text);
    Out out = {0};
    if (r->lead)
        out.open = output_open(&out.out, r->o->trace, false, &out.e) &&
                   io_create(&out.file, out.out.part, &out.e);
    append(&out, head, sizeof head - 1);
    put_events(r, &out);
    append(&out, tail, strlen(tail));
    bool whole = out.open && io_finish(&out.file, NULL, &out.e) && output_commit(&out.out, &out.e);
    if (r->lead && !whole) warn("--trace: %s", out.e.text);
    output_abandon(&out.out);
    mem_free(tail);
}

/* ---- the table */

static void print_table(const Run *r, const TraceTable *table, double lost, double error) {
    const Trace *t = r->trace;
    char *text = NULL, flags[OVERLAP_TEXT];
    size_t size = 0;
    double ms[TRACE_STEPS];
    FILE *f = open_memstream(&text, &size);
    if (!f) die("out of memory for the table of --trace");
    for (int i = 0; i < TRACE_STEPS; i++) ms[i] = 1e3 * (t->step[i].end - t->step[i].begin);
    fprintf(f,
            "trace: step %" PRId64 " waits where it starts, %.2f ms; step %" PRId64
            " is --overlap %s, %.2f ms; clocks agree within %.0f us\n",
            t->step[TRACE_SERIAL].number, ms[TRACE_SERIAL], t->step[TRACE_OVERLAP].number,
            overlap_print(&r->m.shape.overlap, flags), ms[TRACE_OVERLAP], 1e6 * error);
    // with --overlap none the two steps are the same, and there is nothing to compare
    bool none = overlap_equal(&r->m.shape.overlap, &(Overlap){0});
    trace_print(f, table, !none);
    if (lost > 0) fprintf(f, "trace: the last %.0f spans of all ranks did not fit\n", lost);
    if (none)
        fprintf(f, "trace: --overlap none hides nothing: both steps are the same\n");
    else if (trace_efficiency(&table->row[table->n - 1]) <= 0 || trace_charged(table) <= 0)
        fprintf(f,
                "trace: E <= 0: this schedule hides nothing here; --overlap none is no slower\n");
    fprintf(f, "trace: %s, for ui.perfetto.dev and gpt-timeline\n", r->o->trace);
    fclose(f);
    text[size - 1] = 0; // run_note adds the newline
    run_note(r, "%s", text);
    mem_free(text);
}

void run_trace_after(Run *r) {
    Trace *t = r->trace;
    TraceTable table;
    if (!t || !t->open) return;
    trace_end(t, &r->m, r->world);
    bool made = r->state.step == t->step[t->now].number; // false: a signal arrived
    if (made && t->now == TRACE_SERIAL) return;
    if (made) {
        double lost = group_sum(&r->group, (double)t->lost);
        double error = group_max(&r->group, t->error + t->device_error);
        trace_table(&table, t, &r->group);
        char *text = about(r, lost, error);
        write_file(r, text);
        if (r->lead) print_table(r, &table, lost, error);
        mem_free(text);
    }
    trace_free(t);
    mem_free(t);
    r->trace = NULL;
}
