/* warpgroups_sm90 -- how the warps of a block share the work on Hopper: one warpgroup fetches (the
 * producer), others compute (the consumers), and a ring of slots in shared memory lies between
 * them.
 *
 *     producer    its first thread waits until a slot is empty, announces the bytes of the copy,
 *                 begins the copy, goes on
 *     consumer    waits until a slot is full, multiplies, then lane 0 of every warp marks it empty
 *
 * All consumers take all slots in order; with PINGPONG (matmul_sm90.cuh) those of their own tiles.
 */
#ifndef LAYERS_CUDA_WARPGROUPS_SM90_CUH
#define LAYERS_CUDA_WARPGROUPS_SM90_CUH

#include "layers/cuda/launch.cuh"
#include "layers/cuda/ptx_sm90.cuh"
#include "layers/cuda/vec.cuh"

// threads of a warpgroup; rows of its slab; elements in a row of a panel, and their bytes
enum { GROUP = 128, SLAB = 64, PANEL = 64, PANEL_ROW = 128 };

template <int J> using Fragment = float[J][4]; // of an accumulator of 8 J columns

/* The barriers of the slots, full[SLOTS] and empty[SLOTS], and this thread's position in the ring:
 * its slot, and the parity of its round. */
template <int SLOTS> struct Ring {
    Shared barriers;
    int slot, phase;
    __device__ __forceinline__ Shared full() const { return barriers + slot * 8; }
    __device__ __forceinline__ Shared empty() const { return barriers + (SLOTS + slot) * 8; }
    __device__ __forceinline__ void next() {
        if (++slot == SLOTS) slot = 0, phase ^= 1;
    }
    /* Initializes the barriers: by one thread, before a barrier of the block. */
    __device__ __forceinline__ void make(int consumers) const {
        for (int i = 0; i < SLOTS; i++) {
            mbarrier_init(barriers + i * 8, 1);
            mbarrier_init(barriers + (SLOTS + i) * 8, consumers);
        }
    }
    /* Called by the producer: waits until the slot is empty, and announces n_bytes for it. */
    __device__ __forceinline__ void producer_acquire(int n_bytes) const {
        mbarrier_wait(empty(), phase ^ 1);
        mbarrier_expect(full(), n_bytes);
    }
    /* Called by the producer: waits until all consumers have released the slot that was filled
     * `back` slots ago. */
    __device__ __forceinline__ void wait_released(int back) const {
        if (back > SLOTS) return; // the slot was filled again since, so it had been released
        int i = slot - back, lap = phase;
        if (i < 0) i += SLOTS, lap ^= 1;
        mbarrier_wait(barriers + (SLOTS + i) * 8, lap);
    }
    /* Called by consumers, as in CUTLASS's pipelines. consumer_wait: waits until the next slot is
     * full, and returns its index. consumer_release: this warp no longer needs slot i. */
    __device__ __forceinline__ int consumer_wait() {
        mbarrier_wait(full(), phase);
        int i = slot;
        next();
        return i;
    }
    __device__ __forceinline__ void consumer_release(int i) const {
        if (this_lane() == 0) mbarrier_arrive(barriers + (SLOTS + i) * 8);
    }
    /* Releases slot i to all blocks of a cluster, whose producers fill the slots of each
     * other. */
    __device__ __forceinline__ void consumer_release_all(int i, int blocks) const {
        if (this_lane() < blocks) mbarrier_arrive_at(barriers + (SLOTS + i) * 8, this_lane());
    }
    /* Waits for the next slot and releases it unused. All lanes must have seen the slot's phase
     * before lane 0 releases the slot: for a late lane the phase after the next one looks the
     * same. Elsewhere the matmul between consumer_wait and consumer_release, which needs all lanes,
     * ensures that; here __syncwarp does. */
    __device__ __forceinline__ void skip() {
        int i = consumer_wait();
        __syncwarp();
        consumer_release(i);
    }
    /* Advances by n slots without waiting: this thread neither fills nor reads them. */
    __device__ __forceinline__ void advance(int n) {
        phase ^= (slot + n) / SLOTS & 1;
        slot = (slot + n) % SLOTS;
    }
};

/* The boxes that each warpgroup has for itself (its queries, say), in two sets. Piece n of the
 * block's work uses set n % 2, whose barrier says that its boxes are complete. So the boxes of the
 * next piece, and after them its slots of the ring, are fetched while warpgroups still read the
 * boxes of this piece. */
