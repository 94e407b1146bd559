/* library -- functions of a shared library that is looked for at run time: the program starts where
 * it is not. */
#ifndef BASE_LIBRARY_H
#define BASE_LIBRARY_H

#include "base/die.h"

/* Local. Where libraries are looked for first: folders, ':' between them, or "". "none": without
 * those whose work this program can do itself (library_unwanted). Of the process, before it opens
 * any; the string stays. */
void library_folders(const char *folders);
bool library_unwanted(void);

/* Local. Opens a library of this name or path: a name is looked for in library_folders, by the
 * loader, in the toolkit ($CUDA_HOME, /usr/local/cuda), and among the wheels of NVIDIA's that came
 * with PyTorch, for each folder bin of PATH in lib/python3.../site-packages beside it. Writes the
 * addresses of n functions to functions[n], pointers to functions of any types. Returns its handle
 * (for dlclose), or NULL with the reason when it is not there or lacks one of them. */
void *library_open(const char *library, const char *const *names, int n, void *functions, Err *e);

/* Local. The same for functions that the library may lack: NULL for those. How many of the first
 * ones there are. */
int library_find(void *handle, const char *const *names, int n, void *functions);

#endif
