#include "data/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "data/io.h"

/* Cuts the file of `size` bytes to what stays and moves to its end. */
static void cut(LogFile *f, int64_t size, int64_t step, LogKeep *keep) {
    f->size = size;
    if (size > 0 && keep) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, f->fd, 0);
        if (p == MAP_FAILED)
            die_user("cannot read %s to continue it: %s", f->path, strerror(errno));
        f->size = (int64_t)keep(p, (size_t)size, step);
        munmap(p, (size_t)size);
    }
    if (f->size < size && ftruncate(f->fd, f->size))
        die_user("cannot cut %s back to step %lld: %s", f->path, (long long)step, strerror(errno));
    if (lseek(f->fd, f->size, SEEK_SET) < 0)
        die_user("cannot seek in %s: %s", f->path, strerror(errno));
}

void logfile_open(LogFile *f, const char *path, int64_t resume_step, LogKeep *keep) {
    *f = (LogFile){.fd = -1};
    if (!path || !path[0]) return;
    struct stat st;
    f->fd = io_stdout(path);
    if (f->fd >= 0) {
        f->path = mem_strdup("the standard output");
        return;
    }
    bool is_there = stat(path, &st) == 0;
    f->path = mem_strdup(path);
    f->regular = !is_there || S_ISREG(st.st_mode);
    if (is_there && f->regular && resume_step <= 0 && st.st_size > 0) {
        char *old = mem_printf("%s.old", path);
        if (rename(path, old)) die_user("cannot rename %s to %s: %s", path, old, strerror(errno));
        mem_free(old);
    }
    int how = f->regular ? O_RDWR | O_CREAT : O_WRONLY;
    f->fd = open(path, how | O_CLOEXEC, 0666);
    if (f->fd < 0)
        die_user("cannot write the log %s: %s; name a file in a folder that exists", path,
                 strerror(errno));
    if (!f->regular) return;
    if (fstat(f->fd, &st)) die_user("cannot read the size of %s: %s", path, strerror(errno));
    cut(f, st.st_size, resume_step, keep);
}

void logfile_write(LogFile *f, const void *p, size_t n) {
    if (f->fd < 0) return;
    const char *c = p;
    size_t done = 0;
    int why = 0;
    while (done < n && !why) {
        ssize_t w = write(f->fd, c + done, n - done);
        if (w < 0 && errno != EINTR) why = errno;
        if (w > 0) done += (size_t)w;
    }
    if (!why) {
        f->size += (int64_t)n;
        return;
    }
    if (f->regular && (ftruncate(f->fd, f->size) || lseek(f->fd, f->size, SEEK_SET) < 0))
        f->regular = false; // a torn record stays in the middle: readers skip it
    if (f->lost++ == 0)
        warn("cannot write to %s: %s; training goes on and later records are tried again", f->path,
             strerror(why));
}

void logfile_sync(LogFile *f) {
    if (f->fd >= 0 && f->regular) fdatasync(f->fd); // a failure shows in the next write
}

void logfile_close(LogFile *f) {
    if (f->fd < 0) return;
    bool bad = close(f->fd) != 0;
    if (f->lost)
        warn("%s lacks %lld records that could not be written", f->path, (long long)f->lost);
    else if (bad)
        warn("the last records of %s may be lost: %s", f->path, strerror(errno));
    mem_free(f->path);
    *f = (LogFile){.fd = -1};
}
