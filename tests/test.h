/* test -- the harness. To add a test, write TEST(name) in any tests/test_*.c; nothing else.
 *
 *     TEST(gelu_is_zero_at_zero) {
 *         CHECK(gelu(0) == 0);
 *         CHECK_NEAR(gelu(1), 0.841192, 1e-6);
 *     }
 *
 * A failed CHECK prints file, line and values, marks the test failed and returns from the function
 * it stands in. NaN is never near anything. `build/run_tests [options] [word...]` runs the tests
 * whose name contains one of the words (all without words) and ends with the line "N passed, N
 * failed, N skipped"; it exits non-zero when one failed and when none ran.
 *
 *     -v             also the tests that passed, with their times
 *     -j JOBS        so many tests at a time (default: three for two processors); 0: in this
 *                    process, for a debugger
 *     --times        all tests, the one that took most of the processors first
 *     --kernels SET  as if the processor had no better instruction set; the same as
 *                    TRAIN_GPT_KERNELS=SET
 *
 * The headers that most tests need come with this one.
 */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct Team;
struct Tokenizer;
struct Calibration;
struct json_t;

typedef void (*TestFn)(void);
void test_register(const char *name, const char *file, TestFn f, bool alone);
void test_begin(void); // resets the state before a test
#define test_fail(...) test_fail_at(__FILE__, __LINE__, __VA_ARGS__)
void test_fail_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void test_skip(const char *why); // the test counts as skipped, and the reason is printed
#define SKIP_IF(cond, why)                                                                         \
    do {                                                                                           \
        if (cond) {                                                                                \
            test_skip(why);                                                                        \
            return;                                                                                \
        }                                                                                          \
    } while (0)
bool test_failed(void); // has the running test failed?
bool test_skipped(void);
/* Are CUDA's kernels run by a GPU (build/cuda/run_tests), and not by the emulator of tests/emu/? */
extern const bool test_on_device;
/* Is there time for all cases (TEST_LONG in the environment: make test-long, asan, tsan)? Else a
 * sweep over thousands of alike cases takes a sample of them, the same one each time. */
bool test_long(void);

/* Runs f(arg) in a child process. Returns its exit status, or 128 + signal; what it wrote to stderr
 * (a die() line, for instance) is left in text. */
int test_in_child(void (*f)(void *), void *arg, char *text, size_t n_text);
/* Runs f(arg) in a child process. Fails unless it ends with this status and prints all of these
 * texts. */
#define CHECK_CHILD(status, f, arg, ...)                                                           \
    do {                                                                                           \
        const char *words_[] = {__VA_ARGS__, NULL};                                                \
        if (!test_child_prints(__FILE__, __LINE__, status, f, arg, words_)) return;                \
    } while (0)
bool test_child_prints(const char *file, int line, int status, void (*f)(void *), void *arg,
                       const char *const *words);
/* Stops this process, all its threads, for some five seconds. */
void test_stop(void);
/* Runs a shell command in a folder; $BUILD is the folder of this build's programs. Returns its exit
 * status, -1 if a signal ended it. text gets the end of what it printed on both streams. */
