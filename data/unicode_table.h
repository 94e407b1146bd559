/* unicode_table -- class of every code point: 0 other, 1 letter (L), 2 number (N), 3 space
 * (White_Space).
 *
 * Runs of code points of one class, from U+0000 on: 4 * their number + the class; 0 ends them, and
 * all later code points are of class 0. presplit.h has the functions. The table is made by
 * tools/unicode_table.py.
 */
#ifndef DATA_UNICODE_TABLE_H
#define DATA_UNICODE_TABLE_H

#include <stdint.h>

extern const uint32_t unicode_runs[];

#endif
