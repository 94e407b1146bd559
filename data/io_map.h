/* io_map -- files mapped for reading.
 *
 * A mapped file that another process truncates raises SIGBUS when it is read beyond its new end. By
 * default the program then ends with one line that names the file. After io_map_fill_truncated the
 * missing bytes read as zeros instead, and io_map_truncated names the file, so that a program can
 * save its state before it ends.
 */
#ifndef DATA_IO_MAP_H
#define DATA_IO_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/die.h"

typedef struct IoRegion IoRegion;

/* A mapped file. An empty file has n == 0 and a p that is not NULL. */
typedef struct IoMap {
    const uint8_t *p;
    size_t n;
    char *path;
    IoRegion *region;
} IoMap;

/* Local. Maps a file; refuses one that is not regular, and an output of this program
 * (base/claim.h). io_unmap unmaps it; a zero IoMap may be unmapped, too. */
bool io_map(IoMap *m, const char *path, Err *e);
void io_unmap(IoMap *m);
/* Local. As io_map; dies on failure. */
IoMap io_open(const char *path);
/* Local. Reads all bytes of an open file, which may be a pipe; dies when a read fails. */
IoMap io_read(FILE *f, const char *name);
/* Local. Asks the operating system to read n bytes at p, inside some map, in the background. A
 * hint: it cannot fail. */
void io_prefetch(const void *p, size_t n);

/* Local. From now on the missing bytes of a truncated file read as zeros (see above). To be called
 * once, before the first io_map. */
void io_map_fill_truncated(void);
/* Local. Checks the size of the file, and notes a file that is shorter than when it was mapped: a
 * read in the last page of the file raises no signal. */
void io_map_check(const IoMap *m);
/* Local. Notes that the file has changed since it was mapped. */
void io_map_mark_changed(const IoMap *m);
/* Local. Has any mapped file been noted or found truncated so far? e names the first one. */
bool io_map_truncated(Err *e);

#endif
