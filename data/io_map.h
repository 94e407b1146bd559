/* io_map -- files mapped for reading.
 *
 * A mapped file that somebody truncates raises SIGBUS where it is read beyond its new end. By
 * default the program then ends with one line that names the file. A program that has something to
 * save first calls io_map_survive: what is missing reads as zeros, and io_map_truncated says which
 * file it was.
 */
#ifndef DATA_IO_MAP_H
#define DATA_IO_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/die.h"

typedef struct IoRegion IoRegion;

/* n == 0 maps nothing and p is not NULL. */
typedef struct IoMap {
    const uint8_t *p;
    size_t n;
    char *path;
    IoRegion *region;
} IoMap;

/* Local. Refuses what is not a regular file, and an output of this program (base/claim.h). Unmapped
 * by io_unmap (of a zero IoMap: nothing). */
bool io_map(IoMap *m, const char *path, Err *e);
void io_unmap(IoMap *m);
/* Local. io_map that dies. */
IoMap io_open(const char *path);
/* Local. All bytes of an open file that may be no regular one; dies when they cannot be read. */
IoMap io_read(FILE *f, const char *name);
/* Local. Asks the system to read n bytes at p, inside some map, in the background. Advice: it
 * cannot fail. */
void io_prefetch(const void *p, size_t n);

/* Local, once, before the first io_map. */
void io_map_survive(void);
/* Local. Notes when the file is shorter than it was mapped: in its last page that raises no
 * signal. */
void io_map_check(const IoMap *m);
/* Local. Notes that the file no longer holds what it held. */
void io_map_note(const IoMap *m);
/* Local. Was any mapped file found truncated, or noted, so far? e names the first one. */
bool io_map_truncated(Err *e);

#endif
