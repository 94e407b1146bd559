/* layers/cuda/reduce.cu where there is more than ranks that are threads ask of it (those are
 * test_cuda_coll.c's). */
#include "layers/cuda/reduce.h"
#include "tests/everywhere.h"

/* More rows than the warps of all multiprocessors, of which a block has 16: each goes on with
 * another one. */
static int64_t many_rows(void) {
    return 2 * 16 * device_sms() + 3;
}

typedef struct Move {
    int n;
    int64_t rows, cols, dst_ld, dst_apart, src_ld, src_apart;
} Move;

/* As many blocks as one kernel takes, and more, side by side in one of the two places, as ranks of
 * a long axis have them; rows 0: many. */
enum { MOST = REDUCE_MOST, MORE = MOST + 1, THRICE = 2 * MOST + 2 };
static const Move moves[] = {{MOST, 3, 16, MOST * 16, 16, 16, 3 * 16},
                             {MOST, 3, 5, 5, 3 * 5, MOST * 5, 5},
                             {MOST, 1, 24, 24, 24, 24, 40},
                             {MORE, 3, 16, MORE * 16, 16, 16, 3 * 16},
                             {MORE, 3, 5, 5, 3 * 5, MORE * 5, 5},
                             {MORE, 1, 24, 24, 24, 24, 40},
                             {THRICE, 3, 16, THRICE * 16, 16, 16, 3 * 16},
                             {THRICE, 3, 5, 5, 3 * 5, THRICE * 5, 5},
                             {THRICE, 1, 24, 24, 24, 24, 40},
                             {2, 0, 8, 16, 8, 8, 0}};

/* Bytes that tell where they came from; between blocks and behind them none is written. */
static bool moves_blocks(UNUSED const Where *w, const void *of, UNUSED int way) {
    Move m = *(const Move *)of;
    if (!m.rows) m.rows = many_rows(), m.src_apart = m.rows * m.src_ld;
    int64_t n_dst = m.n * m.dst_apart + m.rows * m.dst_ld,
            n_src = m.n * m.src_apart + m.rows * m.src_ld;
    unsigned char *src = scratch_take((size_t)n_src), *dst = scratch_take((size_t)n_dst),
                  *want = scratch_take((size_t)n_dst);
    char *from = cuda_take(n_src, 1, 0), *to = cuda_take(n_dst, 1, 0);
    for (int64_t i = 0; i < n_src; i++) src[i] = (unsigned char)(i * 7 + i / 251);
    memset(want, 0xee, (size_t)n_dst);
    device_put(from, src, (size_t)n_src), device_put(to, want, (size_t)n_dst);
    for (int64_t i = 0; i < m.n * m.rows; i++)
        memcpy(want + i / m.rows * m.dst_apart + i % m.rows * m.dst_ld,
               src + i / m.rows * m.src_apart + i % m.rows * m.src_ld, (size_t)m.cols);
    device_move_blocks(device_stream(), m.n, m.rows, m.cols, (Blocks){to, m.dst_ld, m.dst_apart},
                       (Blocks){from, m.src_ld, m.src_apart});
    device_get(dst, to, (size_t)n_dst);
    device_wait();
    return memcmp(dst, want, (size_t)n_dst) == 0;
}
TEST(cuda_reduce_moves_any_number_of_blocks_and_rows) {
    int n = N_OF(moves);
    ON_CUDA(moves_blocks, moves, n, n, 1);
}

TEST(cuda_reduce_adds_more_rows_than_there_are_warps) {
    enum { COLS = 4, SRC_LD = 8, N_SRC = 3 };
    for (EACH_ORDER(o)) {
        cuda_begin(*o);
        int64_t rows = many_rows();
        Reduce f = {.n_src = N_SRC, .n_dst = 1, .rows = rows, .cols = COLS, .src_ld = SRC_LD};
        Array src[N_SRC], dst = array_empty(rows * COLS, false, 0);
        for (int i = 0; i < N_SRC; i++) {
            src[i] = array_random(rows * SRC_LD, 1, (unsigned)i, false, 0);
            f.src[i] = src[i].device;
        }
        f.dst[0] = dst.device;
        device_reduce(device_stream(), &f, REDUCE_F32);
        array_get(&dst);
        for (int64_t i = 0; i < dst.n; i++) {
            int64_t at = i / COLS * SRC_LD + i % COLS;
            CHECK(dst.host[i] == (src[0].host[at] + src[1].host[at]) + src[2].host[at]);
        }
        CHECK(cuda_end());
    }
}
