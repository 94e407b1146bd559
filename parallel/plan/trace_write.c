#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/plan/trace.h"

/* Rows of a process in a viewer. Collectives of one group share a row, except those in flight at
 * the same time, which get one each: a viewer does not draw events that overlap in a row. */
enum { ROW_COMPUTE, ROW_EXPOSED, ROW_GROUPS, MAX_ROWS = 64 };

typedef struct Rows {
    int n;
    struct {
        char label[16]; // of a group
        double busy;    // end of the row's last event
    } row[MAX_ROWS];
} Rows;

static int row_of(Rows *r, const char *label, double begin, double end) {
    int i = 0;
    while (i < r->n && (strcmp(r->row[i].label, label) != 0 || r->row[i].busy > begin)) i++;
    if (i == MAX_ROWS) i--;
    if (i == r->n) r->n++;
    snprintf(r->row[i].label, sizeof r->row[i].label, "%s", label);
    r->row[i].busy = end;
    return ROW_GROUPS + i;
}

/* ---- events */

/* Names a process or a thread, and gives it its place in the order. */
static void name_it(FILE *f, const char *what, int pid, int tid, const char *name, int place) {
    fprintf(
        f,
        "{\"ph\":\"M\",\"name\":\"%s_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n"
        "{\"ph\":\"M\",\"name\":\"%s_sort_index\",\"pid\":%d,\"tid\":%d,"
        "\"args\":{\"sort_index\":%d}},\n",
        what, pid, tid, name, what, pid, tid, place);
}

static void name_rows(FILE *f, int pid, const Rows *r) {
    char name[40];
    name_it(f, "thread", pid, ROW_COMPUTE, "compute", ROW_COMPUTE);
    name_it(f, "thread", pid, ROW_EXPOSED, "exposed", ROW_EXPOSED);
    for (int i = ROW_GROUPS; i < ROW_GROUPS + r->n; i++) {
        snprintf(name, sizeof name, "collectives along %s", r->row[i - ROW_GROUPS].label);
        name_it(f, "thread", pid, i, name, i);
    }
}

/* Writes the fields that every event has, times in microseconds. The caller adds further fields and
 * ends the line. */
static void event(FILE *f, const char *category, const char *name, int pid, int tid, double begin,
                  double end) {
    fprintf(f,
            "{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
            "\"dur\":%.3f",
            category, name, pid, tid, 1e6 * begin, 1e6 * (end - begin));
}

static void exposed_event(FILE *f, const char *name, int pid, double begin, double end) {
    event(f, "exposed", name, pid, ROW_EXPOSED, begin, end);
    fprintf(f, "},\n");
}

/* ---- a rank */

/* The names of parts are those of data/timeline_text.c. */
static const char *part_of(const char *kernel) {
    static const struct {
        const char *begins, *part;
    } known[] = {{"matmul", "matmuls"},
                 {"attention", "attention"},
                 {"norm", "norms"},
                 {"qk_norm", "norms"},
                 {"embedding", "embedding and loss"},
                 {"position", "embedding and loss"},
                 {"loss", "embedding and loss"},
                 {"squares", "update"},
                 {"clip", "update"},
                 {"adamw", "update"},
                 {"cast", "update"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(kernel, known[i].begins, strlen(known[i].begins)) == 0) return known[i].part;
    return "the rest";
}

static const char *const phases[N_PHASES] = {"forward", "recompute", "backward", "sums", "end"};

static void kernel_event(FILE *f, const TraceSpan *s, int pid, double from) {
    double begin = s->begin - from, end = s->end - from;
    char name[64];
    snprintf(name, sizeof name, "%s %s", s->name, s->result);
    event(f, "kernel", name, pid, ROW_COMPUTE, begin, end);
    fprintf(f, ",\"args\":{\"part\":\"%s\",\"phase\":\"%s\"", part_of(s->name), phases[s->phase]);
    if (s->layer >= 0) fprintf(f, ",\"layer\":%d", s->layer);
    if (s->flops > 0 && end > begin)
        fprintf(f, ",\"GFLOP/s\":%.1f", s->flops / (end - begin) / 1e9);
    fprintf(f, "}},\n");
}

static void collective_event(FILE *f, const TraceSpan *s, int pid, double from, Rows *rows) {
    int row = row_of(rows, s->label, s->begin, s->end);
    event(f, "collective", s->name, pid, row, s->begin - from, s->end - from);
    fprintf(f,
            ",\"args\":{\"op\":\"%s\",\"along\":\"%s\",\"ranks\":%d,\"bytes\":%" PRId64
            ",\"exposed_us\":%.3f}},\n",
            coll_op_name(s->op), s->label, s->size, s->bytes, 1e6 * trace_exposed(s));
    exposed_event(f, s->name, pid, s->begin - from, s->started - from);
    exposed_event(f, s->name, pid, s->wait - from, s->waited - from);
}

void trace_events(FILE *f, const Trace *t, int rank, const char *node, double zero) {
    static const char *const kinds[TRACE_STEPS] = {"serial", "overlap"};
    Rows rows = {0};
    char name[100];
    double from = zero + t->offset; // by this rank's clock
    snprintf(name, sizeof name, "rank %d on %s", rank, node);
    name_it(f, "process", rank, 0, name, rank);
    for (int i = 0; i < TRACE_STEPS; i++) {
        event(f, "step", kinds[i], rank, ROW_COMPUTE, t->step[i].begin - from,
              t->step[i].end - from);
        fprintf(f, ",\"args\":{\"step\":%" PRId64 "}},\n", t->step[i].number);
    }
    for (int64_t i = 0; i < t->n; i++) {
        const TraceSpan *s = &t->span[i];
        if (s->label)
            collective_event(f, s, rank, from, &rows);
        else
            kernel_event(f, s, rank, from);
    }
    name_rows(f, rank, &rows);
}
