/* ledger_file -- predicted and measured time of runs: each run appends a line of JSON to a file in
 * the user's cache directory (train_gpt/ledger.jsonl), or to the file of --ledger. tools/ledger.c
 * prints the errors of recent runs.
 *
 *     {"time": "2026-01-31T12:00:00Z", "machine": "...", ..., "predicted_ms": 81.2,
 *      "measured_ms": 84.0, ...}
 *
 * A line is written by a single write to a file opened for appending, so lines of runs that end
 * together do not mix. A truncated line (full disk) damages only itself: the next line starts anew.
 */
#ifndef PARALLEL_PLAN_LEDGER_FILE_H
#define PARALLEL_PLAN_LEDGER_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/die.h"

/* A run. Fields that are 0 or "" are unknown. */
typedef struct LedgerLine {
    char time[32], machine[64], model[256], layout[64], backend[16], dtype[8], recompute[16];
    char calibration[24];     // date of the cost table that predicted it
    int64_t ranks, threads;   // threads: of a rank
    int64_t micro, batch;     // sequences of a micro-batch; tokens of a step
    int64_t steps;            // number of measured steps
    double predicted_ms;      // of a step
    double measured_ms;       // median
    int64_t predicted_bytes;  // received in a step, rank 0
    int64_t measured_bytes;   // median
    int64_t predicted_memory; // bytes of rank 0's arenas
    // touched bytes: small models do not fill the 4 MiB in which matmuls pack operands
    int64_t measured_memory;
} LedgerLine;

/* Damaged lines: their number, and the line number of the first. */
typedef struct LedgerDamage {
    int n, first;
} LedgerDamage;

/* Local. Appends a line with a single write; creates missing folders. False, with the reason, on
 * failure; the run continues. */
bool ledger_append(const char *path, const LedgerLine *l, Err *e);
/* Local. Reads the newest `max` lines, oldest first, and returns their number: 0 without a file, -1
 * with the reason if the file cannot be read. Damaged lines are skipped and counted. */
int ledger_read(const char *path, LedgerLine *out, int max, LedgerDamage *damage, Err *e);
/* Local, pure. The line as JSON, without newline (mem_free). */
char *ledger_print(const LedgerLine *l);
/* Local. The default path (mem_free); NULL: the environment names no cache folder. */
char *ledger_path(void);

/* Local, pure. measured / predicted - 1: 0.1 means 10 % slower than predicted; NAN: unknown. */
double ledger_error(double predicted, double measured);
/* Local, pure. Median of |ledger_error| over the lines of this machine predicted from measured
 * costs, or from described costs; NAN: none. */
double ledger_median_error(const LedgerLine *l, int n, const char *machine, bool calibrated);

#endif
