/* coll_record -- collectives in CUDA graphs (layers/cuda/graph.h): the host side of recording and
 * replaying them.
 *
 *     r = world_record(w)          recording begins
 *     device_capture() ... coll_start ... coll_wait ...
 *     world_recorded(r)            all communication streams have joined the rank's own
 *     g = device_captured()
 *     world_replay(r, replay, g)   calls replay(g), once per execution, the first one included
 *
 * All ranks of a group record the same calls and replay them in the same order. A recording counts
 * nothing. A replay counts calls and bytes of its collectives, but no seconds: the host does not
 * wait. A ticket started while recording is waited for while recording.
 */
#ifndef PARALLEL_COMM_COLL_RECORD_H
#define PARALLEL_COMM_COLL_RECORD_H

#include "parallel/comm/coll.h"

typedef struct CollRecording CollRecording;

/* Local. The reason why collectives on device memory cannot be recorded; NULL: they can. risk:
 * accept the possible deadlock of several GPUs in one process. */
const char *world_record_obstacle(const World *w, bool risk);

/* Local, all four. Free a recording before the groups of its calls. With one rank there are no
 * collectives, w may be NULL, and the recording is NULL. */
CollRecording *world_record(World *w);
void world_recorded(CollRecording *r);
void world_replay(CollRecording *r, void (*replay)(void *recording), void *recording);
void world_record_free(CollRecording *r);

/* A backend's part of these functions; r is the backend's own recording. */
typedef struct CollRecorder {
    const char *(*obstacle)(const World *w, bool risk);
    void *(*record)(World *w);
    void (*recorded)(World *w, void *r);
    void (*replay)(World *w, void *r, void (*launch)(void *recording), void *recording);
    void (*free)(World *w, void *r);
} CollRecorder;

/* For coll.c. Adds a call that starts while w records; replays count it in this row of the
 * counters. Dies for a call that cannot be recorded. */
void recording_add(World *w, const Comm *c, const CollCall *call, bool on_device, int row);

#endif
