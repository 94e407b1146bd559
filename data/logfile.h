/* logfile -- a file that grows by whole records, and whose errors never end a run.
 *
 * Every record is one write. When a write fails (a full disk), the part of the record that was
 * written is cut off again, so the file stays a sequence of whole records. The first failure gives
 * a warning; later records are tried again.
 */
#ifndef DATA_LOGFILE_H
#define DATA_LOGFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct LogFile {
    char *path;   // NULL: not open, and every call does nothing
    int fd;       // -1 while not open
    bool regular; // false for a pipe, /dev/stdout, ...: these can be neither cut nor continued
    bool fifo;    // a named pipe: a record is dropped when the pipe is full and nobody reads it
    bool torn;    // part of a record was written and could not be cut off again
    int64_t size; // bytes of whole records
    int64_t lost; // records that were dropped
} LogFile;

/* The number of the first bytes of an older file, n bytes, that belong to steps up to `step`; -1
 * when the file does not hold records of a run. */
typedef int64_t LogKeep(const char *p, size_t n, int64_t step);

/* Local. Opens PATH; links are followed (data/output.h). resume_step == 0 begins a new file, and an
 * older one becomes PATH.old. resume_step > 0 cuts the file to the bytes that `keep` returns and
 * continues there; with keep == NULL it continues at the end of the file. A path NULL or "" opens
 * nothing. The standard output (io_stdout) is continued after its present contents. Dies when the
 * file cannot be opened. */
void logfile_open(LogFile *f, const char *path, int64_t resume_step, LogKeep *keep);
void logfile_write(LogFile *f, const void *p, size_t n);
void logfile_sync(LogFile *f);
/* Local. Warns when records were lost. */
void logfile_close(LogFile *f);

#endif
