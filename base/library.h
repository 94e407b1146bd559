/* library -- functions of a shared library that is loaded at run time: the program also starts
 * where the library is missing. */
#ifndef BASE_LIBRARY_H
#define BASE_LIBRARY_H

#include "base/die.h"

/* Local. Sets the folders in which libraries are looked for first, separated by ':', or "". "none"
 * asks for a run without the libraries whose work this program can do itself; library_unwanted is
 * then true. For the whole process, before any library is opened; the string must stay valid. */
void library_folders(const char *folders);
bool library_unwanted(void);

/* Local. Opens a library by its name or path. A name is looked for in library_folders, by the
 * loader, in CUDA's toolkit ($CUDA_HOME, /usr/local/cuda), and in NVIDIA's Python packages, which
 * PyTorch installs: in lib/python3.../{site,dist}-packages beside each folder of PATH. Writes the
 * addresses of the n functions to functions[n], an array of pointers to functions of any types.
 * Returns the handle (for dlclose), or NULL with the reason when the library is missing or lacks a
 * function. */
void *library_open(const char *library, const char *const *names, int n, void *functions, Err *e);

/* Local. Looks up n functions that an open library may lack: their pointers are NULL then. Returns
 * how many of the first ones it has, up to the first that is missing. */
int library_find(void *handle, const char *const *names, int n, void *functions);

#endif
