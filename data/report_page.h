/* report_page -- the record of one run, or of several to compare, as one self-contained HTML page.
 *
 * No network, no foreign scripts: inline SVG, a little CSS (light and dark) and some 25 lines of
 * script for the values under the pointer. The input is the JSON lines of data/metrics.h. Values
 * that are missing are left out of the page. Lines that are not JSON (a torn last one) are skipped.
 * When a step occurs twice, the later line wins.
 */
#ifndef DATA_REPORT_PAGE_H
#define DATA_REPORT_PAGE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct Curve {
    double *x, *y;
    size_t n, cap;
} Curve;

typedef struct ReportSample {
    int64_t step;
    char *text;
} ReportSample;

typedef struct ReportRun {
    char *name;     // of the file, without folder and ending
    json_t *header; // the newest "run" object, or NULL
    Curve loss, norm, lr, ms, speed, peak, val, hellaswag;
    ReportSample *samples;
    size_t n_samples;
    int64_t tokens, steps, skipped;
    int64_t lines, bad_lines; // lines read; those of them that are no JSON objects
} ReportRun;

/* Pure: reads n bytes of JSON lines, those of the file `path`. */
void report_read(ReportRun *run, const char *path, const char *p, size_t n);
void report_free(ReportRun *run);
/* Local. Writes the page. */
void report_write(FILE *f, const char *title, const ReportRun *runs, int n_runs);

#endif
