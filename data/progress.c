#include "data/progress.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/die.h"
#include "base/mem.h"

enum { STAYING_LINES = 20, LINE = 512 };
// seconds between redraws: a terminal on a slow line must not block fast steps
static const double REDRAW_S = 0.05;
static const double PART_AFTER_S = 1.5, PART_S = 10;
static const double DECAY = 0.95; // per step of the moving averages: they span about 20 steps

struct Progress {
    FILE *f;
    bool is_terminal;
    bool lost;               // a line could not be written
    int64_t steps, seen;     // steps of the run; steps seen by this process
    double ms, tokens_per_s; // moving averages that began at 0: divided by `weight` when read
    double drawn;            // when the bar was drawn last
    double weight;           // 1 - DECAY^(values averaged)
};

static bool bar_allowed = true;
static int64_t line_every;
static Progress *wiped; // the Progress whose bar warn() and die() wipe

static void wipe(void) {
    fputs("\r\033[K", wiped->f);
    fflush(wiped->f);
}

int progress_columns(FILE *f, int otherwise) {
    struct winsize w;
    return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : otherwise;
}

void progress_time(char *buf, size_t n, double seconds) {
    long long s = seconds < 0 || !(seconds < 1e15) ? 0 : (long long)(seconds + 0.5);
    long long d = s / 86400, h = s / 3600 % 24, m = s / 60 % 60;
    if (d > 0)
        snprintf(buf, n, "%lldd %lldh", d, h);
    else if (h > 0)
        snprintf(buf, n, "%lld:%02lld:%02lld", h, m, s % 60);
    else
        snprintf(buf, n, "%lld:%02lld", m, s % 60);
}

void progress_line(char *buf, size_t n, const StepRecord *s, int64_t steps, double tokens_per_s,
                   double eta_s) {
    char peak[32] = "", eta[48] = "", time[32], loss_z[16] = "", norm_z[16] = "";
    if (!isnan(s->loss_z)) snprintf(loss_z, sizeof loss_z, " (%+.2fz)", s->loss_z);
    if (!isnan(s->norm_z)) snprintf(norm_z, sizeof norm_z, " (%+.2fz)", s->norm_z);
    if (s->peak > 0) snprintf(peak, sizeof peak, "%.1f%% peak | ", 100 * s->peak);
    if (eta_s >= 0) {
        progress_time(time, sizeof time, eta_s);
        snprintf(eta, sizeof eta, " | ETA %s", time);
    }
    snprintf(buf, n,
             "step %4lld/%lld | loss %.6f%s | norm %.4f%s | lr %.2e | %.2f ms | %s%.0f tok/s%s%s",
             (long long)s->step, (long long)steps, s->loss, loss_z, s->norm, norm_z, s->lr, s->ms,
             peak, tokens_per_s, eta, s->skipped ? " | skipped" : "");
}

/* "[===>   ]  text", at most `width` columns. A narrow window shows the text alone. */
static void put_bar(char *buf, size_t n, int width, double done, const char *text) {
    char bar[64] = "";
    int cells = width - (int)strlen(text) - 4; // brackets and two spaces
    if (cells > 40) cells = 40;
    if (cells >= 8) {
        int full = (int)(done * cells);
        if (full > cells) full = cells;
        bar[0] = '[';
        for (int i = 0; i < cells; i++) bar[1 + i] = i < full ? '=' : i == full ? '>' : ' ';
        snprintf(bar + 1 + cells, sizeof bar - 1 - (size_t)cells, "]  ");
    }
    if (n > (size_t)width + 1) n = (size_t)width + 1;
    snprintf(buf, n, "%s%s", bar, text);
}

void progress_bar(char *buf, size_t n, int width, const StepRecord *s, int64_t steps,
                  double tokens_per_s, double eta_s) {
    char text[LINE], time[32];
    progress_time(time, sizeof time, eta_s > 0 ? eta_s : 0);
    double done = steps > 0 ? (double)s->step / (double)steps : 0;
    snprintf(text, sizeof text, "%3.0f%%  step %lld/%lld  loss %.4f  %.0f tok/s  ETA %s",
             floor(100 * done), (long long)s->step, (long long)steps, s->loss, tokens_per_s, time);
    put_bar(buf, n, width, done, text);
}

