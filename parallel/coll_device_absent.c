/* A build without CUDA: no rank has a device. */
#include "base/die.h"
#include "parallel/devices.h"

void world_use_devices(World *w) {
    (void)w;
    die("this program was built without CUDA");
}
