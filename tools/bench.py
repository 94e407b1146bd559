#!/usr/bin/env python3
"""Time whole training steps of train_gpt and of other programs, for comparison. Writes
bench/results/train_cpu_SET.json.

    python3 tools/bench.py                              train_gpt alone
    python3 tools/bench.py --python /path/to/python     and PyTorch, if that Python has torch
    python3 tools/bench.py --llmc 'cmd {B} {T}'         and a program that prints "(took X ms)" per
                                                        step, as llm.c's train_gpt2 does, here for
                                                        d12 at batch B x T; B and T are constants of
                                                        its source: build one for each T
    python3 tools/bench.py --rows t256,small --repeat 5 some rows only, more often
    python3 tools/bench.py --kernels avx2               with another instruction set than the best
                                                        one; PyTorch and its libraries have it, too

Every measurement is one process: warm-up steps, then timed steps; the result is the median of the
timed steps. The programs of a row take turns, --repeat times; the result of a row is the median
over processes. While a process runs, the CPU time of all other processes is watched. A measurement
during which others used more than 4 % of the machine is repeated, and marked if that does not help.
Only the standard library is needed.

PyTorch is measured twice. "torch" is PyTorch as installed, the faster of eager and torch.compile.
"torch tuned" adds settings that make it faster on this machine: memory that is kept and lies on
huge pages, and on AMD processors a preloaded function that makes MKL use the AVX-512 kernels that
it otherwise reserves for Intel processors. Both do the same work as train_gpt: SDPA, fused AdamW,
clipping; bf16 is autocast.
"""
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import bench_page
import bench_table
from bench_page import TOP

TRAIN_GPT = bench_page.build("train_gpt")
D12 = dict(layers=12, heads=12, channels=768, vocab=50257)
SMALL = dict(layers=6, heads=6, channels=384)
# name, model, B, T, timed steps; d12 has 1024 positions as GPT-2
ROWS = [
    ("t64", D12, 4, 64, 6),
    ("t256", D12, 4, 256, 5),
    ("t1024", D12, 4, 1024, 2),
    ("small", dict(SMALL, vocab=256), 8, 256, 8),
    ("small_v", dict(SMALL, vocab=50257), 8, 256, 5),
]
TUNED = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
         "MALLOC_TRIM_THRESHOLD_": str(1 << 33), "MALLOC_TOP_PAD_": str(1 << 30)}
# a measurement is repeated if others use a larger share of the machine; number of tries
BUSY_LIMIT, TRIES = 0.04, 3
# Variables that restrict PyTorch, oneDNN and MKL to an instruction set.
HELD = {"avx2": ("avx2", "AVX2", "AVX2"), "avx512": ("avx512", "AVX512_CORE", "AVX512")}


def held_to(kernels):
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    return dict(zip(names, HELD.get(kernels, ())))


def positions(model, seq):
    return 1024 if model is D12 else seq


def children_seconds():
    t = os.times()
    return t.children_user + t.children_system


