#!/usr/bin/env python3
"""Time whole training steps of a GPT-2 in PyTorch: a peer for tools/bench.py on the CPU, for
tools/bench_gpu.py on a GPU.

Prints one JSON object: {"ms": [...], "loss": ..., "torch": version, ...}. The model is a plain
GPT-2: fused QKV, scaled_dot_product_attention (causal), tanh GELU, tied head, AdamW (fused) with
decay on matrices, clipping by global norm: the same work as in train_gpt.

On a GPU steps are timed by events, and the host does not wait for the loss in between. --sdpa names
the kernels of attention. --blocks compiles one block and uses it for all layers. --attention times
attention alone, with each kind of kernels, and prints a list of rows.
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


def use_sdpa(name):
    """Restricts attention to these kernels. The backend of a call is chosen when the call is made
    or compiled."""
    for backend in ("flash", "mem_efficient", "math", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{backend}_sdp")(backend == name)


def timer(device):
    """Two functions: one returns the time of its call, the other the milliseconds between two such
    times, both in the order of the device's work."""
    if device == "cpu":
        return time.perf_counter, lambda a, b: 1e3 * (b - a)

    def now():
        e = torch.cuda.Event(enable_timing=True)
        e.record()
        return e

    def between(a, b):
        b.synchronize()
        return a.elapsed_time(b)
    return now, between


def time_attention(a, backend, S, D):
    """TFLOP/s of the causal half: 2 S S D for each head and sequence forward, 5 S S D backward;
    medians of rounds in which sets of operands take turns."""
    B, H, sets = max(1, a.batch * a.seq // S), a.channels // D, 4
    shape = (B, S, H, D)
    made = [[torch.randn(shape, device=a.device,
                         dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3)]
            for _ in range(sets)]
    dout = torch.randn(shape, device=a.device, dtype=torch.bfloat16).transpose(1, 2)
    now, between = timer(a.device)
    outs = [F.scaled_dot_product_attention(*qkv, is_causal=True) for qkv in made]

    def forward(i):
        with torch.no_grad():
            F.scaled_dot_product_attention(*made[i], is_causal=True)

    def backward(i):
        torch.autograd.grad(outs[i], made[i], dout, retain_graph=True)
    rows = []
    for name, run, matmuls in (("forward", forward, 2), ("backward", backward, 5)):
        for i in range(sets):
            run(i)
        rounds = []
        for _ in range(7):
            start = now()
            for i in range(a.steps):
                run(i % sets)
            rounds.append(between(start, now()) / a.steps)
        ms = sorted(rounds)[len(rounds) // 2]
        rows.append({"backend": backend, "name": name, "D": D, "S": S, "B": B, "H": H,
                     "us": 1e3 * ms, "tflops": matmuls * B * H * S * S * D / ms * 1e-9})
    return rows


def attention(a):
    rows = []
    for backend in ("cudnn", "flash") if a.device == "cuda" else ("default",):
        if a.device == "cuda":
            use_sdpa(backend)
        for D in (64, 128):
            for S in (a.seq, 2 * a.seq, 4 * a.seq):
                try:
                    rows += time_attention(a, backend, S, D)
                except RuntimeError as e:  # a backend may refuse a shape
                    rows.append({"backend": backend, "D": D, "S": S,
                                 "refused": str(e).splitlines()[0][:200]})
    print(json.dumps(rows))


def compiled(model, a):
    if a.mode != "compile":
        return model
    if not a.blocks:
        return torch.compile(model)
    for block in model.h:
        block.compile()
    return model


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name, value in (("layers", 12), ("heads", 12), ("channels", 768), ("vocab", 50257),
                        ("batch", 4), ("seq", 64), ("threads", 2), ("warmup", 2), ("steps", 5),
                        ("micro-steps", 1)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--mode", choices=["eager", "compile"], default="eager")
    p.add_argument("--table", type=int, default=0, help="rows of the position table (default seq)")
    p.add_argument("--profile", action="store_true")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--sdpa", choices=["cudnn", "flash"], help="on a GPU (default: PyTorch chooses)")
    p.add_argument("--blocks", action="store_true", help="compile a block, not the whole model")
    p.add_argument("--attention", action="store_true", help="time attention alone")
    a = p.parse_args()
    if a.device == "cpu":
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high" if a.device == "cuda" else "highest")
    if a.attention:
        return attention(a)
    if a.sdpa:
        use_sdpa(a.sdpa)
    with torch.device(a.device):
        model = GPT2(a.layers, a.heads, a.channels, a.table or a.seq, a.vocab)
    decay = [q for q in model.parameters() if q.dim() == 2]
    rest = [q for q in model.parameters() if q.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    step_model = compiled(model, a)
    now, between = timer(a.device)

    def step():
        for _ in range(a.micro_steps):
            tokens = torch.randint(a.vocab, (a.batch, a.seq + 1), device=a.device)
            with torch.autocast(a.device, torch.bfloat16, enabled=a.dtype == "bf16"):
                loss = step_model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            (loss / a.micro_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() if a.device == "cpu" else loss.detach()

    start = time.perf_counter()
    for _ in range(a.warmup):
        step()
    if a.device == "cuda":
        torch.cuda.synchronize()
    warmup_s = time.perf_counter() - start
    at = [now()]
    for _ in range(a.steps):
        loss = step()
        at.append(now())
    ms, loss = [between(x, y) for x, y in zip(at, at[1:])], float(loss)
    if not math.isfinite(loss):
        raise SystemExit("the loss is not finite: nothing to compare with")
    print(json.dumps({"ms": ms, "loss": loss, "torch": torch.__version__,
                      "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version(), "mode": a.mode, "dtype": a.dtype,
                      "warmup_s": warmup_s, "sdpa": a.sdpa,
                      "compiled": None if a.mode != "compile" else "block by block" if a.blocks
                      else "whole", "capability": torch.backends.cpu.get_cpu_capability()}))
    if a.profile:
        with torch.profiler.profile() as prof:
            step()
        print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


if __name__ == "__main__":
    main()
