#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

/* Is the word in a list like "cpu,cpuacct"? In version 2 the list and the word are "". */
static bool lists(char *list, const char *word) {
    for (char *at; (at = strsep(&list, ","));)
        if (strcmp(at, word) == 0) return true;
    return false;
}

/* The path of this process's control group, from a line like "4:cpu,cpuacct:/of/a/job" of
 * /proc/self/cgroup, or "0::/of/a/job" of version 2; "": no line has the controller (mem_free). */
static char *path_of(const char *root, const char *controller) {
    char *file = mem_printf("%s/proc/self/cgroup", root), *line = NULL, *found = NULL;
    FILE *f = fopen(file, "r");
    for (size_t cap = 0; f && !found && getline(&line, &cap, f) > 0;) {
        char *path = line;
        strsep(&path, ":");
        char *list = strsep(&path, ":\n");
        if (list && path && lists(list, controller)) found = mem_strdup(strsep(&path, "\n"));
    }
    if (f) fclose(f);
    mem_free(line), mem_free(file);
    return found ? found : mem_strdup("");
}

/* The least limit by the files of one version. controller: "" for version 2. */
static CgroupLimit least_of(const char *root, const char *controller, CgroupFiles *limit) {
    CgroupLimit l = {INT64_MAX, 0};
    struct stat st;
    char *path = path_of(root, controller);
    char *top = mem_printf("%s/sys/fs/cgroup%s%s", root, *controller ? "/" : "", controller);
    char *folder = mem_printf("%s%s", top, path);
    for (;; *strrchr(folder, '/') = 0) {
        int64_t x = limit(folder);
        if (x <= l.least) l = (CgroupLimit){x, stat(folder, &st) ? 0 : st.st_ino};
        if (strlen(folder) <= strlen(top)) break;
    }
    mem_free(path), mem_free(top), mem_free(folder);
    return l;
}

CgroupLimit cgroup_least(const char *root, CgroupFiles *v2, const char *controller,
                         CgroupFiles *v1) {
    CgroupLimit new = least_of(root, "", v2), old = least_of(root, controller, v1);
    return old.least < new.least ? old : new;
}
