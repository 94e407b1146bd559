#include "parallel/train/run_agree.h"

#include <dirent.h>
#include <inttypes.h>
#include <string.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/version.h"
#include "data/io.h"
#include "parallel/plan/detect.h"

/* ---- facts ---- */

void facts_add(Facts *f, char *name, char *value) {
    f->at = mem_realloc(f->at, (size_t)f->n + 1, sizeof *f->at);
    f->at[f->n++] = (Fact){name, value};
}

static void facts_free(Facts *f) {
    for (int i = 0; i < f->n; i++) mem_free(f->at[i].name), mem_free(f->at[i].value);
    mem_free(f->at);
    *f = (Facts){0};
}

/* Collective. The values of all ranks (mem_free). Those of rank r begin at byte r * *each; each
 * value ends with a NUL, and NULs fill the rest. */
static char *gather_values(const Facts *f, const Group *g, size_t *each) {
    size_t n = 1;
    for (int i = 0; i < f->n; i++) n += strlen(f->at[i].value) + 1;
    *each = (size_t)group_max(g, (double)n);
    char *mine = mem_calloc(*each, 1), *all = mem_alloc((size_t)g->size * *each), *p = mine;
    for (int i = 0; i < f->n; i++) p = stpcpy(p, f->at[i].value) + 1;
    group_all_gather(g, mine, *each, all);
    mem_free(mine);
    return all;
}

/* The part of a value to print: a long value from shortly before its first difference from
 * `other`. */
static const char *shown(const char *value, const char *other) {
    enum { LONG = 80, BEFORE = 20 };
    size_t same = 0;
    while (value[same] && value[same] == other[same]) same++;
    return strlen(value) > LONG && same > BEFORE ? value + same - BEFORE : value;
}

/* Error text of a fact: the ranks with the same value as `rank`, this value, and that of rank 0. */
static void describe_difference(Err *e, const char *name, const char *const *value, int size,
                                int rank) {
    int *alike = mem_calloc((size_t)size, sizeof *alike), n = 0;
    char ranks[60];
    for (int r = rank; r < size; r++)
        if (strcmp(value[r], value[rank]) == 0) alike[n++] = r;
    detect_list(ranks, sizeof ranks, alike, n);
    err(e, "rank%s %s %s started with %s %.120s, rank 0 with %.120s", n > 1 ? "s" : "", ranks,
        n > 1 ? "were" : "was", name, shown(value[rank], value[0]), shown(value[0], value[rank]));
    mem_free(alike);
}

bool facts_agree(Facts *f, const Group *g, Err *e) {
    size_t each;
    char *all = gather_values(f, g, &each);
    const char **value = mem_calloc((size_t)g->size, sizeof *value);
    bool same = true;
    for (int r = 0; r < g->size; r++) value[r] = all + (size_t)r * each;
    for (int i = 0; same && i <= f->n; i++) { // one more: another rank may have more facts
        // the lowest rank whose value differs from that of rank 0
        int other = 0;
        for (int r = g->size - 1; r > 0; r--)
            if (strcmp(value[r], value[0]) != 0) other = r;
        same = other == 0;
        if (!same)
            describe_difference(e, i < f->n ? f->at[i].name : "other options than", value, g->size,
                                other);
        for (int r = 0; r < g->size; r++) value[r] += strlen(value[r]) + 1;
    }
    mem_free(value), mem_free(all);
    facts_free(f);
    return same;
}

/* ---- options ---- */

static bool are_processes(const Run *r) {
    return r->group.size > 1 && strcmp(world_backend(r->world), "threads") != 0;
}

/* Compares the sets of kernels. Different sets round differently: --exact and --audit-every need
 * the same set on all ranks, other runs get a warning. */
static void agree_on_kernels(const Run *r) {
    const char *needs = r->o->exact ? "--exact" : r->o->audit_every ? "--audit-every" : NULL;
    Facts f = {0};
    Err e;
    facts_add(&f, mem_strdup("--kernels"), mem_strdup(run_kernels_name(r)));
    if (facts_agree(&f, &r->group, &e)) return;
    if (needs) die_usage("%s: %s needs the same on every rank", e.text, needs);
    if (r->lead) warn("%s: replicas will differ in their last bits", e.text);
}

