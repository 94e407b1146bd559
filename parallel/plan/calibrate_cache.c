/* The tables of a calibration as a file: calibration-HASH.json, HASH of what the costs depend on,
 * which is in the file, too. Numbers that no measurement gives make the whole file damaged: it is
 * measured again. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "parallel/plan/calibrate_parts.h"

enum { VERSION = 8, MOST_ENTRIES = 1 << 16, MOST_BYTES = 64 << 20 };

/* ---- JSON */

static json_t *print_numbers(const double *x, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}
static json_t *print_whole(const int32_t *x, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_integer(x[i]));
    return list;
}

static json_t *print_kernel(const Work *x) {
    char name[64];
    return json_pack("{ss si si s[IIII] sI}", "name", work_name(x, name), "kind", x->kind, "flags",
                     (int)x->flags, "sizes", (json_int_t)x->a, (json_int_t)x->b, (json_int_t)x->c,
                     (json_int_t)x->d, "rows", (json_int_t)x->rows);
}

static json_t *print_work(const WorkCost *w) {
    json_t *cost = json_pack("{sf sf sb}", "fixed", w->fixed, "per_row", w->per_row, "derived",
                             w->derived),
           *o = print_kernel(&w->work);
    json_object_update(o, cost);
    json_decref(cost);
    return o;
}

static json_t *print_fused(const FusedCost *f) {
    return json_pack("{si si so sf}", "blocks", (int)f->fused.of, "ranks", (int)f->fused.ranks,
                     "matmul", print_kernel(&f->fused.work), "ratio", f->ratio);
}

static json_t *print_send(const SendCost *s) {
    return json_pack("{ss so so sI sI sf so so}", "op", coll_op_name(s->op), "size",
                     print_whole(s->place.size, s->place.n), "stride",
                     print_whole(s->place.stride, s->place.n), "most", (json_int_t)s->most,
                     "measured", (json_int_t)s->measured, "beside", s->beside, "bytes",
                     print_numbers(s->bytes, s->n), "seconds", print_numbers(s->seconds, s->n));
}

static json_t *print_link(const LinkCost *l) {
    return json_pack("{sf sf}", "latency", l->latency, "rate", l->rate);
}
static json_t *print_site(const CalibrateSite *s) {
    return json_pack("{sf si so so so}", "crowd", s->crowd, "rack_nodes", s->links.rack_nodes,
                     "node", print_link(&s->links.node), "rack", print_link(&s->links.rack),
                     "network", print_link(&s->links.network));
}

char *calibration_print(const Calibration *c, const char *key) {
    json_t *works = json_array(), *sends = json_array(), *fused = json_array();
    for (int i = 0; i < c->n_works; i++) json_array_append_new(works, print_work(&c->work[i]));
    for (int i = 0; i < c->n_sends; i++) json_array_append_new(sends, print_send(&c->send[i]));
    for (int i = 0; i < c->n_fused; i++) json_array_append_new(fused, print_fused(&c->fused[i]));
    json_t *o = json_pack("{si ss ss sf so so so so}", "calibration", VERSION, "key", key,
                          "measured", c->measured, "slowest", c->slowest, "site",
                          print_site(&c->site), "works", works, "sends", sends, "fused", fused);
    char *text = json_dumps(o, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(o);
    return text;
}

static bool is_time(double s) {
    return isfinite(s) && s >= 0 && s < 1e6;
}

static bool parse_kernel(json_t *o, Work *w) {
    int kind, flags;
    json_int_t size[4], rows;
    if (json_unpack(o, "{si si s[IIII!] sI}", "kind", &kind, "flags", &flags, "sizes", &size[0],
                    &size[1], &size[2], &size[3], "rows", &rows))
        return false;
    for (int i = 0; i < 4; i++)
        if (size[i] < 0) return false;
    *w = (Work){.kind = (WorkKind)kind,
                .flags = (uint32_t)flags,
                .rows = rows,
                .a = size[0],
                .b = size[1],
                .c = size[2],
                .d = size[3]};
    return kind >= 0 && kind < N_WORKS && rows > 0;
}

static bool parse_work(json_t *o, WorkCost *w) {
    int derived;
    *w = (WorkCost){0};
    if (!parse_kernel(o, &w->work) || json_unpack(o, "{sF sF sb}", "fixed", &w->fixed, "per_row",
                                                  &w->per_row, "derived", &derived))
        return false;
    w->derived = derived;
    return is_time(w->fixed) && is_time(w->per_row);
}

static bool parse_fused(json_t *o, FusedCost *f) {
    json_t *matmul;
    int of, ranks;
    if (json_unpack(o, "{si si so sF}", "blocks", &of, "ranks", &ranks, "matmul", &matmul, "ratio",
                    &f->ratio))
        return false;
    f->fused.of = (BlocksOf)of, f->fused.ranks = ranks;
    return of >= BLOCKS_OF_A && of <= BLOCKS_OF_B && ranks > 1 &&
           parse_kernel(matmul, &f->fused.work) && f->fused.work.kind <= WORK_DW && f->ratio > 0 &&
           f->ratio < 1e3;
}

/* Numbers that ascend, some of at most max; -1 where they do not. */
static int parse_numbers(const json_t *list, double *x, int max) {
    int n = (int)json_array_size(list);
    if (n < 1 || n > max) return -1;
    for (int i = 0; i < n; i++) {
        x[i] = json_number_value(json_array_get(list, (size_t)i));
        if (!isfinite(x[i]) || x[i] < (i ? x[i - 1] : 0)) return -1;
    }
    return n;
}

static bool parse_place(const json_t *size, const json_t *stride, Placement *p) {
    size_t most = sizeof p->size / sizeof *p->size, n = json_array_size(size);
    if (n < 1 || n > most || json_array_size(stride) != n) return false;
    p->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        json_int_t a = json_integer_value(json_array_get(size, i)),
                   b = json_integer_value(json_array_get(stride, i));
        if (a < 1 || a > INT32_MAX || b < 1 || b > INT32_MAX) return false;
        p->size[i] = (int32_t)a, p->stride[i] = (int32_t)b;
    }
    return true;
}

