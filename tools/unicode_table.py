#!/usr/bin/env python3
r"""Writes data/unicode_table.c: the class (letter, number, space, other) of every code point, and
what the normal form NFC needs.

    python3 tools/unicode_table.py > data/unicode_table.c

Source of the classes: \p{L}, \p{N} and \s of the Python module `regex`, the module GPT-2's own
encoder splits with. regex 2026.11.15 follows Unicode 18.0.0. A later Unicode assigns more code
points; run this again with a newer module, change VERSION, and run tests/golden_tokenizer.py.

Source of the normal form: `unicodedata`, for the code points that the normalizer NFC of Hugging
Face's tokenizers knows: 0.23.3 has those of Unicode 9. It leaves characters that were assigned
since as they are, and so must a program that makes the same ids.
"""
import itertools
import textwrap
import unicodedata

import regex
import tokenizers

VERSION = "18.0.0"  # of regex 2026.11.15; its documentation names the Unicode version
LETTER, NUMBER, SPACE = regex.compile(r"\p{L}"), regex.compile(r"\p{N}"), regex.compile(r"\s")
nfc, nfd = (form().normalize_str for form in (tokenizers.normalizers.NFC,
                                              tokenizers.normalizers.NFD))


def unicode_class(code):
    if 0xD800 <= code < 0xE000:
        return 0
    c = chr(code)
    return 1 if LETTER.match(c) else 2 if NUMBER.match(c) else 3 if SPACE.match(c) else 0


def combining_class(code):
    """0 where tokenizers moves the character neither behind a mark of class 1 nor before one of
    class 240."""
    c = chr(code)
    known = unicodedata.combining(c) and any(nfd(text) != text
                                             for text in (f"a{c}\u0334", f"a\u0345{c}"))
    return unicodedata.combining(c) if known else 0


def decompositions():
    """Of each code point that has one: its distance from the one before, twice, and 1 if it is not
    composed again; the two code points, or one and 0."""
    before = 0
    table = {code: [int(x, 16) for x in unicodedata.decomposition(chr(code)).split()]
             for code in range(0x110000)
             if unicodedata.decomposition(chr(code))[:1] not in ("", "<")
             and nfd(chr(code)) != chr(code)}
    seconds = {parts[1] for code, parts in table.items()
               if len(parts) == 2 and nfc(chr(code)) == chr(code)}
    for code, parts in table.items():
        apart = nfc(chr(code)) != chr(code)
        # data/nfc.c: a second part is whole; a composed character composes with none before it
        assert len(parts) == 1 and apart or len(parts) == 2 and parts[1] not in table
        assert apart or nfd(chr(code))[0] not in seconds
        yield from (2 * (code - before) + apart, *parts, *[0] * (2 - len(parts)))
        before = code


def runs(value, unit):
    """Numbers unit * length + value of the runs of code points of one value; 0 instead of the
    last."""
    groups = itertools.groupby(map(value, range(0x110000)))
    return [unit * len(list(run)) + x for x, run in groups][:-1] + [0]


def write(name, numbers):
    text = textwrap.fill(", ".join(map(str, numbers)), 100, initial_indent="    ",
                         subsequent_indent="    ")
    print(f"\nconst uint32_t {name}[] = {{\n{text}}};")


def main():
    # data/nfc.c: NFC has at most three times the bytes
    assert all(len(nfc(c).encode()) <= 3 * len(c.encode())
               for c in map(chr, range(0x110000)) if not "\ud800" <= c < "\ue000")
    made_by = f"regex {regex.__version__}, tokenizers {tokenizers.__version__}"
    print(f"""/* Classes of Unicode {VERSION}. Made by tools/unicode_table.py
 * ({made_by}); do not edit. */
/* clang-format off */
#include "data/nfc.h"
#include "data/presplit.h\"""")
    write("unicode_runs", runs(unicode_class, 4))
    write("unicode_combining", runs(combining_class, 256))
    write("unicode_decompositions", [*decompositions(), 0])


main()
