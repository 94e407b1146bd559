#!/usr/bin/env python3
"""Compares one rank with all cores to several ranks that share them: whole steps of GPT-2 124M,
B=4, T=256 over all ranks.

    python3 tools/bench_ranks.py [--rounds 3] [--steps 5] [--out bench/results/ranks.json]
    python3 tools/bench_ranks.py --page docs/layouts.md
        puts the table of that file between the page's lines
        <!-- ranks:begin --> and <!-- ranks:end -->

Every round runs each contestant once, in turn, so that all see the same machine. The first step of
a run pays for page faults and does not count. The results are medians of all steps, and their ratio
to one rank. Needs Python's standard library and a built train_gpt; makes its own tokens.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import bench_page
from bench_page import build

EXTRA = ["megatron", "fsdp", "dp+exact"]


def contestants(ranks):
    yield "1 rank", []
    for layout in ["dp", "megatron-sp"] + EXTRA:
        words = layout.split("+exact")
        yield f"{ranks} ranks, {layout}", ["--ranks", str(ranks), "--layout",
                                           words[0]] + ["--exact"] * (len(words) - 1)
    yield "1 rank, exact", ["--exact"]


def run(args, extra, folder):
    log = os.path.join(folder, "log.json")
    if os.path.exists(log):
        os.remove(log)
    command = [build("train_gpt"), "--train", os.path.join(folder, "tokens.bin"),
               "--model", "d12",
               "--micro", "4", "--seq", "256", "--batch", "1024", "--steps", str(args.steps + 1),
               "--eval-every", "0", "--json", log] + extra
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line) for line in open(log)]
    return [s["ms"] for s in steps if "ms" in s][1:], [s["loss"] for s in steps if "loss" in s]


def table(d):
    return bench_page.markdown(
        " | ms a step | tokens/s | against one rank",
        [[r["name"], f"{r['median_ms']:.0f}", f"{r['tokens_per_s']:.0f}", f"{r['ratio']:.2f}x"]
         for r in d["rows"]],
        f"{d['model']}, on {d['machine']['cores']} cores of {d['machine']['cpu']}, "
        f"{d['date'][:10]}, commit {d['commit']}: "
        f"`{d['command']}`, medians of {d['rows'][0]['steps']} steps each, in turns.")


def main():
    p = bench_page.arguments(__doc__, "ranks.json")
    p.add_argument("--rounds", type=int, default=3, help="measurements (default 3)")
    p.add_argument("--steps", type=int, default=5, help="measured steps of a run (default 5)")
    args = p.parse_args()
    if args.page:
        return bench_page.put(args, "ranks", table(bench_page.load(args.out)))
    cores = len(os.sched_getaffinity(0))
    times, losses = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        bench_page.write_tokens(os.path.join(folder, "tokens.bin"), 50257, 100_000)
        for turn in range(args.rounds):
            for name, extra in contestants(cores):
                ms, loss = run(args, extra, folder)
                times.setdefault(name, []).extend(ms)
                losses[name] = loss
                print(f"round {turn + 1}: {name:24s} {statistics.median(ms):8.0f} ms",
                      file=sys.stderr, flush=True)
    one = statistics.median(times["1 rank"])
    rows = [{"name": n, "median_ms": round(statistics.median(t), 1),
             "tokens_per_s": round(1024e3 / statistics.median(t), 1),
             "ratio": round(one / statistics.median(t), 3), "steps": len(t),
             "loss_difference": max(abs(a - b) for a, b in zip(losses[n], losses["1 rank"]))} for n,
            t in times.items()]
    stamp = bench_page.stamp(f"python3 tools/bench_ranks.py --rounds {args.rounds} --steps "
                             f"{args.steps}")
    bench_page.save(args.out, None,
                    {**stamp, "model": "GPT-2 124M, 1,024 tokens a step (4 sequences of 256), fp32",
                     "rows": rows})
    for r in rows:
        print(f"{r['name']:24s} {r['median_ms']:8.1f} ms  {r['tokens_per_s']:7.1f} tokens/s  "
              f"{r['ratio']:.3f}x")


if __name__ == "__main__":
    main()
