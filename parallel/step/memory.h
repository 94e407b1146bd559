/* memory -- the table of what a run needs, against what the machine has, before anything big is
 * allocated. */
#ifndef PARALLEL_STEP_MEMORY_H
#define PARALLEL_STEP_MEMORY_H

#include <stdint.h>
#include <stdio.h>

#include "base/group.h"
#include "parallel/step/model.h"

/* Local. Bytes that this process may still take: available memory of the machine, less where its
 * control group or one above allows less. 0 when the system does not say. */
int64_t memory_available(void);
/* Local. The same of a system whose /proc and /sys lie under root. */
int64_t memory_available_under(const char *root);
/* Local. The same where the arenas of m lie: of the calling rank's device, where it has one. */
int64_t memory_free(const Model *m);
/* Local. Bytes of all arenas of a planned model. */
int64_t memory_needed(const Model *m);
/* Local. Prints the table: arena, bytes, share, and what is there where the arenas will lie: of the
 * machine, or of the calling rank's device. */
void memory_print(const Model *m, FILE *f);
/* Collective over g, before any rank allocates. Dies with status 1 when the planned model does not
 * fit `ranks` times (ranks on this node or device) on every node or device, after rank 0 has
 * printed the table and the changes that would make it fit: more recompute, a smaller --micro. */
void memory_require(const Model *m, int ranks, const Group *g, FILE *f);

#endif
