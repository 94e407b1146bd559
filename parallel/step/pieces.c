#include "parallel/step/pieces.h"

#include "parallel/step/model.h"

/* ---- pieces ---- */

static int64_t piece_begin(const Pieces *c, int i) {
    return c->rows * i / c->n;
}
static int64_t piece_rows(const Pieces *c, int i) {
    return piece_begin(c, i + 1) - piece_begin(c, i);
}

static void choose_pieces(Pieces *c) {
    const Overlap *o = &c->m->shape.overlap;
    bool tokens_in = path_gathers_tokens(c->in), tokens_out = path_scatters_tokens(c->out);
    Comm *over = tokens_in ? c->in->comm[0] : tokens_out ? c->out->comm[0] : NULL;
    c->stripes = over ? comm_size(over) : 1;
    c->rows = c->p.M / c->stripes;
    c->ring = o->ring && over && tokens_in != tokens_out && c->stripes <= MAX_RING;
    c->n = o->chunks && c->rows >= o->chunks && c->stripes <= MAX_STRIPES ? o->chunks : 1;
    bool many = c->n > 1 && !c->ring;
    c->cut_in = many && c->in->n == 1 && (tokens_in || !over);
    c->cut_out = many && c->out->n == 1 && (tokens_out || !over);
    if (!c->cut_in && !c->cut_out) c->n = 1;
}

static void rows_run(Pieces *c, int64_t first, int64_t n) {
    Product p = c->p;
    p.M = n;
    p.a = acts_at(c->m, p.a, first * p.a_row), p.y = acts_at(c->m, p.y, first * p.ldy);
    if (p.addend) p.addend = acts_at(c->m, p.addend, first * p.ldy);
    if (p.aux) p.aux = acts_at(c->m, p.aux, first * p.ldy);
    product_run(c->m, p);
}

static void piece_run(Pieces *c, int i) {
    if (c->n == 1) {
        rows_run(c, 0, c->p.M);
        return;
    }
    for (int64_t s = 0; s < c->stripes; s++)
        rows_run(c, s * c->rows + piece_begin(c, i), piece_rows(c, i));
}

static Ticket piece_gather(Pieces *c, int i) {
    const Change *how = &c->in->change[0];
    int64_t at = piece_begin(c, i);
    return coll_start(c->in->comm[0], &(CollCall){.op = COLL_ALL_GATHER,
                                                  .type = acts_type(c->m),
                                                  .dim = how->dim,
                                                  .rows = piece_rows(c, i),
                                                  .cols = c->src_cols,
                                                  .stride = how->dim == 0 ? c->rows * c->p.K : 0,
                                                  .src = acts_at(c->m, c->src, at * c->src_cols),
                                                  .dst = acts_at(c->m, c->whole, at * c->p.K),
                                                  .what = c->in->what,
                                                  .file = __FILE__,
                                                  .line = __LINE__,
                                                  .staging = c->in->staging});
}

static Ticket piece_sum(Pieces *c, int i) {
    const Change *how = &c->out->change[0];
    int64_t at = piece_begin(c, i), N = c->p.N;
    bool scatters = how->kind == CHANGE_SCATTER, tokens = scatters && how->dim == 0;
    int64_t cols = scatters && !tokens ? N / comm_size(c->out->comm[0]) : N;
    return coll_start(c->out->comm[0],
                      &(CollCall){.op = scatters ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE,
                                  .type = acts_type(c->m),
                                  .dim = scatters ? how->dim : 0,
                                  .rows = piece_rows(c, i),
                                  .cols = cols,
                                  .stride = tokens ? c->rows * N : 0,
                                  .src = acts_at(c->m, c->p.y, at * N),
                                  .dst = scatters ? acts_at(c->m, c->dst, at * cols)
                                                  : acts_at(c->m, c->p.y, at * N),
                                  .what = c->out->what,
                                  .file = __FILE__,
                                  .line = __LINE__,
                                  .staging = c->out->staging});
}

/* ---- rings ---- */

/* The block that is sent to the rank k places behind, and what comes from the one k places
 * before. */
static Ticket shift(const Model *m, Comm *over, int64_t k, const Act *src, Act *dst, int64_t rows,
                    int64_t cols, const char *what) {
    return coll_start(over, &(CollCall){.op = COLL_SHIFT,
                                        .type = acts_type(m),
                                        .rows = rows,
                                        .cols = cols,
                                        .root = (int)k,
                                        .src = src,
                                        .dst = dst,
                                        .what = what,
                                        .file = __FILE__,
                                        .line = __LINE__});
}

