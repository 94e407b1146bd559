/* warpgroups_sm90 -- how the warps of a block share the work on Hopper: one warpgroup fetches,
 * others compute, and a ring of slots in shared memory lies between them.
 *
 *     fetches    its first thread waits until a slot is empty, announces the bytes of the copy,
 *                begins it, goes on
 *     computes   waits until a slot is full, multiplies, then lane 0 of every warp marks it empty
 *
 * All warpgroups that compute take all slots, in one order.
 */
#ifndef LAYERS_CUDA_WARPGROUPS_SM90_CUH
#define LAYERS_CUDA_WARPGROUPS_SM90_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx_sm90.cuh"
#include "layers/cuda/vec.cuh"

enum { GROUP = 128, SLAB = 64, PANEL = 64, PANEL_ROW = 128 }; // threads; rows; elements, bytes

template <int J> using Fragment = float[J][4]; // of an accumulator of 8 J columns

/* Where the slots are: full[SLOTS] and empty[SLOTS], one after the other; and the place of this
 * thread in them. */
template <int SLOTS> struct Ring {
    Shared barriers;
    int slot, phase;
    __device__ __forceinline__ Shared full() const { return barriers + slot * 8; }
    __device__ __forceinline__ Shared empty() const { return barriers + (SLOTS + slot) * 8; }
    __device__ __forceinline__ void next() {
        if (++slot == SLOTS) slot = 0, phase ^= 1;
    }
    /* Of one thread, before the others begin. */
    __device__ __forceinline__ void make(int takers) const {
        for (int i = 0; i < SLOTS; i++) {
            mbarrier_init(barriers + i * 8, 1);
            mbarrier_init(barriers + (SLOTS + i) * 8, takers);
        }
    }
    /* Of the thread that fetches: the slot is empty, and n_bytes will come. */
    __device__ __forceinline__ void open(int n_bytes) const {
        mbarrier_wait(empty(), phase ^ 1);
        mbarrier_expect(full(), n_bytes);
    }
    /* Of the same thread: all have given back what was put into the ring `back` slots ago. */
    __device__ __forceinline__ void wait_given(int back) const {
        if (back > SLOTS) return; // another took its place
        int i = slot - back, lap = phase;
        if (i < 0) i += SLOTS, lap ^= 1;
        mbarrier_wait(barriers + (SLOTS + i) * 8, lap);
    }
    /* Of those who compute: what the next slot holds is here; this warp needs slot i no more. */
    __device__ __forceinline__ int take() {
        mbarrier_wait(full(), phase);
        int i = slot;
        next();
        return i;
    }
    __device__ __forceinline__ void give(int i) const {
        if (this_lane() == 0) mbarrier_arrive(barriers + (SLOTS + i) * 8);
    }
    /* Where the blocks of a cluster fill each other's slots: none of `blocks` may be overtaken. */
    __device__ __forceinline__ void give_all(int i, int blocks) const {
        if (this_lane() < blocks) mbarrier_arrive_at(barriers + (SLOTS + i) * 8, this_lane());
    }
    /* No lane may still wait for a slot's phase when its first gives it back: the phase after the
     * next looks the same. A matmul is begun by all lanes; here nothing else makes them meet. */
    __device__ __forceinline__ void skip() {
        int i = take();
        __syncwarp();
        give(i);
    }
    /* The next n slots are another one's: this thread has no part in them. */
    __device__ __forceinline__ void pass(int n) {
        phase ^= (slot + n) / SLOTS & 1;
        slot = (slot + n) % SLOTS;
    }
};

/* The boxes that each warpgroup has for itself, two sets of them: part n of the block's work has
 * set n % 2, and a barrier of the set says that they have come. The next part's come, and behind
 * them what all share, while warpgroups still read those of this one. */
