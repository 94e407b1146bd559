#include "data/tfevents.h"

#include <stdbool.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/mem.h"

/* A protobuf message under construction. */
typedef struct Buf {
    uint8_t *p;
    size_t n, cap;
} Buf;

static void put(Buf *b, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        mem_grow(b->p, b->n, b->cap);
        b->p[b->n++] = ((const uint8_t *)p)[i];
    }
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

/* Appends the message `inside` as a field of b, and frees it. */
static void put_message(Buf *b, int field, Buf *inside) {
    put_bytes(b, field, inside->p, inside->n);
    mem_free(inside->p);
    *inside = (Buf){0};
}

/* TensorBoard's masked CRC-32C. */
static uint32_t masked(const void *p, size_t n) {
    uint32_t c = crc32c(0, p, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

enum { HEAD = 12 }; // bytes of a record before its payload

/* Begins an Event, after HEAD bytes that end() fills. */
static Buf begin(double wall_time) {
    Buf b = {0};
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    put(&b, (const uint8_t[HEAD]){0}, HEAD);
    put_key(&b, 1, FIXED64);
    put_int(&b, bits, 8);
    return b;
}

static TfRecord end(Buf *b) {
    Buf head = {0};
    put_int(&head, b->n - HEAD, 8);
    put_int(&head, masked(head.p, 8), 4);
    memcpy(b->p, head.p, HEAD);
    mem_free(head.p);
    put_int(b, masked(b->p + HEAD, b->n - HEAD), 4);
    return (TfRecord){b->p, b->n};
}

static void put_step(Buf *b, int64_t step) {
    put_key(b, 2, VARINT);
    put_varint(b, (uint64_t)step);
}

TfRecord tfevents_version(double wall_time) {
    Buf b = begin(wall_time);
    put_string(&b, 3, "brain.Event:2");
    return end(&b);
}

TfRecord tfevents_start(double wall_time, int64_t step) {
    static const uint8_t start[] = {1 << 3 | VARINT, 1}; // SessionLog { status = START }
    Buf b = begin(wall_time);
    put_step(&b, step);
    put_bytes(&b, 7, start, sizeof start);
    return end(&b);
}

TfRecord tfevents_scalars(double wall_time, int64_t step, const TfScalar *s, int count) {
    Buf b = begin(wall_time), summary = {0}, value = {0};
    for (int i = 0; i < count; i++) {
        float x = (float)s[i].value;
        put_string(&value, 1, s[i].tag);
        put_key(&value, 2, FIXED32);
        put(&value, &x, sizeof x);
        put_message(&summary, 1, &value);
    }
    put_step(&b, step);
    put_message(&b, 5, &summary);
    return end(&b);
}

TfRecord tfevents_text(double wall_time, int64_t step, const char *tag, const char *text) {
    // metadata { plugin_data { plugin_name "text" } }, shape { dim { size 1 } }
    static const uint8_t metadata[] = {1 << 3 | BYTES, 6, 1 << 3 | BYTES, 4, 't', 'e', 'x', 't'};
    static const uint8_t shape[] = {2 << 3 | BYTES, 2, 1 << 3 | VARINT, 1};
    enum { DT_STRING = 7 };
    Buf b = begin(wall_time), summary = {0}, value = {0}, tensor = {0};
    put_key(&tensor, 1, VARINT);
    put_varint(&tensor, DT_STRING);
    put_bytes(&tensor, 2, shape, sizeof shape);
    put_string(&tensor, 8, text);
    put_string(&value, 1, tag);
    put_message(&value, 8, &tensor);
    put_bytes(&value, 9, metadata, sizeof metadata);
    put_message(&summary, 1, &value);
    put_step(&b, step);
    put_message(&b, 5, &summary);
    return end(&b);
}
