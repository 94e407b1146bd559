#!/usr/bin/env python3
"""Compares meshes of one, two and three axes, and SUMMA, on 4 to 32 hosts with slow links. Writes
bench/results/meshes.json and meshes.svg.

    python3 tools/bench_meshes.py [--only 16] [--scheme SUMMA] [--steps 2]
                                  [--out bench/results/meshes.json]
        measures one cluster, schemes with that text; the others in the file are kept
    python3 tools/bench_meshes.py --page docs/benchmarks.md
        puts the table of that file between the page's lines
        <!-- meshes:begin --> and <!-- meshes:end -->, and draws again

Pure tensor parallelism: one replica, its weights sharded over all ranks. The number of channels
grows with the square root of the ranks, so each rank holds about as many weights on 4 hosts as on
32. Every host is a network namespace with a card of its own and one rank (tests/netlab/lab.sh;
needs root, iproute2, Open MPI and built programs). The links are so slow that two cores can compute
for 32 ranks: computing takes a tenth of a step.

ms: median of --steps steps on rank 0, after a warm-up step. received: bytes of a step that rank 0
receives from other ranks, counted. memory: bytes of rank 0's arenas. predicted: the prediction of
train_gpt --plan for the same layout, on a cluster file with the link's rate; nothing in that file
was measured in these runs.
"""
import json
import os
import subprocess

import bench_page
from bench_page import build

RATE = 50  # Mbit/s of a card
LAYERS, SEQ, SEQUENCES, VOCAB, HEADS = 2, 64, 8, 512, 32
GFLOPS = 120  # GFLOP/s of the machine, which all ranks share

SCHEMES = ["1-D, Megatron", "1-D, Megatron with sp", "2-D, ATP", "3-D, ATP in z", "SUMMA"]
# hosts, channels, a layout of each scheme
CLUSTERS = [
    (4, 256, ["x4", "x4+sp", "x2.y2+heads", None, "x2.y2+stay=y"]),
    (8, 384, ["x8", "x8+sp", "x4.y2+heads", "z2.x2.y2+heads", "x2.y4+stay=y"]),
    (16, 512, ["x16", "x16+sp", "x8.y2+heads", "z2.x4.y2+heads", "x4.y4+stay=y"]),
    (32, 768, ["x32", "x32+sp", "x8.y4+heads", "z2.x8.y2+heads", "x4.y8+stay=y"]),
]


def micro(layout):
    """Sequences of a rank's micro-batch; a step has one micro-batch."""
    return SEQUENCES // 2 if layout.startswith("z2") else SEQUENCES


def shape(channels):
    return ["--model", f"layers={LAYERS},heads={HEADS},channels={channels},seq={SEQ},vocab={VOCAB}",
            "--batch", str(SEQUENCES * SEQ)]


def predict(hosts, channels, layout, folder):
    """The prediction of train_gpt --plan for a layout on a cluster of these hosts."""
    cluster = os.path.join(folder, "cluster.txt")
    rate = 0.956 * RATE  # without headers of frames
    with open(cluster, "w") as f:
        f.write(f"name = lab\nnodes = {hosts}\nranks_per_node = 1\nthreads = 1\nflops_fp32 = "
                f"{GFLOPS / hosts}G\nmemory = 1GiB\n"
                f"memory_rate = {20 / hosts}GB/s\nlevel = switch ranks={hosts} latency=40us "
                f"rank_rate={rate}Mb/s port_rate={rate}Mb/s\n")
    plan = [build("train_gpt"), "--plan", "--cluster", cluster, "--layout",
            layout, "--micro", str(micro(layout)),
            "--overlap", "none", "--recompute", "none", "--json", "-"] + shape(channels)
    run = subprocess.run(plan, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         text=True)
    return json.loads(run.stdout)["plan"]


def train(hosts, channels, layouts, steps, folder):
    """Trains each layout in one job. Returns the lines of bench_layouts."""
    names = ",".join(f"{name}@none@none@{micro(name)}" for name in layouts)
    bench = bench_page.on_lab(hosts, 1, folder) + [
        build("bench_layouts"), "--layouts", names, "--threads", "1", "--steps", str(steps),
        "--rounds", "1", "--timeout", "200"] + shape(channels)
    return bench_page.rows_of(bench, 600, f"{hosts} hosts",
                              lambda lines: len(lines) == 1 + len(layouts))[1:]


