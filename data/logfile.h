/* logfile -- a file that grows by whole records and never ends a run.
 *
 * Every record is one write. When a write fails (a full disk), the part that got out is cut off
 * again, so the file stays a sequence of whole records; the first failure is warned about, later
 * records are tried again.
 */
#ifndef DATA_LOGFILE_H
#define DATA_LOGFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct LogFile {
    char *path;   // NULL: not open, and every call does nothing
    int fd;       // -1 while not open
    bool regular; // false for a pipe, /dev/stdout, ...: cannot be cut or continued
    bool fifo;    // a named pipe: records are dropped while it is full and nobody reads
    bool torn;    // part of a record got out and could not be cut off again
    int64_t size; // bytes of whole records
    int64_t lost; // records that were dropped
} LogFile;

/* Of the n bytes of an older file, how many belong to steps up to `step`; -1: they are no records
 * of a run. */
typedef int64_t LogKeep(const char *p, size_t n, int64_t step);

/* Local. Links are followed (data/output.h). resume_step == 0 begins the file (an older one becomes
 * PATH.old), > 0 continues it after what `keep` keeps; keep == NULL starts at the end. path NULL or
 * "" opens nothing; the standard output (io_stdout) is written after what it holds. Dies when the
 * file cannot be opened. */
void logfile_open(LogFile *f, const char *path, int64_t resume_step, LogKeep *keep);
void logfile_write(LogFile *f, const void *p, size_t n);
void logfile_sync(LogFile *f);
/* Local. Warns when records were lost. */
void logfile_close(LogFile *f);

#endif
