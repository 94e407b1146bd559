#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/: what reference encoders make of text, for tests/test_tokenizer.c.

    python3 tests/golden_tokenizer.py TRAINING_TEXT GPT2_VOCAB_JSON GPT2_MERGES_TXT

Made with regex 2026.11.15 (Unicode 18.0), tokenizers 0.23.3, tiktoken 0.14.0, Python 3.11;
TRAINING_TEXT was tinyshakespeare.

  tokenizer.json, vocab.json, merges.txt   a vocabulary of 700 tokens, trained and written by HF
                                           tokenizers
  classes.txt                              of each plane FNV-1a of the classes of its code points (0
                                           other 1 letter 2 number 3 space)
  cases.json                               text (hex, repeated), lengths of its pieces, ids with the
                                           small and with GPT-2's vocabulary, lengths of the pieces
                                           of SmolLM, of LLaMA 3, and of Qwen where they differ from
                                           those of LLaMA 3
  nfc.txt                                  of each plane FNV-1a of the bytes of "e U+0345", a code
                                           point, "U+0323 U+05B0 U+0301" in the normal form NFC
  qwen.json                                text (hex) and the ids that tokenizers gives it with the
                                           stages of Qwen3 (NFC, its expression, <think> cut out)
                                           before the small vocabulary

