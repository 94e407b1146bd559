#include "data/io.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "base/path.h"

static _Thread_local struct { // per thread: ranks may be threads, of which one is to fail
    int calls, fail_at;
    bool kill;
} inject;

static const double patience = 2; // seconds for the reader of a FIFO
// a put of more than SMALL bytes is written without a copy
enum { BUFFER = 1 << 18, SMALL = BUFFER / 4 };

int io_inject(int nth, bool kill) {
    int calls = inject.calls;
    inject.calls = 0, inject.fail_at = nth, inject.kill = kill;
    return calls;
}

/* Called before every system call that changes the disk: shall this one fail? */
static bool shall_fail(void) {
    if (++inject.calls != inject.fail_at) return false;
    if (inject.kill) raise(SIGKILL);
    errno = ENOSPC;
    return true;
}

static bool fail(Err *e, const char *verb, const char *path) {
    int code = errno;
    const char *next = code == ENOSPC || code == EDQUOT ? "; free some space or choose another disk"
                       : code == EFBIG                  ? "; raise the limit (ulimit -f)"
                                                        : "";
    return err(e, "cannot %s %s: %s%s", verb, path, strerror(code), next);
}

/* Opens a pipe or device for writing. A FIFO whose reader has not yet opened it is tried again for
 * `patience` seconds. */
static int open_special(const char *path) {
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    for (double end = now_s() + patience; fd < 0 && errno == ENXIO && now_s() < end;) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    }
    if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

static bool open_file(IoFile *f, const char *path, int flags, Err *e) {
    struct stat st;
    *f = (IoFile){.fd = io_stdout(path)};
    f->special = f->fd >= 0 || (stat(path, &st) == 0 && !S_ISREG(st.st_mode));
    if (f->fd < 0)
        f->fd = shall_fail() ? -1
                : f->special ? open_special(path)
                             : open(path, flags | O_RDWR | O_CLOEXEC, 0666);
    if (f->fd < 0 && errno == ENXIO && f->special)
        return err(e, "cannot write %s: no process reads this pipe; start its reader first", path);
    if (f->fd < 0) return fail(e, flags & O_CREAT ? "create" : "open", path);
    f->path = mem_strdup(path);
    f->in_order = true;
    return true;
}

bool io_create(IoFile *f, const char *path, Err *e) {
    return open_file(f, path, O_CREAT | O_TRUNC, e);
}

/* Is a write that failed to be repeated? After a signal, and when a non-blocking pipe (another
 * process may have made it so) has room again. */
static bool again(const IoFile *f) {
    if (errno != EAGAIN) return errno == EINTR;
    poll(&(struct pollfd){.fd = f->fd, .events = POLLOUT}, 1, -1);
    return true;
}

static bool write_now(IoFile *f, uint64_t at, const uint8_t *s, size_t n, Err *e) {
    f->in_order = f->in_order && at == f->crc_end && !f->not_creator;
    f->crc_end = at + n;
    if (f->in_order) f->crc = crc32c(f->crc, s, n);
    while (n > 0) {
        ssize_t done = shall_fail() ? -1
                       : f->special ? write(f->fd, s, n)
                                    : pwrite(f->fd, s, n, (off_t)at);
        if (done < 0 && again(f)) continue;
        if (done < 0) return fail(e, "write", f->path);
        s += done, at += (uint64_t)done, n -= (size_t)done;
    }
    return true;
}

static bool flush(IoFile *f, Err *e) {
    size_t n = f->used;
    f->used = 0;
    return n == 0 || write_now(f, f->buffer_at, f->buffer, n, e);
}

bool io_put(IoFile *f, uint64_t at, const void *p, size_t n, Err *e) {
    if (n == 0) return true; // p may be NULL
    bool follows = f->used > 0 && at == f->buffer_at + f->used && n <= BUFFER - f->used;
    if (!follows && !flush(f, e)) return false;
    if (at + n > f->n_bytes) f->n_bytes = at + n;
    if (n > SMALL && !follows) return write_now(f, at, p, n, e);
    if (!f->buffer) f->buffer = mem_alloc(BUFFER);
    if (!follows) f->buffer_at = at;
    memcpy(f->buffer + f->used, p, n);
    f->used += n;
    return true;
}

/* CRC-32C of bytes [at, at + n), read in blocks that stay in the cache between copy and
 * checksum. */
