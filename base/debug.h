/* debug -- BASE_DEBUG: is this a build with extra, slow checks? (CONFIG=debug, asan, tsan, fuzz)
 * BASE_TSAN: is it instrumented by gcc's thread sanitizer? */
#ifndef BASE_DEBUG_H
#define BASE_DEBUG_H

#ifdef GPT_DEBUG
enum { BASE_DEBUG = 1 };
#else
enum { BASE_DEBUG = 0 };
#endif

#ifdef __SANITIZE_THREAD__
enum { BASE_TSAN = 1 };
#else
enum { BASE_TSAN = 0 };
#endif

#endif
