/* opt -- one table of options makes --help, the man page, the completion of shells, the run header,
 * the record in checkpoints and the parser.
 *
 *     static const Opt options[] = {
 *         {"steps", OPT_INT, &o.steps, "1000", 1, 1e9, "N", "optimizer steps"},
 *         ...
 *         {0}};
 *     opt_parse(options, argc, argv, usage);
 *
 * --name value, --name=value, --flag, --no-flag, --flag=0/1; nanoGPT's underscores are read as
 * dashes. Whole numbers may be written 524288, 512Ki, 1e6 or 1M. When an option is given several
 * times, the last one wins. "--" ends the options: all arguments after it are files. Every program
 * has --help and --version; --help=man prints a man page, --help=words what a shell completes. An
 * unknown option, or a value that does not parse or is out of bounds, ends the program with status
 * 2 and a line that names the nearest valid option or the bounds. A second table (OptForeign) lists
 * names that other programs use, and this program's options for them.
 */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    OPT_INT,
    OPT_FLOAT,
    OPT_STR,
    OPT_BOOL,
    OPT_CHOICE,
    OPT_CONFIG, // a string: a file of options (base/opt_file.h), which is read at once
    OPT_GROUP
} OptType;

/* One row. The value lives where `value` points: int64_t, double, const char * (never NULL: "" is
 * unset), bool, or int (the index of the word in `arg`, e.g. "cosine|linear", for OPT_CHOICE).
 * OPT_GROUP rows are headings of --help: a type and a text in `help`. A table ends with {0}, the
 * only row without `help`:
 *     for (const Opt *o = table; o->help; o++) ... */
typedef struct Opt {
    const char *name;
    OptType type;
    void *value;
    const char *default_text; // default as text; "" for an unset string
    // OPT_INT, OPT_FLOAT: inclusive bounds. OPT_CHOICE with max 1: the option without a word means
    // the last word
    double min, max;
    const char *arg; // placeholder in --help; for OPT_CHOICE the words joined by '|'
    const char *help;
} Opt;

/* Names that other programs use for one option; a table of rows ends with {0}. */
typedef struct OptForeign {
    const char *names; // joined by spaces, with dashes for underscores: "learning-rate optimizer.lr
                       // -l"; a dash in front where one dash is typed
    // this program's option, perhaps with a value ("dtype bf16"), or with an N in the place of the
    // typed number ("layout xN"); NULL: it has none
    const char *option;
    const char *note; // what differs, or why this program has none; or NULL
} OptForeign;

/* Local. Sets every default, then reads argv; --help prints the table and exits with status 0.
 * Strings point into argv or the table, or live until the program ends. Dies (status 2) on anything
 * wrong. `usage` is printed above the table by --help; its first line is "NAME: what it does". */
void opt_parse(const Opt *table, int argc, char **argv, const char *usage);
/* Local. The same for a program that takes files: arguments that belong to no option are moved to
 * argv[1..n]; returns n. */
int opt_parse_files(const Opt *table, int argc, char **argv, const char *usage);
/* Local. Sets the table of other programs' names that opt_parse looks up for an unknown option;
 * NULL: none. */
void opt_set_foreign(const OptForeign *rows);
/* Local. Sets one option from text; false and the reason in text[] when the value is wrong. */
bool opt_set(const Opt *row, const char *value, char *why, size_t n_why);
/* Local. The row of that name, or NULL. */
const Opt *opt_find(const Opt *table, const char *name);
/* Local. The value as text that opt_set reads back to the same value (floats: shortest exact form):
 * a string itself, which may be of any length, all others in buf. */
const char *opt_text(const Opt *row, char *buf, size_t n);
/* Local, pure. Reads the unit behind a number at *p and moves *p behind it: returns 1000 for k or
 * K, 1024 for Ki, likewise for M, G and T, and 1 without a unit. */
double opt_prefix(const char **p);
/* Local. The shortest text that reads back to exactly x. */
const char *opt_number(double x, char *buf, size_t n);
/* Local. opt_given: was the option on the command line or in a file of options (in a record: with a
 * value other than the default)? opt_changed: is the value other than the default? */
bool opt_given(const Opt *row);
bool opt_changed(const Opt *row);
/* Local. --help's text. */
void opt_print_help(const Opt *table, const char *usage, FILE *f);
/* Local. A man page of the program, whose name `usage` begins with. For the completion of shells a
 * line "--name choices" for each option. */
void opt_print_man(const Opt *table, const char *usage, FILE *f);
void opt_print_words(const Opt *table, FILE *f);

/* Local. The one of n candidates that `word` abbreviates, or from which it differs by one or two
 * typing errors (a letter added, missing, changed, or two swapped); NULL: none. */
const char *opt_nearest(const char *word, const char *const *candidates, int n);

#endif
