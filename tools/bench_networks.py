#!/usr/bin/env python3
"""Does --layout auto find the fastest layout? Trains the layout that it keeps and other layouts on
emulated clusters, and writes "regret" or "networks" of bench/results/search.json.

    python3 tools/bench_networks.py regret      compares with every layout, without overlap
    python3 tools/bench_networks.py networks    slow, far and uneven networks; the search chooses
                                                overlap and micro-batch as well; compares with at
                                                least fifteen other layouts
        [--only TEXT] [--steps 2] [--finals 4] [--out bench/results/search.json]
        measures some cases; the others in the file are kept
    python3 tools/bench_networks.py regret|networks --page docs/planner.md
        puts the table of that file between the page's lines
        <!-- regret:begin --> and <!-- regret:end -->, or those of networks

Each cluster is emulated (tests/netlab; needs root, iproute2, Open MPI, for delays iptables and
libnetfilter-queue-dev, and built programs). A run of train_gpt --layout auto first trains a few
steps on each layout that predictions cannot tell apart, then keeps one. After that bench_layouts
trains this layout and the others in one job, in turns, with predictions from the same calibration.
Ranks have one thread each and priority over other processes of the machine.

    regret        how much longer a step takes on the layout that is predicted to be the fastest
                  than on the layout that was measured to be the fastest
    kept_regret   the same for the layout that --layout auto keeps
    error         median over all layouts of |measured / predicted - 1|
    calibrate_s   seconds of the calibration in a first run; cached_s: in a second run, which finds
                  it in the cache
"""
import os
import re
import statistics
import subprocess
import sys
import time
import typing

import bench_page
from bench_page import build, choice_name

DEEP = ("layers=4,heads=8,channels=128,seq=64,vocab=1024", 2048)  # --model, tokens of a step
SQUARE = ("layers=2,heads=32,channels=512,seq=64,vocab=512", 512)


class Case(typing.NamedTuple):
    cluster: str
    hosts: str  # number of hosts of each rack
    ranks: int  # ranks of each host
    net: tuple  # rate of a card, of the trunk between racks, microseconds one way
    model: str
    batch: int
    others: list  # layouts to compare with; empty: every layout
    shape: str = ""
    micro: int = 0  # sequences of a micro-batch, without overlap; 0: the search chooses
    within: int = 0  # a layout predicted to take more than this many times the best: one step


def regret():
    """The cases of "regret": every shape on every cluster."""
    for cluster, hosts, ranks, net, within in [
            ("4 hosts x 1, 1 Gbit/s", "4", 1, ("1gbit",), 0),
            ("2 hosts x 2, 200 Mbit/s", "2", 2, ("200mbit",), 6),
            ("2 racks x 2 hosts x 2, 1 Gbit/s, trunk 200 Mbit/s", "2 2", 2, ("1gbit", "200mbit"),
             3)]:
        for shape, model, batch, micro in [
                ("deep", *DEEP, 4),
                ("wide", "layers=2,heads=8,channels=256,seq=64,vocab=512", 512, 2),
                ("many tokens", "layers=4,heads=8,channels=64,seq=128,vocab=1024", 4096, 4)]:
            yield Case(cluster, hosts, ranks, net, model, batch, [], shape, micro, within)


# LAYOUT@OVERLAP@RECOMPUTE@MICRO of bench_layouts
def variants(micro, *layouts):
    return [f"{name if '@' in name else name + '@none'}@none@{micro}" for name in layouts]


