/* tfevents -- what TensorBoard reads, without protobuf.
 *
 *     record  = u64 length | u32 masked crc32c(length) | payload | u32 masked crc32c(payload)
 * little-endian masked  = rotate right by 15, + 0xa282ead8 payload = Event { 1 wall_time double, 2
 * step varint, 3 file_version string, 5 summary, 7 session_log { 1 status } } summary = { 1 value {
 * 1 tag string, 2 simple_value float, 8 tensor, 9 metadata { 1 plugin { 1 name } } } }
 *
 * The functions append one whole record to buf and return its length, 0 when it does not fit in n
 * bytes.
 */
#ifndef DATA_TFEVENTS_H
#define DATA_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct TfScalar {
    const char *tag;
    double value;
} TfScalar;

/* First record of a file. */
size_t tfevents_version(uint8_t *buf, size_t n, double wall_time);
/* "The session starts at `step`": TensorBoard forgets this step and later ones of older files. */
size_t tfevents_start(uint8_t *buf, size_t n, double wall_time, int64_t step);
size_t tfevents_scalars(uint8_t *buf, size_t n, double wall_time, int64_t step, const TfScalar *s,
                        int count);
/* UTF-8 text, shown as Markdown by the text tab. */
size_t tfevents_text(uint8_t *buf, size_t n, double wall_time, int64_t step, const char *tag,
                     const char *text);

#endif
