#include "tests/emu/calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

EmuCalls emu_calls;

void emu_called(int64_t *count) {
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

__attribute__((destructor)) static void write_down(void) {
    const char *path = getenv("EMU_CALLS");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f,
            "memory %" PRId64 "\nobjects %" PRId64 "\nwaits %" PRId64 "\nunpinned %" PRId64
            "\nlaunches %" PRId64 "\nreplays %" PRId64 "\nchoices %" PRId64 "\ntimes %" PRId64
            "\nurgent %" PRId64 "\n",
            emu_calls.memory, emu_calls.objects, emu_calls.waits, emu_calls.unpinned,
            emu_calls.launches, emu_calls.replays, emu_calls.choices, emu_calls.times,
            emu_calls.urgent_times);
    fclose(f);
}
