/* map -- a whole file as read-only memory. */
#ifndef DATA_MAP_H
#define DATA_MAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct Map {
    void *p; // n bytes; NULL when the file is empty
    size_t n;
} Map;

/* Local. Dies with one line when the path is no readable regular file. */
Map map_open(const char *path);
void map_close(Map *m);
/* Local. Asks the system to read `n` bytes at p, inside some map, in the background. */
void map_prefetch(const void *p, size_t n);

#endif
