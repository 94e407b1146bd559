#!/usr/bin/env python3
"""How much faster are matmuls that are fused with their collectives, if ranks are threads? Writes
the key "fused" of bench/results/overlap.json.

    python3 tools/bench_fused.py [--only TEXT] [--rounds N] [--out bench/results/overlap.json]
        measures some cases; the others in the file are kept
    python3 tools/bench_fused.py --page docs/overlap.md
        puts the table of that file between the page's lines
        <!-- fused:begin --> and <!-- fused:end -->

Needs a built bench_layouts. Processes with one schedule each take turns, so that caches are in the
state of training; the result of a process is its median step. By `bulk`: the median ratio of
neighbouring processes, with its standard error. Exposed: milliseconds of a step in which rank 0
waits for collectives along x and y, or copies what they have received; waits inside a fused matmul
are not included.
"""
import statistics

import bench_page

MODEL = "layers=4,heads=8,channels=256,seq=128,vocab=1024"
# tokens of a micro-batch, ranks, layout
CASES = [(512, 2, "x2+sp"), (4096, 2, "x2+sp"), (512, 4, "x4+sp"), (4096, 4, "x4+sp"),
         (4096, 4, "x2.y2+sp")]
OVERLAPS = ("bulk", "bulk+fused", "fused")


def name(case):
    return f"{case[1]} threads, {case[2]}, {case[0]} tokens"


def steps_of(case, overlap):
    """Runs a process. Returns the milliseconds of its median step, and of these the exposed
    ones."""
    tokens, ranks, layout = case
    row = bench_page.alternate(ranks, [f"{layout}@{overlap}"], [
        "--model", MODEL, "--batch", str(tokens), "--micro", str(tokens // 128), "--threads", "1",
        "--steps", str(16384 // tokens + 4)])[0]
    return statistics.median(row["each_ms"][1:]), row["tensor_ms"]


def measure(case, args, _):
    ms, exposed = {o: [] for o in OVERLAPS}, {o: [] for o in OVERLAPS}
    for i in range(args.rounds):
        for o in OVERLAPS if i % 2 else OVERLAPS[::-1]:
            step, waits = steps_of(case, o)
            ms[o].append(step), exposed[o].append(waits)
    median = lambda of: {o: round(statistics.median(of[o]), 2) for o in OVERLAPS}
    return {"case": name(case), "processes": args.rounds, "ms": median(ms),
            "exposed_ms": median(exposed),
            "cost": {o: bench_page.against(ms["bulk"], ms[o]) for o in OVERLAPS[1:]}}


def table(d):
    return bench_page.markdown(
        " | `bulk`, ms | exposed | `bulk+fused`, ms | exposed | by `bulk` | `fused` by `bulk`",
        [[c["case"]]
         + [f"{c[k][o]:.1f}" for o in OVERLAPS[:2] for k in ("ms", "exposed_ms")]
         + [f"{100 * m:+.1f} ± {100 * e:.1f} %" for m, e in c["cost"].values()]
         for c in d["cases"]],
        f"{MODEL}. {bench_page.origin(d)}")


def main():
    p = bench_page.arguments(__doc__, "overlap.json")
    p.add_argument("--only", default="", help="cases whose names contain this")
    p.add_argument("--rounds", type=int, default=6,
                   help="processes of each case; medians are written (default 6)")
    bench_page.campaign(p.parse_args(), "fused", "fused", "python3 tools/bench_fused.py", CASES,
                        name, lambda r: r["case"], measure, table, str)


main()
