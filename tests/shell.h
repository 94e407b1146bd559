/* shell -- tests that run the programs of this build in a directory with token shards. */
#ifndef TESTS_SHELL_H
#define TESTS_SHELL_H

#include <stdint.h>

#include "base/die.h"
#include "data/io.h"
#include "tests/test.h"

/* A fresh directory with train.bin: these n tokens, which are freed. */
static inline const char *shell_directory_of(uint16_t *tokens, int n) {
    const char *dir = test_tmpdir(), *path = test_path("%s/train.bin", dir);
    if (!io_write_file(path, tokens, (size_t)n * sizeof *tokens, NULL, NULL)) die("%s", path);
    mem_free(tokens);
    return dir;
}
/* n tokens < `below`, arranged so that no two stretches are alike. */
static inline const char *shell_directory_below(int n, int below) {
    uint16_t *tokens = mem_alloc((size_t)n * sizeof *tokens);
    for (int i = 0; i < n; i++) tokens[i] = (uint16_t)((i * i + i / 7) % below);
    return shell_directory_of(tokens, n);
}
static inline const char *shell_directory(int n) {
    return shell_directory_below(n, 61);
}
/* The rule: the token that follows this one. */
static inline uint16_t shell_successor(uint16_t token) {
    return (uint16_t)((5 * token + 7) % 61);
}
/* n tokens < 61 that can be learned: chains of the rule, broken now and then by a jump. */
static inline const char *shell_directory_of_chains(int n) {
    uint16_t *tokens = mem_alloc((size_t)n * sizeof *tokens);
    for (int i = 0; i < n; i++)
        tokens[i] = (uint16_t)(i % 20 ? shell_successor(tokens[i - 1]) : i / 20 * 7 % 61);
    return shell_directory_of(tokens, n);
}

/* The number behind these words; NAN: the words are not there. */
static inline double shell_number(const char *text, const char *what) {
    const char *p = text ? strstr(text, what) : NULL;
    return p ? strtod(p + strlen(what), NULL) : (double)NAN;
}
/* The k-th "name":number of a file of records; NAN: there are fewer. */
static inline double shell_recorded(const char *dir, const char *file, const char *name, int k) {
    OWNED(test_mem_end) char *text = test_read(test_path("%s/%s", dir, file), NULL);
    const char *at = text ? strstr(text, name) : NULL;
    while (at && k-- > 0) at = strstr(at + 1, name);
    return shell_number(at, name);
}

/* In a command: prints what each step of a file of records computed, without its times. */
#define SHELL_STEPS "sed -n 's/^\\({\"step\":[0-9]*,.*\"lr\":[^,]*\\),.*/\\1/p' "

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
