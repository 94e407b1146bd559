#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "data/nfc.h"
#include "data/presplit.h"
#include "data/tokenizer_parts.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "piece_key masks the low bytes of words");

static const char separator[] = "<|endoftext|>";
enum {
    N_SEPARATOR = sizeof separator - 1,
    MAX_KEY = 15,          // most bytes of a piece in the cache
    MAX_IDS = 4,           // most ids of a piece in the cache
    CACHE_SLOTS = 1 << 16, // slots of 32 bytes each
    SMALL_TEXT = 1 << 12,  // texts with fewer bytes are encoded without a cache
    PART = 1 << 18         // bytes of the parts that threads encode
};

/* A growing array of ids. */
typedef struct Ids {
    int32_t *p;
    size_t n, cap;
} Ids;

/* A slot of the cache of encoded pieces, found by the bytes of the piece. Each hash has two slots.
 * A new piece takes the first, the piece in the first moves to the second, and the piece in the
 * second is dropped. */
typedef struct Slot {
    // the bytes of the piece, then zeros; the highest byte of `high` is their number. 0, 0: free
    uint64_t low, high;
    int32_t ids[MAX_IDS]; // ids of the piece, then -1
} Slot;

static void ids_reserve(Ids *ids, size_t more) {
    if (ids->n + more <= ids->cap) return;
    ids->cap = (ids->n + more) * 3 / 2 + 64;
    ids->p = mem_realloc(ids->p, ids->cap, sizeof *ids->p);
}

static void ids_put(Ids *ids, int32_t id) {
    ids_reserve(ids, 1);
    ids->p[ids->n++] = id;
}

/* The piece of n <= MAX_KEY bytes as the two words of a Slot; `room` bytes may be read at p. */
static inline void piece_key(const uint8_t *p, size_t n, size_t room, uint64_t *low,
                             uint64_t *high) {
    uint64_t w[2] = {0, 0};
    if (room >= 16)
        memcpy(w, p, 16);
    else
        memcpy(w, p, n);
    if (n < 8)
        w[0] &= ((uint64_t)1 << 8 * n) - 1, w[1] = 0;
    else
        w[1] &= ((uint64_t)1 << 8 * (n - 8)) - 1;
    *low = w[0];
    *high = w[1] | (uint64_t)n << 56;
}

static inline size_t key_slot(uint64_t low, uint64_t high) {
    uint64_t h = (low ^ high * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 32) * 0x9E3779B97F4A7C15u;
    return (size_t)(h >> 32) & (CACHE_SLOTS - 2);
}

/* Copies the ids of a slot, always all MAX_IDS of them; returns the number of valid ones. */
static inline size_t put_slot(const Slot *s, int32_t *out) {
    memcpy(out, s->ids, sizeof s->ids);
    size_t n = 1;
    while (n < MAX_IDS && s->ids[n] >= 0) n++;
    return n;
}

/* Encodes a piece and puts it into the first slot of the pair, if its ids fit. */
static size_t merge_and_remember(const Tokenizer *t, Slot *pair, uint64_t low, uint64_t high,
                                 const uint8_t *p, size_t n, int32_t *out) {
    size_t count = merge_piece(t, p, n, out);
    if (count > MAX_IDS) return count;
    pair[1] = pair[0];
    pair[0] = (Slot){low, high, {-1, -1, -1, -1}};
    memcpy(pair[0].ids, out, count * sizeof *out);
    return count;
}

/* Encodes text[begin..end) of a text of n bytes, where pieces begin at `begin` and at `end`. cache
 * may be NULL. */
static void encode_pieces(const Tokenizer *t, Slot *cache, const uint8_t *text, size_t begin,
                          size_t end, size_t n, Ids *out) {
    for (size_t i = begin; i < end;) {
        size_t len = presplit_next(t->split, text + i, n - i);
        ids_reserve(out, len + MAX_IDS);
        int32_t *to = out->p + out->n;
        if (!cache || len > MAX_KEY) {
            out->n += merge_piece(t, text + i, len, to);
        } else {
            uint64_t low, high;
            piece_key(text + i, len, n - i, &low, &high);
            Slot *s = &cache[key_slot(low, high)];
            if (s[0].low == low && s[0].high == high)
                out->n += put_slot(&s[0], to);
            else if (s[1].low == low && s[1].high == high)
                out->n += put_slot(&s[1], to);
            else
                out->n += merge_and_remember(t, s, low, high, text + i, len, to);
        }
        i += len;
    }
}

static void encode_bytes(const Tokenizer *t, const uint8_t *p, size_t n, Ids *out) {
    ids_reserve(out, n);
    for (size_t i = 0; i < n; i++) out->p[out->n + i] = t->byte_id[p[i]];
    out->n += n;
}

