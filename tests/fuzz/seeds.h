/* seeds -- what a fuzzer begins with: inputs that its reader takes whole, made by the writers of
 * this tree or written out. Each fuzzer makes its own in seeds(). libFuzzer calls
 * LLVMFuzzerInitialize before it reads its folders, of which the first one gets them; given files
 * alone it makes none.
 */
#ifndef TESTS_FUZZ_SEEDS_H
#define TESTS_FUZZ_SEEDS_H

#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "data/io.h"
#include "data/io_map.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv);
static void seeds(void);

static const char *seed_folder;

/* Where a writer puts a seed of that name. */
static inline char *seed_path(const char *name) {
    return mem_printf("%s/%s", seed_folder, name);
}

static inline void seed(const char *name, const void *p, size_t n) {
    Err e;
    char *path = seed_path(name);
    if (!io_write_file(path, p, n, NULL, &e)) die("%s", e.text);
    mem_free(path);
}

/* A literal, which may hold zeros. */
#define SEED(name, literal) seed(name, literal, sizeof(literal) - 1)

/* In the text ' stands for ". */
static inline void seed_text(const char *name, const char *text) {
    char *copy = mem_strdup(text);
    for (char *p = copy; (p = strchr(p, '\''));) *p = '"';
    seed(name, copy, strlen(copy));
    mem_free(copy);
}

/* A file that a writer made, behind bytes that the fuzzer looks at first. */
static inline void seed_behind(const char *name, const void *head, size_t n, const char *path) {
    IoMap m = io_open(path);
    uint8_t *all = mem_alloc(n + m.n);
    memcpy(all, head, n), memcpy(all + n, m.p, m.n);
    seed(name, all, n + m.n);
    mem_free(all);
    io_unmap(&m);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    struct stat st;
    for (int i = 1; i < *argc && !seed_folder; i++)
        if (stat((*argv)[i], &st) == 0 && S_ISDIR(st.st_mode)) seed_folder = (*argv)[i];
    if (seed_folder) seeds();
    return 0;
}

#endif
