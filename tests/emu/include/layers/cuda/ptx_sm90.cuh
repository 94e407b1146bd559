/* ptx_sm90 -- replaces layers/cuda/ptx_sm90.cuh for g++, on top of tests/emu/hopper.h. */
#ifndef TESTS_EMU_PTX_SM90_CUH
#define TESTS_EMU_PTX_SM90_CUH

#include <cuda.h>

#include "layers/cuda/ptx.cuh"

extern "C" {
#include "tests/emu/hopper.h"
}

/* --- mbarrier */

inline void mbarrier_init(Shared at, int arrivals, EMU_HERE) {
    emu_mbarrier_init(at, arrivals, {file, line});
}
inline void mbarrier_fence() {
    emu_mbarrier_fence();
}
inline void mbarrier_arrive(Shared at, EMU_HERE) {
    emu_mbarrier_arrive(at, 0, {file, line});
}
inline void mbarrier_expect(Shared at, int n_bytes, EMU_HERE) {
    emu_mbarrier_arrive(at, n_bytes, {file, line});
}
inline void mbarrier_wait(Shared at, int parity, EMU_HERE) {
    emu_mbarrier_wait(at, parity, {file, line});
}

inline void mbarrier_arrive_at(Shared at, int rank, EMU_HERE) {
    emu_mbarrier_arrive_at(at, rank, {file, line});
}

/* --- copies */

inline void fence_async() {
    emu_fence_async();
}
inline void fence_async_global() {
    emu_fence_async_global();
}

inline void tma_load(Shared to, const CUtensorMap &map, Shared barrier, int c0, int c1, EMU_HERE) {
    const int at[] = {c0, c1};
    emu_tma_load(to, &map, barrier, 2, at, {file, line});
}
inline void tma_load(Shared to, const CUtensorMap &map, Shared barrier, int c0, int c1, int c2,
                     int c3, EMU_HERE) {
    const int at[] = {c0, c1, c2, c3};
    emu_tma_load(to, &map, barrier, 4, at, {file, line});
}
inline void bulk_load(Shared to, const void *from, int n_bytes, Shared barrier, EMU_HERE) {
    emu_bulk_load(to, from, n_bytes, barrier, {file, line});
}
inline void tma_store(const CUtensorMap &map, Shared from, int c0, int c1, EMU_HERE) {
    const int at[] = {c0, c1};
    emu_tma_store(&map, from, 2, at, {file, line});
}
inline void tma_store(const CUtensorMap &map, Shared from, int c0, int c1, int c2, int c3,
                      EMU_HERE) {
    const int at[] = {c0, c1, c2, c3};
    emu_tma_store(&map, from, 4, at, {file, line});
}
inline void tma_add(const CUtensorMap &map, Shared from, int c0, int c1, EMU_HERE) {
    const int at[] = {c0, c1};
    emu_tma_add(&map, from, 2, at, {file, line});
}
inline void tma_multicast(Shared to, const CUtensorMap &map, Shared barrier, unsigned mask, int c0,
                          int c1, EMU_HERE) {
    const int at[] = {c0, c1};
    emu_tma_multicast(to, &map, barrier, mask, 2, at, {file, line});
}
inline void tma_commit() {
    emu_tma_commit();
}
template <int LEFT> void tma_wait() {
    emu_tma_wait(LEFT);
}

/* --- clusters */

inline int cluster_rank() {
    return emu_cluster_rank();
}
inline int cluster_size() {
    return emu_cluster_size();
}
inline void cluster_sync(EMU_HERE) {
    emu_cluster_sync({file, line});
}

/* --- threads */

template <int N> void registers_at_most(EMU_HERE) {
    emu_registers(N, false, {file, line});
}
template <int N> void registers_at_least(EMU_HERE) {
    emu_registers(N, true, {file, line});
}
inline void barrier_sync(int id, int n, EMU_HERE) {
    emu_barrier(id, n, true, {file, line});
}
inline void barrier_arrive(int id, int n, EMU_HERE) {
    emu_barrier(id, n, false, {file, line});
}

