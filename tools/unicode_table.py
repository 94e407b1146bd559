#!/usr/bin/env python3
"""Writes data/unicode_table.c: the class (letter, number, space, other) of every code point.

    python3 tools/unicode_table.py > data/unicode_table.c

Source of the classes: \\p{L}, \\p{N} and \\s of the Python module `regex`, the module GPT-2's own
encoder splits with. regex 2026.11.15 follows Unicode 18.0.0. A later Unicode assigns more code
points; run this again with a newer module, change VERSION, and run tests/golden_tokenizer.py.
"""
import itertools
import textwrap

import regex

VERSION = "18.0.0"  # of regex 2026.11.15; its documentation names the Unicode version
LETTER, NUMBER, SPACE = regex.compile(r"\p{L}"), regex.compile(r"\p{N}"), regex.compile(r"\s")


def unicode_class(code):
    if 0xD800 <= code < 0xE000:
        return 0
    c = chr(code)
    return 1 if LETTER.match(c) else 2 if NUMBER.match(c) else 3 if SPACE.match(c) else 0


def main():
    runs = [4 * len(list(run)) + group
            for group, run in itertools.groupby(map(unicode_class, range(0x110000)))]
    made_by = f"tools/unicode_table.py (regex {regex.__version__})"
    print(f"""/* Unicode {VERSION}. Made by {made_by}; do not edit. */
/* clang-format off */
#include "data/presplit.h"

const uint32_t unicode_runs[] = {{""")
    text = ", ".join(map(str, runs[:-1] + [0]))  # the last run is of no class
    print(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ") + "};")


main()
