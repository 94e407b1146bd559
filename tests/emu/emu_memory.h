/* emu_memory -- memory of devices, and pinned memory of the host. */
#ifndef TESTS_EMU_EMU_MEMORY_H
#define TESTS_EMU_EMU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *memory_take(size_t n_bytes, size_t align, int device); // align: a power of 2 up to a page
void memory_give(void *p); // dies when p was not taken, or its edges were written
/* Local. Memory that other processes may open, under another address: the pages of a file without a
 * name. share: gives memory such pages, with what it holds; nothing may use it meanwhile. False: it
 * is none that was taken. open: NULL: there is none of this name. The owner gives it back when all
 * have closed it. */
typedef struct MemoryName {
    int process, file, device;
    size_t n_bytes, before, mapped; // before: from the first page to the memory
} MemoryName;
bool memory_share(void *p, MemoryName *name);
void *memory_open(const MemoryName *name);
void memory_close(void *p);
/* Between these, of one thread or several, device memory can be read and written. leave looks at
 * its edges. */
void memory_enter(void);
void memory_leave(const char *what);
size_t memory_in_use(int device);
int memory_device(const void *p);      // -1: memory of none
uint64_t memory_number(const void *p); // of the piece, which no other one gets; 0: memory of none
/* Host memory that a device reads by itself. */
void *memory_pin(size_t n_bytes);
void memory_unpin(void *p);
bool memory_is_pinned(const void *p, size_t n_bytes);

#endif
