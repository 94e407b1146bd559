#include "parallel/train/run_agree.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/version.h"
#include "data/io.h"
#include "parallel/train/agree.h"

static bool are_processes(const Run *r) {
    return r->group.size > 1 && strcmp(world_backend(r->world), "threads") != 0;
}

void run_agree_on_options(Run *r) {
    Facts f = {0};
    Err e;
    char text[4096];
    if (!are_processes(r)) return;
    facts_add(&f, mem_strdup("a program of commit"), mem_strdup(version_commit()));
    for (const Opt *row = r->options; row->name || row->type == OPT_GROUP; row++) {
        if (row->type == OPT_GROUP || options_role(row) != OPTION_ALIKE) continue;
        opt_text(row, text, sizeof text);
        facts_add(&f, mem_printf("--%s", row->name), mem_strdup(*text ? text : "\"\""));
    }
    if (r->o->exact) // kernel sets round matmuls differently
        facts_add(&f, mem_strdup("--exact and kernels"), mem_strdup(run_kernels_name(r)));
    if (!facts_agree(&f, &r->group, &e)) die_usage("%s", e.text);
    // Nodes of several kinds may have builds of their own, which round in their own ways.
    facts_add(&f, mem_strdup("a program of checksum"), mem_strdup(version_build()));
    if (facts_agree(&f, &r->group, &e)) return;
    if (r->o->exact) die_usage("%s: --exact needs the same build on every rank", e.text);
    if (r->lead) warn("%s: builds of one commit may round differently", e.text);
}

/* ---- files ---- */

static void add_file(Facts *f, const char *option, const char *path) {
    uint64_t n_bytes;
    uint32_t crc;
    Err e;
    facts_add(f, mem_printf("--%s %s of", option, path),
              io_sample(path, &n_bytes, &crc, &e)
                  ? mem_printf("%" PRIu64 " bytes (checksum %08" PRIx32 ")", n_bytes, crc)
                  : mem_printf("no bytes (%s)", e.text));
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files of a folder that belong to a model, a checkpoint or a tokenizer. */
static int list_folder(const char *path, char ***names) {
    static const char *const endings[] = {".json", ".safetensors", ".txt", ".bin"};
    int n = 0;
    DIR *d = opendir(path);
    *names = NULL;
    for (struct dirent *x; d && (x = readdir(d));) {
        const char *end = strrchr(x->d_name, '.');
        for (size_t i = 0; end && i < sizeof endings / sizeof *endings; i++) {
            if (strcmp(end, endings[i]) != 0) continue;
            *names = mem_realloc(*names, (size_t)n + 1, sizeof **names);
            (*names)[n++] = mem_printf("%s/%s", path, x->d_name);
        }
    }
    if (d) closedir(d);
    if (n) qsort(*names, (size_t)n, sizeof **names, by_name);
    return n;
}

static void add_files(Facts *f, const char *option, const char *text, char *const *path, int n) {
    facts_add(f, mem_printf("--%s %s of", option, text),
              mem_printf("%d file%s", n, n == 1 ? "" : "s"));
    for (int i = 0; i < n; i++) add_file(f, option, path[i]);
}

/* Adds a file, or the files of a folder. With a .safetensors file its config.json is added. */
static void add_path(Facts *f, const char *option, const char *path) {
    struct stat st;
    char **names;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        int n = list_folder(path, &names);
        add_files(f, option, path, names, n);
        for (int i = 0; i < n; i++) mem_free(names[i]);
        mem_free(names);
        return;
    }
    add_file(f, option, path);
    const char *slash = strrchr(path, '/'), *end = strrchr(path, '.');
    if (!end || strcmp(end, ".safetensors") != 0) return;
    char *config = mem_printf("%.*sconfig.json", slash ? (int)(slash + 1 - path) : 0, path);
    add_file(f, option, config);
    mem_free(config);
}

static void add_shards(Facts *f, const char *option, const char *text) {
    ShardNames names = shard_names(text);
    add_files(f, option, text, names.at, names.n);
    shard_names_free(&names);
}

void run_agree_on_inputs(Run *r, const char *checkpoint) {
    Facts f = {0};
    Err e;
    if (!are_processes(r)) return;
    for (const Opt *row = r->options; row->name || row->type == OPT_GROUP; row++) {
        if (row->type == OPT_GROUP || options_role(row) != OPTION_INPUT) continue;
        const char *text = *(const char **)row->at;
        bool init = strcmp(row->name, "init") == 0,
             shards = strcmp(row->name, "train") == 0 || strcmp(row->name, "val") == 0;
        if (!*text)
            facts_add(&f, mem_printf("--%s", row->name), mem_strdup("\"\""));
        else if (shards)
            add_shards(&f, row->name, text);
        else
            add_path(&f, row->name, init ? r->init : text);
    }
    if (checkpoint) add_path(&f, "save", checkpoint);
    if (!facts_agree(&f, &r->group, &e)) die_usage("%s", e.text);
}
