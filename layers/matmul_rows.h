/* matmul_rows -- a run of register tiles (matmul_tile.h) of 1 to TILE_M rows, in vector registers:
 * for matmul_floats.c, whose steps are elements, and for matmul_tile.c, whose steps are pairs. */
#ifndef LAYERS_MATMUL_ROWS_H
#define LAYERS_MATMUL_ROWS_H

#include <string.h>

#include "layers/matmul_tile.h"

/* How a tile reads its rows of a: packed step by step, packed row by row, unpacked (Tile.raw_a). */
typedef enum { A_BY_STEPS, A_BY_ROWS, A_RAW } ReadA;

/* Computes a run of tiles of `rows` rows. All arguments but t are constants at compile time, so
 * that each combination becomes a loop of its own. In the first half of its steps a tile prefetches
 * the rows of `wanted`, one before each `part` of them.
 *
 * With AVX-512 two of three elements of a are read by their multiply-adds themselves: a step of 14
 * rows is 35 instructions and 25 loads instead of 44 and 16 (all of them: 30 loads, of which two
 * are made in a cycle). Where two hyperthreads share a core each decodes three instructions per
 * cycle, and 44 of them do not pass in the 14 cycles of 28 multiply-adds. With another program
 * beside, such tiles are 9 % faster, with the rows of A_ROW 17 % (Xeon); alone all are at the
 * peak. */
static inline __attribute__((always_inline)) void multiply_rows(bool pairs, bool raw, ReadA read,
                                                                int rows, const Tile *t) {
    enum { AHEAD = 24 }; // steps between the prefetch of a raw row and its use: about 100 ns
    int64_t raw_stride = t->raw_stride, raw_step = pairs ? 2 * raw_stride : raw_stride;
    const int from_row = read == A_BY_ROWS ? A_ROW : 1; // floats between two elements of a step
    const bool anew = VF == 16 && !pairs; // VDPBF16PS could do the same, but gcc 12 cannot
    int64_t steps = t->steps, ld = t->ld;
    for (int tile = 0; tile < t->n; tile++) {
        const float *from = raw ? t->raw + tile * t->next_raw : NULL,
                    *from_a = read == A_RAW ? t->raw_a + tile * t->next_raw_a : NULL;
        float *a = t->a + tile * t->next_a, *b = t->b + tile * t->next_b,
              *y = t->y + tile * t->next_y;
        const float *fetch = t->fetch[tile].from, *wanted[2];
        int64_t n = COLUMNS_STAY ? t->fetch[tile].n : 0, fetched = 0,
                stride = t->fetch[tile].stride;
        vf acc[TILE_M][TILE_V];
        for (int i = 0; i < 2; i++)
            wanted[i] = t->wanted[i] ? t->wanted[i] + tile * t->next_y : NULL;
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int j = 0; j < TILE_V; j++) acc[i][j] = vf_zero();
        }
        int64_t part = steps / (2 * rows) / 4 * 4, k = 0; // steps for each row of `wanted`
