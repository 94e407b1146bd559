#!/usr/bin/env python3
"""Train losses of 100 steps of a small GPT-2 on tinyshakespeare, from PyTorch in fp32.

    python3 tests/golden_curve.py DATA     writes tests/golden/tinyshakespeare_100.txt
                                           DATA holds tinyshakespeare.txt, gpt2_vocab.json,
                                           gpt2_merges.txt

Needs torch, numpy and tokenizers. Nothing is taken from the trainer: the initial weights
(base/rng.h, base/tensor.c), the order of the data (data/batch.h) and the schedule are written here
a second time, so that tests/test_golden_curve.c compares two programs that share no code. The file
holds, besides losses, sums and samples of the initial weights, and sums of the tokens.
"""
import math
import os
import sys

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F

SEED, STEPS, B, S = 1337, 100, 2, 64
L, H, C, V = 2, 2, 64, 50257
LR, MIN_LR, WARMUP, BETAS, EPS, DECAY, CLIP = 1e-3, 1e-4, 10, (0.9, 0.95), 1e-8, 0.1, 1.0
CONFIG = f"layers={L},heads={H},channels={C},seq={S},vocab={V}"
MASK32, MASK64 = np.uint64(0xFFFFFFFF), (1 << 64) - 1


def philox(seed, stream, index):
    """Philox4x32-10 of an array of indices: four arrays of 32-bit words (in uint64)."""
    index = np.asarray(index, np.uint64)
    shift = np.uint64(32)
    c = [index & MASK32, index >> shift] + [np.full_like(index, (stream >> s) & 0xFFFFFFFF)
                                            for s in (0, 32)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(k0), p1 & MASK32,
             (p0 >> shift) ^ c[3] ^ np.uint64(k1), p0 & MASK32]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def stream_of(name):  # FNV-1a
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & MASK64
    return h


