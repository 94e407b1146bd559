/* Keeps the tables of a calibration in a file, calibration-HASH.json. HASH is of the key, and the
 * key, which names the build, is in the file, too. A number that no measurement gives makes the
 * whole file damaged: all is measured again. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/plan/calibrate_parts.h"

enum { MOST_ENTRIES = 1 << 16, MOST_BYTES = 64 << 20 };

/* ---- JSON */

/* The same functions write a table and read it, so both have the same fields. */
typedef struct Walk {
    json_t *o;  // the object at hand
    bool reads; // else writes
    bool ok;    // so far all numbers were there, within their bounds
} Walk;

/* Seconds and sizes that no measurement exceeds. */
static const double long_time = 1e6;
static const int64_t large = INT64_C(1) << 60;

static double real_of(Walk *k, const json_t *x, double least, double most) {
    double value = json_number_value(x);
    k->ok &= json_is_number(x) && value >= least && value <= most;
    return value;
}

/* Writes x, and returns it; or reads and returns the number of this key. */
static double real(Walk *k, const char *key, double x, double least, double most) {
    if (k->reads) return real_of(k, json_object_get(k->o, key), least, most);
    json_object_set_new(k->o, key, json_real(x));
    return x;
}

static int64_t whole(Walk *k, const char *key, int64_t x, int64_t least, int64_t most) {
    if (!k->reads) json_object_set_new(k->o, key, json_integer(x));
    const json_t *value = json_object_get(k->o, key);
    x = json_integer_value(value);
    k->ok &= json_is_integer(value) && x >= least && x <= most;
    return x;
}

/* Writes x[n]; or reads a list of 1 to max numbers into x. Returns their number. */
static int numbers(Walk *k, const char *key, double *x, int n, int max, double least, double most) {
    json_t *list = k->reads ? json_object_get(k->o, key) : json_array();
    for (int i = 0; i < n && !k->reads; i++) json_array_append_new(list, json_real(x[i]));
    if (!k->reads) json_object_set_new(k->o, key, list);
    n = (int)json_array_size(list);
    k->ok &= n > 0 && n <= max;
    for (int i = 0; i < n && k->ok; i++)
        x[i] = real_of(k, json_array_get(list, (size_t)i), least, most);
    return n;
}

static void walk_work(Walk *k, Work *w) {
    char name[64];
    if (!k->reads) json_object_set_new(k->o, "name", json_string(work_name(w, name)));
    w->kind = (WorkKind)whole(k, "kind", w->kind, 0, N_WORKS - 1);
    w->flags = (uint32_t)whole(k, "flags", w->flags, 0, UINT32_MAX);
    w->rows = whole(k, "rows", w->rows, 1, large);
    static const char *const sizes[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) w->size[i] = whole(k, sizes[i], w->size[i], 0, large);
}

static void walk_cost(Walk *k, Calibration *c, int i) {
    WorkCost w = {.derived = false};
    if (!k->reads) w = c->work[i];
    walk_work(k, &w.work);
    w.fixed = real(k, "fixed", w.fixed, 0, long_time);
    w.per_row = real(k, "per_row", w.per_row, 0, long_time);
    w.derived = whole(k, "derived", w.derived, 0, 1);
    if (k->reads && k->ok) calibration_add_work(c, &w);
}

static void walk_place(Walk *k, Placement *p) {
    double size[MAX_FACTORS], stride[MAX_FACTORS];
    for (int i = 0; i < p->n; i++) size[i] = p->size[i], stride[i] = p->stride[i];
    int n = numbers(k, "size", size, p->n, MAX_FACTORS, 1, INT32_MAX);
    k->ok &= n == numbers(k, "stride", stride, p->n, MAX_FACTORS, 1, INT32_MAX);
    p->n = k->ok ? n : 0;
    for (int i = 0; i < p->n; i++) p->size[i] = (int32_t)size[i], p->stride[i] = (int32_t)stride[i];
}

static void walk_collective(Walk *k, Calibration *c, int i) {
    CollCost s = {.n = 0};
    if (!k->reads) s = c->collective[i];
    s.op = (CollOp)whole(k, "op", s.op, 0, N_COLL_OPS - 1);
    if (k->ok && !k->reads) json_object_set_new(k->o, "name", json_string(coll_op_name(s.op)));
    walk_place(k, &s.place);
    s.most = whole(k, "most", s.most, 1, large);
    s.measured = whole(k, "measured", s.measured, 0, large);
    int n = numbers(k, "bytes", s.bytes, s.n, COLL_POINTS, 1, (double)large);
    k->ok &= n == numbers(k, "seconds", s.seconds, s.n, COLL_POINTS, 0, long_time);
    s.n = n;
    // calibration_collective divides by differences of bytes, so they ascend
    for (int at = 1; at < n && k->ok; at++)
        k->ok = s.bytes[at] > s.bytes[at - 1] && s.seconds[at] >= s.seconds[at - 1];
    if (k->reads && k->ok) calibration_add_collective(c, &s);
}

static void walk_link(Walk *k, const char *key, LinkCost *l) {
    double x[] = {l->latency, l->rate};
    k->ok &= numbers(k, key, x, 2, 2, 0, 1e300) == 2 && x[0] <= long_time;
    l->latency = x[0], l->rate = x[1];
}

