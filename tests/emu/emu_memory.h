/* emu_memory -- the memory of emulated devices, and pinned host memory. */
#ifndef TESTS_EMU_EMU_MEMORY_H
#define TESTS_EMU_EMU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Local. memory_take allocates device memory; align: a power of 2 up to a page. memory_give frees
 * it; dies if p was not allocated, or if the bytes beside the memory were written. */
void *memory_take(size_t n_bytes, size_t align, int device);
void memory_give(void *p);
/* memset by words. ThreadSanitizer does not see these writes; of memset it would record each byte,
 * which takes longer than most kernels. */
void memory_fill(void *p, int byte, size_t n_bytes);
/* Local. Memory that other processes open, at another address: the pages of a file without a name.
 * memory_share moves an allocation with its contents to such pages; no thread may use it meanwhile;
 * false: p is not an allocation. memory_open: NULL: there is no memory of this name. The owner
 * frees the memory after all others have closed it. */
typedef struct MemoryName {
    int process, file, device;
    size_t n_bytes, before, mapped; // before: bytes from the first page to the memory
} MemoryName;
bool memory_share(void *p, MemoryName *name);
void *memory_open(const MemoryName *name);
void memory_close(void *p);
/* Device memory can be read and written only between these calls, by one thread or several.
 * memory_leave checks the bytes beside the memory that was used. */
void memory_enter(void);
void memory_leave(const char *what);
size_t memory_in_use(int device);
int memory_device(const void *p);      // -1: not device memory
uint64_t memory_number(const void *p); // unique number of the allocation; 0: not device memory
/* Pinned host memory. */
void *memory_pin(size_t n_bytes);
void memory_unpin(void *p);
bool memory_is_pinned(const void *p, size_t n_bytes);

#endif
