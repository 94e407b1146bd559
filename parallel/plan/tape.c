#include "parallel/plan/tape.h"

#include "base/mem.h"
#include "parallel/comm/coll_backend.h"
#include "parallel/plan/price_kernels.h"

#define grow(list, n, max)                                                                         \
    do {                                                                                           \
        if ((n) < (max)) break;                                                                    \
        (max) = (max) ? 2 * (max) : 64;                                                            \
        (list) = mem_realloc(list, (size_t)(max), sizeof *(list));                                 \
    } while (0)

void tape_event(Tape *t, EventKind kind, int index, int slot) {
    grow(t->event, t->n_events, t->max_events);
    t->event[t->n_events++] =
        (Event){.kind = (uint8_t)kind, .slot = (uint16_t)slot, .index = index};
}

static bool same_work(const Work *a, const Work *b) {
    return a->kind == b->kind && a->rows == b->rows && a->a == b->a && a->b == b->b &&
           a->c == b->c && a->d == b->d && a->flags == b->flags && a->threads == b->threads;
}

/* Where a work was found last. */
static uint16_t *found_of(Tape *t, const Work *w) {
    uint64_t h = (uint64_t)w->kind + 3 * w->flags + (uint64_t)(w->rows + 5 * w->a + 7 * w->b);
    return &t->found[h * 0x9e3779b97f4a7c15u >> 56];
}

void tape_work(Tape *t, const Work *w) {
    uint16_t *found = found_of(t, w);
    int i = *found < t->n_works && same_work(&t->work[*found], w) ? *found + 1 : t->n_works;
    while (i > 0 && !same_work(&t->work[i - 1], w)) i--; // what was asked last is asked again
    if (i == 0) {
        grow(t->work, t->n_works, t->max_works);
        t->work[t->n_works++] = *w;
        i = t->n_works;
    }
    *found = (uint16_t)(i - 1);
    tape_event(t, EVENT_WORK, i - 1, 0);
}

int tape_send(Tape *t, const Send *s) {
    for (int i = t->n_sends; i > 0; i--) {
        const Send *o = &t->send[i - 1];
        if (o->op == s->op && o->group == s->group && o->bytes == s->bytes &&
            o->received == s->received && o->what == s->what)
            return i - 1;
    }
    grow(t->send, t->n_sends, t->max_sends);
    t->send[t->n_sends] = *s;
    return t->n_sends++;
}

/* The only send of a run that is of one kind with s; NULL: there is none, or there are
 * more. */
static const Send *only_of_kind(const Tape *t, const TapeRun *r, const Send *s) {
    const Send *found = NULL;
    for (int i = r->begin[PART_ZERO]; i < r->begin[N_TAPE_PARTS]; i++) {
        if (t->event[i].kind != EVENT_START) continue;
        const Send *o = &t->send[t->event[i].index];
        if (o->op != s->op || o->group != s->group || o->what != s->what) continue;
        if (found) return NULL;
        found = o;
    }
    return found;
}

static int64_t received(const Tape *t, const Send *s, int64_t bytes) {
    const TapeGroup *g = &t->group[s->group];
    CollCall call = {.op = s->op, .type = COLL_U8, .rows = 1, .cols = bytes / s->type_bytes};
    return s->type_bytes * coll_bytes(&call, g->rank, g->size);
}

int tape_uneven(const Tape *t, int i, int64_t *bytes) {
    int more = t->recorded[1] - t->recorded[0];
    for (int k = 0; more > 0 && k < t->n_sends; k++) {
        const Send *a = &t->send[k];
        if (a->op != COLL_ALL_REDUCE || only_of_kind(t, &t->run[0], a) != a) continue;
        const Send *b = only_of_kind(t, &t->run[1], a);
        if (!b || b->bytes == a->bytes) continue;
        int64_t extra = (t->layers - t->recorded[0]) / more;
        *bytes = received(t, a, a->bytes + extra * (b->bytes - a->bytes)) -
                 (a->received + extra * (b->received - a->received));
        if (i-- == 0) return k;
    }
    return -1;
}

/* Bytes that a run's meeting sums up; the last of its sends. */
static int64_t met_bytes(const Tape *t, const TapeRun *r, Send *last, int *calls) {
    int64_t bytes = 0;
    *calls = 0;
    for (int i = r->begin[N_TAPE_PARTS]; i < r->met; i++) {
        if (t->event[i].kind != EVENT_START) continue;
        *last = t->send[t->event[i].index];
        bytes += last->bytes, ++*calls;
    }
    return bytes;
}

bool tape_meeting(const Tape *t, Send *s, int *calls) {
    int more = t->recorded[1] - t->recorded[0], n[2] = {0};
    int64_t bytes[2] = {0}, all;
    for (int i = 0; i < (more ? 2 : 1); i++) bytes[i] = met_bytes(t, &t->run[i], s, &n[i]);
    if (n[0] == 0) return false;
    all = bytes[0] + (more ? (t->layers - t->recorded[0]) / more * (bytes[1] - bytes[0]) : 0);
    *calls =
        n[1] > n[0] ? n[1] : n[0]; // small models may have less tensors than there are fragments
    s->received = received(t, s, all);
    s->bytes = all / *calls;
    return true;
}

static int64_t events_of(const Tape *t, const TapeRun *r) {
    const int *at = r->begin;
    return at[N_TAPE_PARTS] - at[PART_ZERO] + (t->repeats - 1) * (at[PART_LAST] - at[PART_MICRO_2]);
}

int64_t tape_events(const Tape *t) {
    int more = t->recorded[1] - t->recorded[0];
    int64_t n = events_of(t, &t->run[0]);
    return n + (more ? (t->layers - t->recorded[0]) / more * (events_of(t, &t->run[1]) - n) : 0);
}

void tape_free(Tape *t) {
    mem_free(t->event);
    mem_free(t->work);
    mem_free(t->send);
    *t = (Tape){0};
}
