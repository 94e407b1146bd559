/* library -- functions of a shared library that is looked for at run time: the program starts where
 * it is not. */
#ifndef BASE_LIBRARY_H
#define BASE_LIBRARY_H

#include "base/die.h"

/* Local. Opens a library of this name or path and writes the addresses of n functions to
 * functions[n], pointers to functions of any types. Returns its handle (for dlclose), or NULL with
 * the reason when it is not there or lacks one of them. */
void *library_open(const char *library, const char *const *names, int n, void *functions, Err *e);

/* Local. The same for functions that the library may lack: NULL for those. How many of the first
 * ones there are. */
int library_find(void *handle, const char *const *names, int n, void *functions);

#endif
