#!/usr/bin/env python3
"""Writes data/unicode_table.c: the class (letter, number, space, other) of every code point.

    python3 tools/unicode_table.py > data/unicode_table.c

Source of the classes: \\p{L}, \\p{N} and \\s of the Python module `regex`, the module GPT-2's own
encoder splits with. regex 2026.11.15 follows Unicode 18.0.0. A later Unicode assigns more code
points; run this again with a newer module, change VERSION, and run tests/golden_tokenizer.py.
"""
import regex

VERSION = "18.0.0"  # of regex 2026.11.15; its documentation names the Unicode version
BLOCK = 256         # code points in one block of the second stage
LETTER, NUMBER, SPACE = regex.compile(r"\p{L}"), regex.compile(r"\p{N}"), regex.compile(r"\s")


def unicode_class(code):
    if 0xD800 <= code < 0xE000:
        return 0
    c = chr(code)
    return 1 if LETTER.match(c) else 2 if NUMBER.match(c) else 3 if SPACE.match(c) else 0


def print_numbers(name, ctype, values):
    print(f"const {ctype} {name}[{len(values)}] = {{")
    line = "   "
    for v in values:
        if len(line) + len(str(v)) + 2 > 100:
            print(line)
            line = "   "
        line += f" {v},"
    print(line + "};")


def main():
    classes = [unicode_class(c) for c in range(0x110000)]
    blocks, first = [], []
    for at in range(0, 0x110000, BLOCK):
        block = classes[at:at + BLOCK]
        packed = tuple(sum(block[i + j] << 2 * j for j in range(4)) for i in range(0, BLOCK, 4))
        if packed not in blocks:
            blocks.append(packed)
        first.append(blocks.index(packed))
    assert len(blocks) <= 256
    made_by = f"tools/unicode_table.py (regex {regex.__version__})"
    print(f"""/* Unicode {VERSION}. Made by {made_by}; do not edit. */
/* clang-format off */
#include "data/unicode_table.h"
""")
    print_numbers("unicode_block", "uint8_t", first)
    print_numbers("unicode_bits", "uint8_t", [b for block in blocks for b in block])


main()
