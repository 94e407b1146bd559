/* tfevents -- records of TensorBoard's event files, without protobuf.
 *
 *     record  = u64 length | u32 masked crc32c(length) | payload | u32 masked crc32c(payload)
 *               little-endian
 *     masked  = rotate right by 15, + 0xa282ead8
 *     payload = Event { 1 wall_time double, 2 step varint, 3 file_version string, 5 summary,
 *                       7 session_log { 1 status } }
 *     summary = { 1 value { 1 tag string, 2 simple_value float, 8 tensor,
 *                           9 metadata { 1 plugin { 1 name } } } }
 *
 * Each function returns one whole record.
 */
#ifndef DATA_TFEVENTS_H
#define DATA_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct TfScalar {
    const char *tag;
    double value;
} TfScalar;

typedef struct TfRecord {
    uint8_t *p; // freed by mem_free
    size_t n;
} TfRecord;

/* First record of a file. */
TfRecord tfevents_version(double wall_time);
/* "The session starts at `step`": TensorBoard forgets this step and later ones of older files. */
TfRecord tfevents_start(double wall_time, int64_t step);
TfRecord tfevents_scalars(double wall_time, int64_t step, const TfScalar *s, int count);
/* UTF-8 text, shown as Markdown by the text tab. */
TfRecord tfevents_text(double wall_time, int64_t step, const char *tag, const char *text);

#endif