def normal(n, std, seed, stream):
    w = [x.astype(np.float64) for x in philox(seed, stream, np.arange((n + 3) // 4))]
    z = np.empty((len(w[0]), 4))
    for p in (0, 2):
        r = np.sqrt(-2 * np.log((w[p] + 1) * 2.0 ** -32))
        angle = 6.283185307179586 * (w[p + 1] * 2.0 ** -32)
        z[:, p], z[:, p + 1] = r * np.cos(angle), r * np.sin(angle)
    return (z.reshape(-1)[:n] * np.float64(np.float32(std))).astype(np.float32)


def permute(index, n, seed, stream):
    half = 1
    while half < 32 and 1 << (2 * half) < n:
        half += 1
    mask, x = (1 << half) - 1, index
    while True:
        left, right = x >> half, x & mask
        for r in range(6):
            w = philox(seed, stream, [right | r << 56])
            f = (int(w[1][0]) << 32 | int(w[0][0])) & mask
            left, right = right, left ^ f
        x = left << half | right
        if x < n:
            return x


def initial():
    w, residual = {}, 0.02 / math.sqrt(2 * L)

    def matrix(name, rows, cols, std=0.02):
        w[name] = normal(rows * cols, std, SEED, stream_of(name)).reshape(rows, cols)

    def vector(name, n, value=0.0):
        w[name] = np.full((1, n), value, np.float32)

    matrix("wte", V, C)
    matrix("wpe", S, C)
    for i in range(L):
        p = f"h.{i}."
        vector(p + "ln1.weight", C, 1), vector(p + "ln1.bias", C)
        matrix(p + "qkv.weight", C, 3 * C), vector(p + "qkv.bias", 3 * C)
        matrix(p + "attn_out.weight", C, C, residual), vector(p + "attn_out.bias", C)
        vector(p + "ln2.weight", C, 1), vector(p + "ln2.bias", C)
        matrix(p + "up.weight", C, 4 * C), vector(p + "up.bias", 4 * C)
        matrix(p + "down.weight", 4 * C, C, residual), vector(p + "down.bias", C)
    vector("lnf.weight", C, 1), vector("lnf.bias", C)
    return w


def forward(w, tokens):
    def norm(x, name):
        return F.layer_norm(x, (C,), w[name + ".weight"][0], w[name + ".bias"][0], 1e-5)

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte"][tokens] + w["wpe"]
    for i in range(L):
        p = f"h.{i}."
        qkv = linear(norm(x, p + "ln1"), p + "qkv").view(B, S, 3, H, C // H)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(B, S, C), p + "attn_out")
        x = x + linear(F.gelu(linear(norm(x, p + "ln2"), p + "up"), approximate="tanh"), p + "down")
    return norm(x, "lnf") @ w["wte"].T


def batch(tokens, step):
    n = (len(tokens) - 1) // S
    rows = []
    for j in range(B):
        place = step * B + j
        first = permute(place % n, n, SEED, place // n) * S
        rows.append(tokens[first: first + S + 1])
    return torch.tensor(np.array(rows, np.int64))


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    x = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * x))


def train(tokens, dtype):
    w = {k: torch.tensor(x, dtype=dtype, requires_grad=True) for k, x in initial().items()}
    optimizer = torch.optim.AdamW(
        [{"params": [x for x in w.values() if x.shape[0] > 1], "weight_decay": DECAY},
         {"params": [x for x in w.values() if x.shape[0] == 1], "weight_decay": 0}],
        lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        x = batch(tokens, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(w, x[:, :-1]).view(-1, V), x[:, 1:].reshape(-1))
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP).item())
        optimizer.step()
    return losses, norms


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    data = os.path.abspath(sys.argv[1])
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    assert [int(x[0]) for x in philox(0, 0, [0])] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C,
                                                      0x9B00DBD8], "Philox: known answer"
    bpe = tokenizers.ByteLevelBPETokenizer(f"{data}/gpt2_vocab.json", f"{data}/gpt2_merges.txt")
    with open(f"{data}/tinyshakespeare.txt", encoding="utf-8") as f:
        tokens = np.array(bpe.encode(f.read()).ids)
    losses, norms = train(tokens, torch.float32)
    exact, _ = train(tokens, torch.float64)
    with open("tests/golden/tinyshakespeare_100.txt", "w") as f:
        f.write(f"# {CONFIG} on tinyshakespeare\n"
                f"# by tests/golden_curve.py, seed {SEED}, torch {torch.__version__}, "
                f"numpy {np.__version__}, tokenizers {tokenizers.__version__}\n"
                "# command: python3 tests/golden_curve.py DATA\n"
                "# PyTorch's double precision lies from these losses by at most "
                f"{np.abs(np.subtract(losses, exact)).max():.1e}\n")
        f.write(f"config {CONFIG}\n"
                f"run {SEED} {B} {S} {STEPS}\n"
                f"adamw {BETAS[0]:g} {BETAS[1]:g} {EPS:g} {DECAY:g} {CLIP:g}\n"
                f"schedule {LR:g} {MIN_LR:g} {WARMUP}\n")
        places = np.arange(1, len(tokens) + 1, dtype=np.int64)
        f.write(f"tokens {len(tokens)} {tokens.sum()} {(tokens * places % 1000003).sum()}\n")
        for name, x in initial().items():
            x = x.reshape(-1)
            f.write(f"init {name} {x.sum(dtype=np.float64):.9g} "
                    f"{np.abs(x).sum(dtype=np.float64):.9g} {x[0]:.9g} {x[-1]:.9g}\n")
        for step in range(STEPS):
            f.write(f"step {step + 1} {losses[step]:.9g} {norms[step]:.9g}\n")
    print(f"{len(tokens)} tokens, loss {losses[0]:.4f} .. {losses[-1]:.4f}, double "
          f"precision differs "
          f"by at most {np.abs(np.subtract(losses, exact)).max():.1e}")


if __name__ == "__main__":
    main()
