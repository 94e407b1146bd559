/* ledger -- predicted and measured, one line of JSON for each run, appended to a file in the user's cache directory
 * (train_gpt/ledger.jsonl) or where --ledger says. tools/ledger.c prints the errors of the last runs.
 *
 *     {"time": "2026-01-31T12:00:00Z", "machine": "...", ..., "predicted_ms": 81.2, "measured_ms": 84.0, ...}
 *
 * A line is one write to a file opened for appending: those of runs that end together do not mix. A line that
 * lost its end (a full disk) costs itself alone: the next one begins on a line of its own.
 */
#ifndef PARALLEL_LEDGER_H
#define PARALLEL_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/die.h"

/* Numbers of 0 and texts of "" are not known. */
typedef struct LedgerLine {
    char time[32], machine[64], model[256], layout[64], backend[16], dtype[8], recompute[16];
    char calibration[24];     // when the costs were measured by which it was foretold
    int64_t ranks, threads;   // threads: of a rank
    int64_t micro, batch;     // sequences of a micro-step; tokens of a step
    int64_t steps;            // measured ones
    double predicted_ms;      // of a step
    double measured_ms;       // median
    int64_t predicted_bytes;  // received in a step, rank 0
    int64_t measured_bytes;   // median
    int64_t predicted_memory; // bytes of rank 0's arenas
    int64_t measured_memory;  // those of them that somebody touched: small models do not fill the
                              // some 4 MiB in which products pack their operands
} LedgerLine;

/* Lines that are none: how many, and the number of the first one. */
typedef struct LedgerDamage {
    int n, first;
} LedgerDamage;

/* Local. Appends one line with a single write, in folders that it makes where they are missing; false with the reason
 * (a run does not end for it). */
bool ledger_append(const char *path, const LedgerLine *l, Err *e);
/* Local. The newest `max` lines, oldest first; returns how many there are: none where there is no file, -1 with
 * the reason where it cannot be read. Lines that are damaged are passed over and counted. */
int ledger_read(const char *path, LedgerLine *out, int max, LedgerDamage *damage, Err *e);
/* Local, pure. The line as JSON, without newline (mem_free). */
char *ledger_print(const LedgerLine *l);
/* Local. The default path (mem_free); NULL where the environment names no folder for it. */
char *ledger_path(void);

/* Local, pure. measured / predicted - 1: 0.1 is 10 % slower, or more, than foretold; NAN where one is not known. */
double ledger_error(double predicted, double measured);
/* Local, pure. How many of the lines were foretold by the costs that foretold the newest of those on a machine, a backend
 * and a number of ranks (machine, backend, ranks of `like`), and by which ones; *error: the median of their |ledger_error|.
 * 0: there is none. */
int ledger_foretold(const LedgerLine *l, int n, const LedgerLine *like, char calibration[24],
                    double *error);
/* Local, pure. Median of |ledger_error| of the milliseconds of lines about this machine that were foretold by measured costs,
 * or by those that are known without; NAN: there are none. */
double ledger_median_error(const LedgerLine *l, int n, const char *machine, bool calibrated);

#endif
