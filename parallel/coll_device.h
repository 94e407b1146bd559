/* coll_device -- what backends for memory of devices share. */
#ifndef PARALLEL_COLL_DEVICE_H
#define PARALLEL_COLL_DEVICE_H

#include "layers/cuda/streams.h"
#include "parallel/coll_backend.h"
#include "parallel/devices.h"

/* Local. Puts the copy of src to the call's dst into s: nothing when it is there. */
void device_copy_to_dst(const CollCall *call, const void *src, Stream s);
/* Collective over the world. Is there one NCCL for all ranks, and a device for each? */
bool world_nccl_fits(World *w, Err *e);
/* Collective over the world. From now on NCCL serves memory of devices; dies where it cannot. */
void world_use_nccl(World *w);

#endif
