#include "base/die.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char program[64] = "train_gpt";
static char who[128]; // "rank 2 on node7: " or empty
static void (*exit_hook)(int status);
static void (*wipe_line)(void);

void die_set_program(const char *argv0) {
    const char *slash = strrchr(argv0, '/');
    snprintf(program, sizeof program, "%s", slash ? slash + 1 : argv0);
}

void die_set_rank(int rank, const char *node) {
    snprintf(who, sizeof who, "rank %d%s%s: ", rank, node ? " on " : "", node ? node : "");
}

void die_set_hook(void (*hook)(int status)) {
    exit_hook = hook;
}

void die_set_wipe(void (*wipe)(void)) {
    wipe_line = wipe;
}

/* One write() per message: lines of several ranks never interleave. */
static void put_line(const char *kind, const char *text, const char *where) {
    char line[1536];
    int n = snprintf(line, sizeof line, "%s: %s%s%s%s\n", program, who, kind, text, where);
    size_t len = n < (int)sizeof line ? (size_t)n : sizeof line - 1;
    line[len - 1] = '\n';
    if (wipe_line) wipe_line();
    fflush(stdout);
    ssize_t done = write(STDERR_FILENO, line, len);
    (void)done; // nothing is left to report a failed report to
}

void die_at(const char *file, int line, const char *func, int status, const char *fmt, ...) {
    char text[1024], where[256] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (line > 0) snprintf(where, sizeof where, " (%s:%d %s)", file, line, func);
    if (exit_hook) {
        void (*hook)(int) = exit_hook;
        exit_hook = NULL; // a hook that dies itself must not come back here
        hook(status);
    }
    put_line("", text, where);
    exit(status);
}

void warn_at(const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    put_line("warning: ", text, "");
}

bool err_set(Err *e, const char *fmt, ...) {
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
    }
    return false;
}
