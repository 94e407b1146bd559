/* memory -- the table of what a run needs, against what the machine has, before anything big is
 * allocated. */
#ifndef PARALLEL_STEP_MEMORY_H
#define PARALLEL_STEP_MEMORY_H

#include <stdint.h>
#include <stdio.h>

#include "base/group.h"
#include "parallel/step/model.h"

/* Local. Bytes that this process can still allocate: the available memory of the machine, or the
 * rest of a lower limit of its control group or a group above. 0: the system does not say. */
int64_t memory_available(void);
/* Local. The same of a system whose /proc and /sys lie under root. */
int64_t memory_available_under(const char *root);
/* Local. Bytes free for the arenas of m: of the calling rank's device, else memory_available. */
int64_t memory_free(const Model *m);
/* Local. Bytes of all arenas of a planned model. */
int64_t memory_needed(const Model *m);
/* Local. Prints the table: arena, MiB, share, contents; then the sum, and memory_free. */
void memory_print(const Model *m, FILE *f);
/* Collective over g, before any rank allocates. Dies with status 1 when the planned model does not
 * fit `ranks` times (ranks on this node or device) on every node or device, after rank 0 has
 * printed the table and the changes that would make it fit: more recompute, a smaller --micro. */
void memory_require(const Model *m, int ranks, const Group *g, FILE *f);

#endif
