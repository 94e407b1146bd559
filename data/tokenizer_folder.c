#include "data/tokenizer_folder.h"

#include <string.h>

#include "base/mem.h"
#include "data/io_map.h"
#include "data/output.h"
#include "data/tokenizer.h"

TokenizerFolder tokenizer_folder(const char *folder) {
    static const char *const names[TOKENIZER_FILES] = {"vocab.json", "merges.txt", "tokenizer.json",
                                                       "tokenizer_config.json"};
    TokenizerFolder f = {0};
    bool there[TOKENIZER_FILES] = {0};
    for (int i = 0, n = 0; i < TOKENIZER_FILES && *folder; i++) {
        there[i] = io_exists_in(folder, names[i]);
        if (there[i]) f.file[n++] = mem_printf("%s/%s", folder, names[i]);
    }
    if (there[0] && there[1] && !there[2] && !there[3]) f.config = TOKENIZER_CONFIG;
    return f;
}

void tokenizer_folder_free(TokenizerFolder *f) {
    for (int i = 0; i < TOKENIZER_FILES; i++) mem_free(f->file[i]);
}

bool tokenizer_folder_is(const char *folder) {
    return io_exists_in(folder, "vocab.json") || io_exists_in(folder, "tokenizer.json");
}

static bool write_file(const char *to, const void *p, size_t n, Err *e) {
    Output out = {0};
    bool ok = output_open(&out, to, true, e) && io_write_file(out.part, p, n, NULL, e) &&
              output_commit(&out, e);
    output_abandon(&out);
    return ok;
}

static bool copy_file(const char *from, const char *to, Err *e) {
    IoMap source, there = {0};
    if (!io_map(&source, from, e)) return false;
    bool same = io_exists(to) && io_map(&there, to, e) && there.n == source.n &&
                memcmp(there.p, source.p, source.n) == 0;
    bool ok = same || write_file(to, source.p, source.n, e);
    io_unmap(&there), io_unmap(&source);
    return ok;
}

bool tokenizer_folder_copy(const char *from, const char *to, Err *e) {
    TokenizerFolder f = tokenizer_folder(from);
    char *config = mem_printf("%s/tokenizer_config.json", to);
    bool ok = !f.config || write_file(config, f.config, strlen(f.config), e);
    mem_free(config);
    for (int i = 0; f.file[i]; i++) {
        char *path = mem_printf("%s%s", to, strrchr(f.file[i], '/'));
        ok = ok && copy_file(f.file[i], path, e);
        mem_free(path);
    }
    tokenizer_folder_free(&f);
    return ok;
}