struct Sets {
    enum { N = 2 };
    Shared barriers;
    __device__ __forceinline__ Shared here(unsigned n) const { return barriers + n % N * 8; }
    /* Initializes the barriers: by one thread, before a barrier of the block. */
    __device__ __forceinline__ void make() const {
        for (int i = 0; i < N; i++) mbarrier_init(barriers + i * 8, 1);
    }
    /* Called by the producer: announces n_bytes for the set of piece n, after a wait until the set
     * may be overwritten. That is when all consumers have released the slot that was filled
     * `back` slots ago: the last slot of piece n - 2, or, where consumers store from the set, a
     * slot of piece n - 1 that they keep until the store has read the set. */
    template <int SLOTS>
    __device__ __forceinline__ void producer_acquire(const Ring<SLOTS> &ring, unsigned n, int back,
                                                     int n_bytes) const {
        if (n >= N) ring.wait_released(back);
        mbarrier_expect(here(n), n_bytes);
    }
    /* Called by consumers: waits until the set of piece n is complete. */
    __device__ __forceinline__ void consumer_wait(unsigned n) const {
        mbarrier_wait(here(n), static_cast<int>(n / N % 2));
    }
};

/* Dynamic scheduling of persistent blocks: pieces of work are numbered 0 .. count - 1. Each block
 * begins with the piece of its own number. When its fetching thread has begun all copies of a
 * piece, it takes the next number from a counter in device memory, and stores it in shared memory
 * for the warpgroups that compute. */
struct TileScheduler {
    enum { KEPT = 4, BYTES = KEPT * 4 };
    int count;
    // counter in device memory, 0 between kernels: pieces taken beyond the first of each block
    int *taken;
    int kept; // offset in dynamic shared memory of the block's last KEPT numbers
    __device__ __forceinline__ int &number_of(unsigned n) const {
        return reinterpret_cast<int *>(dynamic_shared<char>() + kept)[n % KEPT];
    }
    /* Called by the producer before it acquires set n: the number of the block's piece n; numbers
     * >= count are no pieces. The last block that fetches a number resets the counter. No consumer
     * still reads the number that is overwritten: set n - 1 is acquired, so all consumers have
     * released slots of piece n - 3. */
    __device__ __forceinline__ int fetch(unsigned n) const {
        int piece = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
        if (n > 0) piece = blocks + atomicAdd(taken, 1);
        if (piece == count + blocks - 1) *taken = 0;
        return number_of(n) = piece;
    }
    /* Called by consumers when set n is complete: the same number. It is read through a lane's
     * register, so that the compiler knows that the whole warp has one value. */
    __device__ __forceinline__ int get(unsigned n) const {
        return __shfl_sync(static_cast<unsigned>(FULL), number_of(anew(n)), 0);
    }
};

/* Registers of the two roles. A block has a multiprocessor for itself: WGS consumer warpgroups and
 * one producer. The producer keeps at least FEW registers per thread and gives the others to the
 * consumers. The block has the registers that it was launched with, a multiple of 8 per thread, and
 * no more. */
template <int WGS, int FEW = 32> struct Roles {
    static constexpr int THREADS = (WGS + 1) * GROUP, POOL = 65536 / THREADS / 8 * 8;
    static constexpr int MANY = (POOL * (WGS + 1) - FEW) / WGS / 8 * 8;
    __device__ __forceinline__ static void few() {
        registers_at_most<POOL *(WGS + 1) - MANY * WGS>();
    }
    __device__ __forceinline__ static void many() { registers_at_least<MANY>(); }
};

/* The warpgroup of this thread. The number goes through a lane's register, so that the compiler
 * knows that the whole warp has one value: wgmma may not stand in code where lanes could
 * diverge. */
__device__ __forceinline__ int this_group() {
    return __shfl_sync(static_cast<unsigned>(FULL), static_cast<int>(threadIdx.x) / GROUP, 0);
}
/* A barrier of the warps of this warpgroup. */
__device__ __forceinline__ void group_sync() {
    barrier_sync(1 + this_group(), GROUP);
}

/* The first of the two rows, 8 apart, whose accumulators this lane holds, among the 64 rows of its
 * warpgroup. */
__device__ __forceinline__ int this_row() {
    unsigned thread = anew(threadIdx.x);
    return static_cast<int>(thread % GROUP / WARP * 16 + thread % WARP / 4);
}

#endif
