#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/checkpoint_parts.h"
#include "data/io.h"
#include "data/temporary.h"

/* ---- names ---- */

/* The step of "step_00001000", or -1. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step_", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, &end, 10);
    return *end ? -1 : step;
}

char *step_build_path(const char *save_dir, int64_t step) {
    char *hidden = mem_printf("%s/.step_%08lld", save_dir, (long long)step);
    char *path = temporary_name(hidden);
    mem_free(hidden);
    return path;
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of all folders step_*, newest first; freed by mem_free. */
static int64_t *list_steps(const char *save_dir, int *n) {
    int64_t *steps = NULL;
    *n = 0;
    DIR *d = opendir(save_dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        int64_t step = step_of(x->d_name);
        if (step < 0) continue;
        steps = mem_realloc(steps, (size_t)*n + 1, sizeof *steps);
        steps[(*n)++] = step;
    }
    if (d) closedir(d);
    if (*n) qsort(steps, (size_t)*n, sizeof *steps, newest_first);
    return steps;
}

char *step_path(const char *save_dir, int64_t step) {
    return mem_printf("%s/step_%08lld", save_dir, (long long)step);
}

/* ---- one run at a time ---- */

/* The file is never removed: who opened it before and locks it after its removal would hold
 * nothing. */
static bool lock_file(const char *save_dir, const char *path, int *lock, Err *e) {
    char who[160] = "", host[64] = "host";
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0) return err(e, "cannot create %s: %s", path, strerror(errno));
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) {
        gethostname(host, sizeof host - 1);
        int n = snprintf(who, sizeof who, "process %ld on %s\n", (long)getpid(), host);
        if (ftruncate(*lock, 0) || pwrite(*lock, who, (size_t)n, 0) != n)
            warn("%s: %s", path, strerror(errno)); // locked all the same, without a name
        // The holder alone saves here: every temporary is of a run that has ended. Process ids do
        // not say so, as a killed process that its parent has not yet waited for still has one.
        temporary_clean(save_dir, ".step_", true);
        return true;
    }
    if (errno != EWOULDBLOCK) {
        warn("%s: %s; see to it that no other run saves there", path, strerror(errno));
        return true;
    }
    ssize_t n = pread(*lock, who, sizeof who - 1, 0);
    who[n > 0 ? n : 0] = 0;
    who[strcspn(who, "\n")] = 0;
    checkpoint_unlock(*lock), *lock = -1;
    return err(e, "%.300s is held by %s, another run: wait for its end, or name another folder",
               path, *who ? who : "some process");
}

bool checkpoint_lock(const char *save_dir, const Group *g, int *lock, Err *e) {
    char *path = mem_printf("%s/.lock", save_dir);
    *lock = -1;
    bool mine = g->rank != 0 || (io_make_dirs(save_dir, e) && lock_file(save_dir, path, lock, e));
    mem_free(path);
    return group_agree(g, mine, e);
}

void checkpoint_unlock(int lock) {
    if (lock >= 0) close(lock);
}

/* ---- the newest ---- */

/* Of this machine's view; what is not whole is named. */
static char *latest(const char *save_dir, int64_t *step) {
    int n;
    int64_t *steps = list_steps(save_dir, &n);
    char *found = NULL;
    for (int i = 0; i < n && !found; i++) {
        Err why;
        char *path = step_path(save_dir, steps[i]);
        json_t *m = manifest_read(path, &why);
        if (m) {
            found = path;
            *step = steps[i];
        } else {
            warn("passed over: %s", why.text);
            mem_free(path);
        }
        json_decref(m);
    }
    mem_free(steps);
    return found;
}

char *checkpoint_latest(const char *save_dir, int64_t *step, const Group *g) {
    int64_t newest = -1;
    char *mine = g->rank == 0 ? latest(save_dir, &newest) : NULL, *path = group_share_text(g, mine);
    group_share(g, &newest, sizeof newest);
    if (step && path) *step = newest;
    mem_free(mine);
    return path;
}

/* ---- rotation ---- */

/* Renamed first: a folder that is half removed must not look like a checkpoint. */
static void remove_checkpoint(const char *path, const char *aside) {
    Err e;
    if (!io_rename(path, aside, &e) || !io_remove_tree(aside, &e))
        warn("old checkpoint not removed: %s", e.text);
}

void steps_rotate(const char *save_dir, int64_t newest, const CheckpointOptions *o,
                  const char *aside) {
    if (!o || o->keep_last <= 0) return;
    int n, kept = 1;
    int64_t *steps = list_steps(save_dir, &n);
    for (int i = 0; i < n; i++) {
        if (steps[i] >= newest || (o->keep_every > 0 && steps[i] % o->keep_every == 0)) continue;
        char *path = step_path(save_dir, steps[i]);
        json_t *m = manifest_read(path, NULL);
        if (m && ++kept > o->keep_last) remove_checkpoint(path, aside);
        json_decref(m);
        mem_free(path);
    }
    mem_free(steps);
}
