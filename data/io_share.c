#include "data/io_share.h"

#include "base/crc32c.h"
#include "base/mem.h"

bool io_share(IoFile *f, const char *path, uint64_t n_bytes, const Group *g, Err *e) {
    *f = (IoFile){.fd = -1};
    bool made = g->rank != 0 || (io_create(f, path, e) && io_resize(f, n_bytes, e));
    bool ok = group_agree(g, made, e) &&
              group_agree(g, g->rank == 0 || io_join(f, path, e), e); // once it is there
    if (ok)
        f->n_bytes = n_bytes;
    else
        io_abandon(f);
    return ok;
}

/* Bytes [begin, end) of n are a rank's. */
static uint64_t share_begin(uint64_t n, int rank, int size) {
    return n / (uint64_t)size * (uint64_t)rank +
           n % (uint64_t)size * (uint64_t)rank / (uint64_t)size;
}

bool io_share_checksum(const char *path, uint64_t n_bytes, const Group *g, uint32_t *crc, Err *e) {
    uint32_t mine = 0, *all = mem_alloc((size_t)g->size * sizeof *all);
    uint64_t begin = share_begin(n_bytes, g->rank, g->size);
    uint64_t end = share_begin(n_bytes, g->rank + 1, g->size);
    bool ok = group_agree(g, io_checksum(path, begin, end - begin, &mine, e), e);
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
        ok = io_finish(f, NULL, alone ? crc : NULL, e);
    else
        io_abandon(f);
    ok = group_agree(g, ok, e);
    if (ok && crc && !alone) ok = io_share_checksum(path, n_bytes, g, crc, e);
    if (!ok && g->rank == 0) io_remove_tree(path, NULL);
    mem_free(path);
    return ok;
}