/* As encode_pieces, after the stages before it: the prefix space where the text begins, and the
 * normal form. */
static void encode_between(const Tokenizer *t, Slot *cache, const uint8_t *text, size_t begin,
                           size_t end, size_t n, Ids *out) {
    bool space = begin == 0 && t->add_prefix_space && n > 0 && text[0] != ' ';
    const uint8_t *from = text + begin;
    size_t size = end - begin, m = 0;
    uint8_t *copy = NULL;
    if (space || (t->nfc && nfc_prefix(from, size) < size)) {
        copy = mem_alloc(3 * size + 2);
        if (space) copy[m++] = ' ';
        if (t->nfc)
            m += nfc_normalize(from, size, copy + m);
        else
            memcpy(copy + m, from, size), m += size;
        if (end < n) copy[m] = text[end]; // a piece may end there because a blank follows, or none
        text = copy, n = m + (end < n), begin = 0, end = m;
    }
    if (t->n_merges)
        encode_pieces(t, cache, text, begin, end, n, out);
    else
        encode_bytes(t, text + begin, end - begin, out);
    mem_free(copy);
}

/* The offset in text[from..to] of the first token that is cut out, n if there is none; its id, and
 * its length. Of several tokens at one place it is the longest. */
static size_t find_added(const Tokenizer *t, const uint8_t *text, size_t from, size_t to, size_t n,
                         int32_t *id, size_t *len) {
    *id = -1, *len = 0;
    for (size_t i = from; t->n_added && i <= to && i < n; i++) {
        if (!t->added_begins[text[i]]) continue;
        for (size_t k = 0, size; k < t->n_added; k++) {
            const uint8_t *p = tokenizer_token(t, t->added[k], &size);
            if (size > *len && size <= n - i && memcmp(p, text + i, size) == 0)
                *id = t->added[k], *len = size;
        }
        if (*len) return i;
    }
    return n;
}

/* Encodes text[begin..end) of one document text[0..n). */
static void encode_range(const Tokenizer *t, Slot *cache, const uint8_t *text, size_t begin,
                         size_t end, size_t n, Ids *out) {
    for (size_t at = begin, len; at < end; at += len) {
        int32_t id;
        size_t cut = find_added(t, text, at, end, n, &id, &len);
        encode_between(t, cache, text, at, cut < end ? cut : end, cut, out);
        if (cut < end) ids_put(out, id);
        at = cut;
    }
}

/* Length of the line at p, with its end, if the line is only the separator; else 0. */
static size_t separator_at(const uint8_t *p, size_t n) {
    if (n < N_SEPARATOR || memcmp(p, separator, N_SEPARATOR) != 0) return 0;
    size_t i = N_SEPARATOR;
    if (i < n && p[i] == '\r') i++;
    if (i == n) return n;
    return p[i] == '\n' ? i + 1 : 0;
}

/* Offset of the first separator line at or after `from`, which must be the beginning of a line; n:
 * none. */
static size_t find_separator(const uint8_t *text, size_t n, size_t from) {
    for (size_t i = from; i < n; i++) {
        const uint8_t *hit = memmem(text + i, n - i, separator, N_SEPARATOR);
        if (!hit) return n;
        i = (size_t)(hit - text);
        if ((i == from || text[i - 1] == '\n') && separator_at(hit, n - i)) return i;
    }
    return n;
}

/* The bytes [from, to) of the document [doc, doc_end); pieces begin at both ends. */
typedef struct Span {
    size_t doc, doc_end, from, to;
} Span;

/* Finds the document at d->at, unless d is inside of one already. False at the end of the text. */
static bool enter_document(Documents *d, bool separators) {
    if (d->inside) return true;
    for (size_t skip; separators && (skip = separator_at(d->text + d->at, d->n - d->at));)
        d->at += skip;
    d->doc = d->at;
    d->doc_end = separators ? find_separator(d->text, d->n, d->at) : d->n;
    return d->inside = d->at < d->n;
}

bool documents_next(Documents *d, const uint8_t **p, size_t *n) {
    if (!enter_document(d, true)) return false;
    *p = d->text + d->at;
    *n = d->doc_end - d->at;
    d->at = d->doc_end;
    d->inside = false;
    return true;
}

/* Gives the next span of about PART bytes, and moves d->at past it; false at the end of the
 * text. */
