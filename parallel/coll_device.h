/* coll_device -- what backends for memory of devices share. */
#ifndef PARALLEL_COLL_DEVICE_H
#define PARALLEL_COLL_DEVICE_H

#include "layers/cuda/streams.h"
#include "parallel/coll_backend.h"
#include "parallel/devices.h"

/* Local. For who watches: what is in s begins to be under way with what comes now; with what is there it is complete. */
void device_begins(Comm *c, uint64_t number, Stream s);
void device_completes(Comm *c, uint64_t number, Stream s);
/* Local. A call of a group of one rank, in its own stream: the copy of src to dst, or nothing when it is there. */
void device_run_alone(Comm *c, uint64_t number, const CollCall *call);
/* Collective over the world. Is there one NCCL for all ranks, and a device for each? */
bool world_nccl_fits(World *w, Err *e);
/* Collective over the world. From now on NCCL serves memory of devices; dies where it cannot. */
void world_use_nccl(World *w);

#endif
