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

/* The limit that a control group sets by the files in its folder, which may be missing; INT64_MAX:
 * none. */
typedef int64_t CgroupFiles(const char *folder);
/* Local. The least limit of this process's control group and of all groups above it. v2, v1: by the
 * files of version 2, and by those of version 1 of a controller like "cpu". root: folder of the
 * system's files, "" for this machine. */
CgroupLimit cgroup_least(const char *root, CgroupFiles *v2, const char *controller,
                         CgroupFiles *v1);

#endif