struct Sets {
    enum { N = 2 };
    Shared barriers;
    __device__ __forceinline__ Shared here(unsigned n) const { return barriers + n % N * 8; }
    /* Of one thread, before the others begin. */
    __device__ __forceinline__ void make() const {
        for (int i = 0; i < N; i++) mbarrier_init(barriers + i * 8, 1);
    }
    /* Of the thread that fetches: n_bytes will come into the set. It may be written as soon as all
     * warpgroups have given back what was put into the ring `back` slots ago: the last slot of part
     * n - 2, or, where they store from the set, one of part n - 1 that they keep until that is
     * done. */
    template <int SLOTS>
    __device__ __forceinline__ void open(const Ring<SLOTS> &ring, unsigned n, int back,
                                         int n_bytes) const {
        if (n >= N) ring.wait_given(back);
        mbarrier_expect(here(n), n_bytes);
    }
    /* Of those who compute: the set has come. */
    __device__ __forceinline__ void take(unsigned n) const {
        mbarrier_wait(here(n), static_cast<int>(n / N % 2));
    }
};

/* Dynamic scheduling of persistent blocks: pieces of work are numbered 0 .. count - 1. Each block
 * begins with the piece of its own number. When its fetching thread has begun all copies of a
 * piece, it takes the next number from a counter in device memory, and stores it in shared memory
 * for the warpgroups that compute. */
struct Pieces {
    enum { KEPT = 4, BYTES = KEPT * 4 };
    int count;
    int *taken; // the counter, 0 between kernels: pieces behind those that blocks begin with
    int kept;   // offset in dynamic shared memory of the block's last KEPT numbers
    __device__ __forceinline__ int &place(unsigned n) const {
        return reinterpret_cast<int *>(dynamic_shared<char>() + kept)[n % KEPT];
    }
    /* Of the thread that fetches, before it opens set n: the number of the block's piece n; from
     * count on there is none. The last block to ask resets the counter. No warpgroup reads the
     * number that is overwritten: set n - 1 is open, so all have given back slots of n - 3. */
    __device__ __forceinline__ int take(unsigned n) const {
        int piece = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
        if (n > 0) piece = blocks + atomicAdd(taken, 1);
        if (piece == count + blocks - 1) *taken = 0;
        return place(n) = piece;
    }
    /* Of those who compute, when set n has come: the same number, by a lane's word, so that the
     * compiler sees that it is one for the warp. */
    __device__ __forceinline__ int part(unsigned n) const {
        return __shfl_sync(static_cast<unsigned>(FULL), place(anew(n)), 0);
    }
};

/* A block has a multiprocessor for itself: WGS warpgroups that compute and one that fetches, which
 * keeps at least FEW registers to a thread and gives the others to them. A block has what it was
 * launched with, by 8 to a thread, and no more. */
template <int WGS, int FEW = 32> struct Roles {
    static constexpr int THREADS = (WGS + 1) * GROUP, POOL = 65536 / THREADS / 8 * 8;
    static constexpr int MANY = (POOL * (WGS + 1) - FEW) / WGS / 8 * 8;
    __device__ __forceinline__ static void few() {
        registers_at_most<POOL *(WGS + 1) - MANY * WGS>();
    }
    __device__ __forceinline__ static void many() { registers_at_least<MANY>(); }
};

/* The warpgroup of this thread, by a lane's word, so that the compiler sees that it is one for the
 * warp: matmuls may not stand in code that lanes could come to apart. */
__device__ __forceinline__ int this_group() {
    return __shfl_sync(static_cast<unsigned>(FULL), static_cast<int>(threadIdx.x) / GROUP, 0);
}
/* The warps of this warpgroup meet. */
__device__ __forceinline__ void group_sync() {
    barrier_sync(1 + this_group(), GROUP);
}

/* The first of the two rows, 8 apart, of which this lane has accumulators, in the warpgroup's
 * 64. */
__device__ __forceinline__ int this_row() {
    unsigned thread = anew(threadIdx.x);
    return static_cast<int>(thread % GROUP / WARP * 16 + thread % WARP / 4);
}

#endif
