#include "data/output.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/claim.h"
#include "base/mem.h"
#include "base/path.h"

/* ---- names of temporary files */

/* "HOST-" of this machine: a process id means nothing elsewhere. */
static char *host_prefix(void) {
    char host[HOST_NAME_MAX + 1] = "host";
    gethostname(host, sizeof host);
    return mem_printf("%s-", host);
}

char *temporary_name(const char *path) {
    char *host = host_prefix(), *name = mem_printf("%s.tmp-%s%ld", path, host, (long)getpid());
    mem_free(host);
    return name;
}

/* May the process "HOST-PID" still be writing? A process of another machine always may. */
static bool owner_is_alive(const char *owner, const char *host) {
    char *end;
    if (strncmp(owner, host, strlen(host)) != 0) return true;
    long pid = strtol(owner + strlen(host), &end, 10);
    if (*end || pid <= 0) return true;
    return pid != (long)getpid() && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

void temporary_clean(const char *dir, const char *prefix, bool all) {
    char *host = host_prefix();
    DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        if (strncmp(x->d_name, prefix, strlen(prefix)) != 0) continue;
        const char *tail = strstr(x->d_name + strlen(prefix), ".tmp-");
        if (!tail || (!all && owner_is_alive(tail + 5, host))) continue;
        char *path = mem_printf("%s/%s", dir, x->d_name);
        if (!io_remove_tree(path, NULL))
            warn("cannot remove %s, which a killed process left behind", path);
        mem_free(path);
    }
    if (d) closedir(d);
    mem_free(host);
}

/* ---- outputs */

/* Path of the file at the end of a chain of links, which need not exist; NULL: the links form a
 * circle. */
static char *follow_links(const char *path) {
    char *now = mem_strdup(path), to[4096];
    for (int i = 0; i < 40; i++) {
        ssize_t n = readlink(now, to, sizeof to - 1);
        if (n < 0) return now;
        to[n] = 0;
        int dir = to[0] == '/' ? 0 : (int)(path_name(now) - now);
        char *next = mem_printf("%.*s%s", dir, now, to);
        mem_free(now), now = next;
    }
    mem_free(now);
    return NULL;
}

bool output_open(Output *o, const char *path, bool regular, Err *e) {
    struct stat st;
    bool there = stat(path, &st) == 0;
    *o = (Output){0};
    if ((there && S_ISDIR(st.st_mode)) || path_ends(path, "/"))
        return err(e, "%s is a directory: name a file", path);
    int standard = io_stdout(path);
    if (standard >= 0) close(standard);
    o->in_place = standard >= 0 || (there && !S_ISREG(st.st_mode));
    if (regular && o->in_place)
        return err(
            e, "%s is no regular file: this format is not written from front to back and needs one",
            path);
    o->path = o->in_place ? mem_strdup(path) : follow_links(path);
    if (!o->path) return err(e, "cannot write %s: %s", path, strerror(ELOOP));
    char *dir = path_folder(o->path);
    bool ok = o->in_place || io_make_dirs(dir, e);
    if (ok && !o->in_place) temporary_clean(dir, path_name(o->path), false);
    mem_free(dir);
    if (!ok) return false;
    o->part = o->in_place ? mem_strdup(path) : temporary_name(o->path);
    return true;
}

/* Syncs the folder of a renamed file, so that the new name survives a power failure. */
static void sync_dir_of(const char *path) {
    Err e;
    char *dir = path_folder(path);
    if (!io_sync_dir(dir, &e)) warn("%s", e.text);
    mem_free(dir);
}

/* Gives the new file the permissions of the file that it replaces; warns where this fails. */
static void keep_mode(const Output *o) {
    struct stat st;
    if (stat(o->path, &st) || chmod(o->part, st.st_mode & 0777) == 0) return;
    warn("cannot keep the permissions of %s: %s", o->path, strerror(errno));
}

