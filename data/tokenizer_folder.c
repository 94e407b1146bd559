#include "data/tokenizer_folder.h"

#include <string.h>

#include "base/mem.h"
#include "data/output.h"
#include "data/tokenizer.h"

static IoMap read_file(const char *folder, const char *name) {
    char *path = mem_printf("%s/%s", folder, name);
    IoMap m = io_open(path), copy = {.n = m.n, .path = mem_strdup(name)};
    copy.p = memcpy(mem_alloc(m.n + 1), m.p, m.n);
    io_unmap(&m);
    mem_free(path);
    return copy;
}

TokenizerFolder tokenizer_folder(const char *folder) {
    static const char *const names[TOKENIZER_FILES] = {"vocab.json", "merges.txt", "tokenizer.json",
                                                       "tokenizer_config.json"};
    TokenizerFolder f = {0};
    bool there[TOKENIZER_FILES] = {0};
    int n = 0;
    for (int i = 0; i < TOKENIZER_FILES && *folder; i++) {
        there[i] = io_exists_in(folder, names[i]);
        if (there[i]) f.file[n++] = read_file(folder, names[i]);
    }
    if (there[0] && there[1] && !there[2] && !there[3])
        f.file[n] = (IoMap){.p = (uint8_t *)mem_strdup(TOKENIZER_CONFIG),
                            .n = strlen(TOKENIZER_CONFIG),
                            .path = mem_strdup(names[3])};
    return f;
}

void tokenizer_folder_free(TokenizerFolder *f) {
    for (int i = 0; i < TOKENIZER_FILES; i++) io_unmap(&f->file[i]);
}

bool tokenizer_folder_is(const char *folder) {
    return io_exists_in(folder, "vocab.json") || io_exists_in(folder, "tokenizer.json");
}

static bool write_file(const char *to, const IoMap *file, Err *e) {
    Output out = {0};
    IoMap there = {0};
    bool same = io_exists(to) && io_map(&there, to, e) && there.n == file->n &&
                memcmp(there.p, file->p, file->n) == 0;
    io_unmap(&there);
    bool ok =
        same || (output_open(&out, to, true, e) &&
                 io_write_file(out.part, file->p, file->n, NULL, e) && output_commit(&out, e));
    output_abandon(&out);
    return ok;
}

bool tokenizer_folder_write(const TokenizerFolder *f, const char *to, Err *e) {
    bool ok = true;
    for (const IoMap *file = f->file; ok && file->path; file++) {
        char *path = mem_printf("%s/%s", to, file->path);
        ok = write_file(path, file, e);
        mem_free(path);
    }
    return ok;
}
