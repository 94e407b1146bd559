#!/usr/bin/env python3
"""Measures the time of the search for a layout on one core: runs build/bench_search and writes
"time" of bench/results/search.json.

    python3 tools/bench_search.py [--rounds 5] [--out bench/results/search.json]
    python3 tools/bench_search.py --page docs/planner.md
        puts the table of that file between the page's lines
        <!-- search:begin --> and <!-- search:end -->

Needs Python's standard library and a built bench_search. tools/bench_search.c explains its numbers.
"""
import json
import subprocess

import bench_page
from bench_page import build


def table(d):
    names = {"gpt-2": "GPT-2 124M", "gpt-3": "GPT-3 175B"}
    rows = []
    for r in d["rows"]:
        if r["memory"] != "limited" or r["options"] != "all":
            continue
        alike = [s for s in d["rows"] if (s["model"], s["ranks"]) == (r["model"], r["ranks"])]
        fixed = {s["options"]: s["search_ms"] for s in alike if s["memory"] == "limited"}
        deep = sorted((s["layers"], s["search_ms"]) for s in alike if s["memory"] == "any")
        fits = "" if r["best"] else " (nothing fits)"
        rows.append([names[r["model"]], f"{r['ranks']:,}", f"{r['candidates']:,}",
                     f"{r['priced']:,}{fits}", f"{r['search_ms']:.0f}", f"{r['plan_ms']:.0f}",
                     " / ".join(f"{fixed[o]:.0f}" for o in ("bulk", "no recompute", "layout")),
                     " / ".join(f"{ms:.0f}" for _, ms in deep)])
    return bench_page.markdown(
        "model | ranks | candidates | priced | ms | with named schemes, ms | bulk / no recompute "
        "/ layout alone, ms | 12 / 96 / 960 layers, ms", rows,
        f"One core of {d['machine']['cpu']}, {d['date'][:10]}, commit {d['commit']}: "
        f"`{d['command']}`. The last column is for ranks with any memory: otherwise deeper models "
        "have fewer candidates. Before it: the search where the schedule is given (bulk), or "
        "recompute (none), or both and the micro-batch.")


def main():
    p = bench_page.arguments(__doc__, "search.json")
    p.add_argument("--rounds", type=int, default=5, help="measurements (default 5)")
    args = p.parse_args()
    if args.page:
        return bench_page.put(args, "search", table(bench_page.load(args.out)["time"]))
    run = subprocess.run([build("bench_search"), "--rounds", str(args.rounds)],
                         check=True, capture_output=True, text=True)
    result = {**bench_page.stamp(f"python3 tools/bench_search.py --rounds {args.rounds}"),
              "rows": [json.loads(line) for line in run.stdout.splitlines()]}
    bench_page.save(args.out, "time", result)
    print(table(result), end="")


if __name__ == "__main__":
    main()
