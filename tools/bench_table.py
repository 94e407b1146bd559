#!/usr/bin/env python3
"""Print the tables of bench/results/train_cpu_SET.json and matmuls*.json, or put them into a page.

    python3 tools/bench_table.py
        prints Markdown: steps for each instruction set, then matmuls
    python3 tools/bench_table.py FILE.json
        prints only the steps of this file
    python3 tools/bench_table.py [FILE.json] --page PAGE.md
        replaces the text between the lines <!-- bench:begin --> and <!-- bench:end -->
    python3 tools/bench_table.py [FILE.json] --page PAGE.md --check
        fails if that would change the page
"""
import glob
import os
import statistics
import sys

import bench_page
from bench_page import TOP


def find(row, program, dtype):
    return next((r for r in row["results"] if (r["program"], r["dtype"]) == (program, dtype)), None)


def cell(ours, theirs):
    if not theirs:
        return "-"
    ratio = theirs["median_ms"] / ours["median_ms"]
    mode = {"compile": " c", "eager": " e"}.get(theirs.get("mode"), "")
    return f"{theirs['tokens_per_s']:.4g}{mode} ({ratio:.2f}x)"


def table(d):
    rows, notes = [], []
    for row in d["rows"]:
        m = row["model"]
        big = m["layers"] == 12 and m["channels"] == 768
        sizes = f"{m['layers']} layers, {m['channels']} channels, vocabulary {m['vocab']}"
        name = "GPT-2 124M" if big else sizes
        for dtype in ("fp32", "bf16"):
            ours, one = find(row, "train_gpt", dtype), find(row, "1 thread", dtype)
            if not ours:
                continue
            rows.append([f"{name}, {row['B']} x {row['T']}", dtype, f"{ours['tokens_per_s']:.4g}",
                         f"{ours['median_ms']:.0f}", f"{ours['peak_share']:.0%}"]
                        + [cell(ours, find(row, peer, dtype))
                           for peer in ("torch", "torch tuned", "llm.c")])
            if one:
                notes.append(f"{one['median_ms'] / ours['median_ms']:.2f}x in {dtype}")
    repeats = sorted({row.get("repeat", d["repeat"]) for row in d["rows"]})
    turns = " or ".join(str(n) for n in repeats)
    peak = " and ".join(f"{v:.0f} GFLOP/s {k}" for k, v in d["peak_gflops"].items())
    text = (f"Whole training steps on {d['machine']['cores']} cores of {d['machine']['cpu']}, "
            f"{d['kernels']} kernels, {d['date'][:10]}, commit {d['commit']}, medians of the steps "
            f"of {turns} alternating run{'s' if turns != '1' else ''} per row. In brackets: how "
            f"many times as fast train_gpt is. Measured peak {peak}; a step counts 6 N + 6 L C T "
            f"floating-point operations per token.")
    if "torch" in d["versions"]:
        text += (f" PyTorch {d['versions']['torch']}, the better of eager (e) and torch.compile "
                 "(c); \"tuned\" as `tools/bench.py --help` says.")
    if any(find(row, "llm.c", "fp32") for row in d["rows"]):
        text += (" llm.c is its train_gpt2, built by its own Makefile, with B and T set in its "
                 "source and 2 threads; it has no bf16 on the CPU.")
    if notes:
        text += " Two threads against one: " + ", ".join(notes) + "."
    return bench_page.markdown("model, B x T | type | train_gpt, tokens/s | ms | share of peak "
                               "| PyTorch | PyTorch tuned | llm.c", rows, text)


def matmuls(d):
    """A table for each instruction set: GFLOP/s of our matmul and of the best peer, and the median
    ratio."""
    out = []
    for name in dict.fromkeys((r["set"], r["dtype"]) for r in d["rows"]):
        rows = [r for r in d["rows"] if (r["set"], r["dtype"]) == name]
        peers = [p for p in ("openblas", "onednn", "mkl") if any(p in r for r in rows)]
        ratios = [r["best_peer_ratio"] for r in rows]
        cells = [[f"{r['M']}, {r['K']}, {r['N']}", r["form"], f"{r['ours']:.0f}",
                  f"{r['share_of_peak']:.0%}"]
                 + [f"{r[p]:.0f}" if p in r else "-" for p in peers]
                 + [f"{r['best_peer_ratio']:.2f}"] for r in rows]
        cells.append([f"**median of {len(rows)}**", "", "",
                      f"{statistics.median(r['share_of_peak'] for r in rows):.0%}"]
                     + [""] * len(peers)
                     + [f"**{statistics.median(ratios):.2f}** (least {min(ratios):.2f})"])
        out += [f"#### Matmuls, {name[0]}, {name[1]}", "", bench_page.markdown(
            " | ".join(["M, K, N | form | GFLOP/s | share of peak", *peers, "ratio to the best"]),
            cells)]
    return "\n".join(out) + (f"\nGFLOP/s, medians, on {d['machine']['cores']} cores of "
                             f"{d['machine']['processor']}, commit {d['commit']}: "
                             f"`{d['command']}`. Peers are held to the same instruction set.\n")


def everything():
    """All tables, for docs/benchmarks.md."""
    out, results = [], os.path.join(TOP, "bench", "results")
    for path in sorted(glob.glob(os.path.join(results, "train_cpu_*.json"))):
        d = bench_page.load(path)
        out += [f"#### Steps, {d['kernels']}", "", table(d)]
    for path in sorted(glob.glob(os.path.join(results, "matmuls*.json"))):
        out.append(matmuls(bench_page.load(path)))
    return "\n".join(out)


def main():
    p = bench_page.parser(__doc__)
    p.add_argument("file", nargs="?")
    bench_page.add_page(p)
    a = p.parse_args()
    if a.file and not os.path.exists(a.file):
        sys.exit(f"{a.file} is missing: make bench")
    text = table(bench_page.load(a.file)) if a.file else everything()
    if a.page:
        return bench_page.put(a, "bench", text)
    print(text, end="")


if __name__ == "__main__":
    main()
