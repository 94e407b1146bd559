#include "data/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/io.h"
#include "data/temporary.h"

/* The file that a chain of links ends at, which need not exist; NULL: the links form a circle. */
static char *follow(const char *path) {
    char *now = mem_strdup(path), to[4096];
    for (int i = 0; i < 40; i++) {
        ssize_t n = readlink(now, to, sizeof to - 1);
        if (n < 0) return now;
        to[n] = 0;
        char *slash = strrchr(now, '/');
        int dir = to[0] != '/' && slash ? (int)(slash - now + 1) : 0;
        char *next = mem_printf("%.*s%s", dir, now, to);
        mem_free(now), now = next;
    }
    mem_free(now);
    return NULL;
}

/* /dev/stdout while the standard output is a file: others write to it as well, so it is not
 * replaced. */
static bool is_stream(const struct stat *st) {
    struct stat s;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &s) == 0 && s.st_dev == st->st_dev && s.st_ino == st->st_ino) return true;
    return false;
}

bool output_open(Output *o, const char *path, Err *e) {
    struct stat st;
    bool there = stat(path, &st) == 0;
    *o = (Output){0};
    if (there && S_ISDIR(st.st_mode)) return err(e, "%s is a directory: name a file", path);
    int standard = io_stdout(path);
    if (standard >= 0) close(standard);
    o->in_place = standard >= 0 || (there && (!S_ISREG(st.st_mode) || is_stream(&st)));
    o->path = o->in_place ? mem_strdup(path) : follow(path);
    if (!o->path) return err(e, "cannot write %s: %s", path, strerror(ELOOP));
    if (!o->in_place) temporary_clean_file(o->path);
    o->part = o->in_place ? mem_strdup(path) : temporary_name(o->path);
    return true;
}

bool output_open_regular(Output *o, const char *path, Err *e) {
    if (!output_open(o, path, e)) return false;
    if (!o->in_place) return true;
    output_abandon(o);
    return err(e, "%s is no regular file, and this format is not written from front to back", path);
}

/* So that the new name survives a power cut, too. */
static void sync_dir_of(const char *path) {
    Err e;
    const char *slash = strrchr(path, '/');
    char *dir = slash ? mem_printf("%.*s", (int)(slash - path + 1), path) : mem_strdup(".");
    if (!io_sync_dir(dir, &e)) warn("%s", e.text);
    mem_free(dir);
}

/* A file that is replaced keeps its permissions; where it cannot, it has those of a new one. */
static void keep_mode(const Output *o) {
    struct stat st;
    if (stat(o->path, &st) || chmod(o->part, st.st_mode & 0777) == 0) return;
    warn("%s: permissions are not kept: %s", o->path, strerror(errno));
}

bool output_commit(Output *o, Err *e) {
    if (!o->in_place) keep_mode(o);
    bool ok = o->in_place || io_rename(o->part, o->path, e);
    if (ok && !o->in_place) {
        sync_dir_of(o->path);
        o->in_place = true; // nothing is left to remove
    }
    output_abandon(o);
    return ok;
}

void output_abandon(Output *o) {
    if (o->part && !o->in_place) unlink(o->part);
    mem_free(o->path), mem_free(o->part);
    *o = (Output){0};
}

bool output_possible(const char *path, bool regular, Err *e) {
    Output o;
    IoFile f;
    if (!(regular ? output_open_regular : output_open)(&o, path, e)) return false;
    bool ok = o.in_place || io_create(&f, o.part, e);
    if (ok && !o.in_place) io_abandon(&f);
    output_abandon(&o);
    return ok;
}
