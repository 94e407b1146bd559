/* nccl_job -- runs ranks with an emulated device each. The devices do not access each other's
 * memory, so the ranks need NCCL. */
#ifndef TESTS_NCCL_JOB_H
#define TESTS_NCCL_JOB_H

#include "parallel/comm/coll_backend.h"
#include "parallel/comm/nccl.h"
#include "tests/cuda_ranks.h"
#include "tests/emu/emu_nccl.h"
#include "tests/test.h"

enum { NCCL_NEWEST = 22809, NCCL_WITHOUT_WINDOWS = 21903 };

typedef struct NcclJob {
    int n;
    int (*main)(World *w, void *ctx);
    void *ctx;          // NULL: this job
    bool late;          // streams run late
    unsigned shuffle;   // order of late streams (EmuSetup)
    int version;        // version of NCCL; 0: the newest
    EmuNcclFault fault; // set by main
    const char *says;   // text that the end of a failing job prints
} NcclJob;

static inline int nccl_run(NcclJob job) {
    EmuSetup s = {.late = job.late, .shuffle = job.shuffle, .devices = job.n, .apart = true};
    emu_nccl_version(job.version ? job.version : NCCL_NEWEST); // resets the counts
    int result = cuda_ranks_run(job.n, s, job.main, job.ctx ? job.ctx : &job);
    if (job.version) emu_nccl_version(NCCL_NEWEST);
    return result;
}

/* For test_in_child. */
static inline void nccl_job(void *job) {
    nccl_run(*(NcclJob *)job);
}

/* Does each of these jobs fail, and print its text? */
static inline void nccl_check_ended(const NcclJob *job, int n) {
    for (int i = 0; i < n; i++) {
        NcclJob j = job[i];
        CHECK_CHILD(1, nccl_job, &j, j.says);
    }
}

#endif