/* This rank's block first, then the others' as they come. */
static void ring_in(Pieces *c) {
    Comm *over = c->in->comm[0];
    int64_t X = c->stripes, me = comm_rank(over), block = c->rows * c->p.K;
    Model *m = c->m;
    Act *own = acts_at(m, c->whole, me * block);
    Ticket coming = {0};
    m->k->copy(m->team, own, c->p.K, c->src, c->p.K, c->rows, c->p.K, m->k->word);
    for (int64_t k = 0, at = me; k < X; k++) {
        if (k > 0) coll_wait(coming), at = (me - k + X) % X;
        if (k + 1 < X)
            coming = shift(m, over, k + 1, own, acts_at(m, c->whole, (me - k - 1 + X) % X * block),
                           c->rows, c->p.K, c->in->what);
        rows_run(c, at * c->rows, c->rows);
    }
}

/* The block of the next rank first, this rank's last. */
static void ring_out(Pieces *c) {
    Comm *over = c->out->comm[0];
    int64_t X = c->stripes, me = comm_rank(over), block = c->rows * c->p.N;
    for (int64_t k = 1; k <= X; k++) {
        int64_t to = (me + k) % X, from = (me - k + X) % X;
        rows_run(c, to * c->rows, c->rows);
        if (k == X) break;
        Ticket *t = &c->ticket[k % MAX_CHUNKS];
        if (k > MAX_CHUNKS) coll_wait(*t);
        *t = shift(c->m, over, k, acts_at(c->m, c->p.y, to * block),
                   acts_at(c->m, c->m->work.ring, from * block), c->rows, c->p.N, c->out->what);
    }
}

/* What all ranks have for this one, in the tree in which a reduce_scatter sums. */
static void ring_sum(Pieces *c) {
    int64_t X = c->stripes, me = comm_rank(c->out->comm[0]), block = c->rows * c->p.N, N = c->p.N;
    Model *m = c->m;
    Act *part[MAX_RING];
    for (int64_t k = X > MAX_CHUNKS ? X - MAX_CHUNKS : 1; k < X; k++)
        coll_wait(c->ticket[k % MAX_CHUNKS]);
    for (int64_t r = 0; r < X; r++)
        part[r] = acts_at(m, r == me ? c->p.y : m->work.ring, r * block);
    m->k->copy(m->team, c->dst, N, part[0], N, c->rows, N, m->k->word);
    part[0] = c->dst;
    for (int64_t apart = 1; apart < X; apart *= 2)
        for (int64_t r = 0; r + apart < X; r += 2 * apart)
            m->k->bias_residual(m->team, part[r], part[r + apart], NULL, c->rows, N);
}

int64_t pieces_room(const Model *m, const Path *out, int64_t rows, int64_t cols) {
    return m->shape.overlap.ring && path_scatters_tokens(out) ? rows * cols : 0;
}

/* A piece is the same stripe of rows of every block, or columns of blocks side by side. */
int64_t pieces_place(Pieces c) {
    choose_pieces(&c);
    int64_t rows = c.stripes * ((c.rows + c.n - 1) / c.n);
    int64_t in = c.cut_in ? rows * c.p.K : path_place(c.in, c.src_rows, c.src_cols);
    int64_t out = !c.cut_out             ? path_place(c.out, c.p.M, c.p.N)
                  : path_scatters(c.out) ? rows * c.p.N
                                         : 0;
    return in > out ? in : out;
}

/* ---- all of it ---- */

const Act *pieces_begin(Pieces *c) {
    Ticket coming[2] = {{0}};
    choose_pieces(c);
    bool ring_comes = c->ring && path_gathers_tokens(c->in), ring_goes = c->ring && !ring_comes;
    c->p.a = c->cut_in || ring_comes ? c->whole
                                     : path_run(c->in, acts_type(c->m), c->src, c->src_rows,
                                                c->src_cols, c->whole, NULL);
    if (c->cut_in) coming[0] = piece_gather(c, 0);
    for (int i = 0; i < c->n && !c->ring; i++) {
        if (c->cut_in && i + 1 < c->n) coming[(i + 1) % 2] = piece_gather(c, i + 1);
        if (c->cut_in) coll_wait(coming[i % 2]);
        piece_run(c, i);
        if (c->cut_out) c->ticket[i] = piece_sum(c, i);
    }
    if (ring_comes) ring_in(c);
    if (ring_goes) ring_out(c);
    if (!c->cut_out && !ring_goes)
        c->run = path_begin(c->out, acts_type(c->m), c->p.y, c->p.M, c->p.N, c->dst, NULL);
    return c->p.a;
}

void pieces_end(Pieces *c) {
    if (c->ring && path_scatters_tokens(c->out))
        ring_sum(c);
    else if (!c->cut_out)
        path_end(&c->run);
    for (int i = 0; c->cut_out && i < c->n; i++) coll_wait(c->ticket[i]);
}
