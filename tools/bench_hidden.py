#!/usr/bin/env python3
"""How much of the communication along x and y does overlap hide, and what does overlap cost if
there is nothing to hide? Writes the key "hidden" of bench/results/overlap.json.

    python3 tools/bench_hidden.py [--only TEXT] [--rounds N] [--out bench/results/overlap.json]
        measures some cases; the others in the file are kept
    python3 tools/bench_hidden.py --page docs/overlap.md
        puts the table of that file between the page's lines
        <!-- hidden:begin --> and <!-- hidden:end -->

Needs root and iproute2 (tests/netlab/lab.sh), Open MPI and a built bench_layouts. Ranks have
priority over other processes of the machine. Two hosts of one rank train one model on x2 with links
of several rates, under the schedule that is predicted to be the best there. Steps with that
schedule alternate with serial steps, in which every collective is waited for where it starts. The
results are medians:

    compute        serial steps: time without waits for collectives and without the update
    communication  serial steps: time in which collectives along x and y block the rank
    exposed        steps with the schedule: the same
    hidden         1 - exposed / communication
    slower         time of everything else with the schedule, divided by that of serial steps: the
                   processors that compute also do the work of the network
    gained         time by which steps with the schedule are shorter, divided by communication

If there is nothing to hide (one rank; ranks as threads), schedules take single steps in turns in
one process, and several processes run one after the other: medians of the ratio of neighbouring
steps, with their standard errors. The ratio of `none` to `none` shows the error of the method.
"""
import json
import os
import statistics
import subprocess
import tempfile

import bench_page
from bench_page import build

# As in GPT-3, the vocabulary is four times as large as the number of channels.
MODEL = ["--model", "layers=4,heads=16,channels=2048,seq=128,vocab=8192", "--batch", "256",
         "--micro", "2", "--threads", "1"]
RATES = ["400mbit", "600mbit", "800mbit", "1000mbit"]
SMALL = ["--model", "layers=4,heads=8,channels=256,seq=128,vocab=1024", "--batch", "1024",
         "--micro", "4", "--steps", "10"]
STILL = [("1 rank", 1, "d1"), ("2 threads", 2, "x2"), ("2 threads", 2, "d2"),
         ("2 threads", 2, "z2")]


def on_lab(cache, program, options):
    command = bench_page.on_lab(2, 1, cache) + [build(program)] + MODEL + options
    return subprocess.run(command, env=bench_page.lab_env(600), cwd=bench_page.TOP,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()


def chosen(cache):
    with tempfile.NamedTemporaryFile("r") as f:
        on_lab(cache, "train_gpt", ["--plan", "--layout", "x2", "--recompute", "none", "--json",
                                    f.name])
        return json.loads(f.read())["plan"]["candidates"][0]


def point(rate, rounds):
    """Measures steps with a schedule and serial steps at one rate of the links."""
    bench_page.up(2, rate)
    with tempfile.TemporaryDirectory() as cache:
        best = chosen(cache)
        r = bench_page.measured(on_lab(cache, "bench_layouts", [
            "--layouts", f"x2@{best['overlap']}@none", "--serial", "--steps", "2", "--rounds",
            str(rounds)]))[0]
    rest = {k: r[k + "ms"] - r[k + "tensor_ms"] - r[k + "other_ms"] for k in ("", "serial_")}
    compute = rest["serial_"] - r["serial_update_ms"]
    return {"rate": rate, "overlap": r["overlap"], "ms": r["ms"], "serial_ms": r["serial_ms"],
            "compute_ms": round(compute, 1),
            "communication_ms": r["serial_tensor_ms"], "exposed_ms": r["tensor_ms"],
            "predicted_ms": best["predicted_ms"],
            "ratio": round(compute / r["serial_tensor_ms"], 2),
            "hidden": round(1 - r["tensor_ms"] / r["serial_tensor_ms"], 3),
            "slower": round(rest[""] / rest["serial_"] - 1, 3),
            "gained": round((r["serial_ms"] - r["ms"]) / r["serial_tensor_ms"], 3)}


def still(case, rounds):
    what, ranks, layout = case
    layouts = [f"{layout}@{overlap}" for overlap in ("none", "none", "bulk")]
    processes = [bench_page.alternate(ranks, layouts, SMALL) for _ in range(2 * rounds)]
    rows = [dict(p[0], each_ms=[ms for one in processes for ms in one[i]["each_ms"]]) for i,
            p in enumerate(zip(*processes))]
    costs = dict(zip(("none", "bulk"), (bench_page.against(rows[0]["each_ms"], r["each_ms"])
                                          for r in rows[1:])))
    return {"case": f"{what}, {layout}" if ranks > 1 else what, "steps": len(rows[0]["each_ms"]),
            "ms": round(statistics.median(rows[0]["each_ms"]), 2), "cost": costs}


def table(d):
    percent = lambda x: f"{100 * x:.0f} %"
    hidden = bench_page.markdown(
        "link, Mbit/s | compute, ms | communication, ms | compute by it | chosen | exposed, ms "
        "| hidden | step, ms | without overlap | kernels slower | gained",
        [[r["rate"].removesuffix("mbit"), f"{r['compute_ms']:.0f}", f"{r['communication_ms']:.0f}",
          f"{r['ratio']:.1f}", f"x2, {r['overlap']}", f"{r['exposed_ms']:.0f}",
          percent(r["hidden"]), f"{r['ms']:.0f}", f"{r['serial_ms']:.0f}", percent(r["slower"]),
          percent(r["gained"])] for r in sorted(d["points"], key=lambda r: r["ratio"])],
        "What schedules cost where there is nothing to hide, by `none`:")
    cost = bench_page.markdown(
        " | ms | steps | `none` again | `bulk`",
        [[s["case"], f"{s['ms']:.1f}", s["steps"]]
         + [f"{100 * m:+.2f} ± {100 * e:.2f} %" for m, e in s["cost"].values()]
         for s in d["still"]],
        bench_page.origin(d))
    return hidden + "\n" + cost


def main():
    p = bench_page.arguments(__doc__, "overlap.json")
    p.add_argument("--only", default="", help="rates and cases whose names contain this")
    p.add_argument("--rounds", type=int, default=5, help="measurements (default 5)")
    args = p.parse_args()
    old = bench_page.load(args.out).get("hidden", {}) if os.path.exists(args.out) else {}
    if args.page:
        return bench_page.put(args, "hidden", table(old))
    result = bench_page.stamp("python3 tools/bench_hidden.py")
    result |= {"model": MODEL[1], "points": old.get("points", []), "still": old.get("still", [])}
    for rate in RATES:
        if args.only in rate:
            r = point(rate, args.rounds)
            result["points"] = [x for x in result["points"] if x["rate"] != rate] + [r]
            print(r, flush=True)
            bench_page.save(args.out, "hidden", result)
    for case in STILL:
        if args.only in f"{case[0]}, {case[2]}":
            r = still(case, args.rounds)
            result["still"] = [x for x in result["still"] if x["case"] != r["case"]] + [r]
            print(r, flush=True)
            bench_page.save(args.out, "hidden", result)


main()
