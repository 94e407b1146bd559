#include "data/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/die.h"
#include "base/mem.h"
#include "base/path.h"
#include "data/hf_config.h"
#include "data/io.h"
#include "data/io_map.h"
#include "data/output.h"
#include "data/safetensors.h"
#include "data/slice.h"
#include "data/weights.h"

#define CHECKPOINT_MANIFEST "checkpoint.json"

/* ---- checkpoint.json: the list of files with their checksums ---- */

static const char FORMAT[] = "train_gpt checkpoint 1";

/* CRC-32C of the manifest itself: of its canonical text without the key "crc32c". */
static json_int_t manifest_crc(const json_t *m) {
    json_t *rest = json_copy((json_t *)(uintptr_t)m);
    json_object_del(rest, "crc32c");
    char *text = json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS);
    json_int_t crc = (json_int_t)crc32c(0, text, strlen(text));
    mem_free(text);
    json_decref(rest);
    return crc;
}

/* Reads checkpoint.json of a checkpoint; NULL and the reason when it is not sound. The sizes of the
 * listed files are checked, their contents are not. */
static json_t *manifest_read(const char *path, Err *e) {
    char *file = mem_printf("%s/%s", path, CHECKPOINT_MANIFEST);
    FILE *f = fopen(file, "r");
    int error = errno;
    json_t *m = f ? json_loadf(f, JSON_REJECT_DUPLICATES, NULL) : NULL, *files, *info;
    const char *format = json_string_value(json_object_get(m, "format")), *name;
    const json_t *crc = json_object_get(m, "crc32c");
    struct stat st;
    bool ok = true;
    if (!m)
        ok =
            f ? err(e, "%s is damaged", file) : err(e, "cannot read %s: %s", file, strerror(error));
    else if (!format || strncmp(format, FORMAT, strlen(FORMAT) - 1) != 0)
        ok = err(e, "%s is not a train_gpt checkpoint", path);
    else if (strcmp(format, FORMAT) != 0)
        ok = err(e, "%s: format \"%.60s\"; this program reads \"%s\"", path, format, FORMAT);
    else if (!json_is_integer(crc) || json_integer_value(crc) != manifest_crc(m))
        ok = err(e, "%s is damaged (checksum)", file);
    if (f) fclose(f);
    files = json_object_get(m, "files");
    json_object_foreach(files, name, info) {
        char *one = mem_printf("%s/%s", path, name);
        json_int_t want = json_integer_value(json_object_get(info, "bytes"));
        if (ok && stat(one, &st))
            ok = err(e, "cannot read %s: %s", one, strerror(errno));
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

/* Collective. As manifest_read, by rank 0 for all ranks. */
static json_t *manifest_share(const char *path, const Group *g, Err *e) {
    json_t *mine = g->rank == 0 ? manifest_read(path, e) : NULL;
    if (!group_agree(g, g->rank != 0 || mine, e)) return NULL;
    char *text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
    char *shared = group_broadcast_text(g, text);
    json_t *m = json_loads(shared, 0, NULL);
    json_decref(mine);
    mem_free(text);
    mem_free(shared);
    return m;
}

/* Text of a new checkpoint.json; files: {NAME: {"bytes", "crc32c"}}. */
static char *manifest_print(int64_t step, const Config *c, json_t *files) {
    char model[512];
    config_print(c, model, sizeof model);
    json_t *m = json_pack("{s:s,s:I,s:s,s:O}", "format", FORMAT, "step", (json_int_t)step, "model",
                          model, "files", files);
    json_object_set_new(m, "crc32c", json_integer(manifest_crc(m)));
    char *text = json_dumps(m, JSON_INDENT(2));
    json_decref(m);
    return text;
}

static bool verify_file(const char *file, const json_t *info, const Group *g, Err *e) {
    uint64_t n_bytes = (uint64_t)json_integer_value(json_object_get(info, "bytes"));
    json_int_t want = json_integer_value(json_object_get(info, "crc32c"));
    uint32_t have;
    if (!io_share_checksum(file, n_bytes, g, &have, e)) return false;
    return (json_int_t)have == want ||
           err(e,
               "%s is damaged: checksum %08llx instead of %08llx; resume from an older "
               "checkpoint by moving this folder away",
               file, (long long)have, (long long)want);
}

static bool manifest_verify(const char *path, const json_t *m, const Group *g, Err *e) {
    json_t *files = json_object_get(m, "files"), *info;
    const char *name;
    bool ok = true;
    json_object_foreach(files, name, info) {
        char *file = mem_printf("%s/%s", path, name);
        ok = ok && verify_file(file, info, g, e);
        mem_free(file);
    }
    return ok;
}

bool checkpoint_verify(const char *path, Err *e) {
    json_t *m = manifest_read(path, e);
    bool ok = m && manifest_verify(path, m, &group_alone, e);
    json_decref(m);
    return ok;
}

static bool manifest_config(const char *path, const json_t *m, Config *c, Err *e) {
    const char *text = json_string_value(json_object_get(m, "model"));
    Err why;
    if (!text) return err(e, "%s/%s: the key \"model\" is missing", path, CHECKPOINT_MANIFEST);
    return config_parse(c, text, &why) || err(e, "%s/%s: %s", path, CHECKPOINT_MANIFEST, why.text);
}

bool checkpoint_config(const char *path, Config *c, Err *e) {
    json_t *m = manifest_read(path, e);
    bool ok = m && manifest_config(path, m, c, e);
    json_decref(m);
    return ok;
}

/* ---- the folder of all checkpoints ---- */

/* The name of a checkpoint of this step; that of a temporary one begins with a dot. */
#define STEP_NAME "step_%08lld"

/* The step of a checkpoint with this name, or -1. */
static int64_t step_of(const char *name) {
    char same[32];
    long long step = strncmp(name, "step_", 5) == 0 ? strtoll(name + 5, NULL, 10) : -1;
    snprintf(same, sizeof same, STEP_NAME, step);
    return strcmp(name, same) == 0 ? step : -1;
}

static char *step_build_path(const char *save_dir, int64_t step) {
    char *hidden = mem_printf("%s/." STEP_NAME, save_dir, (long long)step);
    char *path = temporary_name(hidden);
    mem_free(hidden);
    return path;
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of all folders step_*, newest first; freed by mem_free. *n is -1, with a reason, if the
 * folder is there but cannot be listed: it may hold a run. */
static int64_t *list_steps(const char *save_dir, int *n, Err *e) {
    int64_t *steps = NULL;
    *n = 0;
    DIR *d = opendir(save_dir);
    int why = d ? 0 : errno;
    for (struct dirent *x; d && (errno = 0, x = readdir(d));) {
        int64_t step = step_of(x->d_name);
        if (step < 0) continue;
        steps = mem_realloc(steps, (size_t)*n + 1, sizeof *steps);
        steps[(*n)++] = step;
    }
    if (d) why = errno, closedir(d);
    if (why && why != ENOENT && why != ENOTDIR) {
        err(e, "cannot read the folder %s: %s", save_dir, strerror(why));
        mem_free(steps);
        return *n = -1, NULL;
    }
    if (steps) qsort(steps, (size_t)*n, sizeof *steps, newest_first);
    return steps;
}

char *checkpoint_path(const char *save_dir, int64_t step) {
    return mem_printf("%s/" STEP_NAME, save_dir, (long long)step);
}

/* Are the paths of the files of a save short enough for the system? */
static bool paths_fit(const char *save_dir, Err *e) {
    char *build = step_build_path(save_dir, 99999999);
    size_t n = strlen(build) + strlen("/generation_config.json") + 1;
    mem_free(build);
    return n <= PATH_MAX ||
           err(e,
               "%.60s...: a path of %zu bytes is too long for a folder of checkpoints, whose files "
               "have up to %zu more; %d are the most",
               save_dir, strlen(save_dir), n - strlen(save_dir) - 1, PATH_MAX - 1);
}

/* Locks the file `path` and writes this process's name into it. The file is never removed: a
 * process that opened it before its removal and locked it afterwards would hold a lock that nobody
 * else sees. */
static bool lock_file(const char *save_dir, const char *path, int *lock, Err *e) {
    char who[160] = "", host[HOST_NAME_MAX + 1] = "host";
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0) return err(e, "cannot create %s: %s", path, strerror(errno));
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) {
        gethostname(host, sizeof host);
        int n = snprintf(who, sizeof who, "process %ld on %s\n", (long)getpid(), host);
        if (ftruncate(*lock, 0) || pwrite(*lock, who, (size_t)n, 0) != n)
            warn("cannot write this process's name to %s: %s; the lock holds without it", path,
                 strerror(errno));
        // Only the holder of the lock saves here, so every temporary folder belongs to a run that
        // has ended. Process ids do not show that: a killed process keeps its id until its parent
        // has waited for it.
        temporary_clean(save_dir, ".step_", true);
        return true;
    }
    if (errno != EWOULDBLOCK) {
        warn("cannot lock %s: %s; make sure that no other run saves there", path, strerror(errno));
        return true;
    }
    ssize_t n = pread(*lock, who, sizeof who - 1, 0);
    who[n > 0 ? n : 0] = 0;
    who[strcspn(who, "\n")] = 0;
    close(*lock), *lock = -1;
    return err(e, "%s is held by %s, another run: wait until it ends, or name another folder", path,
               *who ? who : "some process");
}

bool checkpoint_lock(const char *save_dir, const Group *g, int *lock, Err *e) {
    char *path = mem_printf("%s/.lock", save_dir);
    *lock = -1;
    bool mine = g->rank != 0 || (paths_fit(save_dir, e) && io_make_dirs(save_dir, e) &&
                                 lock_file(save_dir, path, lock, e));
    mem_free(path);
    return group_agree(g, mine, e);
}

/* Path and step of the newest complete checkpoint, as this machine sees the folder; warns about
 * incomplete ones. If none is complete: NULL and the step of the newest one, -1 without any. */
static char *latest_here(const char *save_dir, int64_t *step) {
    int n;
    Err e;
    int64_t *steps = list_steps(save_dir, &n, &e);
    char *found = NULL;
    if (n < 0) die_user("%s", e.text);
    *step = n ? steps[0] : -1;
    for (int i = 0; i < n && !found; i++) {
        Err why;
        char *path = checkpoint_path(save_dir, steps[i]);
        json_t *m = manifest_read(path, &why);
        if (m) {
            found = path;
            *step = steps[i];
        } else {
            warn("an incomplete checkpoint is skipped: %s", why.text);
            mem_free(path);
        }
        json_decref(m);
    }
    mem_free(steps);
    return found;
}

char *checkpoint_latest(const char *save_dir, int64_t *step, const Group *g) {
    int64_t newest = -1;
    char *mine = g->rank == 0 ? latest_here(save_dir, &newest) : NULL,
         *path = group_broadcast_text(g, mine);
    group_broadcast(g, &newest, sizeof newest);
    if (step) *step = newest;
    mem_free(mine);
    return path;
}

/* Is the path a file with a model's ending, or a folder with a model? Readers check the bytes. */
static bool holds_model(const char *path) {
    bool named = weights_named(path, ".safetensors") || weights_named(path, ".bin");
    return (named && io_exists(path)) || io_exists_in(path, "config.json") ||
           io_exists_in(path, "model.safetensors") ||
           io_exists_in(path, "model.safetensors.index.json");
}

static bool check_model(const char *init, Err *e) {
    if (!*init || holds_model(init)) return true;
    if (!io_exists(init)) return err(e, "--init %s: there is no such file or folder", init);
    if (!io_is_folder(init))
        return err(e, "--init %s is no model: neither FILE.safetensors nor llm.c's FILE.bin", init);
    return err(e,
               "--init %s holds no model: no config.json, no model.safetensors, no step_* folder "
               "of a run; on several nodes, each needs the files",
               init);
}

char *checkpoint_find_model(const char *init, const Group *g, Err *e) {
    bool model = group_agree(g, check_model(init, e), e);
    return model ? mem_strdup(init) : checkpoint_latest(init, NULL, g);
}

/* The folder is renamed before its removal: a half removed folder must not look like a
 * checkpoint. */
static void remove_checkpoint(const char *path, const char *aside) {
    Err e;
    if (!io_rename(path, aside, &e) || !io_remove_tree(aside, &e))
        warn("cannot remove an old checkpoint: %s", e.text);
}

/* Removes old checkpoints as the options say. Each is renamed to `aside` before its removal. */
static void steps_rotate(const char *save_dir, int64_t newest, const CheckpointOptions *o,
                         const char *aside) {
    if (!o || o->keep_last <= 0) return;
    int n, kept = 1;
    Err e;
    int64_t *steps = list_steps(save_dir, &n, &e);
    if (n < 0) warn("old checkpoints are not removed: %s", e.text);
    for (int i = 0; i < n; i++) {
        if (steps[i] >= newest || steps[i] == o->keep_step) continue;
        if (o->keep_every > 0 && steps[i] % o->keep_every == 0) continue;
        char *path = checkpoint_path(save_dir, steps[i]);
        json_t *m = manifest_read(path, NULL);
        if (m && ++kept > o->keep_last) remove_checkpoint(path, aside);
        json_decref(m);
        mem_free(path);
    }
    mem_free(steps);
}

/* ---- saving ---- */

/* The folder under construction and the list of its files (name, bytes, checksum). */
typedef struct Build {
    char *dir;
    json_t *files;
    const TensorTable *t;
    const Group *g;
} Build;

static bool record_file(Build *b, const char *name, uint64_t n_bytes, uint32_t crc) {
    json_object_set_new(
        b->files, name,
        json_pack("{s:I,s:I}", "bytes", (json_int_t)n_bytes, "crc32c", (json_int_t)crc));
    return true;
}

static bool put_text(Build *b, const char *name, const void *text, size_t n, Err *e) {
    char *path = mem_printf("%s/%s", b->dir, name);
    uint32_t crc = 0;
    bool ok = io_write_file(path, text, n, &crc, e) && record_file(b, name, n, crc);
    mem_free(path);
    return ok;
}

static bool put_model(Build *b, Err *e) {
    char *path = mem_printf("%s/model.safetensors", b->dir);
    uint64_t n = 0;
    uint32_t crc = 0;
    bool ok = weights_save(path, b->t, "F32", b->g, &n, &crc, e) &&
              record_file(b, "model.safetensors", n, crc);
    mem_free(path);
    return ok;
}

/* State of the optimizer: of all tensors AdamW's first moments, then the second ones, then the
 * velocity of the outer loop. Describes state i = kind * t->n + tensor as a file tensor "m.NAME",
 * "v.NAME" or "velocity.NAME". False where the table has no such state. */
enum { N_STATES = 3 };
static bool state_of(const TensorTable *t, int i, TensorSlice *p, LocalSlice *h) {
    static const char *const names[N_STATES] = {"m", "v", "velocity"};
    const Tensor *x = &t->t[i % t->n];
    int k = i / t->n;
    float *const values[N_STATES] = {x->m, x->v, x->velocity};
    *p = slice_whole(x, false);
    snprintf(p->name, sizeof p->name, "%s.%s", names[k], x->name);
    *h = (LocalSlice){p, x, k < 2 ? PART_MOMENTS : PART_PARAM, values[k]};
    return values[k] != NULL;
}

/* Writes optimizer.safetensors, unless the table has no moments: first the list of all tensors,
 * then their values. */
static bool put_optimizer(Build *b, Err *e) {
    const TensorTable *t = b->t;
    if (!t->t[0].m) return true;
    SafeTensors list = {0};
    SafeWriter w;
    TensorSlice p;
    LocalSlice h;
    for (int i = 0; i < N_STATES * t->n; i++)
        if (state_of(t, i, &p, &h))
            safetensors_add(&list, p.name, "F32", 2, (int64_t[]){h.tensor->rows, p.cols});
    char *path = mem_printf("%s/optimizer.safetensors", b->dir);
    uint64_t n_bytes = 0;
    uint32_t crc = 0;
    bool ok = safetensors_create(&w, path, &list, b->g, e);
    mem_free(path);
    if (!ok) return false;
    for (int i = 0, n = 0; ok && i < N_STATES * t->n; i++)
        if (state_of(t, i, &p, &h)) ok = slice_put(&h, &w.file, &w.list.t[n++], e);
    return safetensors_finish(&w, ok, &n_bytes, &crc, e) &&
           record_file(b, "optimizer.safetensors", n_bytes, crc);
}

static bool put_files(Build *b, const IoMap *files, Err *e) {
    bool ok = true;
    for (; ok && files && files->path; files++)
        ok = put_text(b, files->path, files->p, files->n, e);
    return ok;
}

/* Rank 0: makes the temporary folder and writes the model's description into it. */
static bool begin_checkpoint(Build *b, const char *save_dir, Err *e) {
    if (!io_make_dirs(save_dir, e)) return false;
    temporary_clean(save_dir, ".step_", false);
    char *config = hf_config_text(&b->t->config, false), *ids = hf_generation_text(&b->t->config);
    bool ok = io_make_dir(b->dir, e) && put_text(b, "config.json", config, strlen(config), e) &&
              (!ids || put_text(b, "generation_config.json", ids, strlen(ids), e));
    mem_free(config);
    mem_free(ids);
    return ok;
}

/* Rank 0, after all ranks have written their tensors: writes the remaining files, then renames the
 * folder to `place`, in place of an older folder of that name. */
static bool finish_checkpoint(Build *b, const char *place, int64_t step, const char *state,
                              const CheckpointOptions *o, Err *e) {
    if (!put_text(b, "train_state.json", state, strlen(state), e) ||
        !put_files(b, o ? o->files : NULL, e))
        return false;
    char *manifest = manifest_print(step, &b->t->config, b->files);
    bool ok = put_text(b, CHECKPOINT_MANIFEST, manifest, strlen(manifest), e) &&
              io_sync_dir(b->dir, e) && io_remove_tree(place, e) && io_rename(b->dir, place, e);
    mem_free(manifest);
    return ok;
}

bool checkpoint_save(const char *save_dir, int64_t step, const TensorTable *t,
                     const char *state_json, const CheckpointOptions *o, const Group *g, Err *e) {
    bool first = g->rank == 0;
    char *name = first ? step_build_path(save_dir, step) : NULL,
         *place = checkpoint_path(save_dir, step);
    Build b = {group_broadcast_text(g, name), json_object(), t, g};
    bool ok = group_agree(g, !first || begin_checkpoint(&b, save_dir, e), e) && put_model(&b, e) &&
              put_optimizer(&b, e) &&
              group_agree(g, !first || finish_checkpoint(&b, place, step, state_json, o, e), e);
    if (!ok && first) io_remove_tree(b.dir, NULL);
    ok = ok && group_agree(g, !first || io_sync_dir(save_dir, e), e);
    if (!ok) group_barrier(g); // rank 0 has removed its folder before any rank may end the program
    if (ok && first) steps_rotate(save_dir, step, o, b.dir);
    json_decref(b.files);
    mem_free(b.dir);
    mem_free(name);
    mem_free(place);
    return ok;
}

/* ---- loading ---- */

static bool check_same_model(const char *path, const Config *saved, const Config *ours, Err *e) {
    char a[64], b[64];
    return !config_difference(saved, ours, a, b) ||
           err(e, "%s is a checkpoint of another model: it has %s, this run %s", path, a, b);
}

/* Reads state i from the file. A file without velocity is of a run without an outer loop: then
 * velocity stays zero, its initial value. */
static bool get_state(const SafeTensors *s, const TensorTable *t, int i, Err *e) {
    TensorSlice p;
    LocalSlice h;
    if (!state_of(t, i, &p, &h)) return true;
    const SafeTensor *f = safetensors_find(s, p.name);
    if (!f && h.part == PART_PARAM) return true;
    if (!f || f->size != tensor_size(h.tensor) || strcmp(f->dtype, "F32") != 0)
        return err(e, "tensor %s [%lld, %lld] is missing or of another shape", p.name,
                   (long long)h.tensor->rows, (long long)p.cols);
    slice_get(&h, f);
    return true;
}

static bool load_optimizer(const char *path, const TensorTable *t, Err *e) {
    if (!t->t[0].m) return true;
    char *file = mem_printf("%s/optimizer.safetensors", path);
    IoMap map = {0};
    SafeTensors s = {0};
    bool ok = io_map(&map, file, e);
    if (ok) {
        ok = safetensors_parse(map.p, map.n, &s, e);
        for (int i = 0; ok && i < N_STATES * t->n; i++) ok = get_state(&s, t, i, e);
        if (!ok) err_in(e, file);
    }
    safetensors_free(&s);
    io_unmap(&map);
    mem_free(file);
    return ok;
}

char *checkpoint_state(const char *path, Err *e) {
    char *file = mem_printf("%s/train_state.json", path), *text = NULL;
    IoMap map;
    json_t *m = manifest_read(path, e);
    const json_t *info = json_object_get(json_object_get(m, "files"), "train_state.json");
    if (m && verify_file(file, info, &group_alone, e) && io_map(&map, file, e)) {
        text = mem_printf("%.*s", (int)map.n, (const char *)map.p);
        io_unmap(&map);
    }
    json_decref(m);
    mem_free(file);
    return text;
}

static bool load_state(const char *path, char **state_json, Err *e) {
    return !state_json || (*state_json = checkpoint_state(path, e));
}

bool checkpoint_load(const char *path, const TensorTable *t, char **state_json, const Group *g,
                     Err *e) {
    Config saved;
    if (state_json) *state_json = NULL;
    json_t *m = manifest_share(path, g, e);
    bool ok = m &&
              group_agree(g,
                          manifest_config(path, m, &saved, e) &&
                              check_same_model(path, &saved, &t->config, e),
                          e) &&
              manifest_verify(path, m, g, e) && weights_load(path, t, g, e) &&
              group_agree(g, load_optimizer(path, t, e) && load_state(path, state_json, e), e);
    if (!ok && state_json) mem_free(*state_json), *state_json = NULL;
    json_decref(m);
    return ok;
}
