#include <unistd.h>

#include "base/bf16.h"
#include "base/rng.h"
#include "tests/coll_cases.h"
#include "tests/test.h"

enum { MARGIN = 64, MARK = 0xA5 };

/* Element i of rank r's src. */
static int64_t value(CollType type, int r, int64_t i, int salt) {
    int64_t v = (r * 7 + i * 3 + i / 5 + salt * 5) % 13;
    return type == COLL_U8 ? v : v - 6;
}

static void put(CollType type, unsigned char *at, int64_t i, int64_t v) {
    float f = (float)v;
    double d = (double)v;
    int32_t w = (int32_t)v;
    unsigned char b = (unsigned char)v;
    uint16_t h = bf16_from_float(f);
    const void *from[] = {&f, &d, &v, &w, &b, &h};
    int64_t n = coll_type_bytes(type);
    memcpy(at + i * n, from[type], (size_t)n);
}

static int64_t reduce_of(const Case *x, int64_t i) {
    int64_t v = value(x->call.type, 0, i, x->salt);
    for (int r = 1; r < x->size; r++) v += value(x->call.type, r, i, x->salt);
    return v;
}

/* Index in the whole of element i of block b. */
static int64_t in_whole(const Case *x, int b, int64_t i) {
    const CollCall *c = &x->call;
    if (c->dim == 0 || c->cols == 0) return b * coll_elements(c) + i;
    return i / c->cols * (x->size * c->cols) + b * c->cols + i % c->cols;
}

static unsigned char *buffer(const Case *x, int64_t n) {
    size_t bytes = (size_t)(n * coll_type_bytes(x->call.type));
    unsigned char *p = malloc(bytes + MARGIN);
    memset(p, MARK, bytes + MARGIN);
    return p;
}

/* Where element i of this rank's whole lies: what is between its blocks is nobody's. */
static int64_t place(const Case *x, int64_t i) {
    int64_t block = coll_elements(&x->call);
    return x->call.stride ? i / block * x->call.stride + i % block : i;
}

static int64_t source_place(const Case *x, int64_t i) {
    if (x->call.op == COLL_REDUCE_SCATTER) return place(x, i);
    bool in_dst = x->in_place && x->call.op == COLL_ALL_GATHER;
    return in_dst ? place(x, in_whole(x, x->rank, i)) : i;
}

Case case_make(int number, const Comm *c) {
    static const int64_t shapes[7][2] = {{1, 1},    {0, 5},   {3, 7},  {4, 0},
                                         {2, 1031}, {61, 33}, {12, 60}};
    int n = number;
    Case x = {.rank = comm_rank(c), .size = comm_size(c), .salt = number % 17};
    CollCall *call = &x.call;
    *call = (CollCall){.what = "case"};
    call->op = (CollOp)(n % N_COLL_OPS), n /= N_COLL_OPS;
    call->type = (CollType)(n % CASE_TYPES), n /= CASE_TYPES;
    call->dim = n % 2, n /= 2;
    call->rows = shapes[n % 7][0], call->cols = shapes[n % 7][1], n /= 7;
    call->root = number / 3 % x.size;
    if (call->op == COLL_SHIFT && x.size == 1) call->op = COLL_BROADCAST;
    if (call->op == COLL_SHIFT) call->root = 1 + number / 3 % (x.size - 1);
    x.in_place = n % 2 && call->op != COLL_REDUCE && call->op != COLL_SHIFT &&
                 !(call->op == COLL_REDUCE_SCATTER && call->dim == 1);
    n /= 2;
    bool blocks = call->op == COLL_ALL_GATHER || call->op == COLL_REDUCE_SCATTER;
    int64_t block = coll_elements(call), bytes = coll_type_bytes(call->type);
    if (n % 2 && blocks && call->dim == 0 && block > 0)
        call->stride = block + x.rank; // each its own
    int64_t whole = coll_block_stride(call) * x.size;
    x.n_src = call->op == COLL_REDUCE_SCATTER ? block * x.size : block;
    x.n_dst = call->op == COLL_ALL_GATHER ? whole : block;
    int64_t larger = blocks ? whole : block;
    x.src_bytes = (size_t)(larger * bytes) + MARGIN,
    x.dst_bytes = (size_t)(x.n_dst * bytes) + MARGIN;
    x.src = buffer(&x, larger);
    x.dst = x.in_place ? x.src : buffer(&x, x.n_dst);
    for (int64_t i = 0; i < x.n_src; i++)
        put(call->type, x.src, source_place(&x, i), value(call->type, x.rank, i, x.salt));
    call->src = x.src, call->dst = x.dst;
    if (x.in_place && call->op == COLL_ALL_GATHER) call->src = coll_own_block(call, x.rank);
    if (x.in_place && call->op == COLL_REDUCE_SCATTER)
        call->dst = x.dst + x.rank * coll_block_stride(call) * bytes;
    if (call->op == COLL_REDUCE && x.rank != call->root) call->dst = NULL;
    return x;
}