inline void load_shared(unsigned (&r)[2], Shared at, EMU_HERE) {
    if (reinterpret_cast<uintptr_t>(at) % 8) emu_fail({file, line}, "ld.shared: not 8 bytes");
    memcpy(r, at, sizeof r);
}
inline void store_shared(Shared at, float x, float y, EMU_HERE) {
    const float pair[] = {x, y};
    if (reinterpret_cast<uintptr_t>(at) % 8) emu_fail({file, line}, "st.shared: not 8 bytes");
    emu_written(at, {file, line});
    memcpy(const_cast<void *>(static_cast<const void *>(at)), pair, sizeof pair);
}
inline void emu_stmatrix(void *const lane[32]) {
    for (int l = 0; l < 32; l++)
        if (!lane[l]) emu_fail({__FILE__, __LINE__}, "stmatrix: lane %d has ended", l);
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 32; l++) {
            const auto *from = static_cast<const EmuLdmatrix *>(lane[l]);
            auto *row = const_cast<char *>(static_cast<EmuLdmatrix *>(lane[i * 8 + l / 4])->row);
            memcpy(row + l % 4 * 4, &from->r[i], 4);
        }
}
inline void stmatrix(Shared row, const unsigned (&r)[4], EMU_HERE) {
    if (reinterpret_cast<uintptr_t>(row) % 16) emu_fail({file, line}, "stmatrix: not 16 bytes");
    emu_written(row, {file, line});
    EmuLdmatrix m = {row, const_cast<unsigned *>(r)};
    emu_meet(0xffffffff, "stmatrix", &m, emu_stmatrix, {file, line});
}

/* --- wgmma */

using Matrix = uint64_t;
enum Major { K_MAJOR = 0, MN_MAJOR = 1 };

inline Matrix matrix_at(Shared at, int leading, int stride, EMU_HERE) {
    int64_t offset = emu_shared_offset(at);
    if (offset < 0 || offset % 16) emu_fail({file, line}, "a matrix that is not in shared memory");
    return static_cast<Matrix>(offset >> 4 & 0x3fff) | static_cast<Matrix>(leading >> 4) << 16 |
           static_cast<Matrix>(stride >> 4) << 32 | Matrix(1) << 62;
}
inline Matrix matrix_on(Matrix m, int n_bytes) {
    return m + static_cast<Matrix>(n_bytes >> 4);
}
inline void wgmma_fence() {
    emu_wgmma_fence();
}
inline void wgmma_commit() {
    emu_wgmma_commit();
}
template <int LEFT, class... D> void emu_wait(EmuPlace at, D &...d) {
    emu_wgmma_wait(LEFT, at);
    (emu_wgmma_check(&d[0][0], at), ...);
}
/* Overloads for up to three accumulators: EMU_HERE cannot follow a parameter list of any length. */
template <int LEFT> void wgmma_wait(EMU_HERE) {
    emu_wait<LEFT>({file, line});
}
template <int LEFT, int I> void wgmma_wait(float (&d)[I][4], EMU_HERE) {
    emu_wait<LEFT>({file, line}, d);
}
template <int LEFT, int I, int J> void wgmma_wait(float (&d)[I][4], float (&e)[J][4], EMU_HERE) {
    emu_wait<LEFT>({file, line}, d, e);
}
template <int LEFT, int I, int J, int K>
void wgmma_wait(float (&d)[I][4], float (&e)[J][4], float (&f)[K][4], EMU_HERE) {
    emu_wait<LEFT>({file, line}, d, e, f);
}
inline unsigned anew(unsigned x) {
    return x;
}
inline void stop_if(bool never) {
    if (never) abort();
}

template <Major A, Major B, int J>
void wgmma(float (&d)[J][4], Matrix a, Matrix b, bool add, EMU_HERE) {
    EmuWgmma w = {&d[0][0], J * 8, a, b, false, A == MN_MAJOR, B == MN_MAJOR, add, {}};
    emu_wgmma(&w, {file, line});
}
template <Major B, int J>
void wgmma(float (&d)[J][4], const unsigned (&a)[4], Matrix b, bool add, EMU_HERE) {
    EmuWgmma w = {&d[0][0], J * 8, 0, b, true, false, B == MN_MAJOR, add, {a[0], a[1], a[2], a[3]}};
    emu_wgmma(&w, {file, line});
}

#endif