Pieces: GPT-2's expression in `regex`, on the text decoded with surrogateescape, so that every byte
that is not UTF-8 is one character without class. Ids of a piece: the BPE models of tokenizers and
of tiktoken, which must agree. Where the text is UTF-8 and all its characters are known to
tokenizers' and tiktoken's older Unicode, their complete encoders must agree, too, and the pieces of
SmolLM (Digits), LLaMA 3 and Qwen (Split) are those of tokenizers.
"""
import json
import os
import random
import sys
import unicodedata

import regex
import tiktoken
from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        trainers)
from tokenizers import Regex as TheirRegex

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "tokenizer")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
SPLIT = {name: regex.compile(x) for name, x in (("gpt2", GPT2), ("llama3", LLAMA3), ("qwen", QWEN))}
CLASSES = [(1, regex.compile(r"\p{L}")), (2, regex.compile(r"\p{N}")), (3, regex.compile(r"\s"))]


def byte_chars():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


CHAR = byte_chars()
BYTE = {c: b for b, c in CHAR.items()}


class Reference:
    """Both reference encoders of one vocabulary."""

    def __init__(self, vocab, merges, eot):
        merges = [tuple(m) if isinstance(m, (list, tuple)) else tuple(m.split(" ")) for m in merges]
        self.model = Tokenizer(models.BPE({k: v for k, v in vocab.items()}, merges))
        self.whole = Tokenizer(models.BPE({k: v for k, v in vocab.items()}, merges))
        self.whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        ranks = {bytes(BYTE[c] for c in k): v for k, v in vocab.items() if v != eot}
        self.tiktoken = tiktoken.Encoding("golden", pat_str=GPT2, mergeable_ranks=ranks,
                                          special_tokens={"<|endoftext|>": eot})

    def piece(self, data):
        ids = self.model.encode("".join(CHAR[b] for b in data)).ids
        assert ids == self.tiktoken._encode_single_piece(data), data
        return ids

    def text(self, data, pieces):
        ids, at = [], 0
        for n in pieces:
            ids += self.piece(data[at:at + n])
            at += n
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return ids
        if all(old_class(c) == new_class(c) for c in text):
            assert ids == self.whole.encode(text).ids, text
            assert ids == self.tiktoken.encode_ordinary(text), text
            Reference.whole_checks += 1
        return ids

    whole_checks = 0


def new_class(c):
    return next((k for k, r in CLASSES if r.match(c)), 0)


def old_class(c, known={}):
    """The class that tokenizers gives the character: found by the pieces of "a", "1", "!" beside
    it."""
    if c not in known:
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        joins = [k for k, probe in ((1, "a"), (2, "1"), (0, "!"))
                 if len(level.pre_tokenize_str(probe + c)) == 1]
        known[c] = joins[0] if joins else 3
    return known[c]


LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
LEVEL_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
THEIRS = {
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), LEVEL]),
    **{name: pre_tokenizers.Sequence([
        pre_tokenizers.Split(TheirRegex(x), behavior="isolated"), LEVEL_ALONE])
       for name, x in (("llama3", LLAMA3), ("qwen", QWEN))}
}


def pieces_of(data, rule="gpt2"):
    text = data.decode("utf-8", "surrogateescape")
    if rule == "digits":
        pieces = [p for part in regex.findall(r"\p{N}|\P{N}+", text)
                  for p in SPLIT["gpt2"].findall(part)]
    else:
        pieces = SPLIT[rule].findall(text)
    lengths = [len(p.encode("utf-8", "surrogateescape")) for p in pieces]
    assert sum(lengths) == len(data)
    if rule in THEIRS and not any(0xDC80 <= ord(c) <= 0xDCFF or old_class(c) != new_class(c)
                                  for c in text):
        theirs = [len(p) for p, _ in THEIRS[rule].pre_tokenize_str(text)]  # a character is a byte
        assert lengths == theirs, (rule, text)
    return lengths


def sample_texts(rng):
    """Text of all planes and all general categories."""
    for plane in range(17):
        codes = [rng.randrange(plane << 16, (plane + 1) << 16) for _ in range(40)]
        yield "".join(chr(c) + rng.choice(["", "", " ", "a", "\n"]) for c in codes if not 0xD800
                      <= c < 0xE000)
    for name in ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp "
                 "Cc Cf Co Cn").split():
        is_it = regex.compile(r"\p{%s}" % name)
        codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and is_it.match(chr(c))]
        picked = [rng.choice(codes) for _ in range(30)]
        yield "".join(chr(c) + rng.choice(["", "", "", " ", "x", "7", "'s"]) for c in picked)
    everything = [c for c in range(0x110000) if new_class(chr(c)) == 3]
    yield "".join("x" + chr(c) for c in everything)
    yield "".join(chr(c) + "x" for c in everything)
    for _ in range(20):
        yield "".join(rng.choice([chr(rng.choice(everything)), " ", "\n", "ab", "é", "12", "!?",
                                  "中", "'ll"])
                      for _ in range(40))


def byte_texts(rng):
    bad = ["80", "bf", "c0", "c080", "c1bf", "c2", "c2c3a9", "e0", "e08080", "e09fbf", "e0a0",
           "e282", "e28220", "eda080",
           "edafbf", "edb080", "edbfbf", "f0", "f08fbfbf", "f09080", "f09f98", "f09f9861",
           "f0908080", "f48fbfbf", "f4908080",
           "f5808080", "f8888080", "fe", "ff", "fffe", "efbbbf61", "61ff62", "20ff20", "e28080e280",
           "c3a9c3", "ff27732020ff"]
    for b in bad:
        yield bytes.fromhex(b)
        yield b"a " + bytes.fromhex(b) + b" b1"
    for _ in range(25):
        yield rng.randbytes(rng.randrange(1, 80))
    for _ in range(25):
        good = "".join(rng.choice("aé中😀 1!\n\u2003ßﬁ٣") for _ in range(30)).encode()
        yield bytes(b if rng.random() > 0.05 else rng.randrange(256) for b in good)


def all_cases():
    rng = random.Random(1)
    yield b"", 1
    yield b"V", 1  # the only byte whose token no other text gives
    for lead in range(0xC0, 0xF8):  # a text that ends within a character
        yield bytes([lead]), 1
    for text in ["don'T 'S 'Re'VE'lL'M'd'\u017f it'\u017fs", "a1 22 333 4444 55555,6 7½x",
                 "  1  22   x",
                 "(abc [def] a.b \tc \u3000d\n\ne \r\n f", "!!\n\n?? \n. \r\n;\n a\n b",
                 "I'm you're he'll they've it's we'd don't", "'s't're've'm'll'd", "'S'T'RE'LL",
                 "''s '' 's  's", "rock'n'roll x'", "'",
                 " '", "'r", "'re", "'l", "'ll", "'lx", "'v\u00e9", "it\u2019s", " ", "  ", "   a",
                 "a   ", "a \n b", "\r\n\r\nx", "\t\ta",
                 " \u00a0a", "\u00a0 a", "\u3000\u3000a", "a\u2028b", "\x1c\x1d\x1e\x1fa",
                 "a\u0000b", "\u0000\u0000", "3.14, 1e5 ½ ² Ⅷ",
                 "<|endoftext|>", "a<|endoftext|>\nb", "x_y __init__(self)", "日本語とEnglish",
                 "नमस्ते", "e\u0301", "👩‍👩‍👧‍👦", "\ufeffabc",
                 "¿Qué?", "def f(x):\n    return x\n\n\n\nclass A:\n\tpass\n"]:
        yield text.encode(), 1
    for text in sample_texts(rng):
        yield text.encode(), 1
    for data in byte_texts(rng):
        yield data, 1
    for unit, n in ((b"a", 1000), (b"ab", 500), (b" ", 600), (b"=", 400), (b"the", 100),
                    (b"\xff", 100), (b"hello", 20), (b"\n ", 99),
                    ("é".encode(), 120), (b"aab", 170), (b"1234567890", 30)):
        yield unit, n
    words = (b"to be or not that is the question whether noble in mind suffer slings and "
             b"arrows").split()
    yield b"".join(rng.choice(words) for _ in range(80)), 1


def qwen_texts(rng):
    """Composed and decomposed text of many scripts; random code points, marks and tokens."""
    words = ("Ti\u1ebfng Vi\u1ec7t \u0111\u01b0\u1eddng \u091c\u093c\u0930\u0942\u0930\u0924 "
             "\u092b\u093c\u093f\u0932\u094d\u092e \ud55c\uad6d\uc5b4 \uac00\uac01\uac02 "
             "\u1f00\u03c1\u03c7\u1fc7 \u304c\u304e\u30d1 \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9 "
             "\u0645\u064f\u062d\u064e\u0645\u064e\u0651\u062f\u064c \u0995\u09cb\u09cc "
             "\u0b95\u0bca\u0e19\u0e49\u0e33 \u212b\u2126\u212a \uf900\U0002f800 \u2260").split()
    yield from words
    for form in ("NFC", "NFD"):
        yield unicodedata.normalize(form, " ".join(words))
        yield "\r\n\n".join(unicodedata.normalize(form, w) + "123 4'LL" for w in words)
    yield "<think>\n\n</think> a <|endoftext|><think><thi\u0301nk>e</think>\u0301<think"
    known = [c for c in map(chr, range(0x110000)) if not "\ud800" <= c < "\ue000"
             and old_class(c) == new_class(c)]
    marks = [c for c in known if unicodedata.combining(c)]
    jamo = [chr(c) for c in (*range(0x1100, 0x1200), *range(0xAC00, 0xAC1E))]
    for pool in (known, marks, jamo, known, marks, jamo):
        for n in (5, 20, 60):
            yield "".join(rng.choice(pool if rng.random() < 0.7 else "aeo 1\n\u0301\u0323\u093c")
                          for _ in range(n))


def write_qwen(small):
    """Replaces the stages of `small`."""
    normal = normalizers.NFC()
    with open(f"{OUT}/nfc.txt", "w", encoding="ascii") as f:
        for plane in range(17):
            h = 0xCBF29CE484222325
            for c in range(plane << 16, (plane + 1) << 16):
                text = "" if 0xD800 <= c < 0xE000 else f"e\u0345{chr(c)}\u0323\u05b0\u0301"
                for byte in normal.normalize_str(text).encode():
                    h = (h ^ byte) * 0x100000001B3 % (1 << 64)
            f.write(f"{plane} {h:016x}\n")
    small.normalizer, small.pre_tokenizer = normal, THEIRS["qwen"]
    small.add_tokens([AddedToken(x, special=False, normalized=False)
                      for x in ("<think>", "</think>")])
    small.encode_special_tokens = True  # their text is text
    with open(f"{OUT}/qwen.json", "w", encoding="ascii") as f:
        texts = qwen_texts(random.Random(2))
        f.write("[\n" + ",\n".join(json.dumps([t.encode().hex(), small.encode(t).ids],
                                              separators=(",", ":")) for t in texts) + "\n]\n")


def main(text_path, gpt2_vocab, gpt2_merges):
    os.makedirs(OUT, exist_ok=True)
    small = Tokenizer(models.BPE())
    small.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    small.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=699, min_frequency=2, show_progress=False,
                                  special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    small.train([text_path], trainer)
    small.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    described = json.loads(small.to_str())
    vocab, merges = described["model"]["vocab"], described["model"]["merges"]
    with open(f"{OUT}/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(described, f, ensure_ascii=False, separators=(",", ":"))
    with open(f"{OUT}/vocab.json", "w", encoding="utf-8") as f:
        json.dump({**vocab, "<|endoftext|>": 699}, f, ensure_ascii=False)
    with open(f"{OUT}/merges.txt", "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in merges))

    with open(f"{OUT}/classes.txt", "w", encoding="ascii") as f:
        for plane in range(17):
            h = 0xCBF29CE484222325
            for c in range(plane << 16, (plane + 1) << 16):
                k = 0 if 0xD800 <= c < 0xE000 else new_class(chr(c))
                h = (h ^ k) * 0x100000001B3 % (1 << 64)
            f.write(f"{plane} {h:016x}\n")

    references = [Reference(vocab, merges, 699)]
    with open(gpt2_vocab, encoding="utf-8") as f:
        big = json.load(f)
    with open(gpt2_merges, encoding="utf-8") as f:
        references.append(Reference(big, [x for x in f.read().split("\n")[1:] if x], 50256))
    with open(f"{OUT}/cases.json", "w", encoding="ascii") as f:
        f.write("[\n")
        for i, (data, n) in enumerate(all_cases()):
            pieces = pieces_of(data * n)
            ids = [r.text(data * n, pieces) for r in references]
            theirs = [pieces_of(data * n, rule) for rule in THEIRS]
            f.write((",\n" if i else "") + json.dumps(
                [data.hex(), n, pieces, *ids, *theirs[:2 + (theirs[2] != theirs[1])]],
                separators=(",", ":")))
        f.write("\n]\n")
    write_qwen(small)
    print(f"{i + 1} cases; the complete encoders were compared on {Reference.whole_checks} texts")


if __name__ == "__main__":
    main(*sys.argv[1:])
