/* nccl_job -- ranks with an emulated device each, which do not reach each other: they need NCCL. */
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
    void *ctx;        // NULL: this job
    bool late;        // do streams run late?
    unsigned shuffle; // and in which order
    int version;      // of the library; 0: the newest
    EmuNcclMood mood; // for main
    const char *says; // of a job that is ended: words
} NcclJob;

static inline int nccl_run(NcclJob job) {
    EmuSetup s = {.late = job.late, .shuffle = job.shuffle, .devices = job.n, .apart = true};
    emu_nccl_version(job.version ? job.version : NCCL_NEWEST); // nothing is counted yet
    int result = cuda_ranks_run(job.n, s, job.main, job.ctx ? job.ctx : &job);
    if (job.version) emu_nccl_version(NCCL_NEWEST);
    return result;
}

/* For test_in_child. */
static inline void nccl_job(void *job) {
    nccl_run(*(NcclJob *)job);
}

/* Is each of these jobs ended, with its words? */
static inline void nccl_check_ended(const NcclJob *job, int n) {
    for (int i = 0; i < n; i++) {
        NcclJob j = job[i];
        CHECK_CHILD(1, nccl_job, &j, j.says);
    }
}

#endif
