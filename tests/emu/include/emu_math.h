/* emu_math -- device functions of one thread: arithmetic, loads with hints, atomics. */
#ifndef TESTS_EMU_MATH_H
#define TESTS_EMU_MATH_H

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

template <class T> T __ldcg(const T *p) { // on a device: through the L2 cache only
    return *p;
}

/* Atomic between host threads too: ranks may be threads that share a device. */
template <class T> T atomicAdd(T *p, T x) {
    static_assert(std::is_integral<T>::value, "sums of floats in any order are not repeatable");
    return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
}

#endif
