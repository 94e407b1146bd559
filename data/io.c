#include "data/io.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/mem.h"

static struct {
    int calls, fail_at;
    bool kill;
} inject;

int io_inject(int nth, bool kill) {
    int calls = inject.calls;
    inject.calls = 0, inject.fail_at = nth, inject.kill = kill;
    return calls;
}

/* Called before every system call that changes the disk: shall this one fail? */
static bool injected(void) {
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

bool io_create(IoFile *f, const char *path, Err *e) {
    // Over the file size limit a write shall fail with EFBIG, not end the process without a word.
    signal(SIGXFSZ, SIG_IGN);
    int fd = injected() ? -1 : open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0666);
    if (fd < 0) return fail(e, "create", path);
    *f = (IoFile){.fd = fd, .path = mem_strdup(path), .in_order = true};
    return true;
}

bool io_put(IoFile *f, uint64_t at, const void *p, size_t n, Err *e) {
    const uint8_t *s = p;
    if (at != f->n_bytes) f->in_order = false;
    if (f->in_order) f->crc = crc32c(f->crc, p, n);
    if (at + n > f->n_bytes) f->n_bytes = at + n;
    while (n > 0) {
        ssize_t done = injected() ? -1 : pwrite(f->fd, s, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return fail(e, "write", f->path);
        s += done, at += (uint64_t)done, n -= (size_t)done;
    }
    return true;
}

static bool read_back(IoFile *f, Err *e) {
    enum { CHUNK = 1 << 20 };
    uint8_t *buf = mem_alloc(CHUNK);
    uint64_t at = 0;
    f->crc = 0;
    while (at < f->n_bytes) {
        ssize_t got = pread(f->fd, buf, CHUNK, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        f->crc = crc32c(f->crc, buf, (size_t)got);
        at += (uint64_t)got;
    }
    mem_free(buf);
    return at == f->n_bytes || fail(e, "read back", f->path);
}

bool io_finish(IoFile *f, uint64_t *n_bytes, uint32_t *crc, Err *e) {
    bool ok = f->in_order || !crc || read_back(f, e);
    if (ok && (injected() || fsync(f->fd))) ok = fail(e, "write", f->path);
    if (!ok) {
        io_abandon(f);
        return false;
    }
    int failed = close(f->fd); // some network file systems report a full disk only now
    f->fd = -1;
    if (failed && errno != EINTR) {
        fail(e, "write", f->path);
        io_abandon(f);
        return false;
    }
    if (n_bytes) *n_bytes = f->n_bytes;
    if (crc) *crc = f->crc;
    mem_free(f->path);
    *f = (IoFile){.fd = -1};
    return true;
}

void io_abandon(IoFile *f) {
    if (f->fd >= 0) close(f->fd);
    if (f->path) unlink(f->path);
    mem_free(f->path);
    *f = (IoFile){.fd = -1};
}

bool io_write_file(const char *path, const void *p, size_t n, uint32_t *crc, Err *e) {
    IoFile f;
    if (!io_create(&f, path, e)) return false;
    if (!io_put(&f, 0, p, n, e)) {
        io_abandon(&f);
        return false;
    }
    return io_finish(&f, NULL, crc, e);
}

bool io_map(IoMap *m, const char *path, Err *e) {
    struct stat st;
    // O_NONBLOCK: to open a pipe must not wait for its writer
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        fail(e, "open", path);
        if (fd >= 0) close(fd);
        return false;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        if (S_ISDIR(st.st_mode)) return err(e, "%s is a folder; name a file in it", path);
        return err(e, "%s is not a regular file; copy it to one", path);
    }
    *m = (IoMap){.p = (const uint8_t *)"", .n = (size_t)st.st_size};
    if (m->n > 0) {
        void *p = mmap(NULL, m->n, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            fail(e, "map", path);
            close(fd);
            *m = (IoMap){0};
            return false;
        }
        m->p = p;
    }
    close(fd);
    m->path = mem_strdup(path);
    return true;
}

IoMap io_open(const char *path) {
    IoMap m;
    Err e;
    if (!io_map(&m, path, &e)) die("%s", e.text);
    return m;
}

void io_prefetch(const void *p, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)p % page;
    union {
        const uint8_t *in;
        void *out;
    } start = {(const uint8_t *)p - before};
    madvise(start.out, n + before, MADV_WILLNEED);
}

void io_unmap(IoMap *m) {
    union {
        const uint8_t *in;
        void *out;
    } p = {m->p}; // munmap takes what mmap gave, without const
    if (m->n > 0) munmap(p.out, m->n);
    mem_free(m->path);
    *m = (IoMap){0};
}

bool io_make_dir(const char *path, Err *e) {
    if (injected() || mkdir(path, 0777)) return fail(e, "make the folder", path);
    return true;
}

bool io_make_dirs(const char *path, Err *e) {
    struct stat st;
    if (stat(path, &st) == 0) return S_ISDIR(st.st_mode) || err(e, "%s is not a folder", path);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--; // slashes at the end
    while (n > 0 && path[n - 1] != '/') n--; // the last name
    char *up = n ? mem_printf("%.*s", (int)n, path) : mem_strdup(".");
    bool ok = io_make_dirs(up, e);
    if (ok && (injected() || (mkdir(path, 0777) && errno != EEXIST)))
        ok = fail(e, "make the folder", path);
    ok = ok && io_sync_dir(up, e);
    mem_free(up);
    return ok;
}

bool io_rename(const char *from, const char *to, Err *e) {
    if (injected() || rename(from, to)) return fail(e, "rename to", to);
    return true;
}

bool io_exchange(const char *a, const char *b, Err *e) {
    if (injected()) return fail(e, "rename to", b);
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0) return true;
    char *aside = mem_printf("%s.old", a);
    bool ok = rename(b, aside) == 0 && rename(a, b) == 0 && rename(aside, a) == 0;
    if (!ok) fail(e, "rename to", b);
    if (!ok && !io_exists(b)) rename(aside, b);
    mem_free(aside);
    return ok;
}

bool io_sync_dir(const char *path, Err *e) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // EINVAL: a file system that cannot sync folders, and that does not need it.
    bool ok = fd >= 0 && !injected() && (fsync(fd) == 0 || errno == EINVAL);
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

bool io_can_write(const char *path, Err *e) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return err(e, "%s is a folder: name a file", path);
    char *beside = mem_printf("%s.try-%ld", path, (long)getpid());
    IoFile f;
    bool ok = io_create(&f, beside, e);
    if (ok) io_abandon(&f);
    mem_free(beside);
    return ok;
}
