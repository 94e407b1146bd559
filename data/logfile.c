#include "data/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/io.h"
#include "data/output.h"

/* Cuts an older file to the bytes that `keep` returns for `step`, and sets f->size. */
static void cut_to_step(LogFile *f, int64_t step, LogKeep *keep) {
    int64_t size = f->size = lseek(f->fd, 0, SEEK_END);
    if (size > 0 && keep) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, f->fd, 0);
        if (p == MAP_FAILED)
            die_user("cannot read %s to continue it: %s", f->path, strerror(errno));
        f->size = keep(p, (size_t)size, step);
        munmap(p, (size_t)size);
        if (f->size < 0)
            die_user("%s holds other data than the records of a run and cannot be continued; name "
                     "another file",
                     f->path);
    }
    if (f->size < size && ftruncate(f->fd, f->size))
        die_user("cannot cut %s back to step %lld: %s", f->path, (long long)step, strerror(errno));
}

/* Renames an older file to PATH.old. */
static void set_aside(const char *path) {
    char *old = mem_printf("%s.old", path);
    if (rename(path, old)) die_user("cannot rename %s to %s: %s", path, old, strerror(errno));
    mem_free(old);
}

/* Flags of open(2) by kind of file. A FIFO is opened for reading, too: so open does not wait for a
 * reader, and a write without a reader does not end the program with SIGPIPE. Without O_NONBLOCK a
 * write to a full pipe would wait. */
static int open_how(const struct stat *st) {
    if (S_ISREG(st->st_mode)) return O_RDWR | O_CREAT | O_APPEND;
    return S_ISFIFO(st->st_mode) ? O_RDWR | O_NONBLOCK : O_WRONLY | O_NONBLOCK;
}

void logfile_open(LogFile *f, const char *path, int64_t resume_step, LogKeep *keep) {
    *f = (LogFile){.fd = -1};
    if (!path || !path[0]) return;
    struct stat st = {.st_mode = S_IFREG};
    Output out;
    Err e;
    f->fd = io_stdout(path);
    if (f->fd >= 0) {
        f->path = mem_strdup(strcmp(path, "-") == 0 ? "the standard output" : path);
        return;
    }
    if (!output_open(&out, path, false, &e)) die_user("%s", e.text);
    bool is_there = stat(out.path, &st) == 0;
    bool again = is_there && S_ISREG(st.st_mode) && resume_step <= 0 && st.st_size > 0;
    f->path = mem_strdup(out.path);
    f->regular = S_ISREG(st.st_mode);
    if (again) set_aside(f->path);
    output_abandon(&out);
    f->fd = open(f->path, open_how(&st) | O_CLOEXEC, 0666);
    if (f->fd < 0) die_user("cannot write the log %s: %s", path, strerror(errno));
    if (again && fchmod(f->fd, st.st_mode & 0777))
        warn("cannot set the permissions of %s: %s", f->path, strerror(errno));
    f->fifo = S_ISFIFO(st.st_mode);
    if (!f->regular && !f->fifo) fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_NONBLOCK);
    if (f->regular) cut_to_step(f, resume_step, keep);
}

/* How long a record waits for the reader of a full FIFO. After the first lost record none waits. */
enum { PATIENCE_MS = 1000 };

/* Writes n bytes. Returns 0, or the errno of the failure; *done is the number of bytes written. */
static int write_all(const LogFile *f, const char *p, size_t n, size_t *done) {
    *done = 0;
    while (*done < n) {
        ssize_t w = write(f->fd, p + *done, n - *done);
        if (w > 0) *done += (size_t)w;
        if (w >= 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return errno;
        struct pollfd room = {.fd = f->fd, .events = POLLOUT};
        if (f->lost || poll(&room, 1, PATIENCE_MS) == 0) return EAGAIN;
    }
    return 0;
}

void logfile_write(LogFile *f, const void *p, size_t n) {
    size_t done;
    if (f->fd < 0) return;
    if (f->torn && write_all(f, "\n", 1, &done) == 0) f->torn = false;
    int why = write_all(f, p, n, &done);
    if (!why) {
        f->size += (int64_t)n;
        return;
    }
    if (f->regular && ftruncate(f->fd, f->size)) f->regular = false;
    // a torn record in the middle of the file: readers skip it
    f->torn = f->torn || (!f->regular && done > 0);
    if (f->lost++ == 0)
        warn("cannot write to %s: %s; training goes on and later records are tried again", f->path,
             why == EAGAIN ? "the pipe is full and nobody reads it" : strerror(why));
}

static void warn_of_last(const LogFile *f) {
    warn("the last records of %s may be lost: %s", f->path, strerror(errno));
}

void logfile_sync(LogFile *f) {
    if (f->fd >= 0 && f->regular && fdatasync(f->fd)) warn_of_last(f);
}

void logfile_close(LogFile *f) {
    if (f->fd < 0) return;
    bool bad = close(f->fd) != 0;
    if (f->lost)
        warn("%s lacks %lld records that could not be written", f->path, (long long)f->lost);
    else if (bad)
        warn_of_last(f);
    mem_free(f->path);
    *f = (LogFile){.fd = -1};
}