static bool checksum(int fd, const char *path, uint64_t at, uint64_t n, uint32_t *crc, Err *e) {
    uint8_t *buf = mem_alloc(BUFFER);
    bool ok = true;
    *crc = 0;
    while (ok && n > 0) {
        ssize_t got = pread(fd, buf, n < BUFFER ? (size_t)n : BUFFER, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) ok = fail(e, "read", path);
        if (got == 0)
            ok = err(e, "%s is shorter than it was: another process has truncated it", path);
        if (got <= 0) break;
        *crc = crc32c(*crc, buf, (size_t)got);
        at += (uint64_t)got, n -= (uint64_t)got;
    }
    mem_free(buf);
    return ok;
}

/* Closes the file and frees f. Without `keep` removes the file if this rank created it. */
static void release(IoFile *f, bool keep) {
    if (f->fd >= 0) close(f->fd);
    if (f->path && !keep && !f->not_creator && !f->special) unlink(f->path);
    mem_free(f->path);
    mem_free(f->buffer);
    *f = (IoFile){.fd = -1};
}

bool io_finish(IoFile *f, uint32_t *crc, Err *e) {
    bool ok = flush(f, e);
    bool known = f->in_order && f->crc_end == f->n_bytes;
    if (ok && crc && !known) ok = checksum(f->fd, f->path, 0, f->n_bytes, &f->crc, e);
    if (ok && !f->special && (shall_fail() || fsync(f->fd))) ok = fail(e, "write", f->path);
    if (ok) {
        int failed = close(f->fd); // some network file systems report a full disk only now
        f->fd = -1;
        if (failed && errno != EINTR) ok = fail(e, "write", f->path);
    }
    if (ok && crc) *crc = f->crc;
    release(f, ok);
    return ok;
}

void io_abandon(IoFile *f) {
    release(f, false);
}

bool io_sample(const char *path, uint64_t *n_bytes, uint32_t *crc, Err *e) {
    enum { BLOCKS = 16, BLOCK = 4096 };
    char block[BLOCK];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe is refused, not waited for
    bool ok = fd >= 0 && fstat(fd, &st) == 0;
    if (!ok) fail(e, "open", path);
    if (ok && !S_ISREG(st.st_mode)) ok = err(e, "%s is not a regular file", path);
    *n_bytes = ok ? (uint64_t)st.st_size : 0, *crc = 0;
    uint64_t last = *n_bytes > BLOCK ? *n_bytes - BLOCK : 0; // where the last block begins
    for (int i = 0; ok && i < BLOCKS && (i == 0 || last > 0); i++) {
        ssize_t n = pread(fd, block, BLOCK, (off_t)(last * (uint64_t)i / (BLOCKS - 1)));
        ok = n >= 0 || fail(e, "read", path);
        if (ok) *crc = crc32c(*crc, block, (size_t)n);
    }
    if (fd >= 0) close(fd);
    return ok;
}

bool io_write_file(const char *path, const void *p, size_t n, uint32_t *crc, Err *e) {
    IoFile f;
    if (!io_create(&f, path, e)) return false;
    if (!io_put(&f, 0, p, n, e)) {
        io_abandon(&f);
        return false;
    }
    return io_finish(&f, crc, e);
}

bool io_make_dir(const char *path, Err *e) {
    if (shall_fail() || mkdir(path, 0777)) return fail(e, "make the folder", path);
    return true;
}

bool io_make_dirs(const char *path, Err *e) {
    struct stat st;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    char *dir = mem_printf("%.*s", (int)n, path), *up = path_folder(dir);
    bool there = stat(dir, &st) == 0, ok = true;
    if (strcmp(dir, "-") == 0)
        ok = err(e, "- is the standard output: name another folder, or ./-");
    else if (there && !S_ISDIR(st.st_mode))
        ok = err(e, "%s is not a folder", dir);
    else if (!there && (ok = io_make_dirs(up, e))) {
        if (shall_fail() || (mkdir(dir, 0777) && errno != EEXIST))
            ok = fail(e, "make the folder", dir);
        ok = ok && io_sync_dir(up, e);
    }
    mem_free(dir), mem_free(up);
    return ok;
}

bool io_rename(const char *from, const char *to, Err *e) {
    if (shall_fail() || rename(from, to)) return fail(e, "rename to", to);
    return true;
}

bool io_sync_dir(const char *path, Err *e) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // EINVAL: a file system that cannot sync folders, and that does not need it.
    bool ok = fd >= 0 && !shall_fail() && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok) fail(e, "sync the folder", path);
    if (fd >= 0) close(fd);
    return ok;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

