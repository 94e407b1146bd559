#!/usr/bin/env python3
"""How much does overlap gain? Compares layouts and schedules on emulated clusters; writes
bench/results/overlap.json.

    python3 tools/bench_overlap.py [--only TEXT] [--out bench/results/overlap.json]
        measures some cases; the others in the file are kept
    python3 tools/bench_overlap.py --page docs/overlap.md
        puts the table of that file between the page's lines
        <!-- overlap:begin --> and <!-- overlap:end -->

Needs root and iproute2 (tests/netlab/lab.sh), Open MPI and built programs. Ranks have priority over
other processes of the machine. For each case train_gpt plans twice: with all schedules, and without
overlap. The layouts that are predicted to be the best without overlap (four layouts, and the named
schemes that are predicted to take at most half as long again) are trained for some steps each. Then
the following are trained in turns; the results are medians:

    megatron      all ranks on x, every collective waited for where it starts; with micro-batches
                  of its own plan or those of the chosen layout, whichever are faster
    megatron+     the same layout under the schedule that is predicted to be its best
    none          the fastest of the layouts without overlap
    chosen        the choice of train_gpt (layout, micro-batch and schedule) and its two runners-up
    alike         the chosen layout without overlap

hidden: share of the time that overlap removes, of the milliseconds in which collectives block the
chosen layout without overlap. regret: how much longer the chosen one takes than the fastest of all.
In a case with full recompute all layouts recompute, the chosen one included. If a case has several
models, the first one is used for which Megatron is predicted to spend at most 55 % of its step on
communication: which one that is depends on the machine.
"""
import json
import subprocess
import sys
import tempfile

import bench_page
from bench_page import LAB, TOP, build
from bench_page import choice_name as name


def sizes(layers, seq, heads, width):
    return [f"layers={layers},heads={h},channels={h * width},seq={seq},vocab=512" for h in heads]


# name, arguments of `lab.sh up` (None: threads of one process), hosts, ranks of a host, recompute,
# --model or several models to choose from, tokens of a step
CASES = [
    ("2 hosts x 1, 400 Mbit/s", ["2", "400mbit"], 2, 1, "none", sizes(2, 128, range(8, 20, 2), 128),
     512),
    ("2 hosts x 1, 1 Gbit/s", ["2", "1gbit"], 2, 1, "none", sizes(2, 128, range(6, 18, 2), 64),
     8192),
    ("4 hosts x 1, 1 Gbit/s", ["4", "1gbit"], 4, 1, "none", sizes(4, 64, range(4, 20, 4), 64),
     2048),
    ("4 hosts x 1, 1 Gbit/s, full recompute", ["4", "1gbit"], 4, 1, "full",
     "layers=2,heads=6,channels=384,seq=128,vocab=512", 8192),
    ("2 hosts x 2, 200 Mbit/s", ["2", "200mbit"], 2, 2, "none",
     "layers=2,heads=8,channels=512,seq=128,vocab=512", 2048),
    ("2 racks x 2 hosts, 1 Gbit/s, trunk 200 Mbit/s", ["2 2", "1gbit", "200mbit"], 4, 1, "none",
     "layers=2,heads=8,channels=512,seq=128,vocab=512", 2048),
    ("2 ranks as threads", None, 1, 2, "none", "layers=4,heads=8,channels=256,seq=128,vocab=512",
     4096),
]


def run(case, cache, program, options):
    """Runs a program on the ranks of a case. Returns its standard output."""
    _, lab, hosts, ranks, _, model, batch = case
    command = [build(program), "--model", model, "--batch", str(batch),
               "--threads", "1"] + options
    env = dict(bench_page.lab_env(600), XDG_CACHE_HOME=cache)
    if lab:
        command = bench_page.on_lab(hosts, ranks, cache) + command
    else:
        command = [LAB, "first"] + command + ["--ranks", str(ranks)]
    done = subprocess.run(command, env=env, cwd=TOP, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}")
    return done.stdout.decode()


def plan(case, cache, overlap):
    """The choice of train_gpt, and the other layouts of its plan."""
    with tempfile.NamedTemporaryFile("r") as f:
        run(case, cache, "train_gpt", ["--plan", "--recompute", case[4], "--overlap", overlap,
                                       "--json", f.name])
        return json.loads(f.read())["plan"]


def train(case, cache, choices, steps, rounds):
    """Trains some choices. Returns the rows of bench_layouts by name, with their predictions."""
    predicted = {name(c): c["predicted_ms"] for c in choices}
    out = run(case, cache, "bench_layouts", ["--layouts", ",".join(predicted), "--steps",
                                             str(steps), "--rounds", str(rounds)])
    return {name(r): r | {"predicted_ms": predicted[name(r)]} for r in bench_page.measured(out)}


def communicates(a_plan):
    """The predicted share of communication in a step of Megatron."""
    megatron = named(a_plan, "megatron")
    return 1 - megatron["compute_ms"] / megatron["predicted_ms"]


def sized(case, cache):
    """The case, reduced to one of its models."""
    models = [case[5]] if isinstance(case[5], str) else case[5]
    for model in models:
        case = case[:5] + (model, case[6])
        if model == models[-1] or communicates(plan(case, cache, "none")) <= 0.55:
            return case


