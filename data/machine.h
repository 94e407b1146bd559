/* machine -- the words of a run record: which computer, when. */
#ifndef DATA_MACHINE_H
#define DATA_MACHINE_H

#include <stddef.h>

/* The host's name. */
void machine_host(char *buf, size_t n);
/* The processor as the system calls it ("AMD EPYC 9575F 64-Core Processor"), else the architecture.
 */
void machine_cpu(char *buf, size_t n);
/* Now, "2026-01-31T12:00:00Z". */
void machine_time(char *buf, size_t n);
/* Seconds since 1970, for records. Durations are measured by base/clock.h, which never goes
 * back. */
double machine_clock(void);

#endif
