/* In which order blocks take the pieces of attention on Hopper (layers/attention_sm90.cuh): each
 * piece stands in it once, and with GPT-2's shapes no block has much more than its share. */
#include "layers/attention_sm90.cuh"

extern "C" {
#include "tests/test.h"
}

namespace {

/* Tiles of 64 x 64 scores of a piece. */
template <int WGS, Side SIDE> int tiles_of(const Part<WGS, SIDE> &part) {
    int tiles = 0;
    for (int j = 0; j < WGS; j++)
        if (part.has(j))
            tiles +=
                SIDE == QUERIES ? part.row(j) / SLAB + 1 : (part.S - part.row(j) - 1) / SLAB + 1;
    return tiles;
}

/* Each block takes the next piece when it is done with one: the most tiles of a block beside the
 * mean of all blocks. */
template <int WGS, Side SIDE> double longest(const Attention &a, int blocks) {
    enum { MOST = 132 };
    int done[MOST] = {}, sum = 0;
    for (int i = 0; i < Part<WGS, SIDE>::count(a); i++) {
        int *first = std::min_element(done, done + blocks), tiles = tiles_of(Part<WGS, SIDE>(a, i));
        *first += tiles, sum += tiles;
    }
    return static_cast<double>(*std::max_element(done, done + blocks)) * blocks / sum;
}

TEST(cuda_attention_sm90_gives_blocks_about_the_same_work) {
    enum { H100 = 132 };
    const struct {
        int64_t B, H;
    } models[] = {{32, 12}, {64, 12}, {32, 16}, {16, 20}, {16, 25}}; // d12 twice, d24, d36, d48
    for (auto &m : models) {
        Attention a = {m.B, 1024, m.H, m.H, 64, true, nullptr};
        double worst[] = {longest<4, QUERIES>(a, H100), longest<3, QUERIES>(a, H100),
                          longest<2, KEYS_AND_VALUES>(a, H100)};
        for (double x : worst)
            if (x < 1 || x > 1.02)
                test_fail("%d sequences, %d heads: %.3f", static_cast<int>(m.B),
                          static_cast<int>(m.H), x);
    }
}

template <int WGS, Side SIDE> bool all_once(const Attention &a) {
    enum { MOST = 4096 };
    static unsigned char taken[MOST];
    memset(taken, 0, sizeof taken);
    int slabs = static_cast<int>((a.S + SLAB - 1) / SLAB), heads = Part<WGS, SIDE>::heads(a);
    if (heads * slabs > MOST) return false;
    for (int i = 0; i < Part<WGS, SIDE>::count(a); i++) {
        Part<WGS, SIDE> part(a, i);
        for (int j = 0; j < WGS; j++)
            if (part.has(j))
                taken[(part.b * (heads / static_cast<int>(a.B)) + part.h) * slabs +
                      part.row(j) / SLAB]++;
    }
    return std::count(taken, taken + heads * slabs, 1) == heads * slabs;
}

TEST(cuda_attention_sm90_takes_every_row_once) {
    for (int64_t B : {1, 3})
        for (int64_t H : {2, 10})
            for (int64_t S : {1, 64, 200, 1000, 2048}) {
                Attention a = {B, S, H, H / 2, 64, true, nullptr};
                CHECK((all_once<4, QUERIES>(a)));
                CHECK((all_once<3, QUERIES>(a)));
                CHECK((all_once<2, KEYS_AND_VALUES>(a)));
            }
}

} // namespace
