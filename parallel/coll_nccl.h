/* coll_nccl -- what the files of NCCL's backend share: coll_nccl.c (groups and calls), coll_nccl_record.c (calls that are
 * recorded), coll_nccl_memory.c (memory that is registered), coll_nccl_watch.c (a call that stalls, and the end of the job). */
#ifndef PARALLEL_COLL_NCCL_H
#define PARALLEL_COLL_NCCL_H

#include <pthread.h>

#include "parallel/coll_device.h"
#include "parallel/nccl.h"

// calls that the host may be ahead of the device; pieces of memory that are registered at the same time
enum { IN_LINE = 256, MAX_LENT = 32 };

typedef struct Called {
    CollCall call;
    const Comm *comm;
} Called;

/* Calls that are recorded, in the order in which they run. */
typedef struct NcclRecording {
    Called *called;
    int n, room;
    uint32_t *note; // pinned, of the replay that runs: 2i + 1: call i is under way, 2i + 2: done
} NcclRecording;

/* A call in the urgent stream, or a replay in the rank's own. */
typedef struct Turn {
    Event ready, begun, done;
    Called called;
    const NcclRecording *replay; // NULL: a call
    double limit, since;         // since: it is under way, as far as the watchdog saw; 0: not yet
    uint32_t note;               // that the watchdog saw last
    bool in_stream;              // all of it
} Turn;

typedef struct NcclGroup {
    NcclComm comm;
    Comm *of;
    struct NcclGroup *next, *next_open; // of the world, of all of this process
    Event done[COLL_IN_FLIGHT];         // behind its calls
    Event recorded[COLL_IN_FLIGHT]; // the same of those that are recorded: nobody asks for these
    void *window[MAX_LENT], *buffer[MAX_LENT]; // of lent[i] of the world; NULL: none
} NcclGroup;

typedef struct NcclWorld {
    const Nccl *f;
    Stream urgent;
    int under_way;            // calls that are not waited for
    NcclRecording *recording; // that is made; or NULL
    Stream notes;             // of recordings: beside the urgent stream, for no call to wait
    Event fork; // of recordings: the last place at which a stream followed another one
    struct {
        void *p; // NULL: free
        size_t n_bytes;
    } lent[MAX_LENT];
    int device;
    DieRank name;
    pthread_t watchdog;
    pthread_mutex_t lock; // of what follows
    pthread_cond_t change;
    Turn turn[IN_LINE];  // number k is kept in turn[k % IN_LINE]
    uint64_t first, end; // [first, end) are not known to be done
    NcclGroup *groups;
    struct {
        const Comm *comm; // NULL: none
        const char *what;
        double since, limit;
    } opening; // what NCCL does on all hosts of a group together
    bool ends;
} NcclWorld;

/* Local. Ends the job with NCCL's words where a call did not go well. */
void nccl_check(const NcclWorld *n, int result, const char *what, const Comm *c);

/* Local. The next turn in line, of this call or replay with its limit; the host waits where it is too far ahead. All of it
 * is in its stream. Waits for the last. */
Turn *nccl_turn_take(NcclWorld *n, const Turn *of);
void nccl_turn_given(NcclWorld *n, Turn *t);
void nccl_settle(const NcclWorld *n);
/* Local. The world can record from now on. */
void nccl_record_open(const NcclWorld *n);
/* Local. One more call of the recording is put into the urgent stream, between these two. */
void nccl_record_begin(NcclWorld *n, const Comm *c, const CollCall *call);
void nccl_record_end(NcclWorld *n, Event done);

/* Entries of the backend's table. */
extern const struct CollRecorder nccl_recorder;
const ArenaMemory *nccl_memory(const World *w, const ArenaMemory *memory);
void nccl_lend(World *w, void *p, size_t n_bytes);
void nccl_take_back(World *w, void *p);
/* Collective over the group, which was just opened, or is about to be closed: all memory of the world. */
void nccl_register_all(NcclWorld *n, NcclGroup *g);
void nccl_deregister_all(const NcclWorld *n, NcclGroup *g);

/* Local. A thread that looks at the world's calls, until it is stopped. */
void nccl_watch_start(NcclWorld *n);
void nccl_watch_stop(NcclWorld *n);
/* Local. A communicator to be aborted when the process ends early, and no more so. */
void nccl_watch_open(NcclWorld *n, NcclGroup *g);
void nccl_watch_close(NcclWorld *n, NcclGroup *g);
/* Local. This rank's host is in a call of NCCL that waits for the others' hosts: "a communicator"; NULL: it is back. */
void nccl_watch_host(NcclWorld *n, const Comm *c, const char *what);

#endif
