#!/usr/bin/env python3
"""Is the planner right? Every layout trained on emulated clusters, beside what was predicted; adds
"regret" to bench/results/search.json.

    python3 tools/bench_regret.py [--only TEXT] [--steps 2] [--finals 4]
                                  [--out bench/results/search.json]
        some cases; the others stay in the file
    python3 tools/bench_regret.py --page docs/planner.md
        puts the table of that file between the page's lines
        <!-- regret:begin --> and <!-- regret:end -->

Needs root and iproute2 (tests/netlab/lab.sh), Open MPI, a built bench_layouts and train_gpt.
regret: how much longer a step of the layout that is predicted to be the fastest takes than one of
the layout that was measured to be it, and the same of the layout that a run of train_gpt --layout
auto on that cluster keeps, after its first steps on those that the plan cannot tell apart; error:
median over the layouts of |measured / predicted - 1|. Ranks have one thread each and go before
other processes of the machine. On slow links layouts that are predicted to take more than some
times the best ("within") are trained for a single step.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import bench_page
from bench_page import TOP

LAB = os.path.join(TOP, "tests/netlab/lab.sh")

# name, hosts (in racks), ranks of a host, rate of a card, of the trunk between racks, within
CLUSTERS = [
    ("4 hosts x 1, 1 Gbit/s", "4", 1, "1gbit", "", 0),
    ("2 hosts x 2, 200 Mbit/s", "2", 2, "200mbit", "", 6),
    ("2 racks x 2 hosts x 2, 1 Gbit/s, trunk 200 Mbit/s", "2 2", 2, "1gbit", "200mbit", 3),
]
# name, --model, tokens of a step, sequences of a micro-batch
SHAPES = [
    ("deep", "layers=4,heads=8,channels=128,seq=64,vocab=1024", 2048, 4),
    ("wide", "layers=2,heads=8,channels=256,seq=64,vocab=512", 512, 2),
    ("many tokens", "layers=4,heads=8,channels=64,seq=128,vocab=1024", 4096, 4),
]


STEPS = 6  # of the layout that a run keeps, after one


def steps_of(log):
    """Milliseconds of each step that a run has written down so far."""
    if not os.path.exists(log):
        return []
    with open(log) as f:
        return [json.loads(line)["ms"] for line in f if line.startswith('{"step"')
                and line.endswith("}\n")]


def on_lab(cluster, folder):
    """The beginning of a command that runs on its ranks, with caches in a folder."""
    hosts = sum(int(h) for h in cluster[1].split())
    return [LAB, "mpirun", str(hosts), str(cluster[2]), "env", f"XDG_CACHE_HOME={folder}"]


def choose(cluster, shape, folder):
    """What train_gpt --layout auto keeps for the rest of its run, its time of a step, and the
    seconds that measuring the machine took."""
    model, batch, micro = shape[1:]
    os.makedirs(folder)
    tokens, log = os.path.join(folder, "tokens.bin"), os.path.join(folder, "log.json")
    bench_page.write_tokens(tokens, int(model.split("vocab=")[1]), 200_000)
    train = [os.path.join(TOP, "build/train_gpt"), "--train", tokens, "--model", model, "--batch",
             str(batch), "--micro", str(micro),
             "--layout", "auto", "--recompute", "none", "--overlap", "none", "--threads", "1",
             "--steps", "100000", "--json", log]
    run = subprocess.Popen(on_lab(cluster, folder) + train,
                           env=dict(os.environ, LIMIT_S="300", FIRST="1"), cwd=TOP,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text, layout, calibrated, tried = "", None, 0, 0
    for line in run.stdout:
        text += line
        if "measured them in" in line:
            calibrated = float(line.split("measured them in ")[1].split()[0])
        elif "plan  " in line:
            layout = line.split()[1].rstrip(",")
        elif "steps on each" in line:
            found = re.search(r"refine: (\d+) layouts .*: (\d+) steps on each", line)
            tried = math.prod(int(n) for n in found.groups())
        elif "refine: " in line and line.endswith(", chosen\n"):
            layout = line.split("refine: ")[1].split(",")[0]
        if len(steps_of(log)) > tried + STEPS:
            break
    subprocess.run([LAB, "stop"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.communicate()
    if not layout or len(steps_of(log)) <= tried + STEPS:
        sys.exit(f"{cluster[0]}, {shape[0]}: train_gpt --layout auto ended:\n{text}")
    return layout, round(statistics.median(steps_of(log)[-STEPS:]), 3), calibrated


def measure(cluster, shape, args, cache):
    name, within = cluster[0], cluster[5]
    layout, trained_ms, calibrated = choose(cluster, shape, cache)
    what, model, batch, micro = shape
    bench = [os.path.join(TOP, "build/bench_layouts"), "--predict", "--model", model, "--batch",
             str(batch), "--micro", str(micro),
             "--threads", "1", "--steps", str(args.steps), "--rounds", str(args.rounds), "--finals",
             str(args.finals), "--contest", layout]
    bench += ["--within", str(within)] if within else []
    run = subprocess.run(on_lab(cluster, cache) + bench,
                         env=dict(os.environ, LIMIT_S="1500", FIRST="1"), cwd=TOP,
                         stdout=subprocess.PIPE)
    lines = [json.loads(line) for line in run.stdout.decode().splitlines() if line.startswith("{")]
    if run.returncode or "regret" not in lines[-1]:
        sys.exit(f"{name}, {what}: bench_layouts ended with status {run.returncode}")
    last, rows = lines[-1], [r for r in lines[1:-1] if r["ms"]]
    n = lines[0]["ranks"]
    kept = next((r for r in rows if r["layout"] == layout), None)
    if not kept:
        sys.exit(f"{name}, {what}: train_gpt --layout auto trains on {layout}, which is none of "
                 f"those measured")
    return {
        "cluster": name, "shape": what, "model": model, "batch": batch, "ranks": n,
        "within": within,
        "layouts": len(rows), "pick": last["pick"], "pick_ms": last["pick_ms"],
        "best": last["best"], "best_ms": last["best_ms"],
        "regret": last["regret"], "kept": layout, "kept_ms": kept["ms"],
        "kept_regret": round(kept["ms"] / last["best_ms"] - 1, 4), "trained_ms": trained_ms,
        "error": round(statistics.median(abs(r["ms"] / r["predicted_ms"] - 1) for r in rows), 4),
        "slowest_ms": max(r["ms"] for r in rows),
        "dp_ms": next((r["ms"] for r in rows if r["layout"] == f"d{n}"), None),
        "bytes_equal": sum(r["received"] == r["predicted_received"] for r in rows),
        "memory_error": round(max(abs(r["memory"] / r["predicted_memory"] - 1) for r in rows), 4),
        "resident_error": round(statistics.median(abs(r["resident"] / r["predicted_memory"] - 1)
                                                  for r in rows), 4),
        "calibrate_s": max(calibrated, last["calibrate_s"]), "rows": rows,
    }


def memory(r):
    """Bytes that arenas took, the layout that errs most; and those of them that were touched, the
    median."""
    return f"{100 * r['memory_error']:.1f} % ({100 * r['resident_error']:.1f} %)"


def table(d):
    out = ["| cluster | shape | layouts | predicted the fastest | ms | regret | kept by `--layout "
           "auto` | ms | regret | fastest measured | ms | error of ms | of memory | bytes equal |",
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in d["cases"]:
        out.append(f"| {r['cluster']} | {r['shape']} | {r['layouts']} | {r['pick']} | "
                   f"{r['pick_ms']:.0f} | {100 * r['regret']:.1f} % "
                   f"| {r['kept']} | {r['kept_ms']:.0f} | {100 * r['kept_regret']:.1f} % | "
                   f"{r['best']} | {r['best_ms']:.0f} "
                   f"| {100 * r['error']:.0f} % | {memory(r)} | {r['bytes_equal']} of "
                   f"{r['layouts']} |")
    out.append("")
    out += [f"{what} is within 5 % of the fastest in {sum(r[key] <= 0.05 for r in d['cases'])} of "
            f"{len(d['cases'])} cases, "
            f"{100 * max(r[key] for r in d['cases']):.0f} % off at worst."
            for what, key in [("What is predicted to be the fastest", "regret"),
                              ("What `--layout auto` keeps", "kept_regret")]]
    out.append(f"Measuring the machine took {min(r['calibrate_s'] for r in d['cases']):.1f} to "
               f"{max(r['calibrate_s'] for r in d['cases']):.1f} s. "
               f"Predictions err by {100 * statistics.median(r['error'] for r in d['cases']):.0f} "
               f"% (median of the cases). Of memory: of what was "
               "reserved, the layout that errs most; in brackets of what of it was touched, which "
               "small models do not fill, the median layout. "
               f"{d['machine']['cpu']}, {d['machine']['cores']} cores, {d['date'][:10]}, commit "
               f"{bench_page.commits(d['cases'])}: `{d['command']}`.")
    return "\n".join(out) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="", help="clusters and shapes whose names contain this")
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--finals", type=int, default=4)
    p.add_argument("--out", default=os.path.join(TOP, "bench/results/search.json"))
    bench_page.add_page(p)
    args = p.parse_args()
    if args.page:
        return bench_page.put(args, "regret", table(bench_page.load(args.out)["regret"]))
    command = (f"python3 tools/bench_regret.py --steps {args.steps} --rounds {args.rounds} "
               f"--finals {args.finals}")
    with tempfile.TemporaryDirectory() as cache:
        for cluster in CLUSTERS:
            for shape in SHAPES:
                if args.only not in f"{cluster[0]}, {shape[0]}":
                    continue
                delay = [cluster[4]] if cluster[4] else []
                subprocess.run([LAB, "up", cluster[1], cluster[3]] + delay, check=True)
                begin = time.time()
                mine = f"{CLUSTERS.index(cluster)}{SHAPES.index(shape)}"
                case = measure(cluster, shape, args, os.path.join(cache, mine))
                bench_page.put_case(args.out, "regret", command, case,
                                    lambda c: (c["cluster"], c["shape"]),
                                    [(c[0], s[0]) for c in CLUSTERS for s in SHAPES])
                print(f"{case['cluster']}, {case['shape']}: {case['layouts']} layouts, "
                      f"{case['pick']} {case['pick_ms']:.0f} ms, "
                      f"{case['best']} {case['best_ms']:.0f} ms: regret {100 * case['regret']:.1f} "
                      f"%, "
                      f"kept {case['kept']} {case['kept_ms']:.0f} ms, error "
                      f"{100 * case['error']:.0f} %, {case['bytes_equal']} equal in bytes; "
                      f"{time.time() - begin:.0f} s", flush=True)
    subprocess.run([LAB, "down"], check=True)


main()
