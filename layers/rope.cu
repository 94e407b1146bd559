/* rope on CUDA: a thread rotates W pairs of one head, 16 bytes of each half at a time. Bound by
 * memory: the elements of query and key heads are read and written once, 4 (H + Hkv) D bytes per
 * token in bf16 each way; the table stays in L2.
 *
 * One kernel, in two versions: W = 1, a thread for each pair, is plain and takes any even D and
 * rows that are not aligned; W elements (16 bytes) take the others. Not taken: rotating queries and
 * keys while attention loads them, which would save the whole pass. But each tile of keys is loaded
 * once for every tile of queries, and would be rotated as often; backward would have to rotate dq
 * and dk back before it writes them; and the cache of sampling holds rotated keys. This was not
 * measured. */
#include "layers/cuda/launch.cuh"
#include "layers/cuda/vec.cuh"

extern "C" {
#include "layers/cuda/families.h"
}

namespace {

enum { THREADS = 128 };

/* blockIdx.x is the token, blockIdx.y a part of its heads. */
template <class E, int W> __global__ void rotate(E *qkv, Rope r, float direction) {
    int64_t t = blockIdx.x, half = r.D / 2;
    int64_t i = (static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x) * W, head = i / half;
    if (head >= r.H + r.Hkv) return; // values are not rotated
    int64_t d = i % half;
    E *lo = qkv + (t * (r.H + 2 * r.Hkv) + head) * r.D + d, *hi = lo + half;
    const float *angles = r.table + (r.first + t % r.S) * r.D + d;
    float a[W], b[W], c[W], s[W];
    load<E, W>(a, lo);
    load<E, W>(b, hi);
    load<float, W>(c, angles);
    load<float, W>(s, angles + half);
#pragma unroll
    for (int j = 0; j < W; j++) {
        float x = a[j], y = b[j], sine = s[j] * direction;
        a[j] = fmaf(x, c[j], -(y * sine));
        b[j] = fmaf(y, c[j], x * sine);
    }
    store<E, W>(lo, a);
    store<E, W>(hi, b);
}

template <class E> void rope_of(Team *, const Rope *r, Act *qkv, int direction) {
    int64_t T = r->B * r->S, pairs = (r->H + r->Hkv) * (r->D / 2);
    auto *words = static_cast<E *>(qkv);
    if (T == 0 || pairs == 0) return;
    bool aligned = whole_words<E>(qkv, r->D / 2) && whole_words<float>(r->table, r->D / 2);
    by_words<E>(aligned, [&](auto w) {
        dim3 grid(static_cast<unsigned>(T), blocks_for(pairs, THREADS * w));
        LAUNCH((rotate<E, w>), grid, THREADS, 0, words, *r, static_cast<float>(direction));
    });
}

} // namespace

extern "C" void rope_cuda(Kernels *k, bool is_bf16) {
    k->rope = is_bf16 ? rope_of<bf16> : rope_of<float>;
}
