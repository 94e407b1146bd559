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
import os
import statistics
import sys

import bench_page
from bench_page import build

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


def choose(cluster, shape, folder):
    """What train_gpt --layout auto keeps for the rest of its run, its time of a step, and the
    seconds that measuring the machine took."""
    model, batch, micro = shape[1:]
    tokens, log = os.path.join(folder, "tokens.bin"), os.path.join(folder, "log.json")
    bench_page.write_tokens(tokens, int(model.split("vocab=")[1]), 200_000)
    train = [build("train_gpt"), "--train", tokens, "--model", model, "--batch", str(batch),
             "--micro", str(micro), "--recompute", "none", "--overlap", "none", "--threads", "1"]
    return bench_page.choose(bench_page.on_lab(cluster[1], cluster[2], folder) + train, log, STEPS,
                             f"{cluster[0]}, {shape[0]}", lambda text: text.split(",")[0])


def measure(case, args, cache):
    cluster, shape = case
    name, within = cluster[0], cluster[5]
    bench_page.up(cluster[1], *cluster[3:5])
    layout, trained_ms, calibrated = choose(cluster, shape, cache)
    what, model, batch, micro = shape
    bench = [build("bench_layouts"), "--predict", "--model", model, "--batch",
             str(batch), "--micro", str(micro),
             "--threads", "1", "--steps", str(args.steps), "--rounds", str(args.rounds), "--finals",
             str(args.finals), "--contest", layout]
    bench += ["--within", str(within)] if within else []
    lines = bench_page.rows_of(bench_page.on_lab(cluster[1], cluster[2], cache) + bench, 1500,
                               f"{name}, {what}", lambda lines: "regret" in lines[-1])
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
    out = bench_page.markdown(
        "cluster | shape | layouts | predicted the fastest | ms | regret | kept by `--layout "
        "auto` | ms | regret | fastest measured | ms | error of ms | of memory | bytes equal",
        [[r["cluster"], r["shape"], r["layouts"], r["pick"], f"{r['pick_ms']:.0f}",
          f"{100 * r['regret']:.1f} %", r["kept"], f"{r['kept_ms']:.0f}",
          f"{100 * r['kept_regret']:.1f} %", r["best"], f"{r['best_ms']:.0f}",
          f"{100 * r['error']:.0f} %", memory(r), f"{r['bytes_equal']} of {r['layouts']}"]
         for r in d["cases"]])
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
               f"small models do not fill, the median layout. {bench_page.origin(d)}")
    return "\n".join(out) + "\n"


def say(r):
    return (f"{r['cluster']}, {r['shape']}: {r['layouts']} layouts, {r['pick']} "
            f"{r['pick_ms']:.0f} ms, {r['best']} {r['best_ms']:.0f} ms: regret "
            f"{100 * r['regret']:.1f} %, kept {r['kept']} {r['kept_ms']:.0f} ms, error "
            f"{100 * r['error']:.0f} %, {r['bytes_equal']} equal in bytes")


def main():
    p = bench_page.arguments(__doc__, "search.json")
    p.add_argument("--only", default="", help="clusters and shapes whose names contain this")
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--finals", type=int, default=4)
    args = p.parse_args()
    command = (f"python3 tools/bench_regret.py --steps {args.steps} --rounds {args.rounds} "
               f"--finals {args.finals}")
    cases = [(c, s) for c in CLUSTERS for s in SHAPES]
    bench_page.campaign(args, "regret", "regret", command, cases,
                        lambda c: f"{c[0][0]}, {c[1][0]}",
                        lambda r: f"{r['cluster']}, {r['shape']}", measure, table, say)


main()
