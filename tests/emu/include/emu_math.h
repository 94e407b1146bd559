/* emu_math -- device functions of one thread: arithmetic, loads with hints, atomics. Those with two
 * underscores are less exact on hardware; here they are as exact as the others, so tolerances must
 * leave room for them. */
#ifndef TESTS_EMU_MATH_H
#define TESTS_EMU_MATH_H

inline float __expf(float x) {
    return expf(x);
}
inline float __logf(float x) {
    return logf(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline float __frcp_rn(float x) {
    return 1 / x;
}
inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
inline float rsqrtf(float x) {
    return 1 / sqrtf(x);
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __uint_as_float(unsigned x) {
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline int min(int a, int b) {
    return a < b ? a : b;
}
inline int max(int a, int b) {
    return a > b ? a : b;
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}

template <class T> T __ldg(const T *p) { // through the read-only cache
    return *p;
}
template <class T> T __ldcs(const T *p) { // not to be kept in caches
    return *p;
}
template <class T> void __stcs(T *p, T x) {
    *p = x;
}
template <class T> T __ldcg(const T *p) { // from L2
    return *p;
}
template <class T> void __stcg(T *p, T x) {
    *p = x;
}

/* Ranks may be threads of the host that share a device. */
template <class T> T atomicAdd(T *p, T x) {
    static_assert(std::is_integral<T>::value, "sums of floats in any order are not repeatable");
    return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
}
template <class T> T atomicExch(T *p, T x) {
    return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST);
}
inline unsigned atomicMax(unsigned *p, unsigned x) {
    unsigned old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (old < x &&
           !__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return old;
}
inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {}

#endif
