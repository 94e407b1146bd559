#include "parallel/comm/coll_reduce.h"

#include <assert.h>
#include <string.h>

#include "base/bf16.h"

typedef void (*ReduceFn)(void *dst, const void *x, const void *y, int64_t n);

/* Computes a cache line at a time in a local array, which cannot alias: compilers then vectorize
 * although dst may be x or y. */
#define REDUCE(name, T, expression)                                                                \
    static void name(void *dst, const void *x, const void *y, int64_t n) {                         \
        enum { LINE = 64 / sizeof(T) };                                                            \
        T *to = dst, line[LINE];                                                                   \
        const T *p = x, *q = y;                                                                    \
        for (; n >= LINE; n -= LINE, to += LINE, p += LINE, q += LINE) {                           \
            for (int i = 0; i < LINE; i++) {                                                       \
                T a = p[i], b = q[i];                                                              \
                line[i] = (T)(expression);                                                         \
            }                                                                                      \
            memcpy(to, line, sizeof line);                                                         \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T a = p[i], b = q[i];                                                                  \
            to[i] = (T)(expression);                                                               \
        }                                                                                          \
    }
REDUCE(sum_f32, float, a + b)
REDUCE(sum_f64, double, a + b)
REDUCE(sum_i64, uint64_t, a + b) // unsigned: overflow wraps around
REDUCE(sum_i32, uint32_t, a + b)
REDUCE(sum_u8, uint8_t, a + b)
REDUCE(sum_bf16, uint16_t,
       bf16_from_float(bf16_to_float(a) + bf16_to_float(b))) // rounded to bf16 after every addition

/* dst[i] = a[i] + b[i] for n elements; dst may be a or b. Integers wrap around. */
static void add(CollType type, void *dst, const void *a, const void *b, int64_t n) {
    static const ReduceFn table[] = {
        [COLL_F32] = sum_f32, [COLL_F64] = sum_f64, [COLL_I64] = sum_i64,
        [COLL_I32] = sum_i32, [COLL_U8] = sum_u8,   [COLL_BF16] = sum_bf16};
    table[type](dst, a, b, n);
}

/* Number of additions after term i of `size` terms is pushed. */
static int adds_after(int i, int size) {
    return i + 1 < size ? __builtin_ctz((unsigned)i + 1) : __builtin_popcount((unsigned)i);
}

/* The stack that evaluates the tree of coll_reduce.h. Its entries are arrays of n elements, at most
 * CHUNK bytes: a term, or a partial sum in `sum`. */
enum { CHUNK = 4096, DEEPEST = 24 }; // entries on the stack: log2(ranks) + 2
typedef struct Stack {
    CollType type;
    int64_t n;
    int top; // number of entries
    const void *on[DEEPEST];
    _Alignas(64) char sum[DEEPEST][CHUNK];
} Stack;

/* Pushes a term, then adds the two topmost entries `adds` times. dst: NULL, but with the last term
 * the destination of the sum, which may be any term. */
static void add_term(Stack *s, const void *term, int adds, void *dst) {
    s->on[s->top++] = term;
    for (; adds > 0; adds--, s->top--) {
        int to = s->top - 2;
        // the last addition: all terms have been read, dst may be written
        void *at = dst && to == 0 ? dst : s->sum[to];
        add(s->type, at, s->on[to], s->on[to + 1], s->n);
        s->on[to] = at;
    }
}

/* Sums bytes begin..end of the concatenated rows, in chunks that fit into the L1 cache. A chunk is
 * read from all terms before it is written anywhere. */
static void sum_range(void *ctx, int64_t begin, int64_t end) {
    const CollSum *s = ctx;
    _Alignas(64) char sum[CHUNK];
    Stack stack;
    int64_t row = begin / s->row_bytes, at = begin % s->row_bytes, bytes = coll_type_bytes(s->type);
    stack.type = s->type;
    for (int64_t n; begin < end; begin += n, at += n) {
        if (at == s->row_bytes) row++, at = 0;
        n = s->row_bytes - at < CHUNK ? s->row_bytes - at : CHUNK;
        if (n > end - begin) n = end - begin;
        void *to = s->n_dst == 1 ? s->dst[0] + begin : sum;
        stack.n = n / bytes, stack.top = 0;
        for (int i = 0; i < s->n_src; i++)
            add_term(&stack, s->src[i] + row * s->stride[i] + at, adds_after(i, s->n_src),
                     i + 1 == s->n_src ? to : NULL);
        for (int i = 0; i < s->n_dst && s->n_dst > 1; i++)
            memcpy(s->dst[i] + begin, sum, (size_t)n);
    }
}

void coll_sum_terms(Team *team, const CollSum *s) {
    enum { GRAIN = 1 << 17 }; // bytes
    CollSum all = *s;
    bool contiguous = true;
    assert(s->n_src > 1);
    if (s->rows * s->row_bytes == 0) return;
    for (int i = 0; i < s->n_src; i++) contiguous &= s->stride[i] == s->row_bytes;
    if (contiguous) all.row_bytes *= all.rows, all.rows = 1; // one long row
    if (team)
        team_for(team, all.rows * all.row_bytes, GRAIN, sum_range, &all);
    else
        sum_range(&all, 0, all.rows * all.row_bytes);
}

typedef struct Copy {
    char *dst;
    const char *src;
    int64_t dst_stride, src_stride, row_bytes;
} Copy;

/* Copies bytes begin..end of the concatenated rows. */
static void copy_range(void *ctx, int64_t begin, int64_t end) {
    const Copy *c = ctx;
    int64_t row = begin / c->row_bytes, at = begin % c->row_bytes;
    for (int64_t n; begin < end; begin += n, row++, at = 0) {
        n = c->row_bytes - at < end - begin ? c->row_bytes - at : end - begin;
        memcpy(c->dst + row * c->dst_stride + at, c->src + row * c->src_stride + at, (size_t)n);
    }
}

void coll_copy(Team *team, void *dst, int64_t dst_stride, const void *src, int64_t src_stride,
               int64_t rows, int64_t row_bytes) {
    enum { GRAIN = 1 << 18 }; // bytes; for fewer, waking another thread costs more than it saves
    if (rows * row_bytes == 0) return;
    if (dst_stride == row_bytes && src_stride == row_bytes) // contiguous: one long row
        row_bytes *= rows, rows = 1;
    Copy c = {dst, src, dst_stride, src_stride, row_bytes};
    if (team)
        team_for(team, rows * row_bytes, GRAIN, copy_range, &c);
    else
        copy_range(&c, 0, rows * row_bytes);
}
