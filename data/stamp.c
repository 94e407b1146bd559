#include "data/stamp.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/utf8.h"

void stamp_host(char *buf, size_t n) {
    gethostname(buf, n);
    buf[n - 1] = 0;
    utf8_mend(buf);
}

void stamp_cpu(char *buf, size_t n) {
    struct utsname u;
    snprintf(buf, n, "%s", uname(&u) == 0 ? u.machine : "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    char line[512];
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(buf, n, "%s", colon);
        break;
    }
    fclose(f);
    utf8_mend(buf);
}

void stamp_time(char *buf, size_t n) {
    time_t now = time(NULL);
    struct tm tm;
    strftime(buf, n, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
}

double stamp_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
