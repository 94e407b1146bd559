#include "base/claim.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"

/* One claim: of an existing file, known by device and inode; or, with name != NULL, of a file that
 * does not exist yet, known by the device and inode of a directory and the path from there. */
typedef struct Claim {
    dev_t device;
    ino_t inode;
    char *name;
    char *what;  // output: the option that names it, "--json"; input: NULL
    char *path;  // as the user wrote it
    int readers; // input: how often the same file is claimed
} Claim;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // ranks are threads
static Claim *claims;
static int n_claims;

static bool same(const Claim *a, const Claim *b) {
    bool names = a->name && b->name ? strcmp(a->name, b->name) == 0 : a->name == b->name;
    return a->device == b->device && a->inode == b->inode && names;
}

/* The path without empty and "." components (freed by mem_free). */
static char *plain_path(const char *path) {
    char *plain = mem_strdup(path), *copy = mem_strdup(path), *rest = copy, *to = plain;
    for (const char *part; (part = strsep(&rest, "/"));)
        if (*part && strcmp(part, ".") != 0) to += sprintf(to, "%s%s", to > plain ? "/" : "", part);
    *to = 0;
    mem_free(copy);
    return plain;
}

/* Fills c with the file that `path` names, or else with the innermost of its directories that
 * exists and the rest of the path. False: the file is a character device, or none exists. */
static bool identify(const char *path, Claim *c) {
    struct stat st;
    if (stat(path, &st) == 0) {
        *c = (Claim){.device = st.st_dev, .inode = st.st_ino};
        return !S_ISCHR(st.st_mode);
    }
    const char *name = path + strlen(path);
    bool found = false;
    while (!found && name > path) {
        do name--;
        while (name > path && name[-1] != '/');
        char *directory =
            name > path ? mem_printf("%.*s", (int)(name - path), path) : mem_strdup(".");
        found = stat(directory, &st) == 0;
        mem_free(directory);
    }
    if (found) *c = (Claim){.device = st.st_dev, .inode = st.st_ino, .name = plain_path(name)};
    return found;
}

/* Adds claim c and takes over c.name. A second claim of the same input is only counted. When the
 * file is claimed already and either claim is an output: returns false, *other is a copy of the
 * earlier claim. */
static bool add(Claim c, const char *what, const char *path, Claim *other) {
    bool ok = true;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_claims && !same(&claims[i], &c)) i++;
    if (i < n_claims && (what || claims[i].what)) {
        *other = claims[i], ok = false;
    } else if (i == n_claims) {
        claims = mem_realloc(claims, (size_t)n_claims + 1, sizeof *claims);
        claims[n_claims] = c;
        claims[n_claims].what = what ? mem_strdup(what) : NULL;
        claims[n_claims++].path = mem_strdup(path);
    }
    if (ok) claims[i].readers++;
    if (!ok) mem_free(c.name);
    pthread_mutex_unlock(&lock);
    return ok;
}

static void drop(int i) {
    mem_free(claims[i].name), mem_free(claims[i].what), mem_free(claims[i].path);
    claims[i] = claims[--n_claims];
}

bool claim_output(const char *what, const char *path, Err *e) {
    Claim c, other;
    if (!*path || !identify(path, &c) || add(c, what, path, &other)) return true;
    if (other.what)
        return err(e, "%s %s: the output of %s goes to that file; name another one", what, path,
                   other.what);
    return err(e, "%s %s: that file is an input (%s); name another one", what, path, other.path);
}

void claim_output_end(const char *what) {
    pthread_mutex_lock(&lock);
    for (int i = n_claims - 1; i >= 0; i--)
        if (claims[i].what && strcmp(claims[i].what, what) == 0) drop(i);
    pthread_mutex_unlock(&lock);
}

bool claim_input(const char *path, const struct stat *st, Err *e) {
    Claim c = {.device = st->st_dev, .inode = st->st_ino}, other;
    if (S_ISCHR(st->st_mode) || add(c, NULL, path, &other)) return true;
    return err(e, "%s is an input, and %s would write to it: name another output", path,
               other.what);
}

void claim_input_end(dev_t device, ino_t inode) {
    Claim c = {.device = device, .inode = inode};
    pthread_mutex_lock(&lock);
    for (int i = n_claims - 1; i >= 0; i--)
        if (!claims[i].what && same(&claims[i], &c) && --claims[i].readers == 0) drop(i);
    pthread_mutex_unlock(&lock);
}

bool claim_input_path(const char *path, Err *e) {
    struct stat st;
    return stat(path, &st) || claim_input(path, &st, e);
}
