/* coll_mpi_absent -- stands in for coll_mpi.c where there is no MPI. */
#include "base/die.h"
#include "parallel/coll_backend.h"

World *world_mpi_open(int rank, double limit) {
    (void)rank, (void)limit;
    die_usage("a launcher started this program, but it was built without MPI: install "
              "libopenmpi-dev and build again, or use --ranks");
}