int test_shell(const char *dir, char *text, size_t n_text, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* A fresh folder, removed when the run ends. The string lives until then. */
const char *test_tmpdir(void);
/* Binds this process and those that it starts to one processor, or (false) to all that it had; the
 * end of a test does the latter. Then ranks certainly share a processor, and a busy machine does
 * not change what is measured. */
bool test_one_processor(bool one);
/* A path or another short text, formatted; valid until the thread's 32nd call from this one. */
char *test_path(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The whole file, with a 0 behind it; freed by mem_free. NULL: there is no such file. n may be
 * NULL. */
char *test_read(const char *path, size_t *n);
bool test_same_files(const char *a, const char *b);
int test_count(const char *text, const char *word); // number of occurrences
/* The text with its first `from` replaced by `to`; freed by mem_free. Dies if there is no
 * `from`. */
char *test_changed(const char *text, const char *from, const char *to);
/* What the statements print to f; freed by mem_free.
 *
 *     OWNED(test_mem_end) char *text = PRINTED(plan_print(&p, f));
 */
#define PRINTED(...)                                                                               \
    __extension__({                                                                                \
        char *text_;                                                                               \
        size_t n_;                                                                                 \
        FILE *f = open_memstream(&text_, &n_);                                                     \
        if (!f) abort();                                                                           \
        __VA_ARGS__;                                                                               \
        fclose(f);                                                                                 \
        text_;                                                                                     \
    })
/* As JSON, in which every number of the table is. */
bool test_same_calibration(const struct Calibration *a, const struct Calibration *b);
/* Are all tags of an HTML or SVG text closed, in the right order? */
bool test_balanced(const char *html);
/* Path of a file that is committed under tests/ (the tests run from the top of the tree). */
#define TEST_DATA(name) ("tests/" name)

#define TEST(name) TEST_REGISTERED(name, false)
/* A test that runs only in the emulator: it reads the emulator's state, or changes how the emulator
 * behaves. */
#define TEST_EMULATED(name)                                                                        \
    static void emulated_##name(void);                                                             \
    TEST(name) {                                                                                   \
        if (test_on_device)                                                                        \
            test_skip("of the emulator alone");                                                    \
        else                                                                                       \
            emulated_##name();                                                                     \
    }                                                                                              \
    static void emulated_##name(void)
/* A test that measures times. It runs after all others have ended. */
#define TEST_ALONE(name) TEST_REGISTERED(name, true)
#define TEST_REGISTERED(name, alone)                                                               \
    static void test_##name(void);                                                                 \
    __attribute__((constructor)) static void register_##name(void) {                               \
        test_register(#name, __FILE__, test_##name, alone);                                        \
    }                                                                                              \
    static void test_##name(void)

/* Written before a declaration with a value: f(&variable) is called at the end of its scope, also
 * when a CHECK fails.
 *
 *     OWNED(program_free) Program p = program_make(&shape);
 *     OWNED(test_team_end) Team *t = team_create(2);
 *     OWNED(test_mem_end) float *x = mem_alloc(n * sizeof *x);
 */
#define OWNED(f) __attribute__((cleanup(f), unused))
/* Over the elements of an array, p points at one after the other.
 *
 *     for (EACH(row, rows)) CHECK(twice(row->x) == row->want);
 */
#define EACH(p, array)                                                                             \
    __typeof__(*(array)) *p = (array);                                                             \
    p < (array) + N_OF(array);                                                                     \
    p++
#define N_OF(array) ((int)(sizeof(array) / sizeof *(array)))
/* Marks an unused argument of a callback. */
#define UNUSED __attribute__((unused))
void test_team_end(struct Team **t);
void test_tokenizer_end(struct Tokenizer **t);
void test_calibration_end(struct Calibration **c);
void test_json_end(struct json_t **j);
void test_mem_end(void *pointer);

#define CHECK(cond) CHECK_SAYS(cond, "%s", #cond)

/* CHECK that prints this text, formatted as by printf, instead of the condition. */
#define CHECK_SAYS(cond, ...)                                                                      \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            test_fail(__VA_ARGS__);                                                                \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* CHECK that a call failed, and that its Err has these words. */
#define CHECK_REFUSED(call, err, words)                                                            \
    do {                                                                                           \
        bool done_ = (call);                                                                       \
        CHECK_SAYS(!done_ && strstr((err).text, words), "%s: \"%s\", not \"%s\"", #call,           \
                   done_ ? "taken" : (err).text, words);                                           \
    } while (0)

/* |a - b| <= tol; tol's reason belongs in a comment beside it. */
#define CHECK_NEAR(a, b, tol)                                                                      \
    do {                                                                                           \
        double a_ = (double)(a), b_ = (double)(b), t_ = (double)(tol);                             \
        if (!(fabs(a_ - b_) <= t_)) {                                                              \
            test_fail("%s = %.9g, %s = %.9g: differ by %.3g > %.3g", #a, a_, #b, b_,               \
                      fabs(a_ - b_), t_);                                                          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *a_ = (a), *b_ = (b);                                                           \
        if (strcmp(a_, b_) != 0) {                                                                 \
            test_fail("%s is \"%s\", not \"%s\"", #a, a_, b_);                                     \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Normalised mean square error sum (a-b)^2 / sum b^2 of n floats; infinite when a holds a NaN. */
double test_nmse(const float *a, const float *b, size_t n);
/* x[i] uniform in [-scale, scale), a function of seed and i alone. */
void test_fill(float *x, size_t n, float scale, unsigned seed);

#endif
