#include "parallel/comm/coll_record.h"

#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/coll_backend.h"

struct CollRecording {
    World *world;
    void *impl; // the backend's recording
    struct {
        int64_t calls, bytes;
    } * row; // [n_rows] per replay, for each row of the world's counters
    int n_rows;
};

const char *world_record_obstacle(const World *w, bool risk) {
    return w->device->recorder ? w->device->recorder->obstacle(w, risk)
                               : "a recording has only one rank";
}

/* Dies if a collective is open. A collective may not start before the start or end of a recording
 * and be waited for after it. */
static void check_closed(const CollRecording *r) {
    if (r->world->n_open > 0)
        die("%d collectives are open where a recording begins or ends", r->world->n_open);
}

CollRecording *world_record(World *w) {
    if (!w || !w->device || !w->device->recorder) return NULL;
    CollRecording *r = mem_calloc(1, sizeof *r);
    r->world = w;
    check_closed(r);
    r->impl = w->device->recorder->record(w);
    return w->recording = r;
}

void world_recorded(CollRecording *r) {
    if (!r) return;
    check_closed(r);
    r->world->device->recorder->recorded(r->world, r->impl);
    r->world->recording = NULL;
}

void world_replay(CollRecording *r, void (*replay)(void *recording), void *recording) {
    if (!r) {
        replay(recording);
        return;
    }
    check_closed(r);
    r->world->device->recorder->replay(r->world, r->impl, replay, recording);
    for (int i = 0; i < r->n_rows; i++) {
        CollCount *count = &r->world->rows[i].count;
        count->calls += r->row[i].calls, count->bytes += r->row[i].bytes;
    }
}

void world_record_free(CollRecording *r) {
    if (!r) return;
    r->world->device->recorder->free(r->world, r->impl);
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
