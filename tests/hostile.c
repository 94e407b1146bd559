/* hostile -- a library for LD_PRELOAD in tests: a machine whose clock is set and whose disk
 * refuses.
 *
 *     HOSTILE=hello            says so on the standard error: is this library loaded at all?
 *     HOSTILE_CLOCK=SECONDS    the clock of the day jumps by so much, forth and back, at every
 *                              call; the clock that only counts on is left alone, as by the system
 *     HOSTILE_QUOTA=BYTES      writes to files beyond so many bytes fail with EDQUOT
 *     HOSTILE_RENAME=N         the N-th rename of a process, and each after it, fails with EIO
 *     HOSTILE_OPENDIR=PATH     this folder cannot be listed: opendir fails with ESTALE
 *     HOSTILE_READDIR=PATH     the same: readdir fails
 *     HOSTILE_FSYNC=SECONDS    the first fsync of a process takes so long,
 *     HOSTILE_FSYNC_OF=WORD    or the first of a path with this word
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void hello(void) {
    if (getenv("HOSTILE")) fprintf(stderr, "hostile\n");
}

/* ---- the clock ---- */

static long jump(void) {
    static _Atomic unsigned calls;
    return number("HOSTILE_CLOCK") * (long)(atomic_fetch_add(&calls, 1) % 3) - 1;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*next)(clockid_t, struct timespec *); // called too often to be looked up each time
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = next(id, t);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) t->tv_sec += jump();
    return status;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

/* ---- the disk ---- */

ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
    static _Atomic long written;
    ssize_t (*next)(int, const void *, size_t, off_t) =
        (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    long most = number("HOSTILE_QUOTA");
    if (most > 0 && atomic_fetch_add(&written, (long)n) + (long)n > most) {
        errno = EDQUOT;
        return -1;
    }
    return next(fd, p, n, at);
}

/* Is it the first that is to be slow? */
static int is_slow(int fd) {
    static _Atomic int calls;
    const char *word = getenv("HOSTILE_FSYNC_OF");
    char link[32], path[512] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (word && (readlink(link, path, sizeof path - 1) < 0 || !strstr(path, word))) return 0;
    return atomic_fetch_add(&calls, 1) == 0;
}

int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (is_slow(fd)) sleep((unsigned)number("HOSTILE_FSYNC"));
    return next(fd);
}

static int refuses(void) {
    static _Atomic long renames;
    long first = number("HOSTILE_RENAME");
    if (first == 0 || atomic_fetch_add(&renames, 1) + 1 < first) return 0;
    errno = EIO;
    return 1;
}

int rename(const char *from, const char *to) {
    int (*next)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return refuses() ? -1 : next(from, to);
}

static DIR *unreadable;
DIR *opendir(const char *path) {
    DIR *(*next)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    const char *stale = getenv("HOSTILE_OPENDIR"), *unread = getenv("HOSTILE_READDIR");
    if (stale && strcmp(path, stale) == 0) return errno = ESTALE, NULL;
    DIR *d = next(path);
    if (unread && strcmp(path, unread) == 0) unreadable = d;
    return d;
}

struct dirent *readdir(DIR *d) {
    struct dirent *(*next)(DIR *) = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    if (d && d == unreadable) return errno = ESTALE, NULL;
    return next(d);
}
