/* temporary -- names of files and directories under construction: PATH.tmp-HOST-PID. The name says
 * which process writes it, so what a killed process left behind can be found and removed.
 */
#ifndef DATA_TEMPORARY_H
#define DATA_TEMPORARY_H

#include <stdbool.h>

/* Local. "PATH.tmp-HOST-PID" of this process; freed by mem_free. */
char *temporary_name(const char *path);
/* Local. Removes temporaries in a directory whose name begins with `prefix`: those of processes of
 * this machine that have ended and of this process, or (all) of every process. */
void temporary_clean(const char *dir, const char *prefix, bool all);
/* Local. The same for the temporaries of one file. */
void temporary_clean_file(const char *path);

#endif
