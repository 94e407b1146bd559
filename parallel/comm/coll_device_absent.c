/* coll_device_absent -- replaces the device backends in a build without CUDA. */
#include "base/die.h"
#include "parallel/comm/devices.h"

bool world_devices_fit(World *w, Err *e) {
    (void)w;
    return err(e, "this program was built without CUDA");
}
void world_use_devices(World *w) {
    (void)w;
    die("this program was built without CUDA");
}
