#include "parallel/step/overlap.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt.h"

enum { FLAG_CHUNK = 1, N_FLAGS = 5 };
static const char *const flags[N_FLAGS] = {"bulk", "chunk=", "ring", "fused", "halves"};

static bool wrong(Err *e, const char *flag) {
    const char *near = opt_nearest(flag, flags, N_FLAGS);
    return err_set(
        e,
        "overlap: unknown flag \"%.40s\"%s%s%s (none, or the flags bulk chunk=n ring fused halves)",
        flag, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* Reads one flag of --overlap into o. */
static bool read_flag(Overlap *o, const char *flag, Err *e) {
    bool chunked = o->chunks > 0;
    bool *const set[N_FLAGS] = {&o->bulk, &chunked, &o->ring, &o->fused, &o->halves}; // as `flags`
    long n = o->chunks;
    int i = 0;
    while (i < N_FLAGS && strncmp(flag, flags[i], strlen(flags[i])) != 0) i++;
    if (i == N_FLAGS || (i != FLAG_CHUNK && strcmp(flag, flags[i]) != 0)) return wrong(e, flag);
    if (i == FLAG_CHUNK) {
        const char *digits = flag + strlen(flags[i]);
        n = strtol(digits, NULL, 10);
        if (!*digits || digits[strspn(digits, "0123456789")] || n < 2 || n > MAX_CHUNKS)
            return err_set(e, "overlap: %.40s: a matmul is split into 2 to %d chunks", flag,
                           MAX_CHUNKS);
    }
    if (*set[i]) return err_set(e, "overlap: %.40s: given twice", flags[i]);
    *set[i] = true, o->chunks = (int)n;
    return true;
}

bool overlap_parse(Overlap *o, const char *text, Err *e) {
    *o = (Overlap){0};
    if (strcmp(text, "none") == 0) return true;
    char *copy = mem_strdup(text), *rest = copy;
    bool good = true;
    for (char *flag; good && (flag = strsep(&rest, "+")) != NULL;) good = read_flag(o, flag, e);
    mem_free(copy);
    o->bulk |= o->chunks || o->ring || o->halves;
    if (good && o->ring && o->chunks)
        return err_set(e, "overlap: %s: a matmul is split by chunk or by ring, not by both", text);
    if (good && o->fused && (o->ring || o->chunks))
        return err_set(e, "overlap: %s: a matmul is split, or fused with its collective, not both",
                       text);
    return good;
}

bool overlap_check_micro(const Overlap *o, const char *text, int64_t micro, Err *e) {
    if (!o->halves || micro % 2 == 0) return true;
    return err_set(e,
                   "overlap %s: a micro-batch of %" PRId64
                   " sequence%s cannot be split into halves: an even --micro, or other flags",
                   text, micro, micro > 1 ? "s" : "");
}

const char *overlap_print(const Overlap *o, char buf[OVERLAP_TEXT]) {
    char chunk[16] = "";
    if (o->chunks) snprintf(chunk, sizeof chunk, "+chunk=%d", o->chunks);
    int n = snprintf(buf, OVERLAP_TEXT, "%s%s%s%s%s", o->bulk ? "+bulk" : "", chunk,
                     o->ring ? "+ring" : "", o->fused ? "+fused" : "", o->halves ? "+halves" : "");
    if (n == 0) return strcpy(buf, "none");
    return memmove(buf, buf + 1, (size_t)n); // without the first '+'
}

const char *overlap_idle(const Overlap *o, const Layout *l) {
    int X = l->size[AXIS_X], Y = l->size[AXIS_Y];
    bool gathered = l->sp && X > 1;
    static_assert(MAX_RING == 15 && MAX_STRIPES == 256, "numbers of these texts");
    if ((o->ring || o->fused) && !gathered)
        return "its tokens are gathered along no axis (needs x and the flag sp)";
    if (o->ring && X > MAX_RING) return "a ring is of 15 ranks at most";
    if (o->chunks && l->stay) return "stay=y already computes its matmuls in panels";
    if (o->chunks && X * Y < 2) return "its matmuls wait for no collective (needs x or y)";
    if (o->chunks && l->sp && X > MAX_STRIPES) return "tokens are sharded over more than 256 ranks";
    return NULL;
}

bool overlap_equal(const Overlap *a, const Overlap *b) {
    return a->bulk == b->bulk && a->ring == b->ring && a->halves == b->halves &&
           a->chunks == b->chunks && a->fused == b->fused;
}