void progress_set(bool bar, int64_t every) {
    bar_allowed = bar, line_every = every;
}

Progress *progress_open(FILE *f, int64_t steps) {
    Progress *p = mem_calloc(1, sizeof *p);
    const char *term = getenv("TERM");
    p->f = f, p->steps = steps, p->drawn = -INFINITY;
    p->is_terminal = bar_allowed && isatty(fileno(f)) && !(term && strcmp(term, "dumb") == 0);
    if (p->is_terminal) {
        wiped = p;
        die_set_wipe(wipe);
    }
    return p;
}

/* Flushes; a failure (a full disk) loses lines but does not end the run. */
static void flush(Progress *p) {
    if (die_flush(p->f) || p->lost) return;
    p->lost = true;
    warn("cannot write to the standard output: %s; training goes on", strerror(errno));
}

/* Does the line of this step stay? It does for the first, the last, and every so many steps. */
static bool stays(const Progress *p, int64_t step) {
    int64_t every = line_every ? line_every : p->is_terminal ? p->steps / STAYING_LINES : 1;
    if (every < 1) every = 1;
    return p->seen == 1 || step == p->steps || step % every == 0;
}

void progress_step(Progress *p, const StepRecord *s) {
    char line[LINE];
    double ms = s->ms, tokens_per_s = s->tokens_per_s;
    if (p->seen++ > 0) {
        p->ms = DECAY * p->ms + (1 - DECAY) * s->ms;
        p->tokens_per_s = DECAY * p->tokens_per_s + (1 - DECAY) * s->tokens_per_s;
        p->weight = DECAY * p->weight + (1 - DECAY);
        ms = p->ms / p->weight, tokens_per_s = p->tokens_per_s / p->weight;
    }
    double eta_s = (double)(p->steps - s->step) * ms / 1000;
    progress_line(line, sizeof line, s, p->steps, tokens_per_s, eta_s);
    bool stay = stays(p, s->step);
    if (!p->is_terminal) {
        if (!stay) return;
        fprintf(p->f, "%s\n", line);
    } else {
        if (stay) fprintf(p->f, "\r\033[K%s\n", line);
        bool last = s->step >= p->steps;
        if (!last && !stay && fabs(now_s() - p->drawn) < REDRAW_S) return;
        p->drawn = now_s();
        // one column stays free: a full line would wrap, and the next redraw would leave a trail
        int width = progress_columns(p->f, 80) - 1;
        progress_bar(line, sizeof line, width, s, p->steps, tokens_per_s, eta_s);
        fprintf(p->f, "\r\033[K%s", last ? "" : line);
    }
    flush(p);
}

void progress_part_line(char *buf, size_t n, const char *what, double done, double seconds) {
    char now[32], left[32], eta[48] = "";
    progress_time(now, sizeof now, seconds);
    progress_time(left, sizeof left, seconds * (1 - done) / done);
    if (done > 0) snprintf(eta, sizeof eta, ", ETA %s", left);
    snprintf(buf, n, "%s, %s%s", what, now, eta);
}

void progress_part(Progress *p, const char *what, double done, double seconds) {
    char text[LINE], line[LINE];
    double every = p->is_terminal ? REDRAW_S : PART_S;
    if (seconds < PART_AFTER_S || seconds - p->drawn < every) return;
    p->drawn = seconds;
    progress_part_line(text, sizeof text, what, done, seconds);
    if (p->is_terminal) {
        put_bar(line, sizeof line, progress_columns(p->f, 80) - 1, done, text);
        fprintf(p->f, "\r\033[K%s", line);
    } else {
        fprintf(p->f, "%s\n", text);
    }
    flush(p);
}

void progress_note(Progress *p, const char *fmt, ...) {
    va_list ap;
    if (p->is_terminal) fputs("\r\033[K", p->f);
    va_start(ap, fmt);
    vfprintf(p->f, fmt, ap);
    va_end(ap);
    fputc('\n', p->f);
    flush(p);
}

void progress_close(Progress *p) {
    if (!p) return;
    if (wiped == p) {
        wipe();
        die_set_wipe(NULL);
        wiped = NULL;
    }
    mem_free(p);
}
