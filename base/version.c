#include "base/version.h"

#ifndef COMMIT
#define COMMIT "unknown"
#endif

const char *version_commit(void) {
    return COMMIT;
}
