#include "data/tfevents.h"

#include <stdbool.h>
#include <string.h>

#include "base/crc32c.h"

/* A message under construction; `used` runs on past n so that one check at the end is enough. */
typedef struct Buf {
    uint8_t *p;
    size_t n, used;
} Buf;

static void put(Buf *b, const void *p, size_t n) {
    if (b->used <= b->n && n <= b->n - b->used) memcpy(b->p + b->used, p, n);
    b->used += n;
}

static void put_int(Buf *b, uint64_t x, int n_bytes) {
    uint8_t c[8];
    for (int i = 0; i < n_bytes; i++) c[i] = (uint8_t)(x >> (8 * i));
    put(b, c, (size_t)n_bytes);
}

static void put_varint(Buf *b, uint64_t x) {
    for (; x >= 0x80; x >>= 7) put_int(b, (x & 0x7f) | 0x80, 1);
    put_int(b, x, 1);
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; // protobuf's wire types

static void put_key(Buf *b, int field, int wire) {
    put_varint(b, (uint64_t)(field << 3 | wire));
}

static void put_bytes(Buf *b, int field, const void *p, size_t n) {
    put_key(b, field, BYTES);
    put_varint(b, n);
    put(b, p, n);
}

static void put_string(Buf *b, int field, const char *s) {
    put_bytes(b, field, s, strlen(s));
}

static uint32_t masked(const void *p, size_t n) {
    uint32_t c = crc32c(0, p, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

enum { HEAD = 12, TAIL = 4 }; // bytes of a record around its payload

/* An Event begins behind the room for the record's head. */
static Buf begin(uint8_t *buf, size_t n, double wall_time) {
    Buf b = {buf, n > TAIL ? n - TAIL : 0, HEAD};
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    put_key(&b, 1, FIXED64);
    put_int(&b, bits, 8);
    return b;
}

static size_t end(Buf *b) {
    if (b->used > b->n) return 0;
    size_t payload = b->used - HEAD;
    Buf head = {b->p, HEAD, 0}, tail = {b->p + b->used, TAIL, 0};
    put_int(&head, payload, 8);
    put_int(&head, masked(b->p, 8), 4);
    put_int(&tail, masked(b->p + HEAD, payload), 4);
    return b->used + TAIL;
}

static void put_step(Buf *b, int64_t step) {
    put_key(b, 2, VARINT);
    put_varint(b, (uint64_t)step);
}

size_t tfevents_version(uint8_t *buf, size_t n, double wall_time) {
    Buf b = begin(buf, n, wall_time);
    put_string(&b, 3, "brain.Event:2");
    return end(&b);
}

size_t tfevents_start(uint8_t *buf, size_t n, double wall_time, int64_t step) {
    Buf b = begin(buf, n, wall_time);
    put_step(&b, step);
    static const uint8_t start[] = {1 << 3 | VARINT, 1}; // SessionLog { status = START }
    put_bytes(&b, 7, start, sizeof start);
    return end(&b);
}

size_t tfevents_scalars(uint8_t *buf, size_t n, double wall_time, int64_t step, const TfScalar *s,
                        int count) {
    uint8_t room[1024];
    Buf values = {room, sizeof room, 0};
    for (int i = 0; i < count; i++) {
        uint8_t one[128];
        Buf v = {one, sizeof one, 0};
        float x = (float)s[i].value;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        put_string(&v, 1, s[i].tag);
        put_key(&v, 2, FIXED32);
        put_int(&v, bits, 4);
        if (v.used > v.n) return 0;
        put_bytes(&values, 1, one, v.used);
    }
    if (values.used > values.n) return 0;
    Buf b = begin(buf, n, wall_time);
    put_step(&b, step);
    put_bytes(&b, 5, room, values.used);
    return end(&b);
}

static size_t varint_size(uint64_t x) {
    size_t n = 1;
    for (; x >= 0x80; x >>= 7) n++;
    return n;
}

size_t tfevents_text(uint8_t *buf, size_t n, double wall_time, int64_t step, const char *tag,
                     const char *text) {
    // metadata { plugin_data { plugin_name "text" } }, TensorProto { dtype STRING, shape { dim {
    // size 1 } }, string_val }
    static const uint8_t metadata[] = {1 << 3 | BYTES, 6, 1 << 3 | BYTES, 4, 't', 'e', 'x', 't'};
    static const uint8_t shape[] = {2 << 3 | BYTES, 2, 1 << 3 | VARINT, 1};
    enum { DT_STRING = 7 };
    size_t len = strlen(text), tag_len = strlen(tag);
    size_t tensor = 2 + 2 + sizeof shape + 1 + varint_size(len) + len;
    size_t value =
        1 + varint_size(tag_len) + tag_len + 1 + varint_size(tensor) + tensor + 2 + sizeof metadata;
    Buf b = begin(buf, n, wall_time);
    put_step(&b, step);
    put_key(&b, 5, BYTES); // Summary, whose only field is the value
    put_varint(&b, 1 + varint_size(value) + value);
    put_key(&b, 1, BYTES);
    put_varint(&b, value);
    put_string(&b, 1, tag);
    put_key(&b, 8, BYTES);
    put_varint(&b, tensor);
    put_key(&b, 1, VARINT);
    put_varint(&b, DT_STRING);
    put_bytes(&b, 2, shape, sizeof shape);
    put_bytes(&b, 8, text, len);
    put_bytes(&b, 9, metadata, sizeof metadata);
    return end(&b);
}