NETWORKS = [
    Case("3 hosts, 1 Gbit/s, 5 ms one way", "3", 1, ("1gbit", "", 5000), *DEEP,
         variants(11, "d3", "d3@bulk", "d3+zero1", "d3+zero1@bulk", "d3+zero2@bulk",
                  "d3+zero3@bulk", "z3", "z3@bulk") +
         variants(4, "d3", "d3@bulk", "z3@bulk") +
         variants(32, "x3", "x3+sp", "x3@bulk+halves", "y3", "y3+heads")),
    Case("16 hosts, 50 Mbit/s", "16", 1, ("50mbit",), *SQUARE,
         variants(8, "x16", "x16+sp", "x8.y2", "x8.y2+heads", "x8.y2+heads@bulk", "x4.y4",
                  "x4.y4+heads", "y2.x8+heads") +
         variants(4, "z2.x8", "z2.x8@bulk", "z2.x8+sp", "z2.x4.y2+heads", "z2.x4.y2+heads@bulk",
                  "d2.x8", "d2.x4.y2+heads") +
         variants(2, "z4.x4", "z4.x4@bulk", "z4.x2.y2+heads@bulk")),
    Case("4 hosts, 200 Mbit/s, 1 ms one way", "4", 1, ("200mbit", "", 1000), *DEEP,
         variants(8, "d4", "d4@bulk", "d4+zero1", "d4+zero1@bulk", "d4+zero2@bulk", "z4@bulk",
                  "d2.z2@bulk", "d2.z2+zero1@bulk") +
         variants(16, "d2.x2", "d2.x2@bulk", "d2.x2+zero1", "z2.x2@bulk", "d2.y2+heads") +
         variants(32, "x4", "x4+sp", "x4@bulk+halves", "x2.y2+heads")),
    Case("2 racks x 2 hosts, 200 Mbit/s, trunk 40 Mbit/s", "2 2", 1, ("200mbit", "40mbit"), *DEEP,
         variants(8, "d4", "d4@bulk", "d4+zero1", "d4+zero1@bulk", "z4@bulk", "d2.z2@bulk",
                  "z2.d2@bulk", "d2.z2+zero1@bulk") +
         variants(16, "d2.x2", "x2.d2", "d2.x2@bulk", "x2.d2@bulk", "d2.x2+zero1", "z2.x2@bulk",
                  "x2.z2@bulk", "d2.y2+heads") +
         variants(32, "x4", "x4+sp")),
    Case("2 hosts x 2 ranks, 10 Gbit/s", "2", 2, ("10gbit",), *DEEP,
         variants(8, "d4", "d4@bulk", "d4+zero1", "d4+zero1@bulk", "d4+zero2@bulk", "z4@bulk",
                  "d2.z2@bulk", "z2.d2@bulk") +
         variants(16, "d2.x2", "x2.d2", "d2.x2@bulk", "d2.x2+zero1", "d2.x2+sp", "z2.x2@bulk",
                  "d2.y2+heads") +
         variants(32, "x4", "x4+sp", "x4@bulk+halves")),
]
CASES = {"regret": list(regret()), "networks": NETWORKS}
STEPS = 6  # steps of the kept layout that are measured, after a first one
GOAL = 0.05


def spec_of(text):
    """Converts a line of plan or refine, "d3, bulk, micro 11, recompute none", to the form that
    bench_layouts reads."""
    layout, words, micro, recompute = re.match(r"(\S+), (?:overlap )?(\S+), micro (\d+), recompute "
                                               r"(\w+)", text).groups()
    return f"{layout}@{words}@{recompute}@{micro}"


def named(cluster, shape):
    return f"{cluster}, {shape}" if shape else cluster


