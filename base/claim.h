/* claim -- which files a program writes and which it reads, so that no output destroys an input.
 *
 * Outputs are claimed before inputs are opened. A file that is claimed as an output is refused as
 * an input and as a second output, by device and inode: the name, a link or a relative path make no
 * difference. An output that does not exist yet is known by the innermost directory of its
 * path that exists, and the rest of the path. Character devices (/dev/null) are never claimed.
 */
#ifndef BASE_CLAIM_H
#define BASE_CLAIM_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/die.h"

/* Local. `what` names the output in messages: "--json". An empty path claims nothing. */
bool claim_output(const char *what, const char *path, Err *e);
/* Local. Ends every claim of an output under this `what`. */
void claim_output_end(const char *what);
/* Local. Claims an open file, whose fstat is st, as an input; false when it is a claimed output. */
bool claim_input(const char *path, const struct stat *st, Err *e);
/* Local. Ends one claim_input of this file; after the last one the file may be an output again. */
void claim_input_end(dev_t device, ino_t inode);
/* Local. claim_input of a path until the program ends. A path that does not exist claims
 * nothing. */
bool claim_input_path(const char *path, Err *e);

#endif