static void walk_list(Walk *k, const char *key, Calibration *c, int n,
                      void (*entry)(Walk *k, Calibration *c, int i)) {
    json_t *list = k->reads ? json_object_get(k->o, key) : json_array();
    if (!k->reads) json_object_set_new(k->o, key, list);
    // few enough: each entry is looked up among those before it
    k->ok &= json_is_array(list) && json_array_size(list) <= MOST_ENTRIES;
    if (k->reads) n = (int)json_array_size(list);
    for (int i = 0; i < n && k->ok; i++) {
        if (!k->reads) json_array_append_new(list, json_object());
        Walk o = {json_array_get(list, (size_t)i), k->reads, true};
        entry(&o, c, i);
        k->ok &= o.ok;
    }
}

static void walk(Walk *k, Calibration *c) {
    c->slowest = real(k, "slowest", c->slowest, 1, 1e3);
    c->oversubscription = real(k, "oversubscription", c->oversubscription, 0, 1e3);
    k->ok &= numbers(k, "slowdown", c->slowdown, 2, 2, 0, 1e3) == 2;
    c->links.rack_nodes = (int)whole(k, "rack_nodes", c->links.rack_nodes, 0, INT32_MAX);
    walk_link(k, "node", &c->links.node);
    walk_link(k, "rack", &c->links.rack);
    walk_link(k, "network", &c->links.network);
    k->ok &= c->links.rack_nodes == 0 || c->links.rack.rate > 0;
    walk_list(k, "works", c, c->n_works, walk_cost);
    walk_list(k, "collectives", c, c->n_collectives, walk_collective);
}

char *calibration_print(const Calibration *c, const char *key) {
    Calibration copy = *c;
    Walk k = {json_pack("{ss ss}", "calibration", key, "measured", c->measured), .ok = true};
    walk(&k, &copy);
    char *text = json_dumps(k.o, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(k.o);
    return text;
}

static bool parse_all(json_t *o, const char *key, Calibration *c, Err *e) {
    const char *theirs, *measured;
    if (json_unpack(o, "{ss}", "calibration", &theirs)) return err(e, "not a calibration");
    if (strcmp(theirs, key) != 0) return err(e, "a calibration of \"%s\"", theirs);
    Walk k = {o, .reads = true, .ok = true};
    walk(&k, c);
    k.ok &= json_unpack(o, "{ss}", "measured", &measured) == 0 &&
            snprintf(c->measured, sizeof c->measured, "%s", measured) < (int)sizeof c->measured;
    return k.ok || err(e, "the calibration is damaged");
}

bool calibration_parse(Calibration *c, const char *text, size_t n, const char *key, Err *e) {
    json_error_t at;
    json_t *o = json_loadb(text, n, 0, &at);
    Calibration *fresh = calibration_new(), old = *c;
    bool ok = o ? parse_all(o, key, fresh, e) : err(e, "line %d: %s", at.line, at.text);
    json_decref(o);
    if (ok) *c = *fresh, *fresh = old;
    calibration_free(fresh);
    return ok;
}

/* ---- files */

char *calibration_path(const char *key) {
    char name[64];
    snprintf(name, sizeof name, "calibration-%016" PRIx64 ".json", rng_stream(key));
    return cache_path(name);
}

/* The text of a file (mem_free); NULL: there is none, or another user owns it. */
static char *read_file(const char *path) {
    FILE *f = cache_open(path);
    Err e;
    if (!f) return NULL;
    char *text = mem_alloc(MOST_BYTES + 1);
    text[fread(text, 1, MOST_BYTES, f)] = 0;
    bool own = cache_is_own(f, &e);
    if (!own) warn("%s: %s; measuring again", path, e.text);
    if (!own) mem_free(text);
    fclose(f);
    return own ? text : NULL;
}

Calibration *calibrate_open(World *w, const char *key, bool again) {
    Calibration *c = calibration_new();
    Group all = comm_group(world_comm(w));
    char *path = calibration_path(key);
    char *read = all.rank == 0 && path && !again ? read_file(path) : NULL;
    char *text = group_broadcast_text(&all, read);
    Err e;
    if (text && !calibration_parse(c, text, strlen(text), key, &e) && all.rank == 0)
        warn("%s: %s; measuring again", path, e.text);
    mem_free(path), mem_free(read), mem_free(text);
    return c;
}

static bool write_file(const char *path, const char *text, Err *e) {
    char *fresh = mem_printf("%s.%ld", path, (long)getpid());
    if (!cache_make_folders(path, e)) return mem_free(fresh), false;
    unlink(fresh); // with O_EXCL: no link that somebody has put there is followed
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); // 0644: cache_is_own
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    bool ok = f && fputs(text, f) >= 0;
    if (f) ok = fclose(f) == 0 && ok;
    ok = ok && rename(fresh, path) == 0;
    if (!ok) err(e, "cannot write %s: %s", path, strerror(errno));
    if (!ok) unlink(fresh);
    mem_free(fresh);
    return ok;
}

void calibration_save(const Calibration *c, const char *key) {
    char *path = calibration_path(key), *text = calibration_print(c, key);
    Err e = {.text = "neither XDG_CACHE_HOME nor HOME is set"};
    if (!path || !text || !write_file(path, text, &e))
        warn("the calibration is not kept: %s", e.text);
    mem_free(path), mem_free(text);
}
