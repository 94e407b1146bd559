#include "layers/rope.h"

#include "base/simd.h"

enum { LINE = 16 }; // floats in a cache line

typedef struct Rows {
    const Rope *r;
    float *qkv;
    float direction;
} Rows;

/* Rotates the pairs (lo[d], lo[half + d]) of one head by the angles of its position. */
static void rotate_head(float *lo, const float *cosine, float direction, int64_t half) {
    const float *sine = cosine + half;
    float *hi = lo + half;
    vf dir = vf_set1(direction);
    EACH_VECTOR(d, n, 0, half) {
        vf c = vf_load_n(cosine + d, n), s = vf_load_n(sine + d, n) * dir;
        vf a = vf_load_n(lo + d, n), b = vf_load_n(hi + d, n);
        vf_store_n(lo + d, vf_fma(a, c, -(b * s)), n);
        vf_store_n(hi + d, vf_fma(b, c, a * s), n);
    }
}

static void rope_rows(void *ctx, int64_t begin, int64_t end) {
    const Rows *w = ctx;
    const Rope *r = w->r;
    int64_t width = (r->H + 2 * r->Hkv) * r->D;
    for (int64_t t = begin; t < end; t++) {
        const float *angles = r->table + (r->first + t % r->S) * r->D;
        for (int64_t h = 0; h < r->H + r->Hkv; h++) { // queries and keys; values are not rotated
            // hardware prefetchers do not follow over the values to the next row
            for (int64_t d = 0; d < r->D; d += LINE)
                prefetch(w->qkv + t * width + h * r->D + d, width);
            rotate_head(w->qkv + t * width + h * r->D, angles, w->direction, r->D / 2);
        }
    }
}

void rope(Team *t, const Rope *r, Act *qkv, int direction) {
    team_for(t, r->B * r->S, 16, rope_rows, &(Rows){r, qkv, (float)direction});
}