static int64_t right_answer(const Case *x, int64_t i) {
    const CollCall *c = &x->call;
    int before = (x->rank - c->root + x->size) % x->size;
    if (c->op == COLL_SHIFT) return value(c->type, before, i, x->salt);
    if (c->op == COLL_BROADCAST) return value(c->type, c->root, i, x->salt);
    return reduce_of(x, c->op == COLL_REDUCE_SCATTER ? in_whole(x, x->rank, i) : i);
}

bool case_check(Case *x) {
    const CollCall *c = &x->call;
    int64_t bytes = coll_type_bytes(c->type), n = x->n_dst;
    const unsigned char *dst = c->op == COLL_REDUCE ? x->dst : c->dst;
    unsigned char *right = buffer(x, n);
    bool ok = true;
    if (c->op == COLL_ALL_GATHER) {
        for (int b = 0; b < x->size; b++)
            for (int64_t j = 0; j < coll_elements(c); j++)
                put(c->type, right, place(x, in_whole(x, b, j)), value(c->type, b, j, x->salt));
    } else if (c->dst) {
        for (int64_t i = 0; i < n; i++) put(c->type, right, i, right_answer(x, i));
    }
    ok &= memcmp(dst, right, (size_t)(n * bytes)) == 0; // a reduce leaves others' dst alone
    if (!x->in_place) {
        ok &= memcmp(dst + n * bytes, right + n * bytes, MARGIN) == 0;
        for (int64_t i = 0; i < x->n_src && ok; i++) {
            put(c->type, right, 0, value(c->type, x->rank, i, x->salt));
            ok = memcmp(right, x->src + source_place(x, i) * bytes, (size_t)bytes) == 0;
        }
        free(x->dst);
    }
    free(x->src);
    free(right);
    return ok;
}

int case_run_all(Comm *c, int step) {
    int wrong = 0;
    for (int i = comm_size(c) % step; i < COLL_CASES; i += step) {
        Case x = case_make(i, c);
        coll_run(c, &x.call);
        if (!case_check(&x) && wrong == 0) wrong = i + 1;
    }
    return wrong;
}

/* One group's open cases: call number k is in place k % COLL_IN_FLIGHT. */
typedef struct Line {
    Comm *comm;
    Case open[COLL_IN_FLIGHT];
    Ticket ticket[COLL_IN_FLIGHT]; // of number 0: the place is free
    int started, n_open;
} Line;

/* The first one that is open, from a place on. */
static bool finish_one(Line *l, int from) {
    while (l->ticket[from % COLL_IN_FLIGHT].number == 0) from++;
    Ticket *t = &l->ticket[from % COLL_IN_FLIGHT];
    coll_wait(*t);
    t->number = 0, l->n_open--;
    return case_check(&l->open[from % COLL_IN_FLIGHT]);
}

int case_run_in_flight(World *w, Comm *a, Comm *b, int calls, unsigned seed) {
    Line line[2] = {{.comm = a}, {.comm = b}};
    bool ok = true;
    for (int i = 0; i < calls; i++) {
        uint64_t dice = rng_u64(seed, 0xD1CE, (uint64_t)i); // the same on all ranks
        Line *l = &line[dice % 2];
        dice /= 2;
        int from = (int)(dice / 3 % COLL_IN_FLIGHT);
        if (l->n_open > 0 && dice % 3 == 0) ok &= finish_one(l, from);
        dice /= 3 * COLL_IN_FLIGHT;
        int at = l->started++ % COLL_IN_FLIGHT;
        if (l->ticket[at].number) ok &= finish_one(l, at); // so long before: no more may be open
        l->open[at] = case_make((int)(dice % COLL_CASES), l->comm);
        l->ticket[at] = coll_start(l->comm, &l->open[at].call), l->n_open++;
        uint64_t mine = rng_u64(seed, 100 + (uint64_t)world_rank(w), (uint64_t)i);
        if (mine % 16 == 0) usleep((unsigned)(mine / 16 % 300));
        coll_progress(w);
    }
    for (int k = 0; k < 2; k++)
        for (int i = 0; line[k].n_open > 0; i++)
            ok &= finish_one(&line[k], (int)(rng_u64(seed, 0xD1CE, (uint64_t)(calls + i)) % 99));
    return !ok;
}
