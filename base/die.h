/* die -- one way to fail: a single line that says who, what, where and what to do next.
 *
 *     train_gpt: rank 2 on node7: ticket 7 along x is waited for twice (parallel/comm/coll.c:394
 *     coll_wait)
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
/* Local. The same for errors in the user's files, names and sizes: no source position. */
#define die_user(...) die_at(__FILE__, 0, __func__, 1, __VA_ARGS__)
/* Local. The same for a wrong command line: status 2, no source position. */
#define die_usage(...) die_at(__FILE__, 0, __func__, 2, __VA_ARGS__)
/* Local. Continues after printing one line "train_gpt: warning: ...". */
#define warn(...) die_print("warning: ", __VA_ARGS__)
/* Local. Fills e (which may be NULL) and yields false: `return err(e, "...")`. */
#define err(e, ...) err_set((e), __VA_ARGS__)

void die_at(const char *file, int line, const char *func, int status, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 5, 6)));
/* Local. Prints one line "train_gpt: KIND..." of warn (KIND is "warning: ") or die_line (""). */
void die_print(const char *kind, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool err_set(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Local. Puts "PLACE: " in front of the reason in e, and yields false. */
bool err_in(Err *e, const char *place);

/* First call of a program. Sets the program's name in messages (argv[0] without its folder), and
 * opens the standard streams that the caller closed: otherwise the next files would get their
 * numbers, and printed text would land in those files. At exit, when the standard output cannot
 * take the remaining text (a full disk), the program ends with a line and status 1. */
void die_set_program(const char *argv0);
/* Local. Flushes f. False with errno when the text cannot be written, for example to a full disk. A
 * pipe whose reader has ended and an output that was closed from the start are no failures. */
bool die_flush(FILE *f);
/* Sets the name of this thread's rank in messages; node may be NULL. Without this call messages
 * name no rank. From then on die_end runs no handlers of atexit, which could free memory that other
 * ranks still use. */
void die_set_rank(int rank, const char *node);
/* Says that this process is not the first of its job. Its die(), die_user() and die_usage() wait
 * two seconds before they print, so that an error that the first process finds as well is printed
 * once. */
void die_set_copy(bool is_copy);
/* Local. Is this process not the first of its job? What all processes would print alike is printed
 * by the first one only. */
bool die_is_copy(void);
/* The name of a rank in messages: die_rank reads that of the calling thread, and threads that the
 * rank starts set it with die_adopt_rank. */
typedef struct DieRank {
    char text[128];
} DieRank;
DieRank die_rank(void);
void die_adopt_rank(DieRank rank);

/* The two halves of die(): die_line prints the line, in any number of threads; die_end ends the
 * process, in the first thread that calls it, while others wait for the end. */
#define die_line(...) die_print("", __VA_ARGS__)
void die_end(int status) __attribute__((noreturn));
/* Ends the process with this status after so many seconds, whatever its threads wait for. Another
 * alarm() puts the end off. */
void die_after(unsigned seconds, int status);
/* For signal handlers: prints "PROGRAM: AB" on stderr and ends the process without hooks. A process
 * that is not the first of its job prints nothing. */
void die_in_handler(int status, const char *a, const char *b) __attribute__((noreturn));
/* Sets the function that die() calls once, after its line and before the process ends, e.g. to stop
 * other ranks. */
void die_set_hook(void (*hook)(int status));
/* Sets a function that is called once when the process ends early, after the line and before the
 * hook. It stops what would keep the process from ending, such as device kernels that wait for
 * ever, and must return. NULL: nothing. */
void die_set_release(void (*release)(void));
/* Sets a function that is called before die() and warn() print their line, e.g. to wipe a live
 * progress bar; NULL: none. */
void die_set_wipe(void (*wipe)(void));

#endif
