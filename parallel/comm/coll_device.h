/* coll_device -- shared by the backends for device memory. */
#ifndef PARALLEL_COMM_COLL_DEVICE_H
#define PARALLEL_COMM_COLL_DEVICE_H

#include "layers/cuda/streams.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/devices.h"

/* Local. Time stamps for tracing: the call begins with the next operation of stream s; it is
 * complete with the last operation put into s. */
void device_begins(Comm *c, uint64_t number, Stream s);
void device_completes(Comm *c, uint64_t number, Stream s);
/* Local. A collective of a group of one rank, in the rank's own stream: copies src to dst if they
 * differ. */
void device_run_alone(Comm *c, uint64_t number, const CollCall *call);
/* Collective over the world. Do all ranks have the same NCCL, and each a device of its own? */
bool world_nccl_fits(World *w, Err *e);
/* Collective over the world. Makes NCCL the backend for device memory; dies if it cannot. */
void world_use_nccl(World *w);

#endif
