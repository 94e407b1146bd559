/* debug -- is this a build with extra, slow checks? (CONFIG=debug, asan, tsan, fuzz) */
#ifndef BASE_DEBUG_H
#define BASE_DEBUG_H

#ifdef GPT_DEBUG
enum { BASE_DEBUG = 1 };
#else
enum { BASE_DEBUG = 0 };
#endif

#endif
