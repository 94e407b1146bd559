/* clock_cuda -- layers/device_clock.h for the device of a rank, whose marks are CUDA's events. */
#ifndef LAYERS_CUDA_CLOCK_CUDA_H
#define LAYERS_CUDA_CLOCK_CUDA_H

#include "layers/cuda/streams.h"
#include "layers/device_clock.h"

extern const DeviceClock device_marks;
/* Local. A mark in any stream of the device. The rank's own stream is behind it before
 * DeviceClock.end, by an event. */
Moment device_mark(Stream s);

#endif