void run_agree_on_options(Run *r) {
    Facts f = {0};
    Err e;
    char buf[64];
    if (!are_processes(r)) return;
    facts_add(&f, mem_strdup("a program of commit"), mem_strdup(version_commit()));
    for (const Opt *row = r->options; row->name || row->type == OPT_GROUP; row++) {
        if (row->type == OPT_GROUP || options_role(row) != OPTION_ALIKE) continue;
        const char *text = opt_text(row, buf, sizeof buf);
        facts_add(&f, mem_printf("--%s", row->name), mem_strdup(*text ? text : "\"\""));
    }
    if (!facts_agree(&f, &r->group, &e)) die_usage("%s", e.text);
    agree_on_kernels(r);
    // Nodes of several kinds may need different builds of one commit, which may round differently.
    facts_add(&f, mem_strdup("a program of checksum"), mem_strdup(version_build()));
    if (facts_agree(&f, &r->group, &e)) return;
    if (r->o->exact) die_usage("%s: --exact needs the same build on every rank", e.text);
    if (r->lead) warn("%s: builds of one commit may round differently", e.text);
}

/* ---- files ---- */

/* Adds the size of a file and a checksum of some of its blocks. */
static void add_file(Facts *f, const char *option, const char *path) {
    uint64_t n_bytes;
    uint32_t crc;
    Err e;
    facts_add(f, mem_printf("--%s %s of", option, path),
              io_sample(path, &n_bytes, &crc, &e)
                  ? mem_printf("%" PRIu64 " bytes (checksum %08" PRIx32 ")", n_bytes, crc)
                  : mem_printf("no bytes (%s)", e.text));
}

static void add_count(Facts *f, const char *option, const char *text, int n) {
    facts_add(f, mem_printf("--%s %s of", option, text),
              mem_printf("%d file%s", n, n == 1 ? "" : "s"));
}

/* Does a file in a folder belong to a model, a checkpoint or a tokenizer? */
static int is_input(const struct dirent *x) {
    static const char *const endings[] = {".json", ".safetensors", ".txt", ".bin"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (path_ends(x->d_name, endings[i])) return 1;
    return 0;
}

/* Adds the number of such files in a folder, then each of them in the order of their names. */
static void add_folder(Facts *f, const char *option, const char *path) {
    struct dirent **found = NULL;
    int n = scandir(path, &found, is_input, alphasort);
    add_count(f, option, path, n > 0 ? n : 0);
    for (int i = 0; i < n; i++) {
        char *file = mem_printf("%s/%s", path, found[i]->d_name);
        add_file(f, option, file);
        mem_free(file), mem_free(found[i]);
    }
    mem_free(found);
}

/* Adds a file, or the files of a folder. With a .safetensors file its config.json is added. */
static void add_path(Facts *f, const char *option, const char *path) {
    if (io_is_folder(path)) {
        add_folder(f, option, path);
        return;
    }
    add_file(f, option, path);
    if (!path_ends(path, ".safetensors")) return;
    char *config = mem_printf("%.*sconfig.json", (int)(path_name(path) - path), path);
    add_file(f, option, config);
    mem_free(config);
}

static void add_shards(Facts *f, const char *option, const char *text) {
    ShardNames names = shard_names(text);
    add_count(f, option, text, names.n);
    for (int i = 0; i < names.n; i++) add_file(f, option, names.at[i]);
    shard_names_free(&names);
}

void run_agree_on_inputs(Run *r, const char *checkpoint) {
    Facts f = {0};
    Err e;
    if (!are_processes(r)) return;
    for (const Opt *row = r->options; row->name || row->type == OPT_GROUP; row++) {
        if (row->type == OPT_GROUP || options_role(row) != OPTION_INPUT) continue;
        const char *text = *(const char **)row->value;
        bool init = strcmp(row->name, "init") == 0,
             shards = strcmp(row->name, "train") == 0 || strcmp(row->name, "val") == 0;
        facts_add(&f, mem_printf("--%s", row->name), mem_strdup(*text ? "a path" : "left out"));
        if (!*text || (init && checkpoint)) continue;
        if (shards)
            add_shards(&f, row->name, text);
        else
            add_path(&f, row->name, init ? r->init : text);
    }
    if (checkpoint) add_path(&f, "save", checkpoint);
    if (!facts_agree(&f, &r->group, &e)) die_usage("%s", e.text);
}