static bool parse_send(json_t *o, SendCost *s) {
    const char *op;
    json_t *size, *stride, *bytes, *seconds;
    json_int_t most, measured;
    *s = (SendCost){.op = N_COLL_OPS};
    if (json_unpack(o, "{ss so so sI sI sF so so}", "op", &op, "size", &size, "stride", &stride,
                    "most", &most, "measured", &measured, "beside", &s->beside, "bytes", &bytes,
                    "seconds", &seconds))
        return false;
    for (int i = 0; i < N_COLL_OPS; i++)
        if (strcmp(op, coll_op_name((CollOp)i)) == 0) s->op = (CollOp)i;
    s->most = most, s->measured = measured;
    s->n = parse_numbers(bytes, s->bytes, SEND_POINTS);
    for (int i = 1; i < s->n; i++)
        if (s->bytes[i] <= s->bytes[i - 1]) return false; // a slope is asked for
    return s->op < N_COLL_OPS && most > 0 && measured >= 0 && s->n > 0 && s->bytes[0] > 0 &&
           parse_numbers(seconds, s->seconds, SEND_POINTS) == s->n &&
           is_time(s->seconds[s->n - 1]) && s->beside >= 1 && s->beside < 1e3 &&
           parse_place(size, stride, &s->place);
}

static bool parse_link(json_t *o, LinkCost *l) {
    return json_unpack(o, "{sF sF}", "latency", &l->latency, "rate", &l->rate) == 0 &&
           is_time(l->latency) && isfinite(l->rate) && l->rate >= 0;
}
static bool parse_site(json_t *o, CalibrateSite *s) {
    json_t *node, *rack, *network;
    if (json_unpack(o, "{sF si so so so}", "crowd", &s->crowd, "rack_nodes", &s->links.rack_nodes,
                    "node", &node, "rack", &rack, "network", &network))
        return false;
    bool sane = s->crowd >= 0 && s->crowd < 1e3 && s->links.rack_nodes >= 0;
    return sane && parse_link(node, &s->links.node) && parse_link(rack, &s->links.rack) &&
           parse_link(network, &s->links.network) &&
           (s->links.rack_nodes == 0 || s->links.rack.rate > 0);
}

static bool parse_all(json_t *o, const char *key, Calibration *c, Err *e) {
    json_t *site, *works, *sends, *fused;
    const char *theirs, *measured;
    int version;
    if (json_unpack(o, "{si ss}", "calibration", &version, "key", &theirs))
        return err(e, "not a calibration");
    if (version != VERSION) return err(e, "a calibration of version %d, not %d", version, VERSION);
    if (strcmp(theirs, key) != 0) return err(e, "a calibration of \"%s\"", theirs);
    if (json_unpack(o, "{ss sF so so so so}", "measured", &measured, "slowest", &c->slowest, "site",
                    &site, "works", &works, "sends", &sends, "fused", &fused))
        return err(e, "not a calibration");
    if (strlen(measured) >= sizeof c->measured) return err(e, "no time when it was measured");
    strcpy(c->measured, measured);
    if (json_array_size(works) > MOST_ENTRIES || json_array_size(sends) > MOST_ENTRIES ||
        json_array_size(fused) > MOST_ENTRIES)
        return err(e, "more entries than a calibration has");
    for (size_t i = 0; i < json_array_size(works); i++) {
        WorkCost w;
        if (!parse_work(json_array_get(works, i), &w)) return err(e, "work %zu is damaged", i);
        calibration_add_work(c, &w);
    }
    for (size_t i = 0; i < json_array_size(sends); i++) {
        SendCost s;
        if (!parse_send(json_array_get(sends, i), &s)) return err(e, "send %zu is damaged", i);
        calibration_add_send(c, &s);
    }
    for (size_t i = 0; i < json_array_size(fused); i++) {
        FusedCost f;
        if (!parse_fused(json_array_get(fused, i), &f))
            return err(e, "fused matmul %zu is damaged", i);
        calibration_add_fused(c, &f);
    }
    if (!parse_site(site, &c->site)) return err(e, "site is damaged");
    bool factor = c->slowest >= 1 && c->slowest < 1e3;
    return factor || err(e, "slowest is no factor");
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
    uint8_t digest[SHA256_BYTES];
    char hash[2 * SHA256_BYTES + 1], name[64];
    Sha256 h = sha256_start();
    sha256_add(&h, key, strlen(key));
    sha256_end(&h, digest);
    snprintf(name, sizeof name, "calibration-%.16s.json", sha256_print(digest, hash));
    return cache_path(name);
}

void calibration_load(Calibration *c, const char *key) {
    char *path = calibration_path(key);
    FILE *f = path ? cache_open(path) : NULL;
    if (f) {
        char *text = mem_alloc(MOST_BYTES);
        size_t n = fread(text, 1, MOST_BYTES, f);
        Err e;
        if (!cache_is_own(f, &e) || !calibration_parse(c, text, n, key, &e))
            warn("%s: %s; measuring again", path, e.text);
        mem_free(text);
        fclose(f);
    }
    mem_free(path);
}

static bool write_file(const char *path, const char *text, Err *e) {
    char *fresh = mem_printf("%s.%ld", path, (long)getpid());
    if (!cache_make_folders(path, e)) return mem_free(fresh), false;
    unlink(fresh); // a link that somebody has put there is not followed
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); // or cache_is_own says no
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
