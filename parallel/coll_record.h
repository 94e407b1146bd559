/* coll_record -- collectives among calls that are recorded and replayed (layers/cuda/graph.h): what has to be done beside the
 * streams.
 *
 *     r = world_record(w)          from here on
 *     device_capture() ... coll_start ... coll_wait ...
 *     world_recorded(r)            all streams of collectives are back in the rank's own
 *     g = device_captured()
 *     world_replay(r, replay, g)   calls replay(g), once for each time that the calls are to be made: the first time, too
 *
 * Whether a call is recorded is the same on all ranks of its group, and so is what they replay, in the same order. A
 * recording counts nothing; a replay counts what the calls would: calls, bytes, but no seconds, which the host does not
 * spend. Tickets are waited for on the same side of world_recorded and world_replay as they were started.
 */
#ifndef PARALLEL_COLL_RECORD_H
#define PARALLEL_COLL_RECORD_H

#include "parallel/coll.h"

typedef struct CollRecording CollRecording;

/* Local. What keeps collectives of devices from being recorded, in words; NULL: nothing. risk: what may go wrong where there
 * are several GPUs in a process is no obstacle. A w of NULL has no collectives, here and below. */
const char *world_record_obstacle(const World *w, bool risk);

/* Local, each. A recording is given back before the groups of its calls are. */
CollRecording *world_record(World *w);
void world_recorded(CollRecording *r);
void world_replay(CollRecording *r, void (*replay)(void *recording), void *recording);
void world_record_free(CollRecording *r);

/* Of a backend: what these do in it, with a recording of its own; and what replays it. */
typedef struct CollRecorder {
    const char *(*obstacle)(const World *w, bool risk);
    void *(*record)(World *w);
    void (*recorded)(World *w, void *r);
    void (*replay)(World *w, void *r, void (*launch)(void *recording), void *recording);
    void (*free)(World *w, void *r);
} CollRecorder;

/* Of coll.c. A call that begins while w records: dies of what cannot be recorded. And it is counted in this row, later. */
void recording_add(World *w, const Comm *c, const CollCall *call, bool on_device, int row);

#endif
