#include "data/replace.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/claim.h"
#include "base/mem.h"
#include "data/io.h"
#include "data/output.h"

struct Replace {
    const char *what; // of messages: "--svg", or ""
    Output out;
    IoFile file;
    bool finished;
    Replace *next; // list of all that are open
};

static Replace *open_ones;

void replace_abandon_all(int status) {
    (void)status;
    for (Replace *r = open_ones; r; r = r->next)
        if (r->out.part && !r->out.in_place) unlink(r->out.part);
}

static void check(const Replace *r, bool ok, const Err *e) {
    if (ok) return;
    replace_abandon_all(0);
    open_ones = NULL;
    die_user("%s%s%s; no file was left half-written", r->what, *r->what ? ": " : "", e->text);
}

static Replace *begin(const char *what, const char *path, bool regular) {
    Err e;
    Replace *r = mem_calloc(1, sizeof *r);
    r->what = what;
    check(r, (regular ? output_open_regular : output_open)(&r->out, path, &e), &e);
    if (!*what) { // what has a name was claimed by it, before inputs were opened
        check(r, claim_output("the output", r->out.path, &e), &e);
        claim_output_end("the output");
    }
    r->next = open_ones;
    open_ones = r; // before the file exists, so that a signal finds it
    check(r, io_create(&r->file, r->out.part, &e), &e);
    return r;
}

Replace *replace_open(const char *path) {
    return begin("", path, false);
}

Replace *replace_open_regular(const char *path) {
    return begin("", path, true);
}

void replace_write(Replace *r, const void *p, size_t n) {
    Err e;
    check(r, io_put(&r->file, r->file.n_bytes, p, n, &e), &e);
}

void replace_patch(Replace *r, uint64_t offset, const void *p, size_t n) {
    Err e;
    check(r, io_put(&r->file, offset, p, n, &e), &e);
}

void replace_finish(Replace *r) {
    Err e;
    if (!r->finished) check(r, io_finish(&r->file, NULL, NULL, &e), &e);
    r->finished = true;
}

void replace_commit(Replace *r) {
    Err e;
    replace_finish(r);
    check(r, output_commit(&r->out, &e), &e);
    Replace **link = &open_ones;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    mem_free(r);
}

void replace_text_begin(ReplaceText *t) {
    *t = (ReplaceText){0};
    t->f = open_memstream(&t->text, &t->n);
    if (!t->f) die("no memory for a file");
}

void replace_text_end(ReplaceText *t, const char *what, const char *path) {
    if (fclose(t->f)) die("no memory for %s", path);
    Replace *r = begin(what, path, false);
    replace_write(r, t->text, t->n);
    replace_commit(r);
    mem_free(t->text);
}
