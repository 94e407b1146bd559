#include "data/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"

struct Replace {
    char *path, *temp;
    int fd;
    uint8_t *buffer; // BUFFER bytes, used of which are not yet written
    size_t used;
    Replace *next; // list of all that are open
};

enum { BUFFER = 1 << 20 };
static Replace *open_ones;

void replace_abandon_all(int status) {
    (void)status;
    for (Replace *r = open_ones; r; r = r->next) unlink(r->temp);
}

static _Noreturn void fail(const Replace *r, const char *what) {
    int why = errno;
    replace_abandon_all(0);
    open_ones = NULL;
    die("cannot %s %s: %s; nothing was left behind%s", what, r->path, strerror(why),
        why == ENOSPC ? ": free some space or write elsewhere" : "");
}

Replace *replace_open(const char *path) {
    Replace *r = mem_calloc(1, sizeof *r);
    r->path = mem_strdup(path);
    r->temp = mem_printf("%s.%d.tmp", path, (int)getpid());
    r->fd = open(r->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (r->fd < 0) fail(r, "create");
    r->buffer = mem_alloc(BUFFER);
    r->next = open_ones;
    open_ones = r;
    return r;
}

static void put(Replace *r, const uint8_t *p, size_t n) {
    while (n) {
        ssize_t done = write(r->fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) fail(r, "write");
        p += done;
        n -= (size_t)done;
    }
}

static void flush(Replace *r) {
    put(r, r->buffer, r->used);
    r->used = 0;
}

void replace_write(Replace *r, const void *p, size_t n) {
    const uint8_t *from = p;
    while (n) {
        size_t room = BUFFER - r->used, now = n < room ? n : room;
        memcpy(r->buffer + r->used, from, now);
        r->used += now;
        from += now;
        n -= now;
        if (r->used == BUFFER) flush(r);
    }
}

void replace_patch(Replace *r, int64_t offset, const void *p, size_t n) {
    flush(r);
    if (lseek(r->fd, offset, SEEK_SET) < 0) fail(r, "write");
    put(r, p, n);
    if (lseek(r->fd, 0, SEEK_END) < 0) fail(r, "write");
}

void replace_finish(Replace *r) {
    flush(r);
    if (fsync(r->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        fail(r, "write"); // some systems cannot sync
    mem_free(r->buffer);
    r->buffer = NULL;
    int fd = r->fd;
    r->fd = -1;
    if (close(fd) != 0) fail(r, "write");
}

/* So that the new name survives a power cut, too. Failing is no loss of what was there. */
static void sync_folder_of(const char *path) {
    char *folder = mem_strdup(path), *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    mem_free(folder);
}

void replace_commit(Replace *r) {
    if (r->fd >= 0) replace_finish(r);
    if (rename(r->temp, r->path) != 0) fail(r, "rename the temporary file to");
    Replace **link = &open_ones;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    sync_folder_of(r->path);
    mem_free(r->path);
    mem_free(r->temp);
    mem_free(r);
}
