/* occupied -- which bytes of an arena are in use at which times.
 *
 *   bytes  |  ####        ##
 *          |  ####  ######## ###      where is a block of so many bytes free all the time from
 *          |############  #####       `begin` to `end`, as low as can be?
 *          +--------------------> time
 *
 * Times are a tree: a node's children have the halves of its time. A node has the bytes that are
 * in use all the time, where they are not so for its parent, and those in use at some of it.
 * Neighbours are one range: of layers that lie on each other there are few. So a block takes time
 * logarithmic in times and ranges to place, and linear in the holes that are too small for it.
 */
#ifndef PARALLEL_STEP_OCCUPIED_H
#define PARALLEL_STEP_OCCUPIED_H

#include <stdint.h>

typedef struct Occupied Occupied;

/* Local. Times are 0 to n - 1. Freed by occupied_free. */
Occupied *occupied_make(int n);
void occupied_free(Occupied *o);
/* Local. Bytes [from, to) are in use from time `begin` to time `end`; to > from. */
void occupied_add(Occupied *o, int begin, int end, int64_t from, int64_t to);
/* Local, pure. The lowest place for so many bytes that is free from time `begin` to time `end`. */
int64_t occupied_lowest(const Occupied *o, int begin, int end, int64_t bytes);

#endif
