#include "parallel/comm/coll_record.h"

#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_backend.h"

struct CollRecording {
    World *world; // NULL: no collectives
    void *impl;   // the backend's recording
    struct {
        int64_t calls, bytes;
    } * row; // [n_rows] per replay, for each row of the world's counters
    int n_rows;
};

const char *world_record_obstacle(const World *w, bool risk) {
    return w->device->recorder ? w->device->recorder->obstacle(w, risk)
                               : "a recording has only one rank";
}

/* The device backend's recorder; NULL: there is none. */
static const CollRecorder *recorder_of(const World *w) {
    return w && w->device ? w->device->recorder : NULL;
}

/* Dies if a collective is open. A collective may not start before the start or end of a recording
 * and be waited for after it. */
static void check_closed(const CollRecording *r) {
    if (r->world && r->world->n_open > 0)
        die("%d collectives are open where a recording begins or ends", r->world->n_open);
}

CollRecording *world_record(World *w) {
    CollRecording *r = mem_calloc(1, sizeof *r);
    r->world = w;
    check_closed(r);
    if (recorder_of(w)) r->impl = recorder_of(w)->record(w);
    if (w) w->recording = r;
    return r;
}

void world_recorded(CollRecording *r) {
    check_closed(r);
    if (recorder_of(r->world)) recorder_of(r->world)->recorded(r->world, r->impl);
    if (r->world) r->world->recording = NULL;
}

void world_replay(CollRecording *r, void (*replay)(void *recording), void *recording) {
    check_closed(r);
    if (recorder_of(r->world))
        recorder_of(r->world)->replay(r->world, r->impl, replay, recording);
    else
        replay(recording);
    for (int i = 0; i < r->n_rows; i++) {
        CollCount *count = &r->world->rows[i].count;
        count->calls += r->row[i].calls, count->bytes += r->row[i].bytes;
    }
}

void world_record_free(CollRecording *r) {
    if (recorder_of(r->world)) recorder_of(r->world)->free(r->world, r->impl);
    mem_free(r->row);
    mem_free(r);
}

void recording_add(World *w, const Comm *c, const CollCall *call, bool on_device, int row) {
    CollRecording *r = w->recording;
    if (!on_device && c->size > 1 && coll_elements(call) > 0)
        die("collective \"%s\" along %s: a collective on host memory cannot be recorded",
            call->what, c->label);
    if (row >= r->n_rows) {
        r->row = mem_realloc(r->row, (size_t)w->n_rows, sizeof *r->row);
        for (; r->n_rows < w->n_rows; r->n_rows++)
            r->row[r->n_rows].calls = r->row[r->n_rows].bytes = 0;
    }
    r->row[row].calls++, r->row[row].bytes += coll_bytes(call, c->rank, c->size);
}
