#!/usr/bin/env python3
"""The training step over every feature: losses and gradient norms in hexadecimal, SHA-256.

    tests/steps.py --program build/train_gpt --write tests/golden/steps.txt    make the record
    tests/steps.py --program build/train_gpt                                   compare with it
    tests/steps.py --program NEW --against OLD [--kernels avx2]                two programs

The record was made with `--kernels portable`, whose sums have one order on every processor. A line
is one configuration: its name, the options beside those in BASE, four losses, four gradient norms,
and the start of the SHA-256 of the weights after four steps. Two programs are compared on the
machine at hand.

A loss that is not the recorded one to the last bit is named. Within --tolerance (relative) it is
"rounding", which a change of the order of a sum explains; beyond it is an error. `--exact` lines
have the same bits on every mesh, and the same bits always.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

GPT2 = "layers=3,heads=4,channels=32,seq=16,vocab=301"
LLAMA = "llama,layers=3,heads=6,kv_heads=2,channels=48,ffn=80,seq=16,vocab=301"
ODD = "layers=2,heads=3,channels=30,ffn=70,seq=16,vocab=301"
BASE = ("--micro 4 --steps 4 --lr 1e-2 --warmup 2 --clip 0.5 --threads 1 --ledger none "
        "--eval-every 0")

# name, model, options
CASES = [
    ("one", GPT2, ""),
    ("one_llama", LLAMA, ""),
    ("one_odd", ODD, ""),
    ("one_bf16", GPT2, "--dtype bf16"),
    ("one_llama_bf16", LLAMA, "--dtype bf16"),
    ("one_untied", GPT2 + ",tied=0", ""),
    ("one_rope_gelu", GPT2 + ",pos=rope,norm=rms", ""),
    ("one_accumulate", GPT2, "--batch 256"),
    ("one_selective", GPT2, "--recompute selective"),
    ("one_full", LLAMA, "--recompute full"),
    ("one_exact", GPT2, "--exact --batch 128"),
    ("one_exact_llama", LLAMA, "--exact --batch 128"),
    ("one_skip", GPT2, "--skip-loss-z 3 --skip-norm-z 3"),
    ("d2", GPT2, "--ranks 2 --layout d2"),
    ("d4", LLAMA, "--ranks 4 --layout d4"),
    ("d3_odd", ODD, "--ranks 3 --layout d3"),
    ("d2_accumulate", GPT2, "--ranks 2 --layout d2 --batch 512"),
    ("d4_zero1", GPT2, "--ranks 4 --layout d4+zero1"),
    ("d4_zero1_bf16", GPT2, "--ranks 4 --layout d4+zero1 --dtype bf16"),
    ("d4_zero2", GPT2, "--ranks 4 --layout d4+zero2 --batch 512"),
    ("d4_zero3", LLAMA, "--ranks 4 --layout d4+zero3"),
    ("d2_exact", GPT2, "--ranks 2 --layout d2 --exact --batch 128"),
    ("z2", GPT2, "--ranks 2 --layout z2"),
    ("z4_full", GPT2, "--ranks 4 --layout z4 --recompute full"),
    ("z3_odd", ODD, "--ranks 3 --layout z3"),
    ("d2z2_bulk", GPT2, "--ranks 4 --layout d2.z2 --overlap bulk --batch 512"),
    ("x2", GPT2, "--ranks 2 --layout x2"),
    ("x2_none", GPT2, "--ranks 2 --layout x2 --overlap none"),
    ("x3_llama", LLAMA, "--ranks 3 --layout x3"),
    ("x5_odd", ODD, "--ranks 5 --layout x5"),
    ("x4_sp", GPT2, "--ranks 4 --layout x4+sp"),
    ("x2_sp_llama", LLAMA, "--ranks 2 --layout x2+sp"),
    ("x2_sp_ring", GPT2, "--ranks 2 --layout x2+sp --overlap bulk+ring"),
    ("x2_chunk", GPT2, "--ranks 2 --layout x2 --overlap bulk+chunk=2"),
    ("x2_halves", GPT2, "--ranks 2 --layout x2 --overlap bulk+halves"),
    ("x2_halves_full", LLAMA, "--ranks 2 --layout x2 --overlap bulk+halves --recompute full"),
    ("x4_selective", GPT2, "--ranks 4 --layout x4 --recompute selective"),
    ("x2_full", GPT2, "--ranks 2 --layout x2 --recompute full"),
    ("x2_bf16", LLAMA, "--ranks 2 --layout x2 --dtype bf16"),
    ("x4_exact", GPT2, "--ranks 4 --layout x4 --exact --batch 128"),
    ("y2", GPT2, "--ranks 2 --layout y2"),
    ("y3_odd", ODD, "--ranks 3 --layout y3"),
    ("x2y2", GPT2, "--ranks 4 --layout x2.y2"),
    ("x2y2_sp", GPT2, "--ranks 4 --layout x2.y2+sp"),
    ("x2y2_heads", GPT2, "--ranks 4 --layout x2.y2+heads"),
    ("x2y2_heads_llama", LLAMA, "--ranks 4 --layout x2.y2+heads"),
    ("x2y2_sp_heads", GPT2, "--ranks 4 --layout x2.y2+sp+heads"),
    ("x2y2_stay", GPT2, "--ranks 4 --layout x2.y2+stay=y"),
    ("x2y2_stay_llama", LLAMA, "--ranks 4 --layout x2.y2+stay=y"),
    ("x2y2_exact", LLAMA, "--ranks 4 --layout x2.y2+sp --exact --batch 128"),
    ("x2y3_odd", ODD, "--ranks 6 --layout x2.y3+sp"),
    ("tiles", GPT2, "--ranks 8 --layout x2.y2.x2"),
    ("d2x2", GPT2, "--ranks 4 --layout d2.x2"),
    ("d2x2_zero1", GPT2, "--ranks 4 --layout d2.x2+sp+zero1 --batch 256"),
    ("d2x2_zero2_llama", LLAMA, "--ranks 4 --layout d2.x2+zero2 --batch 256"),
    ("z2x2_sp", GPT2, "--ranks 4 --layout z2.x2+sp"),
    ("tesseract", GPT2, "--ranks 8 --layout tesseract:2x2x2"),
    ("cube", GPT2, "--ranks 8 --layout cube:2"),
    ("axonn", LLAMA, "--ranks 8 --layout axonn:1x2x2x2"),
    ("all_axes", GPT2, "--ranks 8 --layout d2.z2.x2+sp --recompute selective --overlap bulk"),
    ("all_axes_exact", LLAMA, "--ranks 8 --layout d2.x2.y2+sp --exact --batch 128"),
    ("stay_exact", GPT2, "--ranks 4 --layout x2.y2+stay=y --exact --batch 128"),
    ("stay_exact_llama", LLAMA, "--ranks 8 --layout z2.x2.y2+stay=y --exact --batch 128"),
    ("halves_exact", GPT2, "--ranks 2 --layout x2 --overlap bulk+halves --exact --batch 128"),
    ("ring_exact", LLAMA, "--ranks 2 --layout x2+sp --overlap bulk+ring --exact --batch 128"),
    ("zero3_exact", GPT2, "--ranks 8 --layout d2.z2.x2+zero3 --recompute full --overlap "
     "bulk+chunk=2 "
     "--exact --batch 128"),
    ("local_sgd", GPT2, "--ranks 2 --layout d2 --sync-every 2"),
    ("diloco", GPT2, "--ranks 4 --layout d2.x2 --sync-every 2 --outer-lr 0.7 --outer-momentum 0.9"),
    ("fragments", LLAMA, "--ranks 2 --layout d2 --sync-every 2 --fragments 2 --outer-lr 0.7"),
]


def write_shard(path):
    """200,000 random tokens below 300 in llm.c's format; the same bytes from every Python."""
    random.seed(1)
    tokens = [int(random.random() * 300) for _ in range(200000)]
    header = [20240520, 1, len(tokens)] + [0] * 253
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", *header) + struct.pack("<%dH" % len(tokens), *tokens))


