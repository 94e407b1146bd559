/* ledger -- predicted and measured, one line of JSON for each run, appended to a file in the user's cache directory
 * (train_gpt/ledger.jsonl) or where --ledger says. tools/ledger.c prints the error over the last runs. */
#ifndef PARALLEL_LEDGER_H
#define PARALLEL_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/die.h"

typedef struct LedgerLine {
    char time[32], machine[64], model[256], layout[64], backend[16];
    int ranks, threads;
    int64_t micro, batch, steps;             // steps: measured ones
    double predicted_ms, measured_ms;        // of a step; measured: median
    int64_t predicted_bytes, measured_bytes; // received in a step, rank 0
    int64_t predicted_memory,
        measured_memory; // bytes of rank 0: arenas; what the process holds of them
} LedgerLine;

/* Local. Appends one line with a single write; false with the reason (a run does not end for it). */
bool ledger_append(const char *path, const LedgerLine *l, Err *e);
/* Local. The newest `max` lines, oldest first; lines that are damaged are passed over and counted. */
int ledger_read(const char *path, LedgerLine *out, int max, int *damaged, Err *e);
/* Local. The default path (mem_free). */
char *ledger_path(void);

#endif
