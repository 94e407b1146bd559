/* shell -- tests that run the programs of this build in a directory with token shards. */
#ifndef TESTS_SHELL_H
#define TESTS_SHELL_H

#include <stdint.h>

#include "base/die.h"
#include "data/io.h"
#include "tests/test.h"

/* A fresh directory with train.bin: n tokens < `below`, arranged so that no two stretches are
 * alike. */
static inline const char *shell_directory_below(int n, int below) {
    const char *dir = test_tmpdir();
    uint16_t *tokens = mem_alloc((size_t)n * sizeof *tokens);
    char path[160];
    for (int i = 0; i < n; i++) tokens[i] = (uint16_t)((i * i + i / 7) % below);
    snprintf(path, sizeof path, "%s/train.bin", dir);
    if (!io_write_file(path, tokens, (size_t)n * sizeof *tokens, NULL, NULL)) die("%s", path);
    mem_free(tokens);
    return dir;
}
static inline const char *shell_directory(int n) {
    return shell_directory_below(n, 61);
}

/* The end of what the last command printed. */
static char said[1 << 16] __attribute__((unused));

/* Runs a command in `dir`; checks its exit status, and that it printed `word`. */
#define SHELL(status, word, ...) SHELL_IN(dir, status, word, __VA_ARGS__)
#define SHELL_IN(dir, status, word, ...)                                                           \
    do {                                                                                           \
        int got_ = test_shell(dir, said, sizeof said, __VA_ARGS__);                                \
        CHECK_SAYS(got_ == (status) && strstr(said, word), "status %d: %s", got_, said);           \
    } while (0)

#endif