def busy_seconds():
    """Seconds of CPU time that all processes have used or a hypervisor has taken; 0 without
    /proc/stat."""
    try:
        with open("/proc/stat") as f:
            v = [int(x) for x in f.readline().split()[1:9]]
    except OSError:
        return 0.0
    return (v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / os.sysconf("SC_CLK_TCK")


def run(command, env):
    """Runs a process. Returns its output and the share of the machine that others used
    meanwhile."""
    start, busy, own = time.perf_counter(), busy_seconds(), children_seconds()
    p = subprocess.run(command, env=dict(os.environ, **env), capture_output=True, text=True)
    wall = time.perf_counter() - start
    others = busy_seconds() - busy - (children_seconds() - own)
    if p.returncode:
        raise SystemExit(f"{shlex.join(command)}\nended with status {p.returncode}:\n{p.stderr}")
    return p.stdout, max(others, 0) / wall / (os.cpu_count() or 1)


class Contestant:
    """A program with its command, its measurements so far, and parse(output) -> (ms of each step,
    other results)."""

    def __init__(self, name, dtype, command, env, parse, meta=None):
        self.name, self.dtype, self.command, self.env = name, dtype, command, env
        self.parse, self.meta, self.runs = parse, meta or {}, []

    def measure(self):
        """Runs the program once; again if other processes used the machine, at most TRIES times."""
        best = None
        for _ in range(TRIES):
            out, others = run(self.command, self.env)
            ms, extra = self.parse(out)
            if best is None or others < best["others"]:
                best = {"ms": statistics.median(ms), "steps_ms": ms, "others": others, **extra}
            if others <= BUSY_LIMIT:
                break
        self.runs.append(best)
        busy = f"   (others used {best['others']:.0%} of the machine)"
        mark = "" if best["others"] <= BUSY_LIMIT else busy
        print(f"  {self.name:12} {self.dtype}  {best['ms']:9.1f} ms{mark}", file=sys.stderr,
              flush=True)

    def result(self, tokens, flops, peak):
        """The result of a row: medians over all runs."""
        ms = statistics.median(r["ms"] for r in self.runs)
        r = dict(self.meta, program=self.name, dtype=self.dtype, median_ms=ms,
                 tokens_per_s=1e3 * tokens / ms, gflops=flops / ms / 1e6, runs=self.runs)
        if peak.get(self.dtype):
            r["peak_share"] = r["gflops"] / peak[self.dtype]
        return r


def ours(tmp, row, dtype, threads, steps, args):
    """train_gpt as a contestant."""
    name, model, B, T, _ = row
    out = os.path.join(tmp, f"{name}.{dtype}.{threads}.json")
    spec = ",".join(f"{k}={v}" for k, v in model.items()) + f",seq={positions(model, T)}"
    command = [TRAIN_GPT, "--kernels", args.kernels, "--train",
               os.path.join(tmp, f"{model['vocab']}.bin"), "--model", spec, "--micro", str(B),
               "--seq", str(T), "--steps", str(steps + 2), "--dtype", dtype, "--threads",
               str(threads), "--json", out]

    shown = shlex.join(command).replace(tmp, "TMP").replace(TOP + os.sep, "")

    def parse(_):
        lines = [json.loads(x) for x in open(out)]
        head = lines[0]["run"]
        os.remove(out)
        return ([x["ms"] for x in lines if "step" in x and "ms" in x][2:],
                {"peak_gflops": head["peak_flops"] / 1e9,
                 "flops_per_token": head["flops_per_token"], "kernels": head["kernels"]})
    return Contestant("train_gpt" if threads == 2 else "1 thread", dtype, command, {}, parse,
                      {"threads": threads, "command": shown})


def torch_peer(args, row, dtype, mode, env, name):
    _, model, B, T, steps = row
    command = [args.python, os.path.join(TOP, "tools", "bench_torch.py"), "--batch", str(B),
               "--seq", str(T), "--dtype", dtype, "--mode", mode, "--steps", str(steps),
               "--table", str(positions(model, T))]
    for k, v in model.items():
        command += [f"--{k}", str(v)]

    def parse(out):
        r = json.loads(out.strip().splitlines()[-1])
        return r["ms"], {"torch": r["torch"], "warmup_s": r["warmup_s"]}
    return Contestant(name, dtype, command, env, parse, {"mode": mode, "threads": 2})


def better_mode(args, row, dtype, env, name):
    """Eager or compiled: the faster one of one measurement each. --mode skips these."""
    modes = [args.mode] if args.mode else ["eager", "compile"]
    trial = [torch_peer(args, row, dtype, m, env, name) for m in modes]
    if len(trial) > 1:
        for c in trial:
            print(f"  trial {c.meta['mode']}:", end="", file=sys.stderr)
            try:
                c.measure()
            except SystemExit as e:
                if c is trial[0]:
                    raise
                print(f"  torch.compile does not work here: {str(e).splitlines()[-1]}",
                      file=sys.stderr)
                trial = trial[:1]
    best = min(trial, key=lambda c: c.runs[0]["ms"] if c.runs else 0)
    best.meta["trial_ms"] = {c.meta["mode"]: c.runs[0]["ms"] for c in trial if c.runs}
    best.runs = []
    return best


def llmc_peer(args, row):
    _, model, B, T, _ = row

    def parse(out):
        ms = [float(x) for x in re.findall(r"took ([0-9.]+) ms", out)]
        if not ms:
            raise SystemExit("--llmc: its output has no \"(took X ms)\"")
        return ms[1:] or ms, {"steps": len(ms)}
    command = shlex.split(args.llmc.replace("{B}", str(B)).replace("{T}", str(T)))
    return Contestant("llm.c", "fp32", command, {"OMP_NUM_THREADS": "2"}, parse, {"threads": 2})


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              cwd=TOP).stdout.strip().splitlines()[0]
    except (OSError, IndexError):
        return "unknown"


def mkl_key(tmp):
    """Builds a library that tells MKL that the processor is Intel's; None: not possible."""
    path = os.path.join(tmp, "key")
    with open(path + ".c", "w") as f:
        f.write("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    made = subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", path + ".so",
                           path + ".c"])
    return path + ".so" if made.returncode == 0 else None