static bool next_span(const Tokenizer *t, Documents *d, bool separators, Span *s) {
    if (!enter_document(d, separators)) return false;
    size_t left = d->doc_end - d->at, to = d->doc_end;
    if (left > PART && t->n_merges == 0 && !t->nfc && !t->n_added)
        to = d->at + PART;
    else if (left > PART && t->split)
        to = d->doc + presplit_safe(d->text + d->doc, d->doc_end - d->doc, d->at - d->doc + PART);
    *s = (Span){d->doc, d->doc_end, d->at, to};
    d->at = to;
    d->inside = to < d->doc_end;
    return true;
}

/* The work of a team. Part i is the spans first[i] .. first[i + 1] - 1; an idle thread takes part
 * `next`. */
typedef struct Job {
    const Tokenizer *t;
    const uint8_t *text;
    bool eot;
    Span *spans;
    size_t n_spans, *first, n_parts, n_bytes;
    Ids *done; // [n_parts] ids of each part
    atomic_size_t next;
} Job;

static void encode_part(Job *j, size_t part, Slot *cache) {
    for (size_t i = j->first[part]; i < j->first[part + 1]; i++) {
        const Span *s = &j->spans[i];
        if (j->eot && s->from == s->doc)
            ids_put(&j->done[part], j->t->bos >= 0 ? j->t->bos : j->t->eot);
        encode_range(j->t, cache, j->text + s->doc, s->from - s->doc, s->to - s->doc,
                     s->doc_end - s->doc, &j->done[part]);
    }
}

static void encode_parts(void *ctx, int member, int size) {
    (void)member, (void)size;
    Job *j = ctx;
    bool remember = j->n_bytes >= SMALL_TEXT && j->t->n_merges > 0;
    Slot *cache = remember ? mem_calloc(CACHE_SLOTS, sizeof(Slot)) : NULL;
    for (size_t i; (i = atomic_fetch_add(&j->next, 1)) < j->n_parts;) encode_part(j, i, cache);
    mem_free(cache);
}

/* Collects spans of about `most` bytes and groups them into parts. */
static void plan_parts(Job *j, Documents *d, bool separators, size_t most) {
    size_t cap = 0, in_part = PART;
    for (Span s; j->n_bytes < most && next_span(j->t, d, separators, &s);) {
        if (j->n_spans == cap) {
            cap = cap * 2 + 16;
            j->spans = mem_realloc(j->spans, cap, sizeof(Span));
            j->first = mem_realloc(j->first, cap + 1, sizeof(size_t));
        }
        if (in_part >= PART) j->first[j->n_parts++] = j->n_spans, in_part = 0;
        j->spans[j->n_spans++] = s;
        j->n_bytes += s.to - s.from;
        in_part += s.to - s.from;
    }
    if (j->n_parts) j->first[j->n_parts] = j->n_spans;
    j->done = mem_calloc(j->n_parts, sizeof(Ids));
}

/* Joins the ids of all parts in order, and frees the job's arrays. */
static int64_t join_parts(Job *j, int32_t **ids) {
    size_t total = 0;
    for (size_t i = 0; i < j->n_parts; i++) total += j->done[i].n;
    *ids = mem_alloc(total * sizeof(int32_t));
    total = 0;
    for (size_t i = 0; i < j->n_parts; i++) {
        if (j->done[i].n) memcpy(*ids + total, j->done[i].p, j->done[i].n * sizeof(int32_t));
        total += j->done[i].n;
        mem_free(j->done[i].p);
    }
    mem_free(j->done);
    mem_free(j->spans);
    mem_free(j->first);
    return (int64_t)total;
}

static int64_t encode(const Tokenizer *t, Team *team, Documents *d, bool separators, bool eot,
                      size_t most, int32_t **ids) {
    if (!t->can_encode)
        die_user("this tokenizer can only decode: %s holds no merges; load a folder with "
                 "vocab.json and merges.txt, or a tokenizer.json",
                 t->format);
    Job j = {.t = t, .text = d->text, .eot = eot};
    plan_parts(&j, d, separators, most);
    atomic_init(&j.next, 0);
    if (team && j.n_parts > 1)
        team_run(team, encode_parts, &j);
    else
        encode_parts(&j, 0, 1);
    return join_parts(&j, ids);
}

int64_t tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t n, int32_t **ids) {
    Documents d = documents_of(text, n);
    return encode(t, NULL, &d, false, false, SIZE_MAX, ids);
}

Documents documents_of(const uint8_t *text, size_t n) {
    return (Documents){.text = text ? text : (const uint8_t *)"", .n = n};
}

int64_t documents_encode(Documents *d, const Tokenizer *t, Team *team, bool eot, size_t most,
                         int32_t **ids) {
    return encode(t, team, d, true, eot, most, ids);
}
