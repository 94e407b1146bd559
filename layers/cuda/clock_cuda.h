/* clock_cuda -- implementation of layers/device_clock.h for the device of a rank: marks are CUDA
 * events. */
#ifndef LAYERS_CUDA_CLOCK_CUDA_H
#define LAYERS_CUDA_CLOCK_CUDA_H

#include "layers/cuda/streams.h"
#include "layers/device_clock.h"

extern const DeviceClock device_marks;
/* Local. A mark in any stream of the device. Before DeviceClock.end the rank's own stream must have
 * followed this mark through an event. */
Moment device_mark(Stream s);

#endif
