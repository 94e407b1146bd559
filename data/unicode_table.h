/* unicode_table -- class of every code point: 0 other, 1 letter (L), 2 number (N), 3 space
 * (White_Space).
 *
 * Two stages: the block of a code point by its upper bits, then 2 bits for each of the 256 code
 * points of a block, the lowest first. presplit.h has the functions. The tables are made by
 * tools/unicode_table.py.
 */
#ifndef DATA_UNICODE_TABLE_H
#define DATA_UNICODE_TABLE_H

#include <stdint.h>

extern const uint8_t unicode_block[0x1100]; // [code >> 8]
extern const uint8_t unicode_bits[];        // [block * 64 + (code >> 2 & 63)] >> 2 * (code & 3)

#endif
