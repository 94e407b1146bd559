#!/usr/bin/env python3
"""Does --layout auto find its way on networks that are slow, far or uneven? Writes
bench/results/networks.json.

    python3 tools/bench_networks.py [--only TEXT] [--missing] [--steps 2] [--finals 2]
                                    [--out bench/results/networks.json]
        some clusters, or those that the file lacks; the others stay in it
    python3 tools/bench_networks.py --page docs/planner.md
        puts the table of that file between the page's lines
        <!-- networks:begin --> and <!-- networks:end -->

Each cluster is emulated (tests/netlab; needs root, iproute2, Open MPI, for delays iptables and
libnetfilter-queue-dev, and built programs). A run of train_gpt --layout auto chooses layout,
overlap and micro-batch, after its first steps on those that predictions cannot tell apart. Then
bench_layouts trains this choice and at least fifteen others in one job, in turns, with predictions
from the same calibration. regret: how much longer a step of the choice takes than one of the
fastest of all. error: median over all of |measured / predicted - 1|. calibration: seconds that the
first run took for it, and a second one that finds it in the cache. Ranks have one thread each and
go before other processes of the machine.
"""
import os
import re
import statistics
import subprocess
import time

import bench_page
from bench_page import build

DEEP = ("layers=4,heads=8,channels=128,seq=64,vocab=1024", 2048)  # --model, tokens of a step
SQUARE = ("layers=2,heads=32,channels=512,seq=64,vocab=512", 512)

# LAYOUT@OVERLAP@RECOMPUTE@MICRO of bench_layouts
def variants(micro, *layouts):
    return [f"{name if '@' in name else name + '@none'}@none@{micro}" for name in layouts]


# name, hosts (in racks), ranks of a host, rate of a card, of the trunk between racks, one way in
# us, shape, layouts beside the choice
CLUSTERS = [
    ("3 hosts, 1 Gbit/s, 5 ms one way", "3", 1, "1gbit", "", 5000, DEEP,
     variants(11, "d3", "d3@bulk", "d3+zero1", "d3+zero1@bulk", "d3+zero2@bulk", "d3+zero3@bulk",
              "z3", "z3@bulk") +
     variants(4, "d3", "d3@bulk", "z3@bulk") +
     variants(32, "x3", "x3+sp", "x3@bulk+halves", "y3", "y3+heads")),
    ("16 hosts, 50 Mbit/s", "16", 1, "50mbit", "", 0, SQUARE,
     variants(8, "x16", "x16+sp", "x8.y2", "x8.y2+heads", "x8.y2+heads@bulk", "x4.y4",
              "x4.y4+heads", "y2.x8+heads") +
     variants(4, "z2.x8", "z2.x8@bulk", "z2.x8+sp", "z2.x4.y2+heads", "z2.x4.y2+heads@bulk",
              "d2.x8", "d2.x4.y2+heads") +
     variants(2, "z4.x4", "z4.x4@bulk", "z4.x2.y2+heads@bulk")),
    ("4 hosts, 200 Mbit/s, 1 ms one way", "4", 1, "200mbit", "", 1000, DEEP,
     variants(8, "d4", "d4@bulk", "d4+zero1", "d4+zero1@bulk", "d4+zero2@bulk", "z4@bulk",
              "d2.z2@bulk", "d2.z2+zero1@bulk") +
     variants(16, "d2.x2", "d2.x2@bulk", "d2.x2+zero1", "z2.x2@bulk", "d2.y2+heads") +
     variants(32, "x4", "x4+sp", "x4@bulk+halves", "x2.y2+heads")),
    ("2 racks x 2 hosts, 200 Mbit/s, trunk 40 Mbit/s", "2 2", 1, "200mbit", "40mbit", 0, DEEP,
     variants(8, "d4", "d4@bulk", "d4+zero1", "d4+zero1@bulk", "z4@bulk", "d2.z2@bulk",
              "z2.d2@bulk", "d2.z2+zero1@bulk") +
     variants(16, "d2.x2", "x2.d2", "d2.x2@bulk", "x2.d2@bulk", "d2.x2+zero1", "z2.x2@bulk",
              "x2.z2@bulk", "d2.y2+heads") +
     variants(32, "x4", "x4+sp")),
    ("2 hosts x 2 ranks, 10 Gbit/s", "2", 2, "10gbit", "", 0, DEEP,
     variants(8, "d4", "d4@bulk", "d4+zero1", "d4+zero1@bulk", "d4+zero2@bulk", "z4@bulk",
              "d2.z2@bulk", "z2.d2@bulk") +
     variants(16, "d2.x2", "x2.d2", "d2.x2@bulk", "d2.x2+zero1", "d2.x2+sp", "z2.x2@bulk",
              "d2.y2+heads") +
     variants(32, "x4", "x4+sp", "x4@bulk+halves")),
]
STEPS = 6  # of the choice, after one
GOAL = 0.05


def trainer(cluster, folder):
    model, batch = cluster[6]
    tokens = os.path.join(folder, "tokens.bin")
    if not os.path.exists(tokens):
        bench_page.write_tokens(tokens, int(model.split("vocab=")[1]), 200_000)
    return bench_page.on_lab(cluster[1], cluster[2], folder) + [
        build("train_gpt"), "--train", tokens, "--model", model, "--batch", str(batch),
        "--recompute", "none", "--threads", "1", "--ledger", "none"]