def start_s(trainer, calibrate):
    """Seconds that train_gpt --plan takes."""
    begin = time.time()
    subprocess.run(trainer + ["--plan", "--calibrate", calibrate], cwd=bench_page.TOP, check=True,
                   env=bench_page.lab_env(120), stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return time.time() - begin


def measure(case, args, folder):
    """Runs --layout auto on the cluster of a case, then trains the layout that it keeps and the
    others. Returns the record of the case."""
    bench_page.up(case.hosts, *case.net)
    on_lab = bench_page.on_lab(case.hosts, case.ranks, folder)
    shape = ["--model", case.model, "--batch", str(case.batch), "--threads", "1"]
    shape += ["--micro", str(case.micro), "--overlap", "none"] if case.micro else []
    who, tokens = named(case.cluster, case.shape), os.path.join(folder, "tokens.bin")
    bench_page.write_tokens(tokens, int(case.model.split("vocab=")[1]), 200_000)
    trainer = on_lab + [build("train_gpt"), "--train", tokens, "--recompute", "none", "--ledger",
                        "none"] + shape
    kept, trained_ms, calibrated = bench_page.choose(
        trainer, os.path.join(folder, "log.json"), STEPS, who, spec_of)
    cached = max(0, start_s(trainer, "auto") - start_s(trainer, "none"))
    others = [kept] + [name for name in case.others if name != kept] if case.others else ["all"]
    bench = [build("bench_layouts"), "--predict", "--layouts", ",".join(others), "--within",
             str(case.within), "--steps", str(args.steps), "--rounds", "1", "--finals",
             str(args.finals), "--contest", kept.split("@")[0]] + shape
    lines = bench_page.rows_of(on_lab + bench, 1500, who,
                               lambda lines: "regret" in lines[-1])
    last, rows = lines[-1], [r for r in lines[1:-1] if r["ms"]]
    mine = next((r for r in rows if choice_name(r) == kept), None)
    if not mine:
        sys.exit(f"{who}: train_gpt --layout auto trains on {kept}, which is none of those "
                 f"measured")
    best = next(r for r in rows if r["ms"] == last["best_ms"])
    return {
        "cluster": case.cluster, "shape": case.shape, "model": case.model, "batch": case.batch,
        "ranks": lines[0]["ranks"], "within": case.within, "layouts": len(rows),
        "pick": last["pick"], "pick_ms": last["pick_ms"], "regret": last["regret"],
        "kept": kept, "kept_ms": mine["ms"], "predicted_ms": mine["predicted_ms"],
        "kept_regret": round(mine["ms"] / best["ms"] - 1, 4), "trained_ms": trained_ms,
        "best": choice_name(best), "best_ms": best["ms"],
        "error": round(statistics.median(abs(r["ms"] / r["predicted_ms"] - 1) for r in rows), 4),
        "bytes_equal": sum(r["received"] == r["predicted_received"] for r in rows),
        "memory_error": round(max(abs(r["memory"] / r["predicted_memory"] - 1) for r in rows), 4),
        "resident_error": round(statistics.median(abs(r["resident"] / r["predicted_memory"] - 1)
                                                  for r in rows), 4),
        "calibrate_s": calibrated, "cached_s": round(cached, 1), "rows": rows,
    }


def percent(x, digits=0):
    return f"{100 * x:.{digits}f} %"


def layout(name):
    return name.split("@")[0]


def brief(name):
    """Shortens d3@bulk@none@11: leaves out parts that are none, and writes words instead of
    signs."""
    words, _, micro = name.split("@")[1:]
    return f"{layout(name)}{'' if words == 'none' else ', ' + words}, micro {micro}"


def within(d, what, key):
    """The number of cases that reach the goal."""
    return (f"{what} is within {percent(GOAL)} of the fastest in "
            f"{sum(r[key] <= GOAL for r in d['cases'])} of {len(d['cases'])} cases")


def regret_table(d):
    note = [f"{within(d, what, key)}, {percent(max(r[key] for r in d['cases']))} off at worst."
            for what, key in [("What is predicted to be the fastest", "regret"),
                              ("What `--layout auto` keeps", "kept_regret")]]
    note.append(f"Measuring the machine took {min(r['calibrate_s'] for r in d['cases']):.1f} to "
                f"{max(r['calibrate_s'] for r in d['cases']):.1f} s. Predictions err by "
                f"{percent(statistics.median(r['error'] for r in d['cases']))} (median of the "
                "cases). Of memory: of what was reserved, the layout that errs most; in brackets "
                "of what of it was touched, which small models do not fill, the median layout. "
                f"{bench_page.origin(d)}")
    return bench_page.markdown(
        "cluster | shape | layouts | predicted the fastest | ms | regret | kept by `--layout "
        "auto` | ms | regret | fastest measured | ms | error of ms | of memory | bytes equal",
        [[r["cluster"], r["shape"], r["layouts"], r["pick"], f"{r['pick_ms']:.0f}",
          percent(r["regret"], 1), layout(r["kept"]), f"{r['kept_ms']:.0f}",
          percent(r["kept_regret"], 1), layout(r["best"]), f"{r['best_ms']:.0f}",
          percent(r["error"]), f"{percent(r['memory_error'], 1)} "
          f"({percent(r['resident_error'], 1)})", f"{r['bytes_equal']} of {r['layouts']}"]
         for r in d["cases"]], "\n".join(note))


def networks_table(d):
    return bench_page.markdown(
        "cluster | `--layout auto` keeps | ms | predicted | fastest of all | ms | regret | others "
        "| error of predictions | calibration, s | cached",
        [[r["cluster"], brief(r["kept"]), f"{r['kept_ms']:.0f}",
          f"{r['predicted_ms']:.0f} ({100 * (r['predicted_ms'] / r['kept_ms'] - 1):+.0f} %)",
          brief(r["best"]), f"{r['best_ms']:.0f}", percent(r["kept_regret"], 1), r["layouts"] - 1,
          percent(r["error"]), f"{r['calibrate_s']:.1f}", f"{r['cached_s']:.1f}"]
         for r in d["cases"]],
        f"{within(d, '`--layout auto`', 'kept_regret')}. One rank has one thread. The choice is of "
        "layout, overlap and micro-batch; others are given by the script. Error: the median of all "
        "layouts of a cluster. "
        f"{bench_page.origin(d).replace(' cores,', ' cores for all ranks,')}")


def say(r):
    return (f"{named(r['cluster'], r['shape'])}: {r['layouts']} layouts, {r['pick']} "
            f"{r['pick_ms']:.0f} ms, {r['best']} {r['best_ms']:.0f} ms: regret "
            f"{percent(r['regret'], 1)}, kept {r['kept']} {r['kept_ms']:.0f} ms, predicted "
            f"{r['predicted_ms']:.0f}; error {percent(r['error'])}, {r['bytes_equal']} equal in "
            f"bytes; calibration {r['calibrate_s']:.1f} s, cached {r['cached_s']:.1f}")


def main():
    p = bench_page.arguments(__doc__, "search.json")
    p.add_argument("what", choices=CASES, help="cases to measure")
    p.add_argument("--only", default="", help="cases whose names contain this")
    p.add_argument("--steps", type=int, default=2,
                   help="measured steps of a layout (default %(default)s)")
    p.add_argument("--finals", type=int, default=4,
                   help="more rounds of the fastest layouts (default %(default)s)")
    args = p.parse_args()
    command = (f"python3 tools/bench_networks.py {args.what} --steps {args.steps} --finals "
               f"{args.finals}")
    table = regret_table if args.what == "regret" else networks_table
    bench_page.campaign(args, args.what, args.what, command, CASES[args.what],
                        lambda c: named(c.cluster, c.shape),
                        lambda r: named(r["cluster"], r.get("shape")), measure, table, say)


main()