def measure(cluster, args, folder):
    """Trains every scheme on one cluster. Returns its rows, and earlier ones of schemes that were
    not measured."""
    hosts, channels, layouts = cluster
    bench_page.up(hosts, f"{RATE}mbit")
    named = [(s, name) for s, name in zip(SCHEMES, layouts) if name and args.scheme in s]
    # SUMMA: a step takes long, so one is measured
    long = [name for _, name in named if "stay" in name]
    lines = {}
    for names, steps in ([name for _, name in named if name not in long], args.steps), (long, 1):
        if names:
            lines.update(zip(names, train(hosts, channels, names, steps, folder)))
    rows = {}
    for scheme, name in named:
        line, plan = lines[name], predict(hosts, channels, name, folder)
        rows[scheme] = {"scheme": scheme, "layout": name, "ms": line["ms"],
                        "predicted_ms": round(plan["predicted_ms"], 1),
                        "received": line["received"], "predicted_received": plan["received_bytes"],
                        "memory": line["memory"]}
    cases = bench_page.load(args.out)["cases"] if os.path.exists(args.out) else []
    before = {r["scheme"]: r for c in cases if c["hosts"] == hosts for r in c["rows"]}
    return {"hosts": hosts, "channels": channels, "weights": 12 * LAYERS * channels**2 // hosts,
            "rows": [(before | rows)[s] for s in SCHEMES if s in before | rows]}


# ---- table and figure

def table(d):
    return bench_page.markdown(
        "hosts | channels, weights of a rank | scheme | layout | MiB received | MiB of memory "
        "| ms | of 1-D | predicted ms",
        [[c["hosts"], f"{c['channels']}, {c['weights'] / 1e6:.2f} M", r["scheme"], r["layout"],
          f"{r['received'] / 2**20:.1f}", f"{r['memory'] / 2**20:.1f}", f"{r['ms']:.0f}",
          f"{c['rows'][0]['ms'] / r['ms']:.2f}x",
          f"{r['predicted_ms']:.0f} ({100 * (r['predicted_ms'] / r['ms'] - 1):+.0f} %)"]
         for c in d["cases"] for r in c["rows"]],
        f"{LAYERS} layers, {SEQUENCES} sequences of {SEQ} tokens in a step, medians of one or two "
        f"steps after one to warm up, no overlap, one rank on each host, cards of {RATE} Mbit/s in "
        f"one switch (emulated, all ranks on {d['machine']['cores']} cores of "
        f"{d['machine']['cpu']}), {d['date'][:10]}, commit {bench_page.commits(d['cases'])}: "
        f"`{d['command']}`. Predicted by `train_gpt --plan --cluster` from the rate of the links, "
        "without any calibration.")


def draw(d, path):
    """Draws the milliseconds of a step by number of hosts, a line for each scheme; predictions are
    dashed."""
    colours = ["#1f77b4", "#7fb2d9", "#d62728", "#2ca02c"]
    shown = [s for s in SCHEMES if s != "SUMMA"]  # its steps are several times as long
    x = {c["hosts"]: i / max(1, len(d["cases"]) - 1) for i, c in enumerate(d["cases"])}
    rows = [(c["hosts"], r) for c in d["cases"] for r in c["rows"] if r["scheme"] in shown]
    most = int(max(r[key] for _, r in rows for key in ("ms", "predicted_ms"))) // 1000 + 1
    styles = {"ms": ' stroke-width="2.5"', "predicted_ms": ' stroke-dasharray="3 4" opacity="0.7"'}
    lines = [(scheme, colour, [([(x[n], r[key] / 1000 / most) for n, r in rows
                                 if r["scheme"] == scheme], style)
                               for key, style in styles.items()])
             for scheme, colour in zip(shown, colours)]
    bench_page.chart(path, 340, [f"hosts with a rank each, cards of {RATE} Mbit/s; the same number "
                                 "of weights per rank", *((at, n) for n, at in x.items())],
                     [(s / most, f"{s} s") for s in range(most + 1)],
                     "time of a step; dashed: predicted", lines)


def say(case):
    return "\n".join(f"{case['hosts']:3d} hosts  {r['scheme']:22s} {r['layout']:18s} "
                     f"{r['received'] / 2**20:6.1f} MiB {r['ms']:8.0f} ms, "
                     f"predicted {r['predicted_ms']:8.0f}" for r in case["rows"])


def main():
    p = bench_page.arguments(__doc__, "meshes.json")
    p.add_argument("--only", default="", help="hosts of the one cluster to measure")
    p.add_argument("--scheme", default="", help="part of the names of the schemes to measure")
    p.add_argument("--steps", type=int, default=2,
                   help="measured steps of a layout (default %(default)s)")
    args = p.parse_args()
    if args.page and not args.check:
        draw(bench_page.load(args.out), os.path.splitext(args.out)[0] + ".svg")
    bench_page.campaign(args, "meshes", None, "python3 tools/bench_meshes.py", CLUSTERS,
                        lambda c: f"{c[0]} hosts", lambda c: f"{c['hosts']} hosts", measure, table,
                        say)


main()
