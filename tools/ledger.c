/* ledger -- what was predicted of the last runs, and what came of it.
 *
 *     gpt-ledger                    the last 20 runs on any machine, and the median error on each
 *     gpt-ledger --last 5 --json    the same numbers for programs
 *
 *                     predicted     measured         error  -50 %     0     +50 %
 *   2026-01-31T12:00:00Z  d2.x2+sp bf16, 4 rank(s) x 1 thread(s), threads, recompute none, micro 4
 *       AMD EPYC 9575F 64-Core Processor, 4 cores
 *       layers=12,heads=12,...
 *       a step           76.000       84.000 ms    +10.5 %            |==
 *       received         12.000       12.000 MiB    +0.0 %            |
 *       memory          905.500      898.000 MiB    -0.8 %            |
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/die.h"
#include "base/mem.h"
#include "base/opt.h"
#include "parallel/plan/ledger_file.h"
#include "parallel/plan/quantity.h"

static const char usage[] =
    "gpt-ledger: predicted and measured times and memory of the last runs of train_gpt\n"
    "\n"
    "    gpt-ledger [--last 20] [--file FILE] [--json]\n"
    "\n"
    "Memory is predicted as it is reserved, and measured as it is touched: a small model does not\n"
    "fill the workspace (some 4 MiB a rank) in which matmuls pack their operands.\n\n";

enum { HALF = 10 }; // columns of a bar on each side of zero, 5 % each

/* "    ===|          ": the error as a bar, slower than predicted to the right; > and <: the error
 *                    is larger than the bar can show. */
static const char *bar(double error, char buf[2 * HALF + 2]) {
    memset(buf, ' ', 2 * HALF + 1);
    buf[2 * HALF + 1] = 0;
    buf[HALF] = '|';
    int n = (int)lround(fmin(fabs(error) * 100 / 5, HALF + 1));
    for (int i = 1; i <= n && i <= HALF; i++) buf[error > 0 ? HALF + i : HALF - i] = '=';
    if (n > HALF) buf[error > 0 ? 2 * HALF : 0] = error > 0 ? '>' : '<';
    if (error <= 0 || n < HALF) buf[HALF + 1 + (error > 0 ? n : 0)] = 0; // no spaces at the end
    return buf;
}

static void print_row(const char *what, const char *unit, double predicted, double measured) {
    char text[2 * HALF + 2], more[64];
    double error = ledger_error(predicted, measured);
    if (!(measured > 0)) return;
    printf("    %-10s", what);
    if (isnan(error))
        printf(" %12s %12.3f %-3s\n", "-", measured, unit);
    else
        printf(" %12.3f %12.3f %-3s %9s  %s\n", predicted, measured, unit,
               quantity_more(1 + error, 1, more), bar(error, text));
}

static void print_run(const LedgerLine *l) {
    const double MiB = 1048576;
    printf("%s  %s %s, %lld rank(s) x %lld thread(s), %s, recompute %s, micro %lld\n", l->time,
           l->layout, l->dtype, (long long)l->ranks, (long long)l->threads, l->backend,
           l->recompute, (long long)l->micro);
    printf("    %s\n    %s\n", l->machine, l->model);
    print_row("a step", "ms", l->predicted_ms, l->measured_ms);
    print_row("received", "MiB", (double)l->predicted_bytes / MiB, (double)l->measured_bytes / MiB);
    print_row("memory", "MiB", (double)l->predicted_memory / MiB, (double)l->measured_memory / MiB);
}

/* The next machine, from line *i on, that no earlier line names; NULL: there is none. */
static const char *next_machine(const LedgerLine *l, int n, int *i) {
    for (; *i < n; ++*i) {
        bool seen = false;
        for (int k = 0; k < *i; k++) seen |= strcmp(l[k].machine, l[*i].machine) == 0;
        if (!seen) return l[(*i)++].machine;
    }
    return NULL;
}

static void print_all(const LedgerLine *l, int n) {
    const char *machine;
    char more[64];
    printf("    %-10s %12s %12s     %9s  %-*s0%*s\n", "", "predicted", "measured", "error", HALF,
           "-50 %", HALF, "+50 %");
    for (int i = 0; i < n; i++) print_run(&l[i]);
    printf("median error of the time of a step\n");
    for (int i = 0; (machine = next_machine(l, n, &i));) {
        bool none = true;
        for (int known = 0; known < 2; known++) {
            double error = ledger_median_error(l, n, machine, !known);
            if (isnan(error)) continue;
            printf("%10s  %s%s\n", quantity_more(1 + error, 1, more) + (error < 9), machine,
                   known ? " (its costs were not measured)" : "");
            none = false;
        }
        if (none) printf("         -    %s (nothing was predicted)\n", machine);
    }
}

static void print_json(const LedgerLine *l, int n, int damaged) {
    const char *machine;
    json_t *runs = json_array(), *all = json_object();
    for (int i = 0; i < n; i++) {
        char *text = ledger_print(&l[i]);
        json_array_append_new(runs, json_loads(text, 0, NULL));
        mem_free(text);
    }
    json_object_set_new(all, "runs", runs);
    for (int known = 0; known < 2; known++) {
        json_t *machines = json_object();
        for (int i = 0; (machine = next_machine(l, n, &i));) {
            double error = ledger_median_error(l, n, machine, !known);
            json_object_set_new(machines, machine, isnan(error) ? json_null() : json_real(error));
        }
        json_object_set_new(all, known ? "median_error_of_known_costs" : "median_error", machines);
    }
    json_object_set_new(all, "damaged", json_integer(damaged));
    json_dumpf(all, stdout, JSON_PRESERVE_ORDER | JSON_INDENT(1));
    printf("\n");
    json_decref(all);
}

/* Called after the runs of the other lines have been printed. */
static void tell_damage(const char *path, const LedgerDamage *d, int n) {
    char more[64] = "";
    if (d->n > 1) snprintf(more, sizeof more, ", and %d more of this kind", d->n - 1);
    die_user("%s:%d: this line is no record of a run%s; %s", path, d->first, more,
             n ? "the others are shown" : "is it a ledger?");
}

int main(int argc, char **argv) {
    const char *file;
    int64_t last;
    bool json;
    LedgerDamage damage;
    Err e;
    const Opt options[] = {
        {"last", OPT_INT, &last, "20", 1, 1e6, "N", "number of runs to show, the newest ones"},
        {"file", OPT_STR, &file, "", 0, 0, "FILE",
         "ledger to read, instead of the one in the user's cache folder"},
        {"json", OPT_BOOL, &json, "0", 0, 0, "", "print one JSON object instead of the table"},
        {0}};
    die_set_program(argv[0]);
    opt_parse(options, argc, argv, usage);
    char *path = *file ? mem_strdup(file) : ledger_path();
    if (!path) die_user("neither XDG_CACHE_HOME nor HOME is set; --file names a ledger");
    LedgerLine *l = mem_alloc((size_t)last * sizeof *l);
    int n = ledger_read(path, l, (int)last, &damage, &e);
    if (n < 0) die_user("%s", e.text);
    if (n == 0 && damage.n == 0 && access(path, F_OK))
        die_user(
            "cannot open %s: %s; a run of train_gpt writes its line there, or to --ledger FILE",
            path, strerror(errno));
    if (n == 0 && damage.n == 0 && !json) die_user("%s is empty: it has no runs", path);
    if (json)
        print_json(l, n, damage.n);
    else if (n > 0)
        print_all(l, n);
    if (damage.n) tell_damage(path, &damage, n);
    mem_free(l), mem_free(path);
    return 0;
}
