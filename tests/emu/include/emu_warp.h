/* emu_warp -- barriers of a block, and exchanges between the lanes of a warp.
 *
 * Each lane gives a value and receives the value of another lane:
 *
 *     __shfl_xor_sync, 4 lanes, 1     lane 0  1  2  3
 *                              give        a  b  c  d
 *                              receive     b  a  d  c
 *
 * A lane that is not in the mask, or has ended, gives all ones: NaN. */
#ifndef TESTS_EMU_WARP_H
#define TESTS_EMU_WARP_H

#include <type_traits>

/* The last two parameters of a function: file and line of its caller. */
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_HERE) {
    emu_sync({file, line});
}

inline void emu_no_work(void *const *) {}
inline void __syncwarp(unsigned mask = 0xffffffff, EMU_HERE) {
    emu_meet(mask, "__syncwarp", nullptr, emu_no_work, {file, line});
}

/* The value that a lane gives to a shuffle, the lane from which it receives, and the received
 * value. */
template <class T> struct EmuShuffle {
    T value, taken;
    int from;
};
template <class T> inline void emu_shuffle(void *const lane[32]) {
    for (int i = 0; i < 32; i++) {
        if (!lane[i]) continue;
        auto *me = static_cast<EmuShuffle<T> *>(lane[i]);
        auto *other = static_cast<EmuShuffle<T> *>(lane[me->from]);
        if (other)
            me->taken = other->value;
        else
            memset(static_cast<void *>(&me->taken), 0xff, sizeof me->taken);
    }
}
template <class T>
inline T emu_take(unsigned mask, T value, int from, const char *what, EmuPlace at) {
    static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "what CUDA can shuffle");
    EmuShuffle<T> s = {value, value, from};
    emu_meet(mask, what, &s, emu_shuffle<T>, at);
    return s.taken;
}
inline int emu_lane() {
    uint3 t = threadIdx, d = blockDim;
    return static_cast<int>((t.z * d.y + t.y) * d.x + t.x) % 32;
}

/* Groups of `width` lanes, a power of two, exchange values within the group. A lane whose source
 * would lie outside of the group keeps its own value. */
template <class T> inline T __shfl_sync(unsigned mask, T x, int from, int width = 32, EMU_HERE) {
    int group = emu_lane() & ~(width - 1);
    return emu_take(mask, x, group + (from & (width - 1)), "__shfl_sync", {file, line});
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32, EMU_HERE) {
    // a lane of a lower group can be read, one of a higher group cannot
    int lane = emu_lane(), from = lane ^ with;
    return emu_take(mask, x, from <= (lane | (width - 1)) ? from : lane, "__shfl_xor_sync",
                    {file, line});
}
template <class T> inline T __shfl_up_sync(unsigned mask, T x, int by, int width = 32, EMU_HERE) {
    int lane = emu_lane(), from = lane - by;
    return emu_take(mask, x, from >= (lane & ~(width - 1)) ? from : lane, "__shfl_up_sync",
                    {file, line});
}

/* The number that a lane gives, and the mask of the lanes with the same number, which it
 * receives. */
struct EmuMatch {
    int value;
    unsigned same;
};
inline void emu_match(void *const lane[32]) {
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < 32 && lane[i]; j++) {
            auto *me = static_cast<EmuMatch *>(lane[i]), *other = static_cast<EmuMatch *>(lane[j]);
            if (other && other->value == me->value) me->same |= 1u << j;
        }
}
inline unsigned __match_any_sync(unsigned mask, int value, EMU_HERE) {
    EmuMatch m = {value, 0};
    emu_meet(mask, "__match_any_sync", &m, emu_match, {file, line});
    return m.same;
}

#endif
