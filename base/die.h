/* die -- one way to fail: a single line that says who, what, where and what to do next.
 *
 *     train_gpt: rank 2 on node7: cannot start a thread: Out of memory (base/team.c:41 start)
 *
 * A training step has no recovery, so no error code climbs the stack: functions return values and
 * the place that notices a failure ends the program. Parsers of foreign bytes are the exception:
 * they are pure functions over memory that return false and fill an Err, so that tests and fuzzers
 * can call them a million times; the function that opened the file turns that Err into die().
 */
#ifndef BASE_DIE_H
#define BASE_DIE_H

#include <stdbool.h>
#include <stdio.h>

/* Text of a failure that is returned instead of ending the program. */
typedef struct Err {
    char text[512];
} Err;

/* Local. Prints one line on stderr with a single write and ends the process with status 1. When
 * several threads die, the first one prints. */
#define die(...) die_at(__FILE__, __LINE__, __func__, 1, __VA_ARGS__)
/* Local. The same for what files, names and sizes of the user's make impossible: no source
 * position. */
#define die_user(...) die_at(__FILE__, 0, __func__, 1, __VA_ARGS__)
/* Local. The same for a wrong command line: status 2, no source position. */
#define die_usage(...) die_at(__FILE__, 0, __func__, 2, __VA_ARGS__)
/* Local. Continues after printing one line "train_gpt: warning: ...". */
#define warn(...) warn_at(__VA_ARGS__)
/* Local. Fills e (which may be NULL) and yields false: `return err(e, "...")`. */
#define err(e, ...) err_set((e), __VA_ARGS__)

void die_at(const char *file, int line, const char *func, int status, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 5, 6)));
void warn_at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool err_set(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Local. Puts "PLACE: " in front of the reason that e has, and yields false. */
bool err_in(Err *e, const char *place);

/* First in a program: names it in messages (argv[0] without its folder), and takes the numbers of
 * standard streams that the caller closed. The next files would have them, and what is printed
 * would land in those. At exit, when the standard output cannot take what is left to print (a full
 * disk), the program ends with a line and status 1. */
void die_set_program(const char *argv0);
/* Local. Flushes what is printed. False (errno) when it cannot be written: a full disk, say.
 * Readers that have left, and an output that was closed from the start, are no failure. */
bool die_flush(FILE *f);
/* Names the rank of this thread in messages; node may be NULL. Without this call messages name no
 * rank. From then on the process ends without the handlers of atexit: other ranks may be using what
 * they take away. */
void die_set_rank(int rank, const char *node);
/* This process is not the first of its job. Its die functions print two seconds later: an error
 * that the first process finds as well is printed once. */
void die_set_copy(bool is_copy);
/* Local. For what every process of a job would print alike: only the first one does. */
bool die_is_copy(void);
/* A rank's name for the threads that it starts. */
typedef struct DieRank {
    char text[128];
} DieRank;
DieRank die_rank(void);
void die_adopt_rank(DieRank rank);

/* The two halves of die(): the line (of any number of threads), and the end (of the first one;
 * others wait for it). */
void die_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void die_end(int status) __attribute__((noreturn));
/* In a signal handler: "PROGRAM: AB" on stderr and the end, without hooks. A process that is a copy
 * ends without the line. */
void die_in_handler(int status, const char *a, const char *b) __attribute__((noreturn));
/* Called once by die() after its line and before the process ends, e.g. to stop other ranks. */
void die_set_hook(void (*hook)(int status));
/* Called once when the process ends early, after its line and before the hook: stops what would
 * keep the process from ending, such as device kernels that wait for ever; NULL: nothing. It must
 * return. */
void die_set_release(void (*release)(void));
/* Called before die() and warn() print their line, e.g. to wipe a live progress bar; NULL ends
 * it. */
void die_set_wipe(void (*wipe)(void));

#endif