def run_case(program, kernels, folder, case):
    """The line of a configuration: losses, norms, digest."""
    name, model, options = case
    here = tempfile.mkdtemp(prefix=name + ".", dir=folder)
    command = [program, "--train", os.path.join(folder, "train.bin"), "--model", model,
               *BASE.split(),
               *options.split(), "--kernels", kernels, "--json", "log", "--export-hf", "out"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True,
                          env=dict(os.environ, CUDA_VISIBLE_DEVICES="", XDG_CACHE_HOME=here))
    if done.returncode != 0:
        return name, "failed: " + (done.stderr.strip().splitlines() or ["no message"])[-1]
    with open(os.path.join(here, "log"), encoding="utf8") as f:
        steps = [r for r in map(json.loads, f) if "step" in r and "loss" in r]
    with open(os.path.join(here, "out", "model.safetensors"), "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    figures = [float(r[key]).hex() for key in ("loss", "norm") for r in steps]
    return name, " ".join(figures + [digest[:16]])


def run_all(program, kernels, cases):
    with tempfile.TemporaryDirectory() as folder:
        write_shard(os.path.join(folder, "train.bin"))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            work = [pool.submit(run_case, program, kernels, folder, c) for c in cases]
            return dict(w.result() for w in work)


def read_record(path):
    with open(path, encoding="utf8") as f:
        return dict(line.rstrip("\n").split(" ", 1) for line in f if not line.startswith("#"))


def compare(name, old, new, tolerance):
    """'same', 'rounding 1.2e-9', or what is wrong."""
    if old == new:
        return "same"
    a, b = old.split(), new.split()
    if "failed:" in (a[0], b[0]) or len(a) != len(b):
        return f"WRONG: {old} | {new}"
    worst = max(abs(float.fromhex(x) - float.fromhex(y)) / abs(float.fromhex(x))
                for x, y in zip(a[:-1], b[:-1]))
    if worst > tolerance or "exact" in name:
        return f"WRONG: losses or norms differ by {worst:.1e}"
    return f"rounding {worst:.1e}" + ("" if worst else ", weights alone")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--program", default="build/train_gpt")
    p.add_argument("--against", help="a second program, instead of the record")
    p.add_argument("--record", default="tests/golden/steps.txt")
    p.add_argument("--write", help="write the record here")
    p.add_argument("--kernels", default="portable")
    p.add_argument("--tolerance", type=float, default=1e-6)
    p.add_argument("--only", default="", help="configurations whose name contains this")
    o = p.parse_args()
    cases = [c for c in CASES if o.only in c[0]]
    new = run_all(os.path.abspath(o.program), o.kernels, cases)
    if o.write:
        with open(o.write, "w", encoding="utf8") as f:
            f.write("# tests/steps.py --write: name, four losses, four gradient norms, SHA-256 "
                    "of weights\n")
            f.writelines(f"{name} {line}\n" for name, line in new.items())
    old = new
    if o.against:
        old = run_all(os.path.abspath(o.against), o.kernels, cases)
    elif not o.write:
        old = read_record(o.record)
    exact = {}
    for name, model, options in cases:
        if "--exact" in options:
            exact.setdefault(model, set()).add(new[name])
    bad = sum(len(lines) > 1 for lines in exact.values())
    if bad:
        print("WRONG: --exact gives different bits on different meshes")
    for name, line in new.items():
        verdict = compare(name, old.get(name, "failed: not recorded"), line, o.tolerance)
        if line.startswith("failed:"):
            verdict = "WRONG: " + line
        bad += verdict.startswith("WRONG")
        if verdict != "same":
            print(f"{name:20s} {verdict}")
    print(f"{len(new) + len(exact) - bad} passed, {bad} failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
