#include <string.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "base/mem.h"
#include "data/checkpoint_parts.h"
#include "data/io_share.h"

static const char FORMAT[] = "train_gpt checkpoint 1";

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

json_t *manifest_read(const char *path, Err *e) {
    char *file = mem_printf("%s/%s", path, CHECKPOINT_MANIFEST);
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

json_t *manifest_share(const char *path, const Group *g, Err *e) {
    json_t *mine = g->rank == 0 ? manifest_read(path, e) : NULL;
    if (!group_agree(g, g->rank != 0 || mine, e)) return NULL;
    char *text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
    char *shared = group_share_text(g, text);
    json_t *m = json_loads(shared, 0, NULL);
    json_decref(mine);
    mem_free(text);
    mem_free(shared);
    return m;
}

char *manifest_print(int64_t step, const Config *c, json_t *files) {
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

bool manifest_verify(const char *path, const json_t *m, const Group *g, Err *e) {
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

bool manifest_config(const char *path, const json_t *m, Config *c, Err *e) {
    const char *text = json_string_value(json_object_get(m, "model"));
    Err why;
    if (!text) return err(e, "%s/%s: the key \"model\" is missing", path, CHECKPOINT_MANIFEST);
    return config_parse(c, text, &why) ||
           err(e, "%.200s/%s: %.250s", path, CHECKPOINT_MANIFEST, why.text);
}

bool checkpoint_config(const char *path, Config *c, Err *e) {
    json_t *m = manifest_read(path, e);
    bool ok = m && manifest_config(path, m, c, e);
    json_decref(m);
    return ok;
}
