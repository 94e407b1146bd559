#include "data/replace.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/io.h"

struct Replace {
    char *path, *temp;
    IoFile file;
    uint8_t
        *buffer; // BUFFER bytes, used of which are not yet written; NULL when the file is finished
    size_t used;
    Replace *next; // list of all that are open
};

enum { BUFFER = 1 << 20 };
static Replace *open_ones;

void replace_abandon_all(int status) {
    (void)status;
    for (Replace *r = open_ones; r; r = r->next) unlink(r->temp);
}

static void check(bool ok, const Err *e) {
    if (ok) return;
    replace_abandon_all(0);
    open_ones = NULL;
    die_user("%s; no file was left half-written", e->text);
}

Replace *replace_open(const char *path) {
    Err e;
    Replace *r = mem_calloc(1, sizeof *r);
    r->path = mem_strdup(path);
    r->temp = mem_printf("%s.%d.tmp", path, (int)getpid());
    r->buffer = mem_alloc(BUFFER);
    r->next = open_ones;
    open_ones = r; // first, so that a signal finds the file
    check(io_create(&r->file, r->temp, &e), &e);
    return r;
}

static void flush(Replace *r) {
    Err e;
    check(io_put(&r->file, r->file.n_bytes, r->buffer, r->used, &e), &e);
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

void replace_patch(Replace *r, uint64_t offset, const void *p, size_t n) {
    Err e;
    flush(r);
    check(io_put(&r->file, offset, p, n, &e), &e);
}

void replace_finish(Replace *r) {
    Err e;
    flush(r);
    mem_free(r->buffer);
    r->buffer = NULL;
    check(io_finish(&r->file, NULL, NULL, &e), &e);
}

/* So that the new name survives a power cut, too. */
static void sync_folder_of(const char *path) {
    Err e;
    char *folder = mem_strdup(path), *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    if (!io_sync_dir(slash ? folder : ".", &e)) warn("%s", e.text);
    mem_free(folder);
}

void replace_commit(Replace *r) {
    Err e;
    if (r->buffer) replace_finish(r);
    check(io_rename(r->temp, r->path, &e), &e);
    Replace **link = &open_ones;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    sync_folder_of(r->path);
    mem_free(r->path);
    mem_free(r->temp);
    mem_free(r);
}
