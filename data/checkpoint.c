#include "data/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/mem.h"
#include "data/hf_config.h"
#include "data/io.h"
#include "data/safetensors.h"
#include "data/weights.h"

static const char MANIFEST[] = "checkpoint.json", FORMAT[] = "train_gpt checkpoint 1";

/* ---- the manifest ---- */

/* Checksum of the manifest itself: of its canonical text without this key. */
static json_int_t manifest_crc(const json_t *m) {
    json_t *rest = json_copy((json_t *)(uintptr_t)m);
    json_object_del(rest, "crc32c");
    char *text = json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS);
    json_int_t crc = (json_int_t)crc32c(0, text, strlen(text));
    mem_free(text);
    json_decref(rest);
    return crc;
}

/* The manifest of a folder, NULL and the reason when it is not sound. Sizes are checked, contents
 * are not. */
static json_t *manifest_read(const char *path, Err *e) {
    char *file = mem_printf("%s/%s", path, MANIFEST);
    json_t *m = json_load_file(file, JSON_REJECT_DUPLICATES, NULL), *files, *info;
    const char *format = json_string_value(json_object_get(m, "format")), *name;
    const json_t *crc = json_object_get(m, "crc32c");
    bool ok = true;
    if (!m)
        ok = err(e, io_exists(file) ? "%s is damaged" : "%s is missing: no complete checkpoint",
                 file);
    else if (!format || strncmp(format, FORMAT, strlen(FORMAT) - 1) != 0)
        ok = err(e, "%s is not a train_gpt checkpoint", path);
    else if (strcmp(format, FORMAT) != 0)
        ok = err(e, "%s: format \"%.60s\"; this program reads \"%s\"", path, format, FORMAT);
    else if (!json_is_integer(crc) || json_integer_value(crc) != manifest_crc(m))
        ok = err(e, "%s is damaged (checksum)", file);
    files = json_object_get(m, "files");
    json_object_foreach(files, name, info) {
        struct stat st;
        char *one = mem_printf("%s/%s", path, name);
        json_int_t want = json_integer_value(json_object_get(info, "bytes"));
        if (ok && stat(one, &st))
            ok = err(e, "%s is missing", one);
        else if (ok && st.st_size != want)
            ok = err(e, "%s has %lld bytes instead of %lld: it is cut off or damaged", one,
                     (long long)st.st_size, (long long)want);
        mem_free(one);
    }
    mem_free(file);
    if (ok) return m;
    json_decref(m);
    return NULL;
}

/* ---- saving ---- */

/* The folder under construction and the list of what it holds. */
typedef struct Build {
    char *dir;
    json_t *files;
    const TensorTable *t;
} Build;

static bool record(Build *b, const char *name, uint64_t n_bytes, uint32_t crc) {
    json_object_set_new(
        b->files, name,
        json_pack("{s:I,s:I}", "bytes", (json_int_t)n_bytes, "crc32c", (json_int_t)crc));
    return true;
}

static bool put_text(Build *b, const char *name, const void *text, size_t n, Err *e) {
    char *path = mem_printf("%s/%s", b->dir, name);
    uint32_t crc = 0;
    bool ok = io_write_file(path, text, n, &crc, e) && record(b, name, n, crc);
    mem_free(path);
    return ok;
}

static bool put_config(Build *b, Err *e) {
    char *text = hf_config_text(&b->t->config);
    bool ok = put_text(b, "config.json", text, strlen(text), e);
    mem_free(text);
    return ok;
}

static bool put_model(Build *b, Err *e) {
    char *path = mem_printf("%s/model.safetensors", b->dir);
    uint64_t n = 0;
    uint32_t crc = 0;
    bool ok =
        weights_save(path, b->t, "F32", &n, &crc, e) && record(b, "model.safetensors", n, crc);
    mem_free(path);
    return ok;
}

static bool put_moments(Build *b, SafeWriter *w, Err *e) {
    const TensorTable *t = b->t;
    for (int i = 0; i < t->n; i++)
        if (!safetensors_put(w, i, 0, tensor_size(&t->t[i]), t->t[i].m, e)) return false;
    for (int i = 0; i < t->n; i++)
        if (!safetensors_put(w, t->n + i, 0, tensor_size(&t->t[i]), t->t[i].v, e)) return false;
    return true;
}

