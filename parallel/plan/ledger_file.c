#include "parallel/plan/ledger_file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/median.h"
#include "base/mem.h"
#include "base/utf8.h"

/* The fields of a line, in the order in which they are written. */
typedef enum { TEXT, WHOLE, REAL } Type;
typedef struct Field {
    const char *key;
    Type type;
    size_t at, size;
} Field;
#define FIELD(type, name)                                                                          \
    { #name, type, offsetof(LedgerLine, name), sizeof(((LedgerLine *)0)->name) }
static const Field fields[] = {
    FIELD(TEXT, time),
    FIELD(TEXT, machine),
    FIELD(TEXT, model),
    FIELD(TEXT, layout),
    FIELD(TEXT, backend),
    FIELD(TEXT, dtype),
    FIELD(TEXT, recompute),
    FIELD(TEXT, calibration),
    FIELD(WHOLE, ranks),
    FIELD(WHOLE, threads),
    FIELD(WHOLE, micro),
    FIELD(WHOLE, batch),
    FIELD(WHOLE, steps),
    FIELD(REAL, predicted_ms),
    FIELD(REAL, measured_ms),
    FIELD(WHOLE, predicted_bytes),
    FIELD(WHOLE, measured_bytes),
    FIELD(WHOLE, predicted_memory),
    FIELD(WHOLE, measured_memory),
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

char *ledger_path(void) {
    return cache_path("ledger.jsonl");
}

/* The JSON value of a field. NULL for NaN, which JSON cannot say; text that is not UTF-8 is
 * mended. */
static json_t *field_print(const Field *f, const LedgerLine *l) {
    const void *p = (const char *)l + f->at;
    char text[sizeof l->model]; // the longest
    if (f->type == WHOLE) return json_integer(*(const int64_t *)p);
    if (f->type == REAL) return json_real(*(const double *)p);
    memcpy(text, p, f->size);
    utf8_repair(text);
    return json_string(text);
}

static bool field_parse(const Field *f, const json_t *x, LedgerLine *l) {
    void *p = (char *)l + f->at;
    bool good = f->type == TEXT    ? json_is_string(x)
                : f->type == WHOLE ? json_is_integer(x)
                                   : json_is_number(x);
    if (!x || !good) return !x;
    if (f->type == TEXT) snprintf(p, f->size, "%s", json_string_value(x));
    if (f->type == WHOLE) *(int64_t *)p = json_integer_value(x);
    if (f->type == REAL) *(double *)p = json_number_value(x);
    return true;
}

char *ledger_print(const LedgerLine *l) {
    json_t *o = json_object();
    for (int i = 0; i < N_FIELDS; i++) {
        json_t *x = field_print(&fields[i], l);
        if (x) json_object_set_new(o, fields[i].key, x);
    }
    char *text = json_dumps(o, JSON_PRESERVE_ORDER);
    json_decref(o);
    if (!text) die("out of memory for a line of the ledger");
    return text;
}

static bool line_parse(const char *p, size_t n, LedgerLine *l) {
    json_t *o = json_loadb(p, n, 0, NULL);
    bool ok = json_is_object(o) && json_object_get(o, "time");
    *l = (LedgerLine){0};
    for (int i = 0; ok && i < N_FIELDS; i++)
        ok = field_parse(&fields[i], json_object_get(o, fields[i].key), l);
    json_decref(o);
    return ok;
}

/* Is the file empty, or does it begin with a line of a ledger? No other file is appended to. */
static bool is_ledger(int fd) {
    char first;
    struct stat st;
    bool empty = fstat(fd, &st) || !S_ISREG(st.st_mode) || pread(fd, &first, 1, 0) <= 0;
    return empty || first == '{';
}

/* Does the last line lack its newline? Then a new line begins with one. (If another run is writing
 * that line just now, an empty line follows it.) */
static bool torn(int fd) {
    char last = '\n';
    off_t n = lseek(fd, 0, SEEK_END);
    return n > 0 && pread(fd, &last, 1, n - 1) == 1 && last != '\n';
}

bool ledger_append(const char *path, const LedgerLine *l, Err *e) {
    if (!cache_make_folders(path, e)) return false;
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return err(e, "cannot open %s: %s", path, strerror(errno));
    if (!is_ledger(fd)) {
        close(fd);
        return err(e, "%s holds something else than lines of a ledger; name another file", path);
    }
    char *text = ledger_print(l), *line = mem_printf("%s%s\n", torn(fd) ? "\n" : "", text);
    size_t n = strlen(line);
    errno = ENOSPC; // what a write that is too short means
    bool ok = write(fd, line, n) == (ssize_t)n;
    if (!ok) err(e, "cannot write to %s: %s", path, strerror(errno));
    close(fd);
    mem_free(text), mem_free(line);
    return ok;
}

/* Moves p[k] to p[0], p[k+1] to p[1], ..., and p[0] behind p[n-1]. */
static void rotate(LedgerLine *p, int n, int k) {
    LedgerLine *copy = mem_alloc((size_t)n * sizeof *p);
    memcpy(copy, p, (size_t)n * sizeof *p);
    for (int i = 0; i < n; i++) p[i] = copy[(i + k) % n];
    mem_free(copy);
}

int ledger_read(const char *path, LedgerLine *out, int max, LedgerDamage *damage, Err *e) {
    FILE *f = cache_open(path);
    char *line = NULL;
    size_t cap = 0;
    int64_t n = 0;
    int number = 0;
    *damage = (LedgerDamage){0};
    if (!f && errno == ENOENT) return 0;
    if (!f) return err(e, "cannot read %s: %s", path, strerror(errno)) - 1;
    for (ssize_t got; (got = getline(&line, &cap, f)) > 0;) {
        LedgerLine l;
        number++;
        if (*line == '\n') continue;
        if (line_parse(line, (size_t)got, &l))
            out[n++ % max] = l; // a ring: the newest take the place of the oldest
        else if (damage->n++ == 0)
            damage->first = number;
    }
    bool bad = ferror(f);
    mem_free(line);
    fclose(f);
    if (bad) return err(e, "cannot read %s", path) - 1;
    if (n > max) rotate(out, max, (int)(n % max));
    return n < max ? (int)n : max;
}

double ledger_error(double predicted, double measured) {
    return predicted > 0 && measured > 0 ? measured / predicted - 1 : NAN;
}

double ledger_median_error(const LedgerLine *l, int n, const char *machine, bool calibrated) {
    double *error = mem_alloc((size_t)(n + 1) * sizeof *error);
    int known = 0;
    for (int i = 0; i < n; i++) {
        double x = fabs(ledger_error(l[i].predicted_ms, l[i].measured_ms));
        bool alike = strcmp(l[i].machine, machine) == 0 && !!*l[i].calibration == calibrated;
        if (alike && !isnan(x)) error[known++] = x;
    }
    double all = median_of(error, known);
    mem_free(error);
    return all;
}
