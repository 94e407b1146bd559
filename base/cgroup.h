/* cgroup -- limits that Linux's control groups set to this process. A job's group lies below those
 * of its user, its service or its pod, and a limit of a group holds for all groups below it.
 */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdint.h>

typedef struct CgroupLimit {
    int64_t least;  // INT64_MAX: no limit
    uint64_t group; // the inode of the folder that sets it: equal for processes that share it
} CgroupLimit;

/* Local. The least of limit(folder) over the folders of this process's control group and of all
 * groups above it. limit: INT64_MAX if the folder, which may be missing, sets none. root: folder of
 * the system's files, "" for this machine. controller: of version 1, like "cpu"; "": version 2. */
CgroupLimit cgroup_least(const char *root, const char *controller,
                         int64_t (*limit)(const char *folder));

#endif