static bool put_optimizer(Build *b, Err *e) {
    if (!b->t->t[0].m) return true;
    char *path = mem_printf("%s/optimizer.safetensors", b->dir);
    SafeTensors list = {0};
    SafeWriter w;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < b->t->n; i++) {
            const Tensor *x = &b->t->t[i];
            char name[80];
            snprintf(name, sizeof name, k ? "v.%s" : "m.%s", x->name);
            safetensors_add(&list, name, "F32", 2, (int64_t[]){x->rows, x->cols});
        }
    uint64_t n = 0;
    uint32_t crc = 0;
    bool ok = safetensors_create(&w, path, &list, e);
    mem_free(path);
    if (!ok) return false;
    if (!put_moments(b, &w, e)) {
        safetensors_abandon(&w);
        return false;
    }
    return safetensors_finish(&w, &n, &crc, e) && record(b, "optimizer.safetensors", n, crc);
}

static bool put_copies(Build *b, const char *const *files, Err *e) {
    for (; files && *files; files++) {
        const char *slash = strrchr(*files, '/'), *name = slash ? slash + 1 : *files;
        IoMap m;
        if (json_object_get(b->files, name))
            return err(e, "%s would replace the checkpoint's own", *files);
        if (!io_map(&m, *files, e)) return false;
        bool ok = put_text(b, name, m.p, m.n, e);
        io_unmap(&m);
        if (!ok) return false;
    }
    return true;
}

static bool put_manifest(Build *b, int64_t step, Err *e) {
    char model[512];
    config_print(&b->t->config, model, sizeof model);
    json_t *m = json_pack("{s:s,s:I,s:s,s:O}", "format", FORMAT, "step", (json_int_t)step, "model",
                          model, "files", b->files);
    json_object_set_new(m, "crc32c", json_integer(manifest_crc(m)));
    char *text = json_dumps(m, JSON_INDENT(2));
    bool ok = put_text(b, MANIFEST, text, strlen(text), e);
    mem_free(text);
    json_decref(m);
    return ok;
}

static bool is_object(const char *text) {
    json_t *x = json_loads(text, 0, NULL);
    bool ok = json_is_object(x);
    json_decref(x);
    return ok;
}

/* Puts the finished folder in its place; one that is there already changes places with it and goes.
 */
static bool put_in_place(const char *dir, const char *place, Err *e) {
    if (!io_exists(place)) return io_rename(dir, place, e);
    if (!io_exchange(dir, place, e)) return false;
    if (!io_remove_tree(dir, NULL)) warn("cannot remove %s", dir);
    return true;
}

/* ---- names ---- */

/* The step of "step_00001000", or -1. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step_", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, &end, 10);
    return *end ? -1 : step;
}

/* "HOST-" of this machine: a process id means nothing elsewhere. */
static void host_prefix(char *buf, size_t n) {
    char host[64] = "host";
    gethostname(host, sizeof host - 1);
    snprintf(buf, n, "%s-", host);
}

