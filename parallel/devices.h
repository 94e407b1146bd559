/* devices -- collectives on memory of GPUs, beside those on memory of the host.
 *
 * Ranks that compute on GPUs give their devices to the World. From then on a call whose src is memory of a device goes to
 *
 *   peers     ranks are threads whose GPUs reach each other's memory,      coll_device.c     kernels read the other ranks'
 *             one or several                                                                 memory
 *   nccl      each rank, thread or process, has a GPU of its own           coll_nccl.c       NVIDIA's library
 *
 * and is complete for what the rank puts into its stream (layers/cuda/device.h) after coll_wait: the host goes on, and no
 * collective waits for it but to meet the others' hosts. Between coll_start and coll_wait it runs beside the rank's kernels.
 */
#ifndef PARALLEL_DEVICES_H
#define PARALLEL_DEVICES_H

#include "base/arena.h"
#include "parallel/coll.h"

/* Collective over the world. The thread of each rank has chosen a device (device_works): would world_use_devices serve them?
 * Else it says why not, on every rank. */
bool world_devices_fit(World *w, Err *e);
/* Collective over the world. The thread of each rank has opened a device. Dies where its memory cannot be served. */
void world_use_devices(World *w);
/* Collective over the world, before devices are closed. Nothing where none are in use. */
void world_leave_devices(World *w);

/* Local. Where an arena's memory comes from whose blocks go through collectives; without devices, or with a w of NULL, from
 * `memory` as any other's. */
const ArenaMemory *world_memory(const World *w, const ArenaMemory *memory);
/* Collective over the world. A committed arena of such memory: what its collectives can gain from knowing it. Back before it is
 * freed; nothing for an arena that was not registered, or with a w of NULL. */
void world_register(World *w, const Arena *a);
void world_unregister(World *w, const Arena *a);

#endif
