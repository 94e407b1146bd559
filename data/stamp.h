/* stamp -- which computer, and when: what a record of a run begins with. */
#ifndef DATA_STAMP_H
#define DATA_STAMP_H

#include <stdio.h>

/* The host's name. */
void stamp_host(char *buf, size_t n);
/* The processor as the system calls it ("AMD EPYC 9575F 64-Core Processor"), else the architecture.
 * Virtual machines call processors of many years by one name without a number: there with what
 * tells them apart ("AMD EPYC, family 25 model 1"). */
void stamp_cpu(char *buf, size_t n);
/* The same from a file like /proc/cpuinfo; without a name buf stays as it is. */
void stamp_cpu_of(FILE *cpuinfo, char *buf, size_t n);
/* Now, "2026-01-31T12:00:00Z". */
void stamp_time(char *buf, size_t n);
/* Seconds since 1970, for records. Durations are measured by base/clock.h, which never goes
 * back. */
double stamp_clock(void);

#endif