def named(a_plan, scheme):
    return next(c for c in a_plan["presets"] if c["scheme"] == scheme)


def candidates(still, most):
    """The candidates without overlap: the best layouts of the plan and the named schemes, each
    once."""
    best = still["candidates"][:most]
    near = [c for c in still["presets"] if c["fits"] and c["predicted_ms"] <= 1.5
            * best[0]["predicted_ms"]]
    return list({name(c): c for c in best + near}.values())


def measure(case, _, cache):
    """Plans a case, trains the candidates without overlap, then the finals. Returns the record of
    the case."""
    if case[1]:
        bench_page.up(*case[1])
    case = sized(case, cache)
    free, still = plan(case, cache, "auto"), plan(case, cache, "none")
    megatron = named(still, "megatron")
    chosen, runners = free["candidates"][0], free["candidates"][1:3]
    alike = dict(chosen, overlap="none", predicted_ms=None)
    plain = train(case, cache, candidates(still, 4), 2, 1)
    none = min(plain.values(), key=lambda r: r["ms"])
    megatrons = [megatron, dict(megatron, micro=chosen["micro"], predicted_ms=None)]
    finals = train(case, cache,
                   [alike, none] + megatrons + [named(free, "megatron"), chosen] + runners, 2, 4)
    megatron = min(megatrons, key=lambda c: finals[name(c)]["ms"] if name(c) in finals
                   else float("inf"))
    result = summary(case, finals,
                     *(finals[name(c)] for c in (megatron, named(free, "megatron"), none, alike,
                                                 chosen)))
    return result | {"finals": list(finals.values()), "without_overlap": list(plain.values())}


def summary(case, finals, megatron, megatron_overlap, none, alike, chosen):
    """The figures of a case: those of the five named layouts, and ratios to the chosen one."""
    held = lambda r: r["tensor_ms"] + r["other_ms"]
    best = min(finals.values(), key=lambda r: r["ms"])
    ratio = lambda r: round(r["ms"] / chosen["ms"], 3)
    return {"cluster": case[0], "ranks": case[2] * case[3], "model": case[5], "batch": case[6],
            "recompute": case[4],
            "megatron": name(megatron), "megatron_ms": megatron["ms"],
            "megatron_communication": round(held(megatron) / megatron["ms"], 3),
            "megatron_overlap": name(megatron_overlap),
            "megatron_overlap_ms": megatron_overlap["ms"],
            "none": name(none), "none_ms": none["ms"],
            "none_communication": round(held(none) / none["ms"], 3),
            "chosen": name(chosen), "chosen_ms": chosen["ms"],
            "chosen_error_ms": chosen["error_ms"], "predicted_ms": chosen["predicted_ms"],
            "over_megatron": ratio(megatron), "over_none": ratio(none), "best": name(best),
            "regret": round(chosen["ms"] / best["ms"] - 1, 4),
            "hidden": round(1 - held(chosen) / held(alike), 3) if held(alike) > 1 else None}


def words(choice):
    """x2@bulk@none@4 -> x2, bulk"""
    layout, overlap = choice.split("@")[:2]
    return layout if overlap == "none" else f"{layout}, {overlap}"


def table(d):
    rows = []
    for r in d["cases"]:
        model = dict(w.split("=") for w in r["model"].split(","))
        rows.append([r["cluster"], f"{model['layers']} x {model['channels']}, {r['batch']:,}",
                     f"{r['megatron_ms']:.0f}", f"{100 * r['megatron_communication']:.0f} %",
                     f"{r['megatron_overlap_ms']:.0f}", words(r["none"]), f"{r['none_ms']:.0f}",
                     words(r["chosen"]), f"{r['chosen_ms']:.0f} ± {r['chosen_error_ms']:.0f}",
                     f"{r['over_megatron']:.2f}x", f"{r['over_none']:.2f}x",
                     "-" if r["hidden"] is None else f"{100 * r['hidden']:.0f} %"])
    return bench_page.markdown(
        "cluster | layers x C, tokens | Megatron, ms | communicates | with overlap, ms | best "
        "without overlap | ms | chosen | ms | by Megatron | by the best without | hidden", rows,
        f"With full recompute all of a row has it. {bench_page.origin(d)}")


def say(r):
    return (f"{r['cluster']}: megatron {r['megatron_ms']:.0f} ms "
            f"({100 * r['megatron_communication']:.0f} % communication; with overlap "
            f"{r['megatron_overlap_ms']:.0f}), {r['none']} {r['none_ms']:.0f} ms, chosen "
            f"{r['chosen']} {r['chosen_ms']:.0f} ms: {r['over_megatron']}x, {r['over_none']}x, "
            f"hidden {r['hidden']}, regret {r['regret']} by {r['best']}")


def main():
    p = bench_page.arguments(__doc__, "overlap.json")
    p.add_argument("--only", default="", help="cases whose names contain this")
    bench_page.campaign(p.parse_args(), "overlap", None, "python3 tools/bench_overlap.py", CASES,
                        lambda c: c[0], lambda r: r["cluster"], measure, table, say)


main()
