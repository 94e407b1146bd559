#include <stdint.h>
#include <string.h>

#include "base/bf16.h"
#include "base/die.h"
#include "base/mem.h"
#include "parallel/comm/nccl.h"
#include "tests/emu/nccl_parts.h"

const char *const emu_nccl_words[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                      "reduce",     "send",           "receive"};

/* Checks the rules for registered memory between rank 0 (a) and another rank (b). All ranks or none
 * use registered memory. Memory that kernels access on other ranks has the same offset there.
 * Memory that only the own rank accesses may have any offset, such as the rank's block. */
static void check_places(const Part *a, const Part *b, int rank) {
    bool reaches_src = a->kind == ALL_REDUCE || a->kind == REDUCE_SCATTER,
         reaches_dst = a->kind == ALL_REDUCE || a->kind == ALL_GATHER;
    if (a->from.piece != b->from.piece || (a->kind != REDUCE && a->to.piece != b->to.piece))
        die("NCCL: %s: memory that rank %d registered or rank 0, not both", emu_nccl_words[a->kind],
            rank);
    if ((reaches_src && a->from.at != b->from.at) || (reaches_dst && a->to.at != b->to.at))
        die("NCCL: %s: places in registered memory differ: from %td to %td on rank 0, from %td to "
            "%td on rank %d",
            emu_nccl_words[a->kind], a->from.at, a->to.at, b->from.at, b->to.at, rank);
}

size_t emu_nccl_bytes(int type) {
    return type == NCCL_U8                        ? 1
           : type == NCCL_BF16                    ? 2
           : type == NCCL_F32 || type == NCCL_I32 ? 4
                                                  : 8;
}

static double number(const Part *p, const char *at, size_t i) {
    if (p->type == NCCL_I32) return (double)((const int32_t *)(const void *)at)[i];
    if (p->type == NCCL_BF16) return (double)bf16_to_float(((const uint16_t *)(const void *)at)[i]);
    if (p->type == NCCL_F64) return ((const double *)(const void *)at)[i];
    return (double)((const float *)(const void *)at)[i];
}
static void put_number(const Part *p, char *at, size_t i, double x) {
    if (p->type == NCCL_I32)
        ((int32_t *)(void *)at)[i] = (int32_t)(uint32_t)(int64_t)x;
    else if (p->type == NCCL_BF16)
        ((uint16_t *)(void *)at)[i] = bf16_from_float((float)x);
    else if (p->type == NCCL_F64)
        ((double *)(void *)at)[i] = x;
    else
        ((float *)(void *)at)[i] = (float)x;
}

/* The sum of n elements of all ranks' src, from the last rank to the first. */
static char *reduced(int size, Asked *const *asked, size_t n) {
    const Part *p = &asked[0]->part[0];
    char *sum = mem_alloc(n * emu_nccl_bytes(p->type) + 1);
    for (size_t i = 0; i < n; i++) {
        double x = number(p, asked[size - 1]->part[0].src, i);
        for (int r = size - 2; r >= 0; r--) {
            double y = number(p, asked[r]->part[0].src, i), both = x + y;
            bool whole = p->type == NCCL_I32 || p->type == NCCL_F64;
            x = whole ? both : (double)(float)both;
        }
        put_number(p, sum, i, x);
    }
    return sum;
}

/* Executes a collective: computes the result from the src of all ranks, then writes each rank's
 * dst. */
static void run_collective(int n_ranks, Asked *const *asked) {
    const Part *p = &asked[0]->part[0];
    size_t word = emu_nccl_bytes(p->type), n = p->n * word, size = (size_t)n_ranks;
    bool blocks = p->kind == REDUCE_SCATTER || p->kind == ALL_GATHER;
    char *all = NULL; // the result of all ranks, or the whole from which each rank takes its block
    if (p->kind == BROADCAST || p->kind == ALL_GATHER) {
        all = mem_alloc(n * size + 1);
        for (size_t r = 0; r < (p->kind == BROADCAST ? 1 : size); r++)
            memcpy(all + r * n, asked[p->kind == BROADCAST ? (size_t)p->peer : r]->part[0].src, n);
    } else {
        all = reduced(n_ranks, asked, p->n * (blocks ? size : 1));
    }
    for (size_t r = 0; r < size; r++) {
        char *dst = asked[r]->part[0].dst;
        if (p->kind == REDUCE && (int)r != p->peer) continue;
        if (p->kind == ALL_GATHER)
            memcpy(dst, all, n * size);
        else
            memcpy(dst, all + (p->kind == REDUCE_SCATTER ? r * n : 0), n);
    }
    mem_free(all);
}

/* Each receive takes the next send of its peer to this rank. */
static void run_messages(int size, Asked *const *asked) {
    bool taken[RANKS][PARTS] = {{false}};
    for (int r = 0; r < size; r++)
        for (int i = 0; i < asked[r]->n; i++) {
            const Part *to = &asked[r]->part[i];
            if (to->kind != RECEIVE) continue;
            Asked *from = asked[to->peer];
            int k = 0;
            while (k < from->n &&
                   (taken[to->peer][k] || from->part[k].kind != SEND || from->part[k].peer != r))
                k++;
            if (k == from->n || from->part[k].n != to->n) die("NCCL: a receive without its send");
            taken[to->peer][k] = true;
            memmove(to->dst, from->part[k].src, to->n * emu_nccl_bytes(to->type));
        }
}

void emu_nccl_run(int size, Asked *const *asked) {
    const Part *p = &asked[0]->part[0];
    bool messages = p->kind >= SEND;
    for (int r = 1; r < size && !messages; r++) {
        const Part *o = &asked[r]->part[0];
        if (asked[r]->recorded != asked[0]->recorded)
            die("NCCL: %s: recorded on one of ranks 0 and %d, not on both", emu_nccl_words[p->kind],
                r);
        if (o->kind != p->kind || o->n != p->n || o->type != p->type || o->op != p->op ||
            o->peer != p->peer)
            die("NCCL: rank 0 calls %s of %zu, rank %d %s of %zu", emu_nccl_words[p->kind], p->n, r,
                emu_nccl_words[o->kind], o->n);
        check_places(p, o, r);
    }
    messages ? run_messages(size, asked) : run_collective(size, asked);
}
