/* stamp -- host, processor and time for the record of a run. */
#ifndef DATA_STAMP_H
#define DATA_STAMP_H

#include <stdio.h>

/* The host's name. */
void stamp_host(char *buf, size_t n);
/* The processor's name in /proc/cpuinfo ("AMD EPYC 9575F 64-Core Processor"), else the
 * architecture. Virtual machines may give many processors the same name without a number: then
 * family and model are added ("AMD EPYC, family 25 model 1"). */
void stamp_cpu(char *buf, size_t n);
/* As stamp_cpu, from a file like /proc/cpuinfo; buf stays as it is when the file has no name. */
void stamp_cpu_of(FILE *cpuinfo, char *buf, size_t n);
/* Now, "2026-01-31T12:00:00Z". */
void stamp_time(char *buf, size_t n);
/* Seconds since 1970, for records. Durations are measured by base/clock.h, which never goes
 * back. */
double stamp_clock(void);

#endif