bool output_commit(Output *o, Err *e) {
    if (!o->in_place) keep_mode(o);
    bool ok = o->in_place || io_rename(o->part, o->path, e);
    if (ok && !o->in_place) sync_dir_of(o->path);
    output_abandon(o); // after the renaming nothing is left to remove
    return ok;
}

void output_abandon(Output *o) {
    if (o->part && !o->in_place) unlink(o->part);
    mem_free(o->path), mem_free(o->part);
    *o = (Output){0};
}

bool output_possible(const char *path, bool regular, const Group *g, Err *e) {
    Output o = {0};
    IoFile f;
    bool ok = group_agree(g, g->rank != 0 || output_open(&o, path, regular, e), e);
    char *part = group_broadcast_text(g, o.in_place ? NULL : o.part);
    ok = ok && (!part || io_share(&f, part, 0, g, e));
    if (ok && part) io_abandon(&f);
    output_abandon(&o);
    if (!ok) group_barrier(g); // rank 0 has removed its file before any rank may end the program
    mem_free(part);
    return ok;
}

/* ---- written from front to back */

struct Replace {
    const char *what; // the option that names the file in messages: "--svg", or ""
    Output out;
    IoFile file;
    bool finished;
    Replace *next; // the next open Replace
};

static Replace *open_replaces;

void replace_abandon_all(int status) {
    (void)status;
    for (Replace *r = open_replaces; r; r = r->next)
        if (r->out.part && !r->out.in_place) unlink(r->out.part);
}

static void check_or_die(const Replace *r, bool ok, const Err *e) {
    if (ok) return;
    replace_abandon_all(0);
    open_replaces = NULL;
    die_user("%s%s%s; no file was left half-written", r->what, *r->what ? ": " : "", e->text);
}

static Replace *replace_begin(const char *what, const char *path, bool regular) {
    Err e;
    Replace *r = mem_calloc(1, sizeof *r);
    r->what = what;
    check_or_die(r, output_open(&r->out, path, regular, &e), &e);
    if (!*what) { // the path of an option was claimed before inputs were opened
        check_or_die(r, claim_output("the output", r->out.path, &e), &e);
        claim_output_end("the output");
    }
    r->next = open_replaces;
    open_replaces = r; // before the file exists, so that a signal finds it
    check_or_die(r, io_create(&r->file, r->out.part, &e), &e);
    return r;
}

Replace *replace_open(const char *path, bool regular) {
    return replace_begin("", path, regular);
}

void replace_write(Replace *r, const void *p, size_t n) {
    Err e;
    check_or_die(r, io_put(&r->file, r->file.n_bytes, p, n, &e), &e);
}

void replace_patch(Replace *r, uint64_t offset, const void *p, size_t n) {
    Err e;
    check_or_die(r, io_put(&r->file, offset, p, n, &e), &e);
}

void replace_finish(Replace *r) {
    Err e;
    if (!r->finished) check_or_die(r, io_finish(&r->file, NULL, &e), &e);
    r->finished = true;
}

void replace_commit(Replace *r) {
    Err e;
    replace_finish(r);
    check_or_die(r, output_commit(&r->out, &e), &e);
    Replace **link = &open_replaces;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    mem_free(r);
}

void replace_whole(const char *what, const char *path, const void *p, size_t n) {
    Replace *r = replace_begin(what, path, false);
    replace_write(r, p, n);
    replace_commit(r);
}

void replace_text_begin(ReplaceText *t) {
    *t = (ReplaceText){0};
    t->f = open_memstream(&t->text, &t->n);
    if (!t->f) die("out of memory for the text of a file");
}

void replace_text_end(ReplaceText *t, const char *what, const char *path) {
    if (fclose(t->f)) die("out of memory for the text of %s", path);
    replace_whole(what, path, t->text, t->n);
    mem_free(t->text);
}

void replace_json(const char *what, const char *path, const json_t *x, size_t how) {
    ReplaceText text;
    replace_text_begin(&text);
    json_dumpf(x, text.f, how);
    fputc('\n', text.f);
    replace_text_end(&text, what, path);
}