bool io_remove_tree(const char *path, Err *e) {
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        return fail(e, "remove", path);
    return true;
}

bool io_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool io_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

double io_free_bytes(const char *folder) {
    struct statvfs s;
    bool known = statvfs(folder, &s) == 0 && s.f_blocks > 0; // some file systems count nothing
    return known ? (double)s.f_bavail * (double)s.f_frsize : (double)INFINITY;
}

bool io_exists_in(const char *folder, const char *name) {
    char *path = mem_printf("%s/%s", folder, name);
    bool yes = io_exists(path);
    mem_free(path);
    return yes;
}

static int kept_stdout = -1; // descriptor of the standard output after io_keep_stdout

void io_keep_stdout(void) {
    fflush(stdout);
    // the standard output was closed: die_set_program has opened "/" with O_PATH in its place
    if ((fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY)
        die_user("-: the standard output is not open: %s", strerror(EBADF));
    kept_stdout = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (kept_stdout < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        die_user("-: the standard output is not open: %s", strerror(errno));
}

int io_stdout(const char *path) {
    struct stat st, s;
    if (strcmp(path, "-") == 0) {
        if (kept_stdout < 0) io_keep_stdout();
        return fcntl(kept_stdout, F_DUPFD_CLOEXEC, 3);
    }
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return -1;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &s) == 0 && s.st_dev == st.st_dev && s.st_ino == st.st_ino &&
            (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
            return fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return -1;
}

/* ---- one file, written by all ranks */

/* Rank 0: creates a file of n_bytes zeros. */
static bool create_sized(IoFile *f, const char *path, uint64_t n_bytes, Err *e) {
    if (!io_create(f, path, e)) return false;
    return !(shall_fail() || ftruncate(f->fd, (off_t)n_bytes)) || fail(e, "write", path);
}

/* Other ranks: opens the file that rank 0 has created. */
static bool open_shared(IoFile *f, const char *path, Err *e) {
    if (open_file(f, path, 0, e)) return true;
    if (!io_exists(path))
        err(e,
            "rank 0 created %s, but this rank does not see it: the folder must be on a file system "
            "that all nodes share",
            path);
    return false;
}

bool io_share(IoFile *f, const char *path, uint64_t n_bytes, const Group *g, Err *e) {
    bool first = g->rank == 0;
    *f = (IoFile){.fd = -1};
    bool ok = group_agree(g, !first || create_sized(f, path, n_bytes, e), e) &&
              group_agree(g, first || open_shared(f, path, e), e);
    f->not_creator = !first, f->n_bytes = n_bytes;
    if (!ok) io_abandon(f);
    return ok;
}

/* First of the n bytes whose checksum `rank` of `size` computes; its range ends where the next
 * begins. */
static uint64_t share_begin(uint64_t n, int rank, int size) {
    return n / (uint64_t)size * (uint64_t)rank +
           n % (uint64_t)size * (uint64_t)rank / (uint64_t)size;
}

bool io_share_checksum(const char *path, uint64_t n_bytes, const Group *g, uint32_t *crc, Err *e) {
    uint32_t mine = 0, *all = mem_alloc((size_t)g->size * sizeof *all);
    uint64_t begin = share_begin(n_bytes, g->rank, g->size);
    uint64_t end = share_begin(n_bytes, g->rank + 1, g->size);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool good = fd < 0 ? fail(e, "open", path) : checksum(fd, path, begin, end - begin, &mine, e);
    bool ok = group_agree(g, good, e);
    if (fd >= 0) close(fd);
    if (ok) {
        group_all_gather(g, &mine, sizeof mine, all);
        *crc = all[0];
        for (int r = 1; r < g->size; r++)
            *crc = crc32c_join(*crc, all[r],
                               share_begin(n_bytes, r + 1, g->size) -
                                   share_begin(n_bytes, r, g->size));
    }
    mem_free(all);
    return ok;
}

bool io_share_finish(IoFile *f, bool ok, const Group *g, uint32_t *crc, Err *e) {
    char *path = mem_strdup(f->path);
    uint64_t n_bytes = f->n_bytes;
    bool alone = g->size == 1;
    if (ok)
        ok = io_finish(f, alone ? crc : NULL, e);
    else
        io_abandon(f);
    ok = group_agree(g, ok, e);
    if (ok && crc && !alone) ok = io_share_checksum(path, n_bytes, g, crc, e);
    mem_free(path);
    return ok;
}