def spec_of(text):
    """d3, bulk, micro 11, recompute none: what plan and refine print, as bench_layouts reads it."""
    layout, words, micro, recompute = re.match(r"(\S+), (?:overlap )?(\S+), micro (\d+), recompute "
                                               r"(\w+)", text).groups()
    return f"{layout}@{words}@{recompute}@{micro}"


def start_s(cluster, folder, calibrate):
    """Seconds of train_gpt --plan."""
    begin = time.time()
    subprocess.run(trainer(cluster, folder) + ["--plan", "--calibrate", calibrate],
                   cwd=bench_page.TOP, check=True, env=bench_page.lab_env(120),
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.time() - begin


def name_of(row):
    return f"{row['layout']}@{row['overlap']}@{row['recompute']}@{row['micro']}"


def measure(cluster, args, folder):
    bench_page.up(cluster[1], *cluster[3:6])
    kept, trained_ms, calibrated = bench_page.choose(
        trainer(cluster, folder), os.path.join(folder, "log.json"), STEPS, cluster[0], spec_of)
    cached = max(0, start_s(cluster, folder, "auto") - start_s(cluster, folder, "none"))
    layouts = [kept] + [name for name in cluster[7] if name != kept]
    model, batch = cluster[6]
    bench = [build("bench_layouts"), "--predict", "--model", model, "--batch",
             str(batch), "--threads", "1", "--layouts",
             ",".join(layouts), "--steps", str(args.steps), "--rounds", "1", "--finals",
             str(args.finals), "--contest", kept.split("@")[0]]
    lines = bench_page.rows_of(bench_page.on_lab(cluster[1], cluster[2], folder) + bench, 600,
                               cluster[0], lambda lines: "regret" in lines[-1])
    rows = {name_of(r): {"layout": name_of(r), "ms": r["ms"], "predicted_ms": r["predicted_ms"]}
            for r in lines[1:-1]}
    mine, best = rows[kept], min(rows.values(), key=lambda r: r["ms"])
    return {"cluster": cluster[0], "model": model, "batch": batch, "others": len(rows) - 1,
            "kept": kept, "kept_ms": mine["ms"],
            "predicted_ms": mine["predicted_ms"], "trained_ms": trained_ms, "best": best["layout"],
            "best_ms": best["ms"], "regret": round(mine["ms"] / best["ms"] - 1, 4),
            "error": round(statistics.median(abs(r["ms"] / r["predicted_ms"] - 1)
                                             for r in rows.values()), 4),
            "calibrate_s": calibrated, "cached_s": round(cached, 1), "rows": list(rows.values())}


def brief(name):
    """d3@bulk@none@11: without what is none, and with words instead of signs."""
    layout, words, _, micro = name.split("@")
    return f"{layout}{'' if words == 'none' else ', ' + words}, micro {micro}"


def table(d):
    out = bench_page.markdown(
        "cluster | `--layout auto` keeps | ms | predicted | fastest of all | ms | regret | others "
        "| error of predictions | calibration, s | cached",
        [[c["cluster"], brief(c["kept"]), f"{c['kept_ms']:.0f}",
          f"{c['predicted_ms']:.0f} ({100 * (c['predicted_ms'] / c['kept_ms'] - 1):+.0f} %)",
          brief(c["best"]), f"{c['best_ms']:.0f}", f"{100 * c['regret']:.1f} %", c["others"],
          f"{100 * c['error']:.0f} %", f"{c['calibrate_s']:.1f}", f"{c['cached_s']:.1f}"]
         for c in d["cases"]])
    within = sum(c["regret"] <= GOAL for c in d["cases"])
    out += ["", f"`--layout auto` is within {100 * GOAL:.0f} % of the fastest in {within} of "
            f"{len(d['cases'])} cases. One rank has one thread. The choice is of "
            "layout, overlap and micro-batch; others are given by the script. Error: the median of "
            "all layouts of a cluster. "
            f"{d['machine']['cpu']}, {d['machine']['cores']} cores for all ranks, "
            f"{d['date'][:10]}, commit {bench_page.commits(d['cases'])}: `{d['command']}`."]
    return "\n".join(out) + "\n"


def say(r):
    return (f"{r['cluster']}: keeps {r['kept']} {r['kept_ms']:.0f} ms, predicted "
            f"{r['predicted_ms']:.0f}; fastest {r['best']} {r['best_ms']:.0f} ms: regret "
            f"{100 * r['regret']:.1f} %, error {100 * r['error']:.0f} %; calibration "
            f"{r['calibrate_s']:.1f} s, cached {r['cached_s']:.1f}")


def main():
    p = bench_page.arguments(__doc__, "networks.json")
    p.add_argument("--only", default="", help="clusters whose names contain this")
    p.add_argument("--missing", action="store_true", help="clusters that the file lacks")
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--finals", type=int, default=2)
    args = p.parse_args()
    there = []
    if args.missing and os.path.exists(args.out):
        there = [c["cluster"] for c in bench_page.load(args.out)["cases"]]
    command = f"python3 tools/bench_networks.py --steps {args.steps} --finals {args.finals}"
    bench_page.campaign(args, "networks", None, command, CLUSTERS, lambda c: c[0],
                        lambda r: r["cluster"], measure, table, say, there)


main()