#pragma GCC unroll 1
        for (int row_wanted = 0; row_wanted <= rows; row_wanted++) {
            int64_t until = row_wanted < rows ? k + part : steps;
            for (int64_t to = n * (row_wanted + 1) / (rows + 1); fetched < to; fetched++)
                __builtin_prefetch(fetch + fetched * stride, 0, 2);
            if (row_wanted < rows)
                for (int i = 0; i < 2; i++) {
                    fetch_row(wanted[i]);
                    if (wanted[i]) wanted[i] += t->ld_wanted;
                }
                // unrolled: less counting beside the multiplications, 3 % with AVX2 on a Xeon
#pragma GCC unroll 4
            for (; k < until; k++, a += read == A_BY_ROWS ? 1 : TILE_M, b += TILE_N) {
                if (read == A_RAW)
                    __builtin_prefetch(from_a + rows - 1 + AHEAD * t->raw_a_stride, 0, 2);
                else if (!COLUMNS_STAY)
                    __builtin_prefetch(fetch + k * stride, 0, 2);
                vf row[TILE_V];
                UNROLL
                for (int j = 0; j < TILE_V; j++) {
                    if (!raw) {
                        row[j] = vf_load(b + j * VF);
                        continue;
                    }
                    row[j] = vf_load(from + j * VF);
                    __builtin_prefetch(from + j * VF + AHEAD * raw_step, 0, 2);
                    if (pairs) {
                        row[j] = vf_pair_rows(row[j], vf_load(from + raw_stride + j * VF));
                        __builtin_prefetch(from + raw_stride + j * VF + AHEAD * raw_step, 0, 2);
                    }
                    if (rows > 1 || !t->raw_once) vf_store(b + j * VF, row[j]);
                }
                if (raw) from += raw_step;
                UNROLL
                for (int i = 0; i < rows; i++) {
                    const float *one = read == A_RAW ? from_a + i : a + i * from_row;
                    vf x = vf_set1(*one);
                    UNROLL
                    for (int j = 0; j < TILE_V; j++) {
                        if (anew && i % 3) x = vf_set1_anew(one);
                        acc[i][j] =
                            pairs ? vf_dot2(x, row[j], acc[i][j]) : vf_fma(x, row[j], acc[i][j]);
                    }
                }
                if (read == A_RAW) {
                    memcpy(a, from_a, (size_t)rows * sizeof *a);
                    from_a += t->raw_a_stride;
                }
            }
        }
        const float *addend = t->addend ? t->addend + tile * t->next_y : NULL;
        if (addend) {
            UNROLL
            for (int i = 0; i < rows; i++) {
                UNROLL
                for (int j = 0; j < TILE_V; j++) acc[i][j] = vf_load(addend + j * VF) + acc[i][j];
                addend += ld;
            }
        }
        const float *bias = t->bias ? t->bias + tile * t->next_bias : NULL;
        if (bias) {
            UNROLL
            for (int j = 0; j < TILE_V; j++) {
                vf x = vf_load(bias + j * VF);
                UNROLL
                for (int i = 0; i < rows; i++) acc[i][j] += x;
            }
        }
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int j = 0; j < TILE_V; j++) vf_store(y + j * VF, acc[i][j]);
            y += ld;
        }
    }
}

/* MULTIPLY(multiply, t) is multiply(rows, t) with a number of rows that the compiler knows. Each
 * number has a function of its own, which EACH_ROWS defines: one function with all of them takes
 * 1.5 times as long to compile, and spills more registers. */
#define ROWS(multiply, r)                                                                          \
    static __attribute__((noinline)) void multiply##_##r(const Tile *t) {                          \
        if (r <= TILE_M) multiply(r % (TILE_M + 1), t);                                            \
    }                                                                                              \
    static void multiply##_##r(const Tile *t)
#define EACH_ROWS(multiply)                                                                        \
    ROWS(multiply, 1);                                                                             \
    ROWS(multiply, 2);                                                                             \
    ROWS(multiply, 3);                                                                             \
    ROWS(multiply, 4);                                                                             \
    ROWS(multiply, 5);                                                                             \
    ROWS(multiply, 6);                                                                             \
    ROWS(multiply, 7);                                                                             \
    ROWS(multiply, 8);                                                                             \
    ROWS(multiply, 9);                                                                             \
    ROWS(multiply, 10);                                                                            \
    ROWS(multiply, 11);                                                                            \
    ROWS(multiply, 12);                                                                            \
    ROWS(multiply, 13);                                                                            \
    ROWS(multiply, 14);                                                                            \
    static void (*const multiply##_rows[])(const Tile *) = {                                       \
        multiply##_1,  multiply##_2,  multiply##_3,  multiply##_4, multiply##_5,                   \
        multiply##_6,  multiply##_7,  multiply##_8,  multiply##_9, multiply##_10,                  \
        multiply##_11, multiply##_12, multiply##_13, multiply##_14}
#define MULTIPLY(multiply, t) multiply##_rows[(t)->rows - 1](t)

#endif
