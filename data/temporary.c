#include "data/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/io.h"

/* "HOST-" of this machine: a process id means nothing elsewhere. */
static char *host_prefix(void) {
    char host[64] = "host";
    gethostname(host, sizeof host - 1);
    return mem_printf("%s-", host);
}

char *temporary_name(const char *path) {
    char *host = host_prefix(), *name = mem_printf("%s.tmp-%s%ld", path, host, (long)getpid());
    mem_free(host);
    return name;
}

/* Is "HOST-PID" a process that may still be writing? Of another machine: yes. */
static bool alive(const char *owner, const char *host) {
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
        if (!tail || (!all && alive(tail + 5, host))) continue;
        char *path = mem_printf("%s/%s", dir, x->d_name);
        if (!io_remove_tree(path, NULL)) warn("cannot remove the left-over %s", path);
        mem_free(path);
    }
    if (d) closedir(d);
    mem_free(host);
}

void temporary_clean_file(const char *path) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? mem_printf("%.*s", (int)(slash - path + 1), path) : mem_strdup(".");
    temporary_clean(dir, slash ? slash + 1 : path, false);
    mem_free(dir);
}
