#!/usr/bin/env python3
"""Time whole training steps of a GPT-2 in PyTorch on the CPU: a peer for tools/bench.py.

Prints one JSON object: {"ms": [...], "loss": ..., "torch": version, ...}. The model is the plain
one of a GPT-2: fused QKV, scaled_dot_product_attention (causal), tanh GELU, tied head, AdamW
(fused) with decay on matrices, clipping by global norm: the same work as train_gpt does.
"""
import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.attn_out = nn.Linear(channels, channels)
        self.ln2 = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)

    def forward(self, x):
        b, s, c = x.shape
        heads = self.qkv(self.ln1(x)).view(b, s, 3, self.heads, c // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_out(y.transpose(1, 2).reshape(b, s, c))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, channels, seq, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, channels)
        self.wpe = nn.Embedding(seq, channels)
        self.h = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.lnf = nn.LayerNorm(channels)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name, value in (("layers", 12), ("heads", 12), ("channels", 768), ("vocab", 50257),
                        ("batch", 4), ("seq", 64), ("threads", 2), ("warmup", 2), ("steps", 5)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--mode", choices=["eager", "compile"], default="eager")
    p.add_argument("--table", type=int, default=0, help="rows of the position table (default seq)")
    p.add_argument("--profile", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = GPT2(a.layers, a.heads, a.channels, a.table or a.seq, a.vocab)
    decay = [q for q in model.parameters() if q.dim() == 2]
    rest = [q for q in model.parameters() if q.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    step_model = torch.compile(model) if a.mode == "compile" else model

    def step():
        tokens = torch.randint(a.vocab, (a.batch, a.seq + 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
            loss = step_model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    start = time.perf_counter()
    for _ in range(a.warmup):
        step()
    warmup_s = time.perf_counter() - start
    ms = []
    for _ in range(a.steps):
        start = time.perf_counter()
        loss = step()
        ms.append((time.perf_counter() - start) * 1e3)
    if not math.isfinite(loss):
        raise SystemExit("the loss is not finite: nothing to compare with")
    print(json.dumps({"ms": ms, "loss": loss, "torch": torch.__version__, "mode": a.mode,
                      "dtype": a.dtype, "warmup_s": warmup_s,
                      "capability": torch.backends.cpu.get_cpu_capability()}))
    if a.profile:
        with torch.profiler.profile() as prof:
            step()
        print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


if __name__ == "__main__":
    main()
