/* devices -- collectives on device memory, beside those on host memory.
 *
 * Ranks that compute on GPUs call world_use_devices. From then on a collective whose src is device
 * memory goes to
 *
 *   peers     ranks are threads of one process; their GPUs (one or more)    coll_device.c
 *             reach each other's memory: kernels read it directly
 *   nccl      each rank, thread or process, has a GPU of its own            coll_nccl.c
 *
 * After coll_wait the result is complete for later work of the rank's stream
 * (layers/cuda/device.h); the host does not block, except to synchronize with other hosts. Between
 * coll_start and coll_wait the collective runs beside the rank's kernels. In a group of one rank
 * src has to be dst: nothing is done.
 */
#ifndef PARALLEL_COMM_DEVICES_H
#define PARALLEL_COMM_DEVICES_H

#include "base/arena.h"
#include "parallel/comm/coll.h"

/* Collective over the world. The thread of each rank has chosen a device (device_works). Can
 * world_use_devices serve all ranks? False, with the reason, on every rank. */
bool world_devices_fit(World *w, Err *e);
/* Collective over the world. The thread of each rank has opened a device. Dies if no backend can
 * serve these devices. */
void world_use_devices(World *w);
/* Collective over the world, before any collective on device memory. From then on kernels read and
 * write other ranks' registered memory (coll_block), by CUDA IPC if ranks are processes. True if
 * they can already. False, with the reason, on every rank. Afterwards collectives cannot be
 * recorded into graphs, and memory is not registered with NCCL. */
bool world_share_memory(World *w, Err *e);
/* Collective over the world, before devices are closed. Does nothing if no devices are in use. */
void world_release_devices(World *w);

/* Local. The allocator for arenas whose memory takes part in collectives. Returns `memory` itself
 * if w is NULL or has no devices. */
const ArenaMemory *world_memory(const World *w, const ArenaMemory *memory);
/* Collective over the world. Registers a committed arena, allocated with world_memory, with the
 * backend (NCCL user buffers). Deregister it before it is freed. Deregistering an arena that was
 * not registered does nothing, nor does a w of NULL. */
void world_register(World *w, const Arena *a);
void world_unregister(World *w, const Arena *a);

#endif
