#include "data/stamp.h"

#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/utf8.h"

void stamp_host(char *buf, size_t n) {
    gethostname(buf, n);
    buf[n - 1] = 0;
    utf8_repair(buf);
}

/* The value in a line like "model name : AMD EPYC"; NULL when the line has another name. */
static const char *value_of(char *line, const char *name) {
    char *colon = strchr(line, ':');
    size_t n = strlen(name);
    if (!colon || strncmp(line, name, n) != 0 || line + n + strspn(line + n, " \t") != colon)
        return NULL;
    colon[strcspn(colon, "\n")] = 0;
    return colon + 1 + strspn(colon + 1, " \t");
}

void stamp_cpu_of(FILE *cpuinfo, char *buf, size_t n) {
    char line[512], name[256] = "", family[16] = "", model[16] = "";
    const char *value;
    while (!*name && fgets(line, sizeof line, cpuinfo)) {
        if ((value = value_of(line, "cpu family"))) snprintf(family, sizeof family, "%s", value);
        if ((value = value_of(line, "model"))) snprintf(model, sizeof model, "%s", value);
        if ((value = value_of(line, "model name"))) snprintf(name, sizeof name, "%s", value);
    }
    if (*name && *family && *model && !strpbrk(name, "0123456789"))
        snprintf(buf, n, "%s, family %s model %s", name, family, model);
    else if (*name)
        snprintf(buf, n, "%s", name);
    utf8_repair(buf);
}

void stamp_cpu(char *buf, size_t n) {
    struct utsname u;
    snprintf(buf, n, "%s", uname(&u) == 0 ? u.machine : "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    stamp_cpu_of(f, buf, n);
    fclose(f);
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
