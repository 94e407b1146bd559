/* coll_mpi_absent -- replaces coll_mpi.c in a build without MPI. */
#include <stdio.h>

#include "base/die.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/comm/ranks.h"

void ranks_mpi_version(char *text, size_t n) {
    snprintf(text, n, "none: built without MPI");
}

World *world_mpi_open(int rank, double limit) {
    (void)rank, (void)limit;
    die_usage("a launcher started this program, but it was built without MPI: install "
              "libopenmpi-dev and build again, or use --ranks");
}
