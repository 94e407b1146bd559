/* ptx -- replaces layers/cuda/ptx.cuh for g++: each instruction is computed element by element,
 * according to the tables of the PTX ISA. layers/cuda/ptx.cuh draws the fragments.
 *
 * Lanes meet (emu_meet); the last one does the work of all 32: it gathers the matrix from the
 * registers of the lanes, computes, and writes the results to their registers. In emu_place_a, _b
 * and _d, i counts the elements of a lane's fragment. */
#ifndef TESTS_EMU_PTX_CUH
#define TESTS_EMU_PTX_CUH

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

using Shared = char *; // on a device a 32-bit address, here a pointer
inline Shared shared_address(const void *p) {
    return static_cast<char *>(const_cast<void *>(p));
}

inline Shared flipped(Shared at, int bits) {
    return reinterpret_cast<Shared>(reinterpret_cast<uintptr_t>(at) ^ static_cast<unsigned>(bits));
}

struct EmuAt {
    int row, column;
};
/* A: pairs along k; registers 1 and 3 are 8 rows lower, registers 2 and 3 are 8 further along k. */
inline EmuAt emu_place_a(int lane, int i) {
    return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}
/* B: pairs down k; the second register is 8 further down. */
inline EmuAt emu_place_b(int lane, int i) {
    return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4};
}
/* D: pairs along n; the second pair is 8 rows lower. */
inline EmuAt emu_place_d(int lane, int i) {
    return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

/* Half i % 2 of register i / 2: the lower half is the element that comes first. */
inline uint16_t emu_half(const unsigned *r, int i) {
    return static_cast<uint16_t>(r[i / 2] >> (i % 2 * 16));
}
inline float emu_bf16(const unsigned *r, int i) {
    return __uint_as_float(static_cast<unsigned>(emu_half(r, i)) << 16);
}

struct EmuMma {
    float *d;
    const unsigned *a;
    unsigned b[2];
};
inline void emu_mma(void *const lane[32]) {
    typedef float Row __attribute__((vector_size(8 * sizeof(float))));
    float a[16][16];
    Row b[16], d[16];
    for (int l = 0; l < 32; l++) {
        const auto *m = static_cast<const EmuMma *>(lane[l]);
        if (!m) emu_fail({__FILE__, __LINE__}, "mma.sync: lane %d has ended", l);
        for (int i = 0; i < 8; i++) {
            EmuAt at = emu_place_a(l, i);
            a[at.row][at.column] = emu_bf16(m->a, i);
        }
        for (int i = 0; i < 4; i++) {
            EmuAt at = emu_place_b(l, i);
            b[at.row][at.column] = emu_bf16(m->b, i);
            at = emu_place_d(l, i);
            d[at.row][at.column] = m->d[i];
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++) d[row] += a[row][k] * b[k];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            EmuAt at = emu_place_d(l, i);
            static_cast<EmuMma *>(lane[l])->d[i] = d[at.row][at.column];
        }
}
inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, EMU_HERE) {
    EmuMma m = {d, a, {b0, b1}};
    emu_meet(0xffffffff, "mma.sync", &m, emu_mma, {file, line});
}

/* The address of the matrix row that a lane passes to ldmatrix, and the registers that the lane
 * receives, one of each matrix. */
struct EmuLdmatrix {
    const char *row;
    unsigned *r;
};
template <bool TRANS> void emu_ldmatrix(void *const lane[32]) {
    for (int l = 0; l < 32; l++)
        if (!lane[l]) emu_fail({__FILE__, __LINE__}, "ldmatrix: lane %d has ended", l);
    for (int i = 0; i < 4; i++) {
        uint16_t matrix[8][8];
        for (int row = 0; row < 8; row++)
            memcpy(matrix[row], static_cast<EmuLdmatrix *>(lane[i * 8 + row])->row, 16);
        for (int l = 0; l < 32; l++) {
            int g = l / 4, t = l % 4 * 2;
            unsigned low = TRANS ? matrix[t][g] : matrix[g][t];
            unsigned high = TRANS ? matrix[t + 1][g] : matrix[g][t + 1];
            static_cast<EmuLdmatrix *>(lane[l])->r[i] = high << 16 | low;
        }
    }
}
template <bool TRANS> void emu_meet_ldmatrix(unsigned *r, const char *row, EmuPlace at) {
    if (emu_shared_offset(row) < 0 || reinterpret_cast<uintptr_t>(row) % 16)
        emu_fail(at, "ldmatrix: lane %d gives no address of 16 bytes of shared memory", emu_lane());
    EmuLdmatrix m = {row, r};
    emu_meet(0xffffffff, "ldmatrix", &m, emu_ldmatrix<TRANS>, at);
}
inline void ldmatrix(unsigned (&r)[4], Shared row, EMU_HERE) {
    emu_meet_ldmatrix<false>(r, row, {file, line});
}
inline void ldmatrix_trans(unsigned (&r)[4], Shared row, EMU_HERE) {
    emu_meet_ldmatrix<true>(r, row, {file, line});
}

/* Copies are executed when they are waited for, not before (tests/emu/async.c). */
inline void copy_async_first(Shared to, const void *from, int n_bytes, EMU_HERE) {
    emu_copy_later(to, from, 16, n_bytes, {file, line});
}
template <int BYTES> void copy_async(Shared to, const void *from, bool there, EMU_HERE) {
    static_assert(BYTES == 4 || BYTES == 16, "what is used");
    emu_copy_later(to, from, BYTES, there ? BYTES : 0, {file, line});
}
inline void copy_commit() {
    emu_copy_commit();
}
template <int LEFT> void copy_wait() {
    emu_copy_wait(LEFT);
}

inline void store_for_host(uint32_t *to, uint32_t x) {
    __atomic_store_n(to, x, __ATOMIC_RELEASE);
}

inline void flag_signal(int *flag, int x) {
    __atomic_store_n(flag, x, __ATOMIC_RELEASE);
    emu_notify_blocks();
}
inline void flag_wait(const int *flag, int x, EMU_HERE) {
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != x && !emu_setup.forget_flags)
        emu_wait_for_blocks("a flag", {file, line});
}

inline void flag_wait_system(const uint32_t *flag, uint32_t x, EMU_HERE) {
    bool of_device = emu_is_device(flag, sizeof x);
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != x && !emu_setup.forget_flags)
        (of_device ? emu_wait_for_blocks : emu_wait_host)("a flag of a copy", {file, line});
    emu_saw_flag();
}

/* These are less exact on hardware, so tolerances of tests must leave room for them. exp2_fast: a
 * subnormal result is 0, as of ex2.approx.ftz. */
inline float exp2_fast(float x) {
    return x < -126 ? 0 : exp2f(x);
}
inline float reciprocal_fast(float x) {
    return 1 / x;
}

#endif