def bench_row(args, tmp, row, tuned, peak):
    """Measures all contestants of a row in turns. Returns the record of the row."""
    name, model, B, T, steps = row
    print(f"{name}: {model}, B={B} T={T}", file=sys.stderr)
    contestants = [ours(tmp, row, d, 2, steps, args) for d in args.dtypes]
    if name == "t256":
        contestants += [ours(tmp, row, d, 1, max(2, steps // 2), args) for d in args.dtypes]
    if args.python:
        for d in args.dtypes:
            held = held_to(args.kernels)
            contestants.append(better_mode(args, row, d, tuned | held, "torch tuned"))
            if not args.no_installed:
                contestants.append(better_mode(args, row, d, held, "torch"))
    if args.llmc and model is D12:
        contestants.append(llmc_peer(args, row))
    for turn in range(args.repeat):
        for c in contestants:
            if c.name == "llm.c" and turn and T >= 256:
                continue  # a step takes minutes: one measurement shows the ratio
            c.measure()
            if c.name == "train_gpt":
                peak[c.dtype] = max(peak.get(c.dtype, 0), c.runs[-1]["peak_gflops"])
    return {"row": name, "model": dict(model, seq=positions(model, T)), "B": B, "T": T,
            "flops_per_token": contestants[0].runs[0]["flops_per_token"]}, contestants


def options():
    p = bench_page.parser(__doc__)
    p.add_argument("--kernels", default="auto", help="instruction set, as of train_gpt")
    p.add_argument("--python", default="", help="Python with torch (default: no PyTorch)")
    p.add_argument("--llmc", default="", help="command of llm.c with {B} and {T} (default: none)")
    p.add_argument("--rows", default=",".join(r[0] for r in ROWS),
                   help="rows to measure, joined by commas (default %(default)s)")
    p.add_argument("--dtypes", default="fp32,bf16", help="types, joined by commas (default both)")
    p.add_argument("--repeat", type=int, default=3,
                   help="processes of each program and row (default %(default)s)")
    p.add_argument("--mode", choices=["eager", "compile"],
                   help="mode of PyTorch (default: both are tried and the faster is kept)")
    p.add_argument("--no-installed", action="store_true", help="measure only \"torch tuned\"")
    p.add_argument("--out", help="file to write (default bench/results/train_cpu_SET.json)")
    a = p.parse_args()
    known, rows = {r[0] for r in ROWS}, a.rows.split(",")
    if set(rows) - known:
        p.error(f"--rows {a.rows}: the rows are {', '.join(sorted(known))}")
    a.rows = [r for r in ROWS if r[0] in rows]
    a.dtypes = a.dtypes.split(",")
    if not os.access(TRAIN_GPT, os.X_OK):
        p.error(f"{TRAIN_GPT} is missing: make")
    if a.python and first_line([a.python, "-c", "import torch; print('ok')"]) != "ok":
        print(f"peer absent: {a.python} has no torch", file=sys.stderr)
        a.python = ""
    return a


def merged(path, record):
    """The rows of this run, and rows of an older record of the same machine that were not measured
    again. Each row has the time of its measurement."""
    rows = {}
    if os.path.exists(path):
        old = bench_page.load(path)
        if (old["machine"], old.get("kernels")) == (record["machine"], record["kernels"]):
            rows = {r["row"]: r for r in old["rows"]}
    for r in record["rows"]:
        r.update(command=record["command"], date=record["date"], commit=record["commit"],
                 repeat=record["repeat"])
        rows[r["row"]] = r
    return [rows[name] for name, *_ in ROWS if name in rows]


def main():
    args, peak = options(), {}
    record = bench_page.stamp("python3 tools/bench.py " + " ".join(
        ["--kernels", args.kernels, "--rows", ",".join(r[0] for r in args.rows), "--repeat",
         str(args.repeat), "--dtypes", ",".join(args.dtypes)]
        + (["--mode", args.mode] if args.mode else [])
        + (["--python", "PYTHON"] if args.python else [])
        + (["--llmc", "COMMAND"] if args.llmc else [])))
    record["machine"]["kernel"] = platform.release()
    with tempfile.TemporaryDirectory() as tmp:
        for vocab in {r[1]["vocab"] for r in args.rows}:
            bench_page.write_tokens(os.path.join(tmp, f"{vocab}.bin"), vocab, 200_000)
        key = mkl_key(tmp) if args.python and "AMD" in record["machine"]["cpu"] else None
        tuned = TUNED | ({"LD_PRELOAD": key} if key else {})
        rows = [bench_row(args, tmp, row, tuned, peak) for row in args.rows]
    record |= {
        "kernels": rows[0][1][0].runs[0]["kernels"],
        "versions": {"cc": first_line([os.environ.get("CC", "cc"), "--version"]),
                     "python": platform.python_version()},
        "repeat": args.repeat,
        "peak_gflops": peak,
        "rows": [head for head, _ in rows],
    }
    for head, contestants in rows:
        tokens = head["B"] * head["T"]
        head["results"] = [c.result(tokens, tokens * head["flops_per_token"], peak)
                           for c in contestants]
        record["versions"].update({"torch": r["torch"] for c in contestants for r in c.runs
                                   if "torch" in r})
    args.out = args.out or os.path.join(TOP, "bench", "results",
                                        f"train_cpu_{record['kernels']}.json")
    record["rows"] = merged(args.out, record)
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    bench_page.save(args.out, None, record)
    print(bench_table.table(record), end="")


if __name__ == "__main__":
    main()