/* Removes ".step_*.tmp-HOST-PID" of processes of this machine that are no more, and our own. */
static void clean(const char *save_dir) {
    char host[80];
    host_prefix(host, sizeof host);
    DIR *d = opendir(save_dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        const char *tail = strstr(x->d_name, ".tmp-");
        if (strncmp(x->d_name, ".step_", 6) != 0 || !tail) continue;
        if (strncmp(tail + 5, host, strlen(host)) != 0) continue;
        char *end;
        long pid = strtol(tail + 5 + strlen(host), &end, 10);
        if (*end) continue;
        bool alive = pid <= 0 || kill((pid_t)pid, 0) == 0 || errno == EPERM;
        if (alive && pid != (long)getpid()) continue;
        char *path = mem_printf("%s/%s", save_dir, x->d_name);
        if (!io_remove_tree(path, NULL)) warn("cannot remove the left-over %s", path);
        mem_free(path);
    }
    if (d) closedir(d);
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of all folders step_*, newest first; freed by mem_free. */
static int64_t *list_steps(const char *save_dir, int *n) {
    int64_t *steps = NULL;
    *n = 0;
    DIR *d = opendir(save_dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        int64_t step = step_of(x->d_name);
        if (step < 0) continue;
        steps = mem_realloc(steps, (size_t)*n + 1, sizeof *steps);
        steps[(*n)++] = step;
    }
    if (d) closedir(d);
    if (*n) qsort(steps, (size_t)*n, sizeof *steps, newest_first);
    return steps;
}

static char *step_path(const char *save_dir, int64_t step) {
    return mem_printf("%s/step_%08lld", save_dir, (long long)step);
}

/* ---- rotation ---- */

/* Renamed first: a folder that is half removed must not look like a checkpoint. */
static void remove_checkpoint(const char *path, const char *aside) {
    Err e;
    if (!io_rename(path, aside, &e) || !io_remove_tree(aside, &e))
        warn("old checkpoint not removed: %s", e.text);
}

static void rotate(const char *save_dir, int64_t newest, const CheckpointOptions *o,
                   const char *aside) {
    if (!o || o->keep_last <= 0) return;
    int n, kept = 1;
    int64_t *steps = list_steps(save_dir, &n);
    for (int i = 0; i < n; i++) {
        if (steps[i] >= newest || (o->keep_every > 0 && steps[i] % o->keep_every == 0)) continue;
        char *path = step_path(save_dir, steps[i]);
        json_t *m = manifest_read(path, NULL);
        if (m && ++kept > o->keep_last) remove_checkpoint(path, aside);
        json_decref(m);
        mem_free(path);
    }
    mem_free(steps);
}

static bool fill(Build *b, int64_t step, const char *state, const CheckpointOptions *o, Err *e) {
    return io_make_dir(b->dir, e) && put_config(b, e) && put_model(b, e) && put_optimizer(b, e) &&
           put_text(b, "train_state.json", state, strlen(state), e) &&
           put_copies(b, o ? o->files : NULL, e) && put_manifest(b, step, e) &&
           io_sync_dir(b->dir, e);
}

bool checkpoint_save(const char *save_dir, int64_t step, const TensorTable *t,
                     const char *state_json, const CheckpointOptions *o, Err *e) {
    if (!is_object(state_json)) return err(e, "the state handed to a checkpoint is no JSON object");
    if (!io_make_dirs(save_dir, e)) return false;
    clean(save_dir);
    char host[80];
    host_prefix(host, sizeof host);
    char *place = step_path(save_dir, step);
    Build b = {.t = t, .files = json_object()};
    b.dir =
        mem_printf("%s/.step_%08lld.tmp-%s%ld", save_dir, (long long)step, host, (long)getpid());
    bool ok = fill(&b, step, state_json, o, e) && put_in_place(b.dir, place, e);
    if (!ok) io_remove_tree(b.dir, NULL);
    ok = ok && io_sync_dir(save_dir, e);
    if (ok) rotate(save_dir, step, o, b.dir);
    json_decref(b.files);
    mem_free(b.dir);
    mem_free(place);
    return ok;
}

/* ---- loading ---- */

char *checkpoint_latest(const char *save_dir, int64_t *step) {
    int n;
    int64_t *steps = list_steps(save_dir, &n);
    char *found = NULL;
    for (int i = 0; i < n && !found; i++) {
        Err why;
        char *path = step_path(save_dir, steps[i]);
        json_t *m = manifest_read(path, &why);
        if (m) {
            found = path;
            if (step) *step = steps[i];
        } else {
            warn("passed over: %s", why.text);
            mem_free(path);
        }
        json_decref(m);
    }
    mem_free(steps);
    return found;
}

static bool verify_files(const char *path, const json_t *m, Err *e) {
    json_t *files = json_object_get(m, "files"), *info;
    const char *name;
    bool ok = true;
    json_object_foreach(files, name, info) {
        if (!ok) break;
        IoMap map;
        char *file = mem_printf("%s/%s", path, name);
        json_int_t want = json_integer_value(json_object_get(info, "crc32c"));
        ok = io_map(&map, file, e);
        if (ok) {
            json_int_t have = (json_int_t)crc32c(0, map.p, map.n);
            io_unmap(&map);
            if (have != want)
                ok = err(e,
                         "%s is damaged: checksum %08llx instead of %08llx; resume from an older "
                         "checkpoint by moving this folder away",
                         file, (long long)have, (long long)want);
        }
        mem_free(file);
    }
    return ok;
}

bool checkpoint_verify(const char *path, Err *e) {
    json_t *m = manifest_read(path, e);
    bool ok = m && verify_files(path, m, e);
    json_decref(m);
    return ok;
}

static bool manifest_config(const char *path, const json_t *m, Config *c, Err *e) {
    const char *text = json_string_value(json_object_get(m, "model"));
    Err why;
    if (!text) return err(e, "%s/%s: the key \"model\" is missing", path, MANIFEST);
    return config_parse(c, text, &why) || err(e, "%.200s/%s: %.250s", path, MANIFEST, why.text);
}

bool checkpoint_config(const char *path, Config *c, Err *e) {
    json_t *m = manifest_read(path, e);
    bool ok = m && manifest_config(path, m, c, e);
    json_decref(m);
    return ok;
}

/* Both as "key=value,...": the first pair that differs. */
static bool check_same_model(const char *path, const Config *saved, const Config *ours, Err *e) {
    char a[512], b[512];
    config_print(saved, a, sizeof a);
    config_print(ours, b, sizeof b);
    for (char *x = a, *y = b; *x && *y;) {
        size_t n = strcspn(x, ","), m = strcspn(y, ",");
        if (n != m || memcmp(x, y, n) != 0)
            return err(e, "%s is a checkpoint of another model: it has %.*s, this run %.*s", path,
                       (int)n, x, (int)m, y);
        x += n + (x[n] == ','), y += m + (y[m] == ',');
    }
    return true;
}

static bool read_moment(const SafeTensors *s, char kind, const Tensor *x, float *to, Err *e) {
    char name[80];
    snprintf(name, sizeof name, "%c.%s", kind, x->name);
    const SafeTensor *f = safetensors_find(s, name);
    if (!f || f->size != tensor_size(x) || strcmp(f->dtype, "F32") != 0)
        return err(e, "tensor %s [%lld, %lld] is missing or of another shape", name,
                   (long long)x->rows, (long long)x->cols);
    safetensors_get(f, 0, f->size, to);
    return true;
}

static bool load_optimizer(const char *path, const TensorTable *t, Err *e) {
    if (!t->t[0].m) return true;
    char *file = mem_printf("%s/optimizer.safetensors", path);
    IoMap map = {0};
    SafeTensors s = {0};
    Err why;
    bool ok = io_map(&map, file, e);
    if (ok) {
        bool good = safetensors_parse(map.p, map.n, &s, &why);
        for (int i = 0; good && i < t->n; i++)
            good = read_moment(&s, 'm', &t->t[i], t->t[i].m, &why) &&
                   read_moment(&s, 'v', &t->t[i], t->t[i].v, &why);
        if (!good) ok = err(e, "%.250s: %.240s", file, why.text);
    }
    safetensors_free(&s);
    io_unmap(&map);
    mem_free(file);
    return ok;
}

static bool load_state(const char *path, char **state_json, Err *e) {
    if (!state_json) return true;
    char *file = mem_printf("%s/train_state.json", path);
    IoMap map;
    bool ok = io_map(&map, file, e);
    if (ok) {
        *state_json = mem_printf("%.*s", (int)map.n, (const char *)map.p);
        io_unmap(&map);
    }
    mem_free(file);
    return ok;
}

bool checkpoint_load(const char *path, const TensorTable *t, char **state_json, Err *e) {
    Config saved;
    json_t *m = manifest_read(path, e);
    bool ok = m && manifest_config(path, m, &saved, e) &&
              check_same_model(path, &saved, &t->config, e) && verify_files(path, m, e) &&
              weights_load(path, t, e) && load_optimizer(path, t, e) &&
              load_state(path, state_json, e);
    json_decref(m);
    return ok;
}
