/* agree -- the ranks of a job compare their options and files.
 *
 *     Facts f = {0};
 *     facts_add(&f, mem_printf("--seed"), mem_printf("%d", seed));
 *     if (!facts_agree(&f, &group, &e)) die_usage("%s", e.text);
 *
 *     ranks 2-3 were started with --seed 7, the others with 5
 *
 * A fact is a name and a value. Values are compared. Names are only for the message and may differ:
 * the path of a file may differ between nodes.
 */
#ifndef PARALLEL_TRAIN_AGREE_H
#define PARALLEL_TRAIN_AGREE_H

#include "base/group.h"

typedef struct Fact {
    char *name, *value;
} Fact;

typedef struct Facts {
    Fact *at;
    int n;
} Facts;

/* Local. Appends a fact. Takes ownership of both strings (mem.h). The value must not be empty. */
void facts_add(Facts *f, char *name, char *value);
/* Collective. Empties f. False: values differ; e names the first such fact, its values, and the
 * ranks that have them. If all values are equal, the cost is an all-gather of 32 bytes. */
bool facts_agree(Facts *f, const Group *g, Err *e);

#endif
